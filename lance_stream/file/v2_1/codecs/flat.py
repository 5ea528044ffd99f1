"""Flat codec: values as they are.

One buffer, in each position (mini-block chunk, block, per value):

    values   (num_values,) of bits_per_value   little-endian, without gaps

1-bit values are a bitmap, least significant bit first; a chunk's bitmap starts at a byte.

Source:  encodings21.Flat in the proto.
"""

import numpy as np

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.chunked_buffers import (
    ChunkedBuffer,
    Counts,
    consecutive,
    holders,
    joined,
    words_at,
)
from lance_stream.file.data_blocks import (
    WORDS,
    Bytes,
    FixedWidthBlock,
    fixed_width_block,
    size_in_bytes,
    word_of,
)

MAX_BITS_PER_VALUE = 1 << 34
"""Far more than any value has; a page's description that says more is damaged."""


def check_bits_per_value(bits_per_value: int) -> None:
    """Check a stored width.

    Raises:
        CorruptDataError: No value is so wide.
    """
    if not 0 < bits_per_value <= MAX_BITS_PER_VALUE:
        raise CorruptDataError(f"values of {bits_per_value} bits cannot be")


def decode_chunks(
    buffer: ChunkedBuffer, num_values: Counts, bits_per_value: int
) -> FixedWidthBlock:
    """Decode the chosen chunks of a page.

    Raises:
        CorruptDataError: A chunk has not the bytes that its values need.
    """
    bits = _checked_bits(buffer, num_values, bits_per_value)
    total = int(num_values.sum())
    data = joined(buffer)
    if bits_per_value % 8 and (bits[:-1] % 8).any():
        data = _without_gaps(data, buffer.sizes * 8, bits)
    return FixedWidthBlock(bits_per_value, total, data)


def pick_chunks(
    buffer: ChunkedBuffer, num_values: Counts, bits_per_value: int, places: Counts
) -> FixedWidthBlock | None:
    """Return single values of the chosen chunks of a page.

    Args:
        buffer: The chunks.
        num_values: (num_chunks,) how many values each has.
        bits_per_value: Their width.
        places: Which values, counted over all chunks.

    Returns:
        None if values are no words of 8, 16, 32 or 64 bits.

    Raises:
        CorruptDataError: As in `decode_chunks`.
    """
    _checked_bits(buffer, num_values, bits_per_value)
    if bits_per_value not in WORDS:
        return None
    word = word_of(bits_per_value)
    chunks, inside = holders(num_values, places)
    words = words_at(buffer.data, buffer.starts[chunks] + inside * word.itemsize, word)
    return FixedWidthBlock(bits_per_value, len(words), words.view(np.uint8))


def decode(buffer: Bytes, num_values: int, bits_per_value: int) -> FixedWidthBlock:
    """Decode one buffer that is read whole.

    Raises:
        CorruptDataError: It has not the bytes that its values need.
    """
    check_bits_per_value(bits_per_value)
    return fixed_width_block(bits_per_value, num_values, buffer)


def encode_chunks(
    block: FixedWidthBlock, *, max_chunk_values: int, max_chunk_bytes: int
) -> tuple[ChunkedBuffer, Counts]:
    """Cut values into chunks, all of one size but for the last, without a copy.

    Returns:
        The bytes of the chunks, and how many values each has.

    Raises:
        InvalidInputError: Two values (or eight, if they do not fill bytes) are larger than a chunk.
    """
    num_values = chunk_counts(
        block.num_values,
        bits_per_value=block.bits_per_value,
        max_chunk_values=max_chunk_values,
        max_chunk_bytes=max_chunk_bytes,
    )
    sizes = (num_values * block.bits_per_value + 7) // 8
    return consecutive(block.data, sizes), num_values


def chunk_counts(
    num_values: int, *, bits_per_value: int, max_chunk_values: int, max_chunk_bytes: int
) -> Counts:
    """Return how many values of one width go into each chunk.

    Returns:
        (num_chunks,) the largest power of two that stays below `max_chunk_bytes`, again and
        again; then the rest.

    Raises:
        InvalidInputError: Two values (or eight, if they do not fill bytes) are larger than a chunk.
    """
    least = 2 if bits_per_value % 8 == 0 else 8
    if size_in_bytes(least, bits_per_value) > max_chunk_bytes:
        raise InvalidInputError(
            f"{least} values of {bits_per_value} bits do not fit into a mini-block chunk of "
            f"{max_chunk_bytes} bytes; write them full-zip"
        )
    count = least
    while (
        2 * count <= max_chunk_values
        and size_in_bytes(2 * count, bits_per_value) <= max_chunk_bytes
    ):
        count *= 2
    num_full, rest = divmod(num_values, count)
    return np.array([count] * num_full + [rest] * (rest > 0), dtype=np.int64)


def _checked_bits(buffer: ChunkedBuffer, num_values: Counts, bits_per_value: int) -> Counts:
    """Return the bits of each chunk's values, if it has as many."""
    check_bits_per_value(bits_per_value)
    bits = num_values * bits_per_value
    if (buffer.sizes != (bits + 7) // 8).any():
        place = int(np.argmax(buffer.sizes != (bits + 7) // 8))
        raise CorruptDataError(
            f"a chunk of {num_values[place]} values of {bits_per_value} bits "
            f"has {buffer.sizes[place]} bytes"
        )
    return bits


def _without_gaps(data: Bytes, stored_bits: Counts, used_bits: Counts) -> Bytes:
    """Take out the bits that fill up a chunk's last byte."""
    bits = np.unpackbits(data, bitorder="little")
    pairs = np.stack([used_bits, stored_bits - used_bits], axis=1).reshape(-1)
    is_used = np.repeat(np.arange(len(pairs)) % 2 == 0, pairs)
    return np.packbits(bits[is_used], bitorder="little")
