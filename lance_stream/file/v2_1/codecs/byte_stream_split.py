"""Byte-stream-split codec: first the first bytes of all values, then the second ones, and so on.

A mini-block chunk is one buffer:

    bytes   (bits_per_value / 8, num_values) u8   row i: byte i of each value

It saves nothing by itself: a general codec around it does.

Source:  encodings21.ByteStreamSplit in the proto; 32 and 64-bit values.
"""

import numpy as np

from lance_stream.errors import CorruptDataError
from lance_stream.file.chunked_buffers import ChunkedBuffer, Counts
from lance_stream.file.data_blocks import FixedWidthBlock
from lance_stream.file.v2_1.codecs.flat import decode_chunks as decode_flat_chunks
from lance_stream.file.v2_1.codecs.flat import encode_chunks as encode_flat_chunks

BITS_PER_VALUE = (32, 64)

MAX_CHUNK_BYTES = 4096
"""Bytes of a chunk that we write, as in the reference."""


def decode_chunks(
    buffer: ChunkedBuffer, num_values: Counts, bits_per_value: int
) -> FixedWidthBlock:
    """Decode the chosen chunks of a page: neighbours of one size at once.

    Raises:
        CorruptDataError: A chunk has not the bytes that its values need.
    """
    if bits_per_value not in BITS_PER_VALUE:
        raise CorruptDataError(f"values of {bits_per_value} bits cannot be split into bytes")
    flat = decode_flat_chunks(buffer, num_values, bits_per_value)
    width = bits_per_value // 8
    data = np.empty_like(flat.data)
    borders = np.flatnonzero(np.diff(num_values, prepend=-1, append=-1))
    stops = np.cumsum(num_values * width)
    for first, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        count = int(num_values[first])
        part = slice(int(stops[first]) - count * width, int(stops[stop - 1]))
        streams = flat.data[part].reshape(stop - first, width, count)
        data[part].reshape(stop - first, count, width)[...] = streams.transpose(0, 2, 1)
    return FixedWidthBlock(bits_per_value, flat.num_values, data)


def encode_chunks(block: FixedWidthBlock) -> tuple[ChunkedBuffer, Counts]:
    """Split values of 32 or 64 bits.

    Returns:
        The bytes of the chunks, and how many values each has.
    """
    width = block.bits_per_value // 8
    per_chunk = MAX_CHUNK_BYTES // width
    chunks, num_values = encode_flat_chunks(
        block, max_chunk_values=per_chunk, max_chunk_bytes=MAX_CHUNK_BYTES
    )
    data = np.empty_like(block.data)
    num_full = block.num_values // per_chunk * MAX_CHUNK_BYTES
    for part in (slice(0, num_full), slice(num_full, None)):
        count = min(per_chunk, len(data[part]) // width)
        if count:
            values = block.data[part].reshape(-1, count, width)
            data[part].reshape(-1, width, count)[...] = values.transpose(0, 2, 1)
    return ChunkedBuffer(data, chunks.starts, chunks.sizes), num_values
