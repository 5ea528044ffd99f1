"""Packed struct encoding: the parts of a struct side by side, row by row, in one column.

    buffer      num_rows * row_bytes: for each row the bytes of its first part, of its second, ...

A part is a value of whole bytes or a fixed-size list of these. Neither structs nor parts can be
null.

Source:  encodings_v2_0.proto, message PackedStruct; files that the reference wrote.
Differs: The reference uses only the parts' types; here their encodings are checked, too.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.flat import (
    as_bytes,
    flat_encoding,
    has_fixed_width,
    read_values,
    value_of_bytes,
)
from lance_stream.file.v2_0.pages import Decode, Encode, NewPage, PageBuffers


def decode_packed_struct(
    encoding: pb.PackedStruct, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the structs at `rows`.

    Raises:
        CorruptDataError: The column is of another type, or the buffer is too short.
        UnsupportedFeatureError: The encoding of a part is not supported.
    """
    del decode  # the parts' encodings only give their widths
    if not pa.types.is_struct(arrow) or len(encoding.inner) != arrow.num_fields:
        raise CorruptDataError(
            f"structs of {len(encoding.inner)} parts are stored for a column of type {arrow}"
        )
    types = [array.type for array in arrow]
    widths = [
        _checked_width(part, type_) for part, type_ in zip(encoding.inner, types, strict=True)
    ]
    row_bytes = sum(widths)
    if row_bytes == 0:
        raise CorruptDataError("a packed struct has no parts")
    data = yield from read_values(page.find(encoding.buffer), row_bytes, rows)
    by_row = np.frombuffer(data, np.uint8).reshape(len(rows), row_bytes)
    starts = np.cumsum(widths) - widths
    parts = [
        _array_of_bytes(type_, len(rows), _column(by_row, start, width))
        for type_, start, width in zip(types, starts.tolist(), widths, strict=True)
    ]
    return pa.Array.from_buffers(arrow, len(rows), [None], children=parts)


def encode_packed_struct(
    chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage, encode: Encode
) -> pb.ArrayEncoding:
    """Add the rows of some arrays of structs.

    Raises:
        InvalidInputError: A part has no fixed width, or a value is null.
    """
    del encode  # no nested encoding
    types = [array.type for array in arrow]
    widths = [_width(type_) for type_ in types]
    by_row = np.empty((sum(len(chunk) for chunk in chunks), sum(widths)), np.uint8)
    position = 0
    for chunk in chunks:
        _check_no_nulls(chunk)
        start = 0
        for index, width in enumerate(widths):
            by_row[position : position + len(chunk), start : start + width] = _bytes_of(
                chunk.field(index), width
            )
            start += width
        position += len(chunk)
    buffer = page.add([as_bytes(by_row.reshape(-1))])
    return pb.ArrayEncoding(
        packed_struct=pb.PackedStruct(
            inner=[_part_encoding(type_, pb.Buffer()) for type_ in types], buffer=buffer
        )
    )


def _column(
    by_row: np.ndarray[Any, np.dtype[np.uint8]], start: int, width: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a part of each row, without gaps."""
    if len(by_row) == 0:
        return np.zeros(0, np.uint8)
    # As values of one dtype: numpy copies these far faster than rows of a few bytes.
    strided = np.ndarray((len(by_row),), value_of_bytes(width), by_row, start, (by_row.shape[1],))
    return np.ascontiguousarray(strided).view(np.uint8)


def _array_of_bytes(
    arrow: pa.DataType, num_values: int, data: np.ndarray[Any, np.dtype[np.uint8]]
) -> pa.Array:
    if not pa.types.is_fixed_size_list(arrow):
        return pa.Array.from_buffers(arrow, num_values, [None, pa.py_buffer(data)])
    items = _array_of_bytes(arrow.value_type, num_values * arrow.list_size, data)
    return pa.Array.from_buffers(arrow, num_values, [None], children=[items])


def _bytes_of(array: pa.Array, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the (num_values, width) bytes of an array without nulls."""
    num_values = len(array)
    _check_no_nulls(array)
    while pa.types.is_fixed_size_list(array.type):
        items_per_list = array.type.list_size
        array = array.values.slice(array.offset * items_per_list, len(array) * items_per_list)
        _check_no_nulls(array)
    if num_values == 0:
        return np.zeros((0, width), np.uint8)
    item_bytes = array.type.bit_width // 8
    first = array.offset * item_bytes
    data = np.frombuffer(array.buffers()[1], np.uint8)
    return data[first : first + num_values * width].reshape(num_values, width)


def _check_no_nulls(array: pa.Array) -> None:
    if array.null_count:
        raise InvalidInputError(
            f"{array.null_count} values of type {array.type} are null in a packed struct, but "
            "files of version 2.0 support no nulls there; write the table in version 2.1 or newer, "
            "or omit the metadata 'lance-encoding:packed'"
        )


def _width(arrow: pa.DataType) -> int:
    """Return the bytes of each value of a type.

    Raises:
        InvalidInputError: The values have different sizes, or no whole bytes.
    """
    if pa.types.is_fixed_size_list(arrow):
        return _width(arrow.value_type) * int(arrow.list_size)
    if not has_fixed_width(arrow) or arrow.bit_width % 8:
        raise InvalidInputError(
            f"packed structs in files of version 2.0 support values of whole bytes, not {arrow}; "
            "omit the metadata 'lance-encoding:packed', or write the table in version 2.2"
        )
    return int(arrow.bit_width) // 8


def _part_encoding(arrow: pa.DataType, buffer: pb.Buffer) -> pb.ArrayEncoding:
    if pa.types.is_fixed_size_list(arrow):
        items = _part_encoding(arrow.value_type, buffer)
        values = pb.ArrayEncoding(
            fixed_size_list=pb.FixedSizeList(dimension=arrow.list_size, items=items)
        )
    else:
        values = flat_encoding(arrow.bit_width, buffer)
    return pb.ArrayEncoding(nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=values)))


def _checked_width(encoding: pb.ArrayEncoding, arrow: pa.DataType) -> int:
    """Return the bytes of a part, after checking that its encoding and its type agree."""
    stored_bits = _stored_bits(encoding)
    try:
        width = _width(arrow)
    except InvalidInputError:
        raise CorruptDataError(f"a packed struct cannot have a part of type {arrow}") from None
    if stored_bits != width * 8:
        raise CorruptDataError(
            f"a part of {stored_bits} bits is stored in a packed struct for the type {arrow}"
        )
    return width


def _stored_bits(encoding: pb.ArrayEncoding) -> int:
    kind = encoding.WhichOneof("array_encoding")
    if kind == "nullable" and encoding.nullable.WhichOneof("nullability") == "no_nulls":
        return _stored_bits(encoding.nullable.no_nulls.values)
    if kind == "fixed_size_list":
        return encoding.fixed_size_list.dimension * _stored_bits(encoding.fixed_size_list.items)
    if kind == "flat":
        return encoding.flat.bits_per_value
    raise UnsupportedFeatureError(f"parts of packed structs in the encoding {kind!r} are not read")
