"""A fast filter for rows that may have a key of a batch, applied before the exact lookup.

Every key becomes a word. The word is multiplied by a large odd number, and the upper bits of the
product are an index into a table of booleans, which records whether the batch has such a key:

    key  ->  word (u64)  ->  word * ODD >> shift  ->  is there a key?

A word contains a whole value of up to 8 bytes, or the first and last 8 bytes of a longer value.
Hits are checked again with another number and another table, to remove accidental ones. The tables
fit into the processor's caches, and rows are processed in parts that fit, too. Most rows cost a few
nanoseconds, a fraction of the cost of a hash table of the values, and no hash table is rebuilt for
every small fragment.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions, U64s

MAX_KEYS: Final = 1 << 21
"""The maximum number of keys; for more, the table would be too full, or too large, to be useful."""

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD: Final = np.uint64(0xD6E8FEB86659FD93)
_ROWS_AT_ONCE: Final = 1 << 15
_SLOTS_PER_KEY: Final = 16
_MIN_BITS: Final = 10
_MAX_BITS: Final = 22
_WORD_BYTES: Final = 8


class KeyFilter:
    """Finds rows that may have a key of a batch.

    Args:
        words: (num_keys,) the words of the keys (`key_words`).
    """

    def __init__(self, words: U64s) -> None:
        num_bits = (_SLOTS_PER_KEY * max(len(words), 1) - 1).bit_length()
        self._shift = np.uint64(64 - min(max(num_bits, _MIN_BITS), _MAX_BITS))
        num_slots = 1 << (64 - int(self._shift))
        self._is_there, self._is_also_there = np.zeros((2, num_slots), np.bool_)
        self._is_there[(words * _ODD) >> self._shift] = True
        self._is_also_there[(words * _OTHER_ODD) >> self._shift] = True

    def candidates(self, keys: Sequence[pa.Array]) -> tuple[Positions, U64s]:
        """Return the rows that may have one of the keys, ascending, and their words.

        Args:
            keys: (num_rows,) values of each key column, as for `key_words`.
        """
        num_rows = len(keys[0])
        scratch = np.empty(min(num_rows, _ROWS_AT_ONCE), np.uint64)
        offsets, word_parts = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for start in range(0, num_rows, _ROWS_AT_ONCE):
            words = key_words([key.slice(start, _ROWS_AT_ONCE) for key in keys])
            positions = scratch[: len(words)]
            np.multiply(words, _ODD, out=positions)
            np.right_shift(positions, self._shift, out=positions)
            # numpy uses signed numbers as indices without a conversion
            rows = np.flatnonzero(self._is_there[positions.view(np.int64)])
            if not len(rows):
                continue
            # an accidental hit rarely occurs in both tables
            words = words[rows]
            stay = self._is_also_there[(words * _OTHER_ODD) >> self._shift]
            offsets.append(rows[stay] + start)
            word_parts.append(words[stay])
        return np.concatenate(offsets), np.concatenate(word_parts)


def are_exact(keys: Sequence[pa.Array]) -> bool:
    """Return whether equal words mean equal keys."""
    return len(keys) == 1 and _is_small_number(keys[0].type)


def key_words(keys: Sequence[pa.Array]) -> U64s:
    """Return a word for each key; equal keys have equal words.

    Args:
        keys: (num_rows,) values of each key column, without dictionaries. Nulls become
            arbitrary words.
    """
    words = _words_of(keys[0])
    for values in keys[1:]:
        words = words * _OTHER_ODD
        words ^= words >> np.uint64(32)
        words += _words_of(values)
    return words


def _is_small_number(arrow_type: pa.DataType) -> bool:
    if pa.types.is_fixed_size_binary(arrow_type):
        return False
    try:
        return int(arrow_type.bit_width) <= 8 * _WORD_BYTES
    except ValueError:
        return False


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
    words: U64s = lasts * _OTHER_ODD
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
    words: U64s = lasts * _OTHER_ODD
    words += firsts
    words ^= sizes.astype(np.uint64)
    return words


def bytes_of(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Positions, Positions]:
    """Return a byte array, and the start and length of each value in it.

    Args:
        values: (n,) of a variable-length binary type or a fixed-width type.
    """
    raw, offsets = _bytes_and_offsets(values)
    starts = offsets.astype(np.int64)
    return raw, starts[:-1], np.diff(starts)


def _bytes_and_offsets(
    values: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.signedinteger]]:
    """Return a byte array, and (n + 1,) offsets of the values in it."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
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
