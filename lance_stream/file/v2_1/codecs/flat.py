"""Flat codec: plain values.

One buffer, in each position (mini-block chunk, block, per value):

    values   (num_values,) of bits_per_value   little-endian, without gaps

1-bit values are a bitmap, least significant bit first; a chunk's bitmap starts at a byte.

Source:  encodings21.Flat in the proto.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import (
    ChunkedBuffer,
    consecutive,
    joined,
    locate_values,
    words_at,
)
from lance_stream.file.blocks.data_blocks import (
    WORDS,
    FixedWidthBlock,
    fixed_width_block,
    size_in_bytes,
    word_of,
)
from lance_stream.file.v2_1.codecs.codec import (
    BlockCodec,
    EncodedBlock,
    EncodedMiniBlock,
    EncodedValues,
    MiniBlockCodec,
    Parse,
    PerValueCodec,
    ValueBlock,
    fixed_width,
)

MAX_BITS_PER_VALUE = 1 << 34
"""The maximum width of a value, far more than any real one: a page with more is damaged."""


@dataclass(frozen=True, slots=True)
class Flat(MiniBlockCodec, BlockCodec, PerValueCodec):
    """Plain values.

    Args:
        bits_per_value: The width of the values.
    """

    name = "flat"

    bits_per_value: int

    @classmethod
    def from_proto(cls, message: pb.Flat, parse: Parse) -> Self:
        del parse  # no nested encoding
        if message.HasField("data"):
            raise UnsupportedFeatureError("flat values that are compressed again are not supported")
        return cls(message.bits_per_value)

    def to_proto(self) -> pb.CompressiveEncoding:
        return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=self.bits_per_value))

    @property
    def always_picks(self) -> bool:
        return self.bits_per_value in WORDS

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> FixedWidthBlock:
        (buffer,) = buffers
        bits = self._checked_bits(buffer, num_values)
        total = int(num_values.sum())
        data = joined(buffer)
        if self.bits_per_value % 8 and (bits[:-1] % 8).any():
            data = _without_gaps(data, buffer.sizes * 8, bits)
        return FixedWidthBlock(self.bits_per_value, total, data)

    def pick(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts, positions: Counts
    ) -> FixedWidthBlock | None:
        (buffer,) = buffers
        self._checked_bits(buffer, num_values)
        if self.bits_per_value not in WORDS:
            return None
        word = word_of(self.bits_per_value)
        chunks, inside = locate_values(num_values, positions)
        words = words_at(buffer.data, buffer.starts[chunks] + inside * word.itemsize, word)
        return FixedWidthBlock(self.bits_per_value, len(words), words.view(np.uint8))

    def decode_block(self, buffer: Bytes, num_values: int) -> FixedWidthBlock:
        self.check()
        return fixed_width_block(self.bits_per_value, num_values, buffer)

    def decode_per_value(self, block: ValueBlock) -> FixedWidthBlock:
        rows = fixed_width(block, self.name)
        if rows.bits_per_value != self.bits_per_value:
            raise CorruptDataError(
                f"the values have {self.bits_per_value} bits, but those of the page "
                f"{rows.bits_per_value}"
            )
        return self.decode_block(rows.data, rows.num_values)

    def check(self) -> None:
        """Check the stored width.

        Raises:
            CorruptDataError: No value is this wide.
        """
        if not 0 < self.bits_per_value <= MAX_BITS_PER_VALUE:
            raise CorruptDataError(f"values cannot have {self.bits_per_value} bits")

    def _checked_bits(self, buffer: ChunkedBuffer, num_values: Counts) -> Counts:
        """Return the bits of each chunk's values, after checking the chunk's size."""
        self.check()
        bits = num_values * self.bits_per_value
        if (buffer.sizes != (bits + 7) // 8).any():
            index = int(np.argmax(buffer.sizes != (bits + 7) // 8))
            raise CorruptDataError(
                f"a chunk of {num_values[index]} values of {self.bits_per_value} bits "
                f"has {buffer.sizes[index]} bytes"
            )
        return bits


def encode_mini_block(
    block: FixedWidthBlock, *, max_chunk_values: int, max_chunk_bytes: int
) -> EncodedMiniBlock:
    """Cut values into chunks of one size, except the last, without a copy.

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
    return EncodedMiniBlock(
        Flat(block.bits_per_value), (consecutive(block.data, sizes),), num_values
    )


def encode_block(block: FixedWidthBlock) -> EncodedBlock:
    """Encode values as one buffer, without a copy."""
    return EncodedBlock(Flat(block.bits_per_value), block.data, block.num_values)


def encode_per_value(block: FixedWidthBlock) -> EncodedValues:
    """Encode each value separately, without a copy."""
    return EncodedValues(Flat(block.bits_per_value), block)


def chunk_counts(
    num_values: int, *, bits_per_value: int, max_chunk_values: int, max_chunk_bytes: int
) -> Counts:
    """Return the number of fixed-width values in each chunk.

    Returns:
        (num_chunks,) the largest power of two that stays below `max_chunk_bytes`, repeated; then
        the rest.

    Raises:
        InvalidInputError: Two values (or eight, if they do not fill bytes) are larger than a chunk.
    """
    min_values = 2 if bits_per_value % 8 == 0 else 8
    if size_in_bytes(min_values, bits_per_value) > max_chunk_bytes:
        raise InvalidInputError(
            f"{min_values} values of {bits_per_value} bits do not fit into a mini-block chunk of "
            f"{max_chunk_bytes} bytes; write them full-zip"
        )
    count = min_values
    while (
        2 * count <= max_chunk_values
        and size_in_bytes(2 * count, bits_per_value) <= max_chunk_bytes
    ):
        count *= 2
    num_full, rest = divmod(num_values, count)
    return np.array([count] * num_full + [rest] * (rest > 0), dtype=np.int64)


def _without_gaps(data: Bytes, stored_bits: Counts, used_bits: Counts) -> Bytes:
    """Remove the bits that pad each chunk's last byte."""
    bits = np.unpackbits(data, bitorder="little")
    pairs = np.stack([used_bits, stored_bits - used_bits], axis=1).reshape(-1)
    is_used = np.repeat(np.arange(len(pairs)) % 2 == 0, pairs)
    return np.packbits(bits[is_used], bitorder="little")
