"""Constant codec: one value, stored in the encoding itself; no buffer.

    value   bytes of the value, little-endian; absent: every value is null

Source:  encodings21.Constant in the proto.
"""

from lance_stream.errors import CorruptDataError
from lance_stream.file.data_blocks import Bytes, ConstantBlock


def decode(buffer: Bytes, num_values: int, value: bytes | None) -> ConstantBlock:
    """Decode a block.

    Raises:
        CorruptDataError: There are bytes.
    """
    if len(buffer):
        raise CorruptDataError(f"a constant has {len(buffer)} bytes of values")
    return ConstantBlock(value, num_values)
