"""Byte-stream-split codec: the first bytes of all values, then the second bytes, and so on.

A mini-block chunk is one buffer:

    bytes   (bits_per_value / 8, num_values) u8   row i: byte i of each value

It saves nothing alone, but helps a general codec around it.

Source:  encodings21.ByteStreamSplit in the proto; 32 and 64-bit values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Counts
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer
from lance_stream.file.blocks.data_blocks import FixedWidthBlock
from lance_stream.file.v2_1.codecs import flat
from lance_stream.file.v2_1.codecs.codec import EncodedMiniBlock, MiniBlockCodec, Parse, only
from lance_stream.file.v2_1.codecs.flat import Flat

BITS_PER_VALUE = (32, 64)

MAX_CHUNK_BYTES = 4096
"""Bytes per chunk that we write, as in the reference."""


@dataclass(frozen=True, slots=True)
class ByteStreamSplit(MiniBlockCodec):
    """Words split into their bytes.

    Args:
        values: The words; of 32 or 64 bits, otherwise damaged.
    """

    name = "byte_stream_split"

    values: Flat

    @classmethod
    def from_proto(cls, message: pb.ByteStreamSplit, parse: Parse) -> Self:
        return cls(only(parse(message.values), Flat, cls.name))

    def to_proto(self) -> pb.CompressiveEncoding:
        inner = pb.ByteStreamSplit(values=self.values.to_proto())
        return pb.CompressiveEncoding(byte_stream_split=inner)

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> FixedWidthBlock:
        """Decode chunks: adjacent values of one size at once."""
        bits = self.values.bits_per_value
        if bits not in BITS_PER_VALUE:
            raise CorruptDataError(f"values of {bits} bits cannot be split into bytes")
        split = self.values.decode_mini_block(buffers, num_values)
        width = bits // 8
        data = np.empty_like(split.data)
        borders = np.flatnonzero(np.diff(num_values, prepend=-1, append=-1))
        stops = np.cumsum(num_values * width)
        for first, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            count = int(num_values[first])
            part = slice(int(stops[first]) - count * width, int(stops[stop - 1]))
            streams = split.data[part].reshape(stop - first, width, count)
            data[part].reshape(stop - first, count, width)[...] = streams.transpose(0, 2, 1)
        return FixedWidthBlock(bits, split.num_values, data)


def encode_mini_block(block: FixedWidthBlock) -> EncodedMiniBlock:
    """Cut words of 32 or 64 bits into chunks, split into their bytes."""
    width = block.bits_per_value // 8
    per_chunk = MAX_CHUNK_BYTES // width
    cut = flat.encode_mini_block(block, max_chunk_values=per_chunk, max_chunk_bytes=MAX_CHUNK_BYTES)
    data = np.empty_like(block.data)
    num_full = block.num_values // per_chunk * MAX_CHUNK_BYTES
    for part in (slice(0, num_full), slice(num_full, None)):
        count = min(per_chunk, len(data[part]) // width)
        if count:
            values = block.data[part].reshape(-1, count, width)
            data[part].reshape(-1, width, count)[...] = values.transpose(0, 2, 1)
    codec = ByteStreamSplit(Flat(block.bits_per_value))
    return EncodedMiniBlock(codec, (cut.buffers[0]._replace(data=data),), cut.num_values)
