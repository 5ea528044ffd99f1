"""Digests of rows: their count, and a number that is independent of their order.

Two sets of rows have the same digest if they have the same values under the same names, the same
number of times. The order of rows and columns, and the representation in Arrow, do not matter. The
sum of the digests of parts is the digest of the whole, so many workers can compute it.

All arithmetic uses unsigned 64-bit integers, modulo 2^64, in two lanes with different constants.
The digest of rows is their count and the sums of their codes in both lanes.

    code of a row       that of a struct of its columns
    struct              mix(sum of field(name, part))   over its parts that are not null
    field(name, value)  a * code(value) + b             a, b: of the name and the value's kind
    list                mix(n * LENGTH + sum of k[j] * field("item", value j))
    map                 mix(n * LENGTH + sum of the codes of structs of "key" and "value")
    text, bytes         mix(n * LENGTH + sum of k[j] * fold(word j))   words of 8 bytes, padded by 0
    number              integers and decimals, by value
    float               its bits as float32 if exact, otherwise as float64
    bool, date, time    0 or 1; days since 1970; nanoseconds of the day
    timestamps          seconds since 1970, and nanoseconds; "instant" with a zone, else "timestamp"
    duration, interval  seconds and nanoseconds; months, days and nanoseconds

A null adds nothing, so a missing column is the same as one that is null in all rows. A dictionary
counts as its values, an extension type as its storage. docs/reference/row-digest.md has the exact
definition and its reasons. Ledgers and users store digests: the definition must not change.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import U64s
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError

"""Codes: (n,) if both lanes agree, or (2, n)."""

ROWS_PER_STEP: Final = 1 << 15
"""The number of rows per step, whose codes fit into a processor's cache."""

_ELEMENTS_PER_STEP: Final = 1 << 15
_SHORT_WORDS: Final = 8  # the maximum number of words of a short text
_TABLE: Final = 1 << 13
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
_SEEDS: Final = (0x243F6A8885A308D3, 0x13198A2E03707344)  # the fraction of pi, in hexadecimal


@dataclass(frozen=True, slots=True)
class RowsDigest:
    """The count of some rows, and a digest of their contents.

    Attributes:
        num_rows: The number of rows.
        lanes: The sums of their codes, modulo 2^64.
    """

    num_rows: int = 0
    lanes: tuple[int, int] = (0, 0)

    def __add__(self, other: "RowsDigest") -> "RowsDigest":
        """Return the digest of both sets of rows."""
        first, second = ((a + b) & _MASK for a, b in zip(self.lanes, other.lanes, strict=True))
        return RowsDigest(self.num_rows + other.num_rows, (first, second))

    @property
    def text(self) -> str:
        """The lanes as 32 hexadecimal digits."""
        return f"{self.lanes[0]:016x}{self.lanes[1]:016x}"

    @classmethod
    def parse(cls, num_rows: int, text: str) -> "RowsDigest":
        """Parse the digest of some rows.

        Raises:
            InvalidInputError: It is not a digest.
        """
        if not re.fullmatch("[0-9a-f]{32}", text) or num_rows < 0:
            raise InvalidInputError(f"{text!r} is not a digest of {num_rows} rows")
        return cls(num_rows, (int(text[:16], 16), int(text[16:], 16)))

    def __str__(self) -> str:
        return f"{self.num_rows} rows, {self.text}"


NO_ROWS: Final = RowsDigest()


def add_up(digests: Iterable[RowsDigest]) -> RowsDigest:
    """Return the digest of all sets of rows."""
    return reduce(RowsDigest.__add__, digests, NO_ROWS)


def digest_of(rows: pa.RecordBatch | pa.Table) -> RowsDigest:
    """Return the digest of rows, with all columns.

    Raises:
        UnsupportedFeatureError: A column's type has no digest, and cannot be stored in a table.
    """
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return add_up(
        _digest(batch.slice(start, ROWS_PER_STEP))
        for batch in batches
        for start in range(0, batch.num_rows, ROWS_PER_STEP)
    )


def row_hashes(rows: pa.RecordBatch) -> U64s:
    """Return a hash of each row over all columns, (n,) u64; equal rows have the same hash.

    Raises:
        UnsupportedFeatureError: A column's type has no digest, and cannot be stored in a table.
    """
    parts = [
        _struct_codes(zip(part.schema.names, part.columns, strict=True), part.num_rows)[0]
        for start in range(0, rows.num_rows, ROWS_PER_STEP)
        for part in [rows.slice(start, ROWS_PER_STEP)]
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _digest(batch: pa.RecordBatch) -> RowsDigest:
    parts = zip(batch.schema.names, batch.columns, strict=True)
    sums = _struct_codes(parts, batch.num_rows).sum(axis=1)
    return RowsDigest(batch.num_rows, (int(sums[0]), int(sums[1])))


# --- the constants


def _splitmix(seed: int, count: int, first: int = 0) -> U64s:
    """Return the outputs `first` to `first + count - 1` of the generator SplitMix64.

    Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014).
    """
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    z = np.uint64(seed) + steps * np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _odd_numbers(which: int, count: int) -> U64s:
    """Return (2, count) odd numbers, which differ between the lanes."""
    return np.stack([_splitmix(seed ^ which, count) | np.uint64(1) for seed in _SEEDS])


_K: Final = _odd_numbers(0, _TABLE)
"""k[j] for the first positions of a list, or words of a string."""

_LENGTH: Final = _odd_numbers(1, 1)
_WEIGHTS: Final = _odd_numbers(2, 5)[0]
"""Factors of the second to last words of a scalar; the same in both lanes."""

_SUMS_OF_K: Final = np.concatenate([np.zeros((2, 1), np.uint64), np.cumsum(_K, axis=1)], axis=1)


@lru_cache(maxsize=64)
def _factors(section: int) -> U64s:
    """Return the (2, 1) factors by which k[section * 8192 + i] differs from k[i]."""
    if section == 0:
        return np.ones((2, 1), np.uint64)
    columns = [_splitmix(seed ^ 3, 1, section) | np.uint64(1) for seed in _SEEDS]
    return np.stack(columns)


@lru_cache(maxsize=4096)
def _field(kind: str, name: str) -> tuple[U64s, U64s]:
    """Return (2, 1) a and (2, 1) b of a field."""
    text = f"{kind}:{name}".encode("utf-8", "surrogatepass")
    words = np.frombuffer(hashlib.blake2b(text, digest_size=32).digest(), "<u8")
    numbers = words.astype(np.uint64).reshape(2, 2, 1)
    return numbers[0] | np.uint64(1), numbers[1]


def _mix(codes: U64s) -> U64s:
    """Mix the bits of codes in place; bijective, and maps 0 to 0."""
    codes ^= codes >> np.uint64(32)
    codes *= np.uint64(0xD6E8FEB86659FD93)
    codes ^= codes >> np.uint64(32)
    codes *= np.uint64(0xD6E8FEB86659FD93)
    codes ^= codes >> np.uint64(32)
    return codes


def _fold(words: U64s) -> U64s:
    """Fold the upper half of words into the lower half; bijective."""
    return words ^ (words >> np.uint64(32))


# --- values


def _plain(array: pa.Array) -> pa.Array:
    """Return the plain values of a dictionary, runs, an extension type or views."""
    arrow = array.type
    if isinstance(arrow, pa.BaseExtensionType):
        return _plain(array.storage)
    if pa.types.is_dictionary(arrow):
        return _plain(_decoded(array))
    if pa.types.is_run_end_encoded(arrow):
        return _plain(pc.run_end_decode(array))
    if pa.types.is_string_view(arrow) or pa.types.is_binary_view(arrow):
        return array.cast(pa.large_binary() if pa.types.is_binary_view(arrow) else pa.string())
    return array


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    """Decode a dictionary, whose indices are arbitrary within null structs and lists."""
    try:
        return array.dictionary_decode()
    except pa.ArrowIndexError:
        indices = array.indices.cast(pa.int64())
        stop = len(array.dictionary)
        is_valid = pc.and_(pc.greater_equal(indices, 0), pc.less(indices, stop))
        return array.dictionary.take(pc.if_else(is_valid, indices, None))


_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_integer, "number"),
    (pa.types.is_decimal, "number"),
    (pa.types.is_floating, "float"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
    (pa.types.is_fixed_size_binary, "bytes"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (lambda arrow: pa.types.is_timestamp(arrow) and arrow.tz is not None, "instant"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_duration, "duration"),
    (pa.types.is_interval, "interval"),
    (pa.types.is_map, "map"),
    (pa.types.is_list, "list"),
    (pa.types.is_large_list, "list"),
    (pa.types.is_fixed_size_list, "list"),
    (pa.types.is_struct, "struct"),
)


@lru_cache(maxsize=1024)
def _kind(arrow: pa.DataType) -> str:
    for fits, kind in _KINDS:
        if fits(arrow):
            return kind
    raise UnsupportedFeatureError(f"rows with values of type {arrow} have no digest")


def _are_valid(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return (n,) whether values are not null; None if none is null."""
    if not array.null_count:
        return None
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _codes(array: pa.Array) -> U64s:
    """Return the codes of plain values, not all null; they are arbitrary for nulls."""
    return _CODES[_kind(array.type)](array)


def _struct_codes(parts: Iterable[tuple[str, pa.Array]], count: int) -> U64s:
    sums = np.zeros((2, count), np.uint64)
    for name, array in parts:
        array = _plain(array)
        kind = _kind(array.type)
        if array.null_count == count:
            continue
        a, b = _field(kind, name)
        codes = _codes(array) * a
        codes += b
        valid = _are_valid(array)
        if valid is not None:
            codes *= valid
        sums += codes
    return _mix(sums)


def _structs(array: pa.StructArray) -> U64s:
    parts = ((part.name, array.field(index)) for index, part in enumerate(array.type))
    return _struct_codes(parts, len(array))


# --- scalars


def _values(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """Return values of fixed width without a copy; they are arbitrary for nulls."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * size)


def _words(values: npt.NDArray[Any]) -> U64s:
    return values.astype(np.int64, copy=False).view(np.uint64)


def _bools(array: pa.Array) -> U64s:
    values = array.cast(pa.uint8())
    return _values(values, np.uint8).astype(np.uint64)


def _numbers(array: pa.Array) -> U64s:
    arrow = array.type
    if pa.types.is_decimal(arrow):
        return _decimals(array)
    values = _values(array, arrow.to_pandas_dtype())
    codes = _fold(_words(values))
    if arrow == pa.uint64():
        # As a 128-bit number, its second word is 0, although the sign of the first one implies -1.
        codes += (values >> np.uint64(63)) * np.uint64(_MASK) * _WEIGHTS[0]
    return codes


def _decimals(array: pa.Array) -> U64s:
    arrow = array.type
    if arrow.scale < 0:
        array = array.cast(pa.decimal256(76, 0))
    elif arrow.bit_width < 128:
        array = array.cast(pa.decimal128(38, arrow.scale))
    width = array.type.bit_width // 64
    words = np.array(_values(array, np.dtype((np.uint64, width)))).reshape(-1, width)
    scales = np.full(len(array), array.type.scale, np.int64)
    is_long = (words[:, 1:] != _sign_words(words[:, 0])[:, None]).any(axis=1)
    short = ~is_long
    words[short, 0], scales[short] = _strip_short(words[short, 0].view(np.int64), scales[short])
    if is_long.any():
        words[is_long], scales[is_long] = _strip_long(words[is_long], scales[is_long])
    codes = _fold(words[:, 0])
    for limb in range(1, width):
        codes += (words[:, limb] ^ _sign_words(words[:, limb - 1])) * _WEIGHTS[limb - 1]
    codes += scales.view(np.uint64) * _WEIGHTS[4]
    return codes


def _sign_words(words: U64s) -> U64s:
    """Return all ones for words that are negative in two's complement; otherwise 0."""
    return np.asarray(words.view(np.int64) >> 63).view(np.uint64)


def _strip_short(
    values: npt.NDArray[np.int64], scales: npt.NDArray[np.int64]
) -> tuple[U64s, npt.NDArray[np.int64]]:
    """Return unscaled values without trailing zeros, and the remaining scales."""
    values, scales = values.copy(), np.where(values == 0, 0, scales)
    active = np.flatnonzero(scales > 0)
    while len(active):
        quotients = values[active] // 10
        is_divisible = quotients * 10 == values[active]
        active, quotients = active[is_divisible], quotients[is_divisible]
        values[active] = quotients
        scales[active] -= 1
        active = active[scales[active] > 0]
    return values.view(np.uint64), scales


def _strip_long(words: U64s, scales: npt.NDArray[np.int64]) -> tuple[U64s, npt.NDArray[np.int64]]:
    """Return (n, width) unscaled values without trailing zeros, and the remaining scales."""
    is_negative = words[:, -1].view(np.int64) < 0
    limbs = _negated(words, is_negative).view(np.uint32).astype(np.uint64)
    active = np.flatnonzero(scales > 0)
    while len(active):
        quotients, rest = limbs[active], np.zeros(len(active), np.uint64)
        for limb in range(limbs.shape[1] - 1, -1, -1):
            rest = (rest << np.uint64(32)) | quotients[:, limb]
            quotients[:, limb], rest = rest // np.uint64(10), rest % np.uint64(10)
        active, quotients = active[rest == 0], quotients[rest == 0]
        limbs[active] = quotients
        scales[active] -= 1
        active = active[scales[active] > 0]
    magnitudes = limbs.astype(np.uint32).view(np.uint64)
    return _negated(magnitudes, is_negative), scales


def _negated(words: U64s, which: npt.NDArray[np.bool_]) -> U64s:
    """Return two's complement numbers, little-endian words, with some negated."""
    result = words.copy()
    carry = which.astype(np.uint64)
    for limb in range(words.shape[1]):
        flipped = np.where(which, ~words[:, limb], words[:, limb])
        result[:, limb] = flipped + carry
        carry = carry & (result[:, limb] == 0)
    return result


def _floats(array: pa.Array) -> U64s:
    values = _values(array, array.type.to_pandas_dtype())
    if values.dtype != np.float64:
        return _bits_of_singles(values.astype(np.float32, copy=False)).astype(np.uint64)
    with np.errstate(over="ignore", invalid="ignore"):
        singles = values.astype(np.float32)
    # Bits of float32 have an upper half of 0, those of float64 do not, except below 2^-1042.
    codes = _fold(np.ascontiguousarray(values).view(np.uint64))
    is_single = (singles == values) | np.isnan(values)
    np.copyto(codes, _bits_of_singles(singles), where=is_single)
    return codes


def _bits_of_singles(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Return the bits of float32 values, with only one zero and one NaN."""
    values = values + np.float32(0)
    bits = values.view(np.uint32)
    if np.isnan(values.min()):
        bits[np.isnan(values)] = 0x7FC00000
    return bits


def _dates(array: pa.Array) -> U64s:
    if pa.types.is_date64(array.type):
        return _fold(_words(_values(array, np.int64) // 86_400_000))
    return _fold(_words(_values(array, np.int32)))


_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _times(array: pa.Array) -> U64s:
    values = _values(array, np.int32 if pa.types.is_time32(array.type) else np.int64)
    return _fold(_words(values.astype(np.int64) * (10**9 // _PER_SECOND[array.type.unit])))


def _spans(array: pa.Array) -> U64s:
    """Return the codes of timestamps and durations."""
    values, per_second = _values(array, np.int64), _PER_SECOND[array.type.unit]
    seconds = values // per_second
    parts = values - seconds * per_second
    return _seconds_and(seconds, parts * (10**9 // per_second))


def _seconds_and(seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int64]) -> U64s:
    codes: U64s = _words(nanos) * _WEIGHTS[0]
    codes += _fold(_words(seconds))
    return codes


def _intervals(array: pa.Array) -> U64s:
    dtype = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])
    values = _values(array, dtype)
    codes = _seconds_and(values["months"].astype(np.int64), values["days"].astype(np.int64))
    codes += _fold(_words(np.ascontiguousarray(values["nanos"]))) * _WEIGHTS[1]
    return codes


# --- texts and bytes


def _texts(array: pa.Array) -> U64s:
    count = len(array)
    data = array.buffers()[-1]
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        starts = (np.arange(count, dtype=np.int64) + array.offset) * width
        lengths = np.full(count, width, np.int64)
    else:
        offsets = _offsets(array).astype(np.int64, copy=False)
        starts, lengths = offsets[:-1], np.diff(offsets)
    sums = lengths.view(np.uint64) * _LENGTH
    if data is None or not data.size:
        return _mix(sums)
    first, last = int(starts[0]), int(starts[-1] + lengths[-1])
    padded = np.zeros(last - first + 8, np.uint8)
    padded[:-8] = np.frombuffer(data, np.uint8, last - first, first)
    # The word of 8 bytes that starts at each byte.
    words = np.ndarray((last - first + 1,), "<u8", padded, strides=(1,))
    starts = starts - first
    longest = int(lengths.max())
    if longest <= 8 * _SHORT_WORDS:
        _add_short(sums, words, starts, lengths, longest)
    else:
        _add_long(sums, words, starts, lengths)
    return _mix(sums)


def _offsets(array: pa.Array) -> npt.NDArray[Any]:
    is_large = (
        pa.types.is_large_string(array.type)
        or pa.types.is_large_binary(array.type)
        or pa.types.is_large_list(array.type)
    )
    dtype = np.dtype(np.int64 if is_large else np.int32)
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize)


def _read_words(words: Any, starts: Any, lengths: Any) -> U64s:
    """Return the folded words at some bytes, of which the first `lengths` bytes count."""
    read: U64s = words[starts]
    unused = (8 - np.minimum(lengths, 8)).view(np.uint64) * np.uint64(8)
    if unused.any():
        # Every word has at least one byte, so this never shifts by 64, which is undefined.
        read = read & (np.uint64(_MASK) >> unused)
    return _fold(read)


def _add_short(sums: U64s, words: Any, starts: Any, lengths: Any, longest: int) -> None:
    for word in range(-(-longest // 8)):
        which = np.flatnonzero(lengths > 8 * word)
        if len(which) == len(lengths):
            sums += _read_words(words, starts + 8 * word, lengths - 8 * word) * _K[:, word, None]
        else:
            words_read = _read_words(words, starts[which] + 8 * word, lengths[which] - 8 * word)
            sums[:, which] += words_read * _K[:, word, None]


def _add_long(sums: U64s, words: Any, starts: Any, lengths: Any) -> None:
    """Add the words of strings of any length, in sections of 8,192 words."""
    section, which = 0, np.flatnonzero(lengths > 0)
    while len(which):
        begin = starts[which] + section * _TABLE * 8
        num_remaining = lengths[which] - section * _TABLE * 8
        counts = np.minimum(-(-num_remaining // 8), _TABLE)
        for part in _slices(counts):
            positions = _numbers_within(counts[part])
            # All words of this section of some strings, one after the other.
            starts_of_words = np.repeat(begin[part], counts[part]) + 8 * positions
            rest = np.repeat(num_remaining[part], counts[part]) - 8 * positions
            weighted = _read_words(words, starts_of_words, rest) * _K[:, positions]
            section_sums = _segment_sums(weighted, counts[part])
            sums[:, which[part]] += section_sums * _factors(section)
        which = which[num_remaining > _TABLE * 8]
        section += 1


def _slices(counts: npt.NDArray[np.int64]) -> Iterable[slice]:
    """Yield slices of rows with at most `_ELEMENTS_PER_STEP` elements in total, or of one row."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + _ELEMENTS_PER_STEP, side="right"))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop


def _numbers_within(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return 0, 1, ... counts[0] - 1, 0, 1, ... counts[1] - 1, ..."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


def _segment_sums(values: U64s, counts: npt.NDArray[np.int64]) -> U64s:
    """Return the (2, n) sums of counts[0], counts[1], ... consecutive values."""
    sums = np.zeros((2, len(counts)), np.uint64)
    full = np.flatnonzero(counts)
    if len(full):
        starts = (np.cumsum(counts) - counts)[full]
        sums[:, full] = np.add.reduceat(values, starts, axis=1)
    return sums


# --- lists and maps


def _lists(array: pa.Array) -> U64s:
    starts, lengths, items = _items(array)
    sums = lengths.view(np.uint64) * _LENGTH
    items = _plain(items)
    if len(items) == items.null_count:
        return _mix(sums)
    a, b = _field(_kind(items.type), "item")
    valid = _are_valid(items)
    filled = np.flatnonzero(lengths)
    size = int(lengths[filled[0]])
    is_even = len(items) == size * len(filled) and bool((lengths[filled] == size).all())
    if is_even and valid is None and size <= _TABLE:
        sums_of_lists = _vector_sums(items, size)
        sums_of_lists *= a
        sums_of_lists += b * _SUMS_OF_K[:, size, None]
        if len(filled) == len(lengths):
            sums += sums_of_lists
        else:
            sums[:, filled] += sums_of_lists
        return _mix(sums)
    weighted = _codes(items) * a
    weighted += b
    if valid is not None:
        weighted *= valid
    _add_items(sums, weighted, starts, lengths)
    return _mix(sums)


def _items(
    array: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], pa.Array]:
    """Return the starts of lists in their items, the lengths, and the items."""
    count = len(array)
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = np.arange(count, dtype=np.int64) * size
        values = array.values.slice(array.offset * size, count * size)
        return starts, np.full(count, size, np.int64), values
    offsets = _offsets(array).astype(np.int64, copy=False)
    values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    return offsets[:-1] - offsets[0], np.diff(offsets), values


def _vector_sums(items: pa.Array, size: int) -> U64s:
    """Return the (2, n) sums of k[j] * code of lists of the same size, without nulls."""
    weights = np.ascontiguousarray(_K[:, :size].T)
    rows_per_step = max(_ELEMENTS_PER_STEP // size, 1)
    num_rows = len(items) // size
    sums = np.empty((2, num_rows), np.uint64)
    for start in range(0, num_rows, rows_per_step):
        stop = min(start + rows_per_step, num_rows)
        codes = _codes(items.slice(start * size, (stop - start) * size))
        if codes.ndim == 1:
            sums[:, start:stop] = (codes.reshape(-1, size) @ weights).T
        else:
            lanes = codes.reshape(2, -1, size) * _K[:, None, :size]
            sums[:, start:stop] = lanes.sum(axis=2)
    return sums


def _add_items(sums: U64s, values: U64s, starts: Any, lengths: Any) -> None:
    """Add the sums of k[j] times the values, (2, n), of each list."""
    section, which = 0, np.flatnonzero(lengths > 0)
    while len(which):
        begin = starts[which] + section * _TABLE
        num_remaining = lengths[which] - section * _TABLE
        counts = np.minimum(num_remaining, _TABLE)
        for part in _slices(counts):
            positions = _numbers_within(counts[part])
            starts_of_words = np.repeat(begin[part], counts[part]) + positions
            section_sums = _segment_sums(
                values[:, starts_of_words] * _K[:, positions], counts[part]
            )
            sums[:, which[part]] += section_sums * _factors(section)
        which = which[num_remaining > _TABLE]
        section += 1


def _maps(array: pa.MapArray) -> U64s:
    offsets = _offsets(array).astype(np.int64, copy=False)
    lengths = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    sums = lengths.view(np.uint64) * _LENGTH
    entries = array.values.slice(first, last - first)
    entries = _struct_codes(
        ((name, entries.field(index)) for index, name in enumerate(("key", "value"))), last - first
    )
    sums += _segment_sums(entries, lengths)
    return _mix(sums)


_CODES: Final[dict[str, Callable[[Any], U64s]]] = {
    "bool": _bools,
    "number": _numbers,
    "float": _floats,
    "text": _texts,
    "bytes": _texts,
    "date": _dates,
    "time": _times,
    "instant": _spans,
    "timestamp": _spans,
    "duration": _spans,
    "interval": _intervals,
    "map": _maps,
    "list": _lists,
    "struct": _structs,
}
