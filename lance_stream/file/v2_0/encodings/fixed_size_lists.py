"""Fixed-size list encoding: the same number of items for each value, without offsets.

    items       dimension * num_values items, one list after the other, with their own encoding

A list that is null has slots for its items.

Source:  encodings_v2_0.proto, message FixedSizeList.
Differs: `has_validity` is for later versions; the items' own encoding contains their nulls.
"""

from collections.abc import Sequence

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.flat import (
    arrow_buffer,
    has_fixed_width,
    plain_flat,
    read_flat,
    read_values,
)
from lance_stream.file.v2_0.pages import Decode, Encode, NewPage, PageBuffers


def decode_fixed_size_list(
    encoding: pb.FixedSizeList, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the lists at `rows`.

    Raises:
        CorruptDataError: The column is of another type or length.
    """
    if not pa.types.is_fixed_size_list(arrow) or encoding.dimension != arrow.list_size:
        raise CorruptDataError(
            f"fixed-size lists of {encoding.dimension} items are stored for a column of type "
            f"{arrow}"
        )
    dimension, item_type = arrow.list_size, arrow.value_type
    flat = plain_flat(encoding.items)
    if flat is None or not has_fixed_width(item_type) or item_type.bit_width % 8:
        items = yield from decode(encoding.items, item_type, page, rows.items(dimension))
    else:
        items = yield from _read_wide_values(flat, item_type, dimension, page, rows)
    return pa.Array.from_buffers(arrow, len(rows), [None], children=[items])


def encode_fixed_size_list(
    chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage, encode: Encode
) -> pb.ArrayEncoding:
    """Add the items of some arrays of lists; nulls among the lists are ignored."""
    dimension = arrow.list_size
    items = [
        chunk.values.slice(chunk.offset * dimension, len(chunk) * dimension) for chunk in chunks
    ]
    return pb.ArrayEncoding(
        fixed_size_list=pb.FixedSizeList(
            dimension=dimension, items=encode(items, arrow.value_type, page)
        )
    )


def _read_wide_values(
    flat: pb.Flat, item_type: pa.DataType, dimension: int, page: PageBuffers, rows: Rows
) -> ByteRequests[pa.Array]:
    """Read each list as one wide value: scattered lists need no positions of their items."""
    if flat.bits_per_value != item_type.bit_width:
        raise CorruptDataError(
            f"items of {flat.bits_per_value} bits are stored for items of type {item_type}"
        )
    width = dimension * (item_type.bit_width // 8)
    values = yield from read_flat(flat, page, lambda buffer: read_values(buffer, width, rows))
    return pa.Array.from_buffers(item_type, len(rows) * dimension, [None, arrow_buffer(values)])
