"""Constant codec: one value, stored in the encoding itself; no buffer.

    value   bytes of the value, little-endian; absent if every value is null

Source:  encodings21.Constant in the proto. Read only: we write constants as a layout.
"""

from dataclasses import dataclass
from typing import Self

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.data_blocks import ConstantBlock
from lance_stream.file.v2_1.codecs.codec import BlockCodec, Parse


@dataclass(frozen=True, slots=True)
class Constant(BlockCodec):
    """One value, repeated.

    Args:
        value: Its bytes; None if every value is null.
    """

    name = "constant"

    value: bytes | None

    @classmethod
    def from_proto(cls, message: pb.Constant, parse: Parse) -> Self:
        del parse  # no nested encoding
        return cls(message.value if message.HasField("value") else None)

    def to_proto(self) -> pb.CompressiveEncoding:
        return pb.CompressiveEncoding(constant=pb.Constant(value=self.value))

    def decode_block(self, buffer: Bytes, num_values: int) -> ConstantBlock:
        if len(buffer):
            raise CorruptDataError(f"a constant has {len(buffer)} bytes of values")
        return ConstantBlock(self.value, num_values)
