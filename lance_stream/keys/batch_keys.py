"""The keys of a batch, as a lookup for the rows of a table.

A key is one or more columns. A `KeyLookup` is built from the keys of a batch, and finds the key of
the batch that each row of the table has. Each key column is replaced by codes (indices into the
batch's distinct values, from an Arrow hash table), and the codes of several columns are combined
pair by pair. No value becomes a Python object.

    batch     1, a    2, a    2, b            row    1, b    2, b    3, a
    codes     0, 0    1, 0    1, 1            codes  0, 1    1, 1    -, 0
    key       0       1       2               key    none    2       none

Most rows of a table have no key of the batch. They are excluded first, by a word computed from
their key (`key_filter`). The remaining rows are looked up by their words, and matches are compared
exactly; if two keys of the batch share a word, the rows are looked up by code instead.

Keys of different types are not compared: the caller casts the batch to the table's types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Positions, U64s
from lance_stream.errors import InvalidInputError
from lance_stream.keys.comparing import dense_ranks, same_rows, show_value
from lance_stream.keys.key_filter import MAX_KEYS, KeyFilter, are_exact, bytes_of, key_words

NO_MATCH = -1
"""Index of a missing value."""

# Above this number of candidate rows per key, a hash table of the keys pays off.
_SEARCHED_FOR_A_KEY = 4


def check_key_type(name: str, arrow_type: pa.DataType) -> None:
    """Raise unless a column can be a key, or part of one.

    Raises:
        InvalidInputError: Programs disagree about the equality of values of its type.
    """
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if not any(accepts(arrow_type) for accepts in _KEY_TYPES):
        raise InvalidInputError(
            f"the column {name!r} cannot be a key: its type is {arrow_type}. Keys are integers, "
            "strings, bytes, dates, timestamps, decimals or booleans"
        )


_KEY_TYPES = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
    pa.types.is_boolean,
)


def check_no_null_keys(names: Sequence[str], keys: Sequence[pa.Array]) -> None:
    """Raise if a key, or a part of one, is null.

    Args:
        names: The key columns.
        keys: (num_rows,) values of each key column.

    Raises:
        InvalidInputError: Some keys are null; the message has their number and an example.
    """
    bad = np.zeros(len(keys[0]), np.bool_)
    for key in keys:
        if key.null_count:
            bad |= pc.is_null(key).to_numpy(zero_copy_only=False)
    num_bad = int(np.count_nonzero(bad))
    if num_bad:
        text = show_key(names, keys, int(np.argmax(bad)))
        raise InvalidInputError(
            f"{num_bad} of {len(bad)} rows have no key, for example {text}: a null key never "
            "matches, so every batch would insert such a row again. Filter out these rows, or fill "
            "in the key"
        )


class KeyLookup:
    """The distinct keys of a batch, and which rows have them.

    Args:
        keys: (num_rows,) values of each key column, none of them null.

    Attributes:
        key_of_row: (num_rows,) i64, the number of each row's key, from 0 in order of first
            occurrence.
        num_keys: The number of distinct keys.
        distinct: The distinct values of each key column, in order of first occurrence.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self.distinct: list[pa.Array] = []
        self._pairs: list[tuple[int, pa.Array]] = []
        codes: Positions | None = None
        for values in map(without_dictionary, keys):
            if len(keys) == 1 and _are_distinct(values):
                distinct, indices = values, np.arange(len(values))
            else:
                distinct = pc.unique(values)
                indices = _index_in(values, distinct)
            self.distinct.append(distinct)
            if codes is None:
                codes = indices
            else:
                pairs = pa.array(codes * len(distinct) + indices)
                distinct_pairs = pc.unique(pairs)
                self._pairs.append((len(distinct), distinct_pairs))
                codes = _index_in(pairs, distinct_pairs)
        if codes is None:
            raise InvalidInputError("a key needs at least one column")
        self.key_of_row: Positions = codes
        self.num_keys = len(self._pairs[-1][1] if self._pairs else self.distinct[0])

    def find(self, keys: Sequence[pa.Array]) -> Positions:
        """Return the number of each row's key among the keys of the batch.

        Args:
            keys: (n,) values of each key column, in the batch's types; may be null.

        Returns:
            (n,) i64; -1 where the batch does not have the key.
        """
        numbers = np.full(len(keys[0]), NO_MATCH, np.int64)
        rows, positions = self.find_rows(keys)
        numbers[rows] = positions
        return numbers

    def find_rows(self, keys: Sequence[pa.Array]) -> tuple[Positions, Positions]:
        """Return the rows that have a key of the batch, ascending, and the numbers of their keys.

        Args:
            keys: As for `find`.
        """
        columns = [without_dictionary(key) for key in keys]
        search = self._search
        if search is None:
            numbers = self._numbers(columns)
            rows = np.flatnonzero(numbers >= 0)
            return rows, numbers[rows]
        rows, words = search.filter.candidates(columns)
        if not len(rows):
            return rows, rows
        if search.words is None or len(rows) > _SEARCHED_FOR_A_KEY * self.num_keys:
            candidates = [column.take(pa.array(rows)) for column in columns]
            numbers = self._numbers(candidates)
            hits = numbers >= 0
            return rows[hits], numbers[hits]
        nearest = np.minimum(np.searchsorted(search.words, words), self.num_keys - 1)
        hits = search.words[nearest] == words
        rows, numbers = rows[hits], search.numbers[nearest[hits]]
        same = _are_same(columns, search.columns, rows, numbers)
        return rows[same], numbers[same]

    @cached_property
    def _search(self) -> "_Search | None":
        """The search structure; None if there are no keys, or too many."""
        if not 0 < self.num_keys <= MAX_KEYS:
            return None
        columns = self.key_columns
        words = key_words(columns)
        order = np.argsort(words)
        in_order = words[order]
        is_unique = bool((in_order[1:] > in_order[:-1]).all())
        return _Search(columns, KeyFilter(words), in_order if is_unique else None, order)

    def __getstate__(self) -> dict[str, Any]:
        # Workers rebuild these faster than they could receive them.
        lazy = ("_search", "key_columns")
        return {name: value for name, value in self.__dict__.items() if name not in lazy}

    def _numbers(self, keys: Sequence[pa.Array]) -> Positions:
        numbers = _index_in(keys[0], self.distinct[0])
        for values, distinct, (factor, code_pairs) in zip(
            keys[1:], self.distinct[1:], self._pairs, strict=True
        ):
            indices = _index_in(values, distinct)
            is_there = (numbers >= 0) & (indices >= 0)
            pairs = np.where(is_there, numbers * factor + indices, NO_MATCH)
            numbers = _index_in(pa.array(pairs), code_pairs)
        return numbers

    @cached_property
    def key_columns(self) -> list[pa.Array]:
        """The (num_keys,) values of each key column, by the number of the key."""
        columns: list[pa.Array] = []
        codes: Positions | None = None
        for index in range(len(self._pairs), 0, -1):
            factor, code_pairs = self._pairs[index - 1]
            pairs = code_pairs.to_numpy() if codes is None else code_pairs.to_numpy()[codes]
            codes = pairs // factor
            columns.append(self.distinct[index].take(pa.array(pairs % factor)))
        first = self.distinct[0]
        columns.append(first if codes is None else first.take(pa.array(codes)))
        return columns[::-1]

    def bounds(self) -> list[tuple[pa.Scalar, pa.Scalar]]:
        """Return the smallest and the largest value of each key column."""
        extremes = [pc.min_max(values) for values in self.distinct]
        return [(extreme["min"], extreme["max"]) for extreme in extremes]


def _are_distinct(values: pa.Array) -> bool:
    """Return whether no value occurs twice. May return False because of a hash collision.

    Args:
        values: (n,) without nulls.
    """
    words = np.sort(key_words([values]) if are_exact([values]) else hash_keys([values]))
    return bool((words[1:] > words[:-1]).all())


def _are_same(
    columns: Sequence[pa.Array], keys: Sequence[pa.Array], rows: Positions, numbers: Positions
) -> npt.NDArray[np.bool_]:
    """Return which rows equal the key with the same word."""
    same = np.ones(len(rows), np.bool_)
    is_exact = are_exact(columns)
    if is_exact and not columns[0].null_count:
        return same
    for values, stored in zip(columns, keys, strict=True):
        there = values.take(pa.array(rows))
        equal = pc.is_valid(there) if is_exact else pc.equal(there, stored.take(pa.array(numbers)))
        same &= pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
    return same


class _Search(NamedTuple):
    """The search structure.

    Attributes:
        columns: (num_keys,) values of each key column.
        filter: Excludes most rows.
        words: (num_keys,) the words of the keys, ascending; None if two keys share a word.
        numbers: (num_keys,) the numbers of the keys in that order.
    """

    columns: list[pa.Array]
    filter: KeyFilter
    words: U64s | None
    numbers: Positions


def hash_keys(keys: Sequence[pa.Array], seed: int = 0) -> npt.NDArray[np.uint64]:
    """Return a hash of each key, the same in every process and on every machine.

    Args:
        keys: (num_rows,) values of each key column, none of them null.
        seed: A number of 64 bits; hashes with different seeds are independent. Transactions store
            hashes with seed 0, which may collide for keys that differ in trailing zero bytes.

    Returns:
        (num_rows,) u64.
    """
    hashes = np.full(len(keys[0]), len(keys), np.uint64)
    for values in map(without_dictionary, keys):
        hashes = _mixed(hashes ^ _hash_column(values, np.uint64(seed)))
    return hashes


def _hash_column(values: pa.Array, seed: np.uint64) -> npt.NDArray[np.uint64]:
    """Hash the bytes of each value, eight at a time, and their number of bytes."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if any(accepts(values.type) for accepts in _FIXED_WIDTH):
        return _hash_fixed_width(values, seed)
    data, starts, sizes = bytes_of(values)
    if not len(sizes):
        return np.empty(0, np.uint64)
    first, stop = int(starts[0]), int(starts[-1] + sizes[-1])
    padded = np.concatenate([data[first:stop], np.zeros(8, np.uint8)])
    eights = np.ndarray((stop - first + 1,), "<u8", padded, strides=(1,))  # from each byte on
    key_starts = starts - first
    hashes = sizes.astype(np.uint64)
    if seed:  # with seed 0, different sizes and first words may cancel each other out
        hashes = _mixed(hashes + seed)
    shortest = int(sizes.min())
    for position in range(0, int(sizes.max()), 8):
        if position + 8 <= shortest:  # every value has eight more bytes
            hashes = _mixed(hashes ^ (eights[key_starts + position] + seed))
            continue
        active = np.flatnonzero(sizes > position)
        num_remaining = np.minimum(sizes[active] - position, 8)
        words = eights[key_starts[active] + position] & _FIRST_BYTES[num_remaining]
        hashes[active] = _mixed(hashes[active] ^ (words + seed))
    return hashes


_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""By n: a mask for the first n of eight little-endian bytes."""


_FIXED_WIDTH = (pa.types.is_primitive, pa.types.is_fixed_size_binary, pa.types.is_decimal)


def _hash_fixed_width(values: pa.Array, seed: np.uint64) -> npt.NDArray[np.uint64]:
    width, count = values.type.bit_width // 8, len(values)
    data = values.buffers()[-1]
    raw = np.frombuffer(b"" if data is None else data, np.uint8)
    words = raw[values.offset * width : (values.offset + count) * width].reshape(count, width)
    if width % 8:
        words = np.pad(words, ((0, 0), (0, -width % 8)))
    hashes = np.full(count, width, np.uint64)
    for column in words.view("<u8").T:
        hashes = _mixed(hashes ^ (column + seed))
    return hashes


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return words in which each bit depends on all bits of the input (splitmix64)."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


@dataclass(frozen=True)
class Winners:
    """The winning row of each key.

    Attributes:
        rows: (num_keys,) i64, the winning row of each key in the batch.
        num_late: The number of rows superseded by a newer row of the batch.
    """

    rows: Positions
    num_late: int


def only_rows(names: Sequence[str], keys: Sequence[pa.Array], lookup: KeyLookup) -> Winners:
    """Return the row of each key, if no key occurs twice.

    Raises:
        InvalidInputError: A key occurs twice; the message gives the number and an example.
    """
    num_rows = len(lookup.key_of_row)
    if lookup.num_keys != num_rows:
        counts = np.bincount(lookup.key_of_row, minlength=lookup.num_keys)
        row = int(np.argmax(counts[lookup.key_of_row] > 1))
        raise InvalidInputError(
            f"{int(np.count_nonzero(counts > 1))} keys occur more than once in the batch, for "
            f"example {show_key(names, keys, row)} {int(counts[lookup.key_of_row[row]])} times: "
            "it is ambiguous which row to apply. Name the column that orders them (sequence_by), "
            "or keep one row per key"
        )
    return Winners(np.arange(num_rows, dtype=np.int64), 0)


def newest_rows(
    batch: pa.RecordBatch,
    names: Sequence[str],
    lookup: KeyLookup,
    sequence_by: str,
    deletes: npt.NDArray[np.bool_],
    *,
    deletes_win: bool = False,
    except_columns: Sequence[str] = (),
) -> Winners:
    """Return the row with the largest sequence of each key.

    Args:
        batch: (n,) rows.
        names: The key columns.
        lookup: The keys of the batch.
        sequence_by: The column that orders rows of one key.
        deletes: (n,) whether each row deletes its key.
        deletes_win: Whether a delete is newer than other rows with the same sequence.
        except_columns: Columns that are not stored.

    Raises:
        InvalidInputError: A sequence is null; or two rows of a key share the largest sequence but
            differ in their effect: they store different values, or only one of them deletes.
    """
    check_no_null_sequences(batch, names, sequence_by)
    ranks = dense_ranks(batch.column(sequence_by))
    if deletes_win:
        ranks = 2 * ranks + deletes
    best = np.zeros(lookup.num_keys, np.int64)
    np.maximum.at(best, lookup.key_of_row, ranks)
    newest = np.flatnonzero(ranks == best[lookup.key_of_row])
    rows = np.full(lookup.num_keys, NO_MATCH, np.int64)
    rows[lookup.key_of_row[newest]] = newest
    # Other rows of a key with the same largest sequence must have the same effect.
    twins = newest[rows[lookup.key_of_row[newest]] != newest]
    others = rows[lookup.key_of_row[twins]]
    both_delete = deletes[twins] & deletes[others]
    twins, others = twins[~both_delete], others[~both_delete]
    if len(twins):
        stored = (name for name in batch.schema.names if name not in except_columns)
        effects = batch.select([*dict.fromkeys((*stored, sequence_by))])
        effects = effects.append_column("delete", pa.array(deletes))
        check_same(effects, names, sequence_by, twins, others)
    return Winners(rows, len(lookup.key_of_row) - len(rows))


def check_no_null_sequences(batch: pa.RecordBatch, names: Sequence[str], sequence_by: str) -> None:
    """Raise if a row has no sequence.

    Args:
        batch: The rows.
        names: The key columns.
        sequence_by: The column that orders rows of one key.

    Raises:
        InvalidInputError: Some rows have none; the message has their number and an example.
    """
    sequence = batch.column(sequence_by)
    if sequence.null_count:
        row = int(np.argmax(pc.is_null(sequence).to_numpy(zero_copy_only=False)))
        text = show_key(names, [batch.column(name) for name in names], row)
        raise InvalidInputError(
            f"{sequence.null_count} rows have no {sequence_by!r}, for example that of {text}: "
            "without it, the newest row of a key is unknown. Fill in the missing values"
        )


def check_same(
    batch: pa.RecordBatch,
    names: Sequence[str],
    sequence_by: str,
    twins: Positions,
    others: Positions,
) -> None:
    """Raise unless every row in `twins` equals its counterpart in `others`.

    Args:
        batch: The rows.
        names: The key columns.
        sequence_by: The column that orders rows of one key.
        twins: (n,) i64 rows.
        others: (n,) i64 rows with the same keys and sequences.

    Raises:
        InvalidInputError: Two rows differ; the message shows their key.
    """
    same = same_rows(batch.take(pa.array(twins)), batch.take(pa.array(others)))
    if not same.all():
        row = int(twins[np.argmin(same)])
        keys = [batch.column(name) for name in names]
        raise InvalidInputError(
            f"two different rows with {show_key(names, keys, row)} have the same {sequence_by!r}, "
            f"{show_value(batch.column(sequence_by)[row])}: which one is newer is ambiguous. "
            "Order them by another column, or keep one row per key"
        )


def without_dictionary(values: pa.Array) -> pa.Array:
    """Return dictionary-encoded values decoded, and other values unchanged."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _index_in(values: pa.Array, distinct: pa.Array) -> Positions:
    """Return the index of each value in `distinct`, or -1."""
    indices = pc.fill_null(pc.index_in(values, value_set=distinct), NO_MATCH)
    if values.null_count:
        indices = pc.if_else(pc.is_null(values), NO_MATCH, indices)
    numbers: Positions = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def show_key(names: Sequence[str], keys: Sequence[pa.Array], row: int) -> str:
    """Format the key of a row for messages."""
    parts = [f"{name}={show_value(key[row])}" for name, key in zip(names, keys, strict=True)]
    return "(" + ", ".join(parts) + ")"
