"""The FastLanes order of packed bits: 1,024 words of T bits in W bits each.

The 1,024 values form T rows of `1024 / T` lanes; row r contains the values

    ORDER[r // 8] * 16 + (r % 8) * 128 + lane,   lane from 0 to 1024 / T

Each lane is packed separately, row after row from the least significant bit on, into W words of T
bits; a value can begin in one word and end in the next. Word w of lane l is at `w * lanes + l`.

So one shift handles a whole row of many packed blocks: numpy does T of them for any number
of blocks, and no value is processed individually.

Source:  Afroozeh and Boncz, "The FastLanes Compression Layout", VLDB 2023; the unified transposed
         layout. Lance packs 8, 16, 32 and 64-bit words so.
"""

from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lance_stream.file.blocks.data_blocks import WORDS, Words

S = TypeVar("S", bound=np.generic)

VALUES = 1024
ORDER = (0, 4, 2, 6, 1, 5, 3, 7)

_MIN_NARROWING = 4
"""Values that fit into words narrower by this factor are packed in those; halves do not pay."""


def unpack(packed: Words, bits_per_packed: int, values: Words | None = None) -> Words:
    """Unpack blocks of one width.

    Args:
        packed: (num_blocks, 1024 * bits_per_packed / T) words of T bits.
        bits_per_packed: Bits of a packed value, 0 to T.
        values: (num_blocks, 1024) words of T bits to unpack into; by default new ones.

    Returns:
        The values.
    """
    word = packed.dtype
    word_bits = word.itemsize * 8
    if values is None:
        values = np.empty((len(packed), VALUES), dtype=word)
    if bits_per_packed == 0:
        values[...] = 0
        return values
    narrow = _narrow_word(bits_per_packed, word)
    if narrow is word:
        _unpack_planes(_planes(packed, bits_per_packed, word), bits_per_packed, word_bits, values)
        return values
    small = np.empty(values.shape, dtype=narrow)
    _unpack_planes(_planes(packed, bits_per_packed, narrow), bits_per_packed, word_bits, small)
    values[...] = small
    return values


def _planes(packed: Words, bits_per_packed: int, word: np.dtype[np.unsignedinteger]) -> Words:
    """Return (num_words, num_blocks, lanes) words of each lane, in bit order."""
    lanes = VALUES // (packed.dtype.itemsize * 8)
    parts = packed.dtype.itemsize // word.itemsize
    words = packed.view(word).reshape(len(packed), bits_per_packed, lanes, parts)
    planes = words.transpose(1, 3, 0, 2)
    return np.ascontiguousarray(planes).reshape(bits_per_packed * parts, len(packed), lanes)


def _unpack_planes(planes: Words, bits_per_packed: int, num_rows: int, values: Words) -> None:
    word = planes.dtype
    word_bits = word.itemsize * 8
    _, num_blocks, lanes = planes.shape
    mask = word.type((1 << bits_per_packed) - 1)
    low = np.empty((num_blocks, lanes), dtype=word)
    high = np.empty_like(low)
    for row in range(num_rows):
        plane, shift = divmod(row * bits_per_packed, word_bits)
        np.right_shift(planes[plane], word.type(shift), out=low)
        if shift + bits_per_packed > word_bits:
            np.left_shift(planes[plane + 1], word.type(word_bits - shift), out=high)
            np.bitwise_or(low, high, out=low)
        np.bitwise_and(low, mask, out=_row(values, row, lanes))


def pick(
    words: Words,
    starts: npt.NDArray[np.int64],
    bits_per_packed: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> Words:
    """Unpack single values of blocks of any widths; arguments are broadcast.

    Args:
        words: Words of T bits that hold all blocks.
        starts: The first word of the block that each value is in.
        bits_per_packed: The width of that block.
        positions: The position of each in its block, below 1,024.

    Returns:
        A word of T bits for each value.
    """
    word = words.dtype
    word_bits = word.itemsize * 8
    lanes = VALUES // word_bits
    bits = _rows_of_values(word_bits)[positions] * bits_per_packed
    shifts = bits & (word_bits - 1)  # word_bits and lanes are powers of two
    at = starts + (bits >> word_bits.bit_length() - 1) * lanes + (positions & (lanes - 1))
    # a block of width 0 has no words, and a value may end in the word in which it begins
    last = at + np.where(shifts + bits_per_packed > word_bits, lanes, 0)
    has_words = bits_per_packed > 0
    if not has_words.all():
        at, last = np.where(has_words, at, 0), np.where(has_words, last, 0)
    values = words[at] >> shifts.astype(word)
    values |= words[last] << (-shifts & (word_bits - 1)).astype(word)
    picked: Words = values & _masks(word_bits)[bits_per_packed]
    return picked


@lru_cache(maxsize=4)
def _masks(word_bits: int) -> Words:
    """Return the word of T bits whose lowest are ones, for each number of them from 0 to T."""
    words = [(1 << count) - 1 for count in range(word_bits + 1)]
    return np.array(words, np.dtype(f"<u{word_bits // 8}"))


@lru_cache(maxsize=4)
def _rows_of_values(word_bits: int) -> npt.NDArray[np.int64]:
    """Return (1024,) the row of each value."""
    lanes = VALUES // word_bits
    rows = np.empty((1, VALUES), np.int64)
    for row in range(word_bits):
        _row(rows, row, lanes)[...] = row
    return rows.reshape(-1)


def pack(values: Words, bits_per_packed: int) -> Words:
    """Pack blocks of values that fit into a width.

    Args:
        values: (num_blocks, 1024) words of T bits, each less than 2 to the `bits_per_packed`.
        bits_per_packed: Bits of a packed value, 0 to T.

    Returns:
        (num_blocks, 1024 * bits_per_packed / T) words of T bits.
    """
    word = values.dtype
    word_bits = word.itemsize * 8
    lanes = VALUES // word_bits
    num_blocks = len(values)
    narrow = _narrow_word(bits_per_packed, word)
    if narrow is not word:
        values = values.astype(narrow)
    narrow_bits = narrow.itemsize * 8
    parts = word_bits // narrow_bits
    planes = np.empty((bits_per_packed * parts, num_blocks, lanes), dtype=narrow)
    moved = np.empty((num_blocks, lanes), dtype=narrow)
    for row in range(word_bits if bits_per_packed else 0):
        plane, shift = divmod(row * bits_per_packed, narrow_bits)
        source = _row(values, row, lanes)
        if shift:
            np.left_shift(source, narrow.type(shift), out=moved)
            np.bitwise_or(planes[plane], moved, out=planes[plane])
        else:
            planes[plane] = source
        if shift + bits_per_packed > narrow_bits:
            np.right_shift(source, narrow.type(narrow_bits - shift), out=planes[plane + 1])
    words = planes.reshape(bits_per_packed, parts, num_blocks, lanes).transpose(2, 0, 3, 1)
    words_per_block = bits_per_packed * parts * lanes
    return np.ascontiguousarray(words).reshape(num_blocks, words_per_block).view(word)


def _narrow_word(
    bits_per_packed: int, word: np.dtype[np.unsignedinteger]
) -> np.dtype[np.unsignedinteger]:
    """Return the word that a lane's bits are best shifted in: they are one stream, in any."""
    fits = next(
        (candidate for candidate in WORDS.values() if bits_per_packed <= candidate.itemsize * 8),
        word,
    )
    return fits if fits.itemsize * _MIN_NARROWING <= word.itemsize else word


def _row(values: npt.NDArray[S], row: int, lanes: int) -> npt.NDArray[S]:
    first = ORDER[row // 8] * 16 + (row % 8) * 128
    return values[:, first : first + lanes]
