"""Words of keys: numbers of 64 bits, equal for equal keys, by which keys are found and sorted.

    key_words     for the filter of one process: a whole value of up to 8 bytes, or the first and
                  last 8 bytes of a longer one
    hash_keys     a hash of all bytes, the same on every machine: transactions store it
    words_of      for the key index: a whole value, or two hashes with random seeds

A word of `words_of` identifies its key: a number of up to 8 bytes by itself, another key by 96 bits
of two hashes. The probability that a batch of 50,000 keys has a collision with a billion keys is
below 10^-15. Other words only exclude keys, and the values are compared (`batch_keys`).
"""

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions, U64s

_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)
_WORD_BYTES: Final = 8


def without_dictionary(values: pa.Array) -> pa.Array:
    """Return dictionary-encoded values decoded, and other values unchanged."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def are_exact(keys: Sequence[pa.Array]) -> bool:
    """Return whether equal words mean equal keys."""
    return len(keys) == 1 and _is_small_number(keys[0].type)


def _is_small_number(arrow_type: pa.DataType) -> bool:
    if pa.types.is_fixed_size_binary(arrow_type):
        return False
    try:
        return int(arrow_type.bit_width) <= 8 * _WORD_BYTES
    except ValueError:
        return False


class Words(NamedTuple):
    """The words that identify keys.

    Attributes:
        words: (n,) u64; equal for equal keys.
        others: (n,) u32 further bits; None if the words are exact.
    """

    words: U64s
    others: npt.NDArray[np.uint32] | None


def words_of(keys: Sequence[pa.Array], seeds: tuple[int, int]) -> Words:
    """Return the words that identify keys.

    Args:
        keys: (n,) values of each key column, none of them null.
        seeds: The seeds of the hashes.
    """
    keys = [without_dictionary(key) for key in keys]
    if are_exact(keys):
        return Words(key_words(keys), None)
    second = hash_keys(keys, seeds[1])
    return Words(first_words(keys, seeds[0]), (second >> np.uint64(32)).astype(np.uint32))


def first_words(keys: Sequence[pa.Array], seed: int) -> U64s:
    """Return the first word of each key, by which the runs of the key index are sorted.

    Args:
        keys: As for `words_of`.
        seed: The seed of the first hash.
    """
    keys = [without_dictionary(key) for key in keys]
    return key_words(keys) if are_exact(keys) else hash_keys(keys, seed)


def new_seeds() -> tuple[int, int]:
    """Return random seeds of two hashes."""
    return secrets.randbits(64), secrets.randbits(64)


# --- words of bytes


def key_words(keys: Sequence[pa.Array]) -> U64s:
    """Return a word for each key; equal keys have equal words, and a few others, too.

    Args:
        keys: (num_rows,) values of each key column, without dictionaries. Nulls become
            arbitrary words.
    """
    words = _words_of(keys[0])
    for values in keys[1:]:
        words = words * _FACTOR
        words ^= words >> np.uint64(32)
        words += _words_of(values)
    return words


def _words_of(values: pa.Array) -> U64s:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if not len(values):
        return np.empty(0, np.uint64)
    if _is_small_number(values.type):
        data = np.frombuffer(values.buffers()[1], f"i{values.type.bit_width // 8}")
        data_of_values = data[values.offset : values.offset + len(values)]
        return (
            data_of_values.view(np.uint64)
            if data_of_values.itemsize == _WORD_BYTES
            else data_of_values.astype(np.uint64)
        )
    raw, offsets = _bytes_and_offsets(values)
    width = int(offsets[1]) - int(offsets[0])
    if width >= _WORD_BYTES and bool((np.diff(offsets) == width).all()):
        return _words_of_one_width(raw, int(offsets[0]), len(values), width)
    starts = offsets.astype(np.int64)
    return _words_of_any_width(raw, starts[:-1], np.diff(starts))


def _words_of_one_width(raw: npt.NDArray[np.uint8], start: int, num_rows: int, width: int) -> U64s:
    """Return words of contiguous values of one width, without gathering bytes."""
    # Strided views: one unaligned u64 at the end, and one at the start of every value.
    lasts = np.ndarray((num_rows,), "<u8", raw, start + width - _WORD_BYTES, (width,))
    firsts = np.ndarray((num_rows,), "<u8", raw, start, (width,))
    words: U64s = lasts * _FACTOR
    words += firsts
    words ^= np.uint64(width)
    return words


def _words_of_any_width(raw: npt.NDArray[np.uint8], starts: Positions, sizes: Positions) -> U64s:
    shortest = int(sizes.min())
    if shortest < _WORD_BYTES:
        # padding, so that eight bytes can be read from a short value at the end
        raw = np.concatenate([raw, np.zeros(_WORD_BYTES, np.uint8)])
    # One unaligned u64 from every byte on.
    eights = np.ndarray((len(raw) - _WORD_BYTES + 1,), "<u8", raw, strides=(1,))
    firsts = eights[starts]
    lasts = eights[np.maximum(starts + sizes - _WORD_BYTES, starts)]
    if shortest < _WORD_BYTES:
        short = np.flatnonzero(sizes < _WORD_BYTES)
        missing = (8 * (_WORD_BYTES - sizes[short])).astype(np.uint64)
        # Clear the bytes beyond the value; the shift count for an empty value, 64, is invalid.
        short_words = np.where(
            sizes[short] > 0, (firsts[short] << missing) >> missing, np.uint64(0)
        )
        firsts[short] = lasts[short] = short_words
    words: U64s = lasts * _FACTOR
    words += firsts
    words ^= sizes.astype(np.uint64)
    return words


def bytes_of(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Positions, Positions]:
    """Return a byte array, and the start and length of each value in it.

    Args:
        values: (n,) of a variable-length binary type or a type of whole bytes.
    """
    raw, offsets = _bytes_and_offsets(values)
    starts = offsets.astype(np.int64)
    return raw, starts[:-1], np.diff(starts)


def _bytes_and_offsets(
    values: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.signedinteger]]:
    """Return a byte array, and (n + 1,) offsets of the values in it."""
    kind = values.type
    first, stop = values.offset, values.offset + len(values) + 1
    offsets: npt.NDArray[np.signedinteger]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = np.frombuffer(values.buffers()[1], np.int32)[first:stop]
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        offsets = np.frombuffer(values.buffers()[1], np.int64)[first:stop]
    else:
        offsets = np.arange(first, stop) * (kind.bit_width // 8)
    data = values.buffers()[-1]
    return np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8), offsets


# --- hashes


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
