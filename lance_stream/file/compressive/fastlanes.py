"""The FastLanes order of packed bits: 1,024 words of T bits in W bits each.

The 1,024 values stand in T rows of `1024 / T` lanes; row r holds the values

    ORDER[r // 8] * 16 + (r % 8) * 128 + lane,   lane from 0 to 1024 / T

Each lane is packed by itself, row after row from the least significant bit on, into W words of T
bits; a value can begin in one word and end in the next. Word w of lane l lies at `w * lanes + l`.

So one shift serves a whole row of many packed blocks at once: numpy does T of them for any number
of blocks, and no value is looked at by itself.

Source:  Afroozeh and Boncz, "The FastLanes Compression Layout", VLDB 2023; the unified transposed
         layout. Lance packs 8, 16, 32 and 64-bit words so.
"""

import numpy as np

from lance_stream.file.data_blocks import Words

VALUES = 1024
ORDER = (0, 4, 2, 6, 1, 5, 3, 7)


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
    lanes = VALUES // word_bits
    num_blocks = len(packed)
    if values is None:
        values = np.empty((num_blocks, VALUES), dtype=word)
    if bits_per_packed == 0:
        values[...] = 0
        return values
    planes = packed.reshape(num_blocks, bits_per_packed, lanes).transpose(1, 0, 2).copy()
    mask = word.type((1 << bits_per_packed) - 1)
    low = np.empty((num_blocks, lanes), dtype=word)
    high = np.empty_like(low)
    for row in range(word_bits):
        plane, shift = divmod(row * bits_per_packed, word_bits)
        np.right_shift(planes[plane], word.type(shift), out=low)
        if shift + bits_per_packed > word_bits:
            np.left_shift(planes[plane + 1], word.type(word_bits - shift), out=high)
            np.bitwise_or(low, high, out=low)
        np.bitwise_and(low, mask, out=_row(values, row, lanes))
    return values


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
    planes = np.zeros((bits_per_packed, num_blocks, lanes), dtype=word)
    if bits_per_packed:
        for row in range(word_bits):
            plane, shift = divmod(row * bits_per_packed, word_bits)
            source = _row(values, row, lanes)
            planes[plane] |= source << word.type(shift)
            if shift + bits_per_packed > word_bits:
                planes[plane + 1] |= source >> word.type(word_bits - shift)
    return planes.transpose(1, 0, 2).reshape(num_blocks, bits_per_packed * lanes)


def _row(values: Words, row: int, lanes: int) -> Words:
    first = ORDER[row // 8] * 16 + (row % 8) * 128
    return values[:, first : first + lanes]
