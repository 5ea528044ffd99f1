"""Pages of a few plain values: what `choose` makes of them, in a fraction of the time.

Ten numbers without nulls are stored as they are, whatever they are; from 2.2 on unless all are the
same. Most of the time of a commit of ten rows and 50 columns would go into finding that out.

    full-zip, no levels: the values' own bytes; a message that depends on their number and width
"""

from functools import lru_cache

import numpy as np
import pyarrow as pa

from lance_stream.file.columns import pack_encoding
from lance_stream.file.data_blocks import FixedWidthBlock
from lance_stream.file.encoding_options import DEFAULT_OPTIONS, EncodingOptions
from lance_stream.file.v2_1.layouts.choose_fixed import LEAST_BYTES
from lance_stream.file.v2_1.layouts.full_zip import encode_full_zip_page
from lance_stream.file.v2_1.layouts.nesting import LayerWriter
from lance_stream.file.versions import FileVersion

_WIDTHS = {
    each.id: each.byte_width
    for each in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us")),
    )
}
"""Bytes per value of the types that this is done for, by Arrow's number of the type."""


def encode_few_values(
    values: pa.Array, version: FileVersion, options: EncodingOptions
) -> tuple[memoryview, bytes] | None:
    """Return the buffer and the encoding of a page of values without nulls around them.

    Args:
        values: The rows of a top-level column.
        version: 2.1 or 2.2.
        options: The options in the column's metadata.

    Returns:
        None if `choose.encode_page` has to decide.
    """
    width, count = _WIDTHS.get(values.type.id, 0), len(values)
    size = width * count
    if not 0 < size < LEAST_BYTES or values.null_count or options != DEFAULT_OPTIONS:
        return None
    start = values.offset * width
    data = values.buffers()[1][start : start + size].to_pybytes()
    if version is not FileVersion.V2_1 and data == data[:width] * count:
        return None
    return memoryview(data), _encoding(count, 8 * width)


@lru_cache
def _encoding(count: int, bits_per_value: int) -> bytes:
    block = FixedWidthBlock(bits_per_value, count, np.zeros(count * bits_per_value // 8, np.uint8))
    levels = LayerWriter(count).items(None).finish()
    return pack_encoding(encode_full_zip_page(levels, block).message)
