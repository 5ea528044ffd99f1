"""Nullable encoding: which values are null.

    no nulls        the values' own encoding
    some nulls      also a bitmap: bit i is set if value i is not null
    all nulls       nothing

Source: encodings_v2_0.proto, message Nullable.
"""

from collections.abc import Sequence

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests, read_together
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.arrow_blocks import nulls
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.flat import arrow_buffer, flat_encoding, pack_bits
from lance_stream.file.v2_0.pages import Decode, Encode, NewPage, PageBuffers


def decode_nullable(
    encoding: pb.Nullable, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`, null according to the bitmap.

    Raises:
        CorruptDataError: None of the three is stored, or the values have their own nulls.
        InvalidInputError: The nulls do not fit into memory.
    """
    kind = encoding.WhichOneof("nullability")
    if kind == "no_nulls":
        return (yield from decode(encoding.no_nulls.values, arrow, page, rows))
    if kind == "all_nulls":
        return nulls(len(rows), arrow)
    if kind != "some_nulls":
        raise CorruptDataError("a page does not state whether its values are null")
    validity, values = yield from read_together(
        [
            decode(encoding.some_nulls.validity, pa.bool_(), page, rows),
            decode(encoding.some_nulls.values, arrow, page, rows),
        ]
    )
    if validity.null_count or values.null_count:
        raise CorruptDataError("values with a bitmap of nulls have other nulls, too")
    return with_validity(values, validity.buffers()[1])


def encode_nullable(
    chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage, encode: Encode
) -> pb.ArrayEncoding:
    """Add the bitmap of some arrays, if they need one, and their values by `encode`."""
    num_values = sum(len(chunk) for chunk in chunks)
    num_nulls = sum(chunk.null_count for chunk in chunks)
    nullable = pb.Nullable()
    if num_nulls == num_values and num_values:
        nullable.all_nulls.SetInParent()
    elif num_nulls == 0:
        nullable.no_nulls.values.CopyFrom(encode(chunks, arrow, page))
    else:
        bitmap = pack_bits([(chunk.buffers()[0], chunk.offset, len(chunk)) for chunk in chunks])
        nullable.some_nulls.validity.CopyFrom(flat_encoding(1, page.add(bitmap)))
        nullable.some_nulls.values.CopyFrom(encode(chunks, arrow, page))
    return pb.ArrayEncoding(nullable=nullable)


def with_validity(values: pa.Array, bitmap: pa.Buffer | None) -> pa.Array:
    """Return an array without nulls, with a validity bitmap added."""
    bitmap = None if bitmap is None else arrow_buffer(memoryview(bitmap))
    if pa.types.is_fixed_size_list(values.type):
        return pa.Array.from_buffers(values.type, len(values), [bitmap], children=[values.values])
    return pa.Array.from_buffers(values.type, len(values), [bitmap, *values.buffers()[1:]])
