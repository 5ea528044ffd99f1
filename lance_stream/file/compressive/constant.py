"""Constant codec: one value, stored in the encoding itself; no buffer.

    value   bytes of the value, little-endian; absent: every value is null

Source:  encodings21.Constant in the proto.
"""

import numpy as np

from lance_stream.errors import CorruptDataError
from lance_stream.file.data_blocks import Bytes, ConstantBlock, FixedWidthBlock


def decode(buffer: Bytes, num_values: int, value: bytes | None) -> ConstantBlock:
    """Decode a block.

    Raises:
        CorruptDataError: There are bytes.
    """
    if len(buffer):
        raise CorruptDataError(f"a constant has {len(buffer)} bytes of values")
    return ConstantBlock(value, num_values)


def expanded(block: ConstantBlock, bits_per_value: int) -> FixedWidthBlock:
    """Return the value as many times as it stands for.

    Args:
        block: A constant. The caller has checked its number of values.
        bits_per_value: A whole number of bytes.

    Raises:
        CorruptDataError: There is no value, or it is not of this width.
    """
    if block.value is None or len(block.value) * 8 != bits_per_value:
        raise CorruptDataError(
            f"a constant of {bits_per_value} bits is expected, but it is {block.value!r}"
        )
    data = np.tile(np.frombuffer(block.value, dtype=np.uint8), block.num_values)
    return FixedWidthBlock(bits_per_value, block.num_values, data)
