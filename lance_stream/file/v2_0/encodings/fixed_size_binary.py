"""Fixed-size binary encoding: byte strings that all have the same length, without offsets.

    bytes       num_values * byte_width bytes, one value after the other

It stores columns of strings; columns of Arrow's fixed-size binary are flat. Read only:
no known writer chooses it.

Source: encodings_v2_0.proto, message FixedSizeBinary.
"""

import numpy as np
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.rows import MAX_POSITION, Rows
from lance_stream.file.v2_0.encodings.binary import check_text, is_binary_like
from lance_stream.file.v2_0.encodings.end_offsets import arrow_offsets, has_wide_offsets
from lance_stream.file.v2_0.encodings.flat import plain_flat, read_flat, read_values
from lance_stream.file.v2_0.pages import Decode, PageBuffers


def decode_fixed_size_binary(
    encoding: pb.FixedSizeBinary, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`.

    Raises:
        CorruptDataError: The column is of another type, or text is not UTF-8.
        UnsupportedFeatureError: The bytes are encoded in a way that is not supported.
        InvalidInputError: The values are too large for one array.
    """
    del decode  # only plain bytes are supported inside
    width = encoding.byte_width
    flat = plain_flat(encoding.bytes)
    if not is_binary_like(arrow) or width == 0:
        raise CorruptDataError(
            f"byte strings of {width} bytes are stored for a column of type {arrow}"
        )
    if flat is None or flat.bits_per_value != 8 or len(rows) * width > MAX_POSITION:
        raise UnsupportedFeatureError("bytes of fixed-size strings are not stored plainly")
    data = yield from read_flat(flat, page, lambda buffer: read_values(buffer, width, rows))
    offsets = arrow_offsets(
        np.arange(1, len(rows) + 1) * width, 0, wide=has_wide_offsets(arrow), what="bytes"
    )
    array = pa.Array.from_buffers(arrow, len(rows), [None, offsets, pa.py_buffer(data)])
    check_text(array)
    return array
