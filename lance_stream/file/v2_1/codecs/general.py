"""General codec: zstd or lz4 around the bytes of another codec.

Compressed separately are: in a mini-block chunk its first value buffer, while the others stay
plain; in a block the whole of it; per value each value. `compression.zstd_lz4` describes how a
piece is stored, and how far its stated size is trusted.

Source:  encodings21.General in the proto.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer
from lance_stream.file.blocks.data_blocks import DataBlock, VariableWidthBlock
from lance_stream.file.compression import zstd_lz4
from lance_stream.file.v2_1.codecs.codec import (
    BlockCodec,
    Codec,
    EncodedBlock,
    EncodedMiniBlock,
    EncodedValues,
    MiniBlockCodec,
    Parse,
    PerValueCodec,
    ValueBlock,
    byte_strings,
    in_block,
    in_mini_block,
    only,
)
from lance_stream.file.v2_1.codecs.variable import Variable

MAX_RAW_CHUNK_BYTES = 1 << 28
"""More than a mini-block chunk can need: its size is counted in 28 bits."""

SCHEMES: dict[int, str] = {
    pb.COMPRESSION_ALGORITHM_LZ4: zstd_lz4.LZ4,
    pb.COMPRESSION_ALGORITHM_ZSTD: zstd_lz4.ZSTD,
}

_SCHEME_NUMBERS = {name: number for number, name in SCHEMES.items()}


@dataclass(frozen=True, slots=True)
class General(MiniBlockCodec, BlockCodec, PerValueCodec):
    """Compressed bytes of another codec.

    Args:
        values: The other codec.
        scheme: "zstd" or "lz4".
        level: zstd's compression level; reading does not need it.
    """

    name = "general"

    values: Codec
    scheme: str
    level: int | None = None

    @classmethod
    def from_proto(cls, message: pb.General, parse: Parse) -> Self:
        compression = message.compression
        if compression.scheme not in SCHEMES:
            raise UnsupportedFeatureError(
                f"the compression scheme {compression.scheme} is not supported, only "
                f"{', '.join(SCHEMES.values())}"
            )
        values = parse(message.values)
        if isinstance(values, General):
            raise UnsupportedFeatureError(
                "general compression within general compression is not supported"
            )
        level = compression.level if compression.HasField("level") else None
        return cls(values, SCHEMES[compression.scheme], level)

    def to_proto(self) -> pb.CompressiveEncoding:
        compression = pb.BufferCompression(
            scheme=_SCHEME_NUMBERS[self.scheme]  # type: ignore[arg-type]  # an int is one
        )
        if self.level is not None and self.scheme == zstd_lz4.ZSTD:
            compression.level = self.level
        inner = pb.General(compression=compression, values=self.values.to_proto())
        return pb.CompressiveEncoding(general=inner)

    @property
    def num_buffers(self) -> int:
        return in_mini_block(self.values).num_buffers

    def decode_mini_block(self, buffers: Sequence[ChunkedBuffer], num_values: Counts) -> DataBlock:
        return in_mini_block(self.values).decode_mini_block(self._raw(buffers), num_values)

    def pick(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts, positions: Counts
    ) -> DataBlock | None:
        values = in_mini_block(self.values)
        if not values.always_picks:
            return None  # the chunks might be decompressed twice
        return values.pick(self._raw(buffers), num_values, positions)

    def _raw(self, buffers: Sequence[ChunkedBuffer]) -> list[ChunkedBuffer]:
        """Return the value buffers with the first one decompressed."""
        raw = zstd_lz4.decode_chunks(buffers[0], self.scheme, MAX_RAW_CHUNK_BYTES)
        return [raw, *buffers[1:]]

    def decode_block(self, buffer: Bytes, num_values: int) -> DataBlock:
        return in_block(self.values).decode_block(self.raw_block(buffer), num_values)

    def raw_block(self, buffer: Bytes) -> Bytes:
        """Return a block's bytes as the inner codec has them."""
        return zstd_lz4.decode(buffer, self.scheme, zstd_lz4.MAX_RAW_BYTES)

    def decode_per_value(self, block: ValueBlock) -> VariableWidthBlock:
        only(self.values, Variable, self.name)
        return zstd_lz4.decode_per_value(byte_strings(block, self.name), self.scheme)


def compress_mini_block(
    encoded: EncodedMiniBlock, scheme: str, level: int | None = None
) -> EncodedMiniBlock:
    """Compress the first value buffer of each chunk.

    Args:
        encoded: The chunks.
        scheme: "zstd" or "lz4".
        level: zstd's compression level; None: chosen by us.
    """
    first, *others = encoded.buffers
    return EncodedMiniBlock(
        General(encoded.codec, scheme, level),
        (zstd_lz4.encode_chunks(first, scheme, level), *others),
        encoded.num_values,
    )


def compress_block(encoded: EncodedBlock, scheme: str, level: int | None) -> EncodedBlock:
    """Compress a block; arguments as in `compress_mini_block`."""
    return EncodedBlock(
        General(encoded.codec, scheme, level),
        zstd_lz4.encode(encoded.data, scheme, level),
        encoded.num_values,
    )


def compress_per_value(block: VariableWidthBlock, scheme: str, level: int | None) -> EncodedValues:
    """Compress each value; arguments as in `compress_mini_block`."""
    return EncodedValues(
        General(Variable.of(block), scheme, level),
        zstd_lz4.encode_per_value(block, scheme, level),
    )
