"""Reads a field of a 2.0 file: its own column and those of the fields below it.

    leaf        pages of values
    struct      the fields below it, row by row; its own column is empty
    packed      a struct whose own column contains all its parts, which have no columns
    list        pages of end offsets, then the rows of the field below that are its items
    strings     of early writers: pages of end offsets, then rows of bytes in the next column

The column's pages show whether a struct is packed and strings are lists.

Source: encodings_v2_0.proto; files that the reference wrote.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ByteRequests, read_together
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.cached_ranges import NO_CACHED_RANGES, CachedRanges
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.array_encodings import decode_array
from lance_stream.file.v2_0.encodings.binary import check_text, is_binary_like
from lance_stream.file.v2_0.encodings.end_offsets import NO_SPANS, Spans
from lance_stream.file.v2_0.encodings.lists import list_encoding, read_lists
from lance_stream.file.v2_0.indices_ahead import indices_ahead, read_all
from lance_stream.file.v2_0.paged_columns import PagedColumn
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import STRUCT

T = TypeVar("T", bound=np.generic)


def read_field(
    field: Field,
    columns: Mapping[int, PagedColumn],
    num_rows: int,
    rows: Rows,
    cached: CachedRanges = NO_CACHED_RANGES,
) -> ByteRequests[pa.Array]:
    """Return rows of a field as an array of its Arrow type.

    Args:
        field: The field; parts of structs may be projected away.
        columns: The columns of the field and of the fields below it, by field id. Parts of structs
            without one read as nulls.
        num_rows: The number of rows that the field must have.
        rows: The requested rows.
        cached: The bytes that were already read.

    Raises:
        CorruptDataError: The file is damaged.
        UnsupportedFeatureError: The file has unsupported features.
        InvalidInputError: The values are too large for one array.
    """
    if field.id not in columns:
        raise CorruptDataError(f"the field {field.name!r} has no column, but fields below it have")
    columns[field.id].check_num_rows(num_rows)
    arrow = field_to_arrow(field).type
    if field.logical_type == STRUCT:
        if columns[field.id].kind == "packed_struct":
            return (yield from _read_packed(field, columns[field.id], rows))
        return (yield from _read_struct(field, arrow, columns, num_rows, rows, cached))
    if field.children:
        return (yield from _read_lists(field, arrow, columns, rows, cached))
    return (yield from _read_leaf(arrow, columns[field.id], rows, cached))


def _read_leaf(
    arrow: pa.DataType, column: PagedColumn, rows: Rows, cached: CachedRanges = NO_CACHED_RANGES
) -> ByteRequests[pa.Array]:
    if column.bytes_of_strings is not None:
        return (
            yield from _read_strings_in_lists(arrow, column, column.bytes_of_strings, rows, cached)
        )
    arrays = yield from read_together(
        [
            decode_array(column.encoding(page), arrow, column.buffers(page, cached), part)
            for page, part in column.split(rows)
        ]
    )
    return _join(arrays, arrow)


def _read_struct(
    field: Field,
    arrow: pa.DataType,
    columns: Mapping[int, PagedColumn],
    num_rows: int,
    rows: Rows,
    cached: CachedRanges,
) -> ByteRequests[pa.Array]:
    children = yield from read_together(
        [
            read_field(child, columns, num_rows, rows, cached)
            if child.id in columns
            else _read_nothing(child, rows)
            for child in field.children
        ]
    )
    return pa.Array.from_buffers(arrow, len(rows), [None], children=children)


def _read_packed(field: Field, column: PagedColumn, rows: Rows) -> ByteRequests[pa.Array]:
    """Read all parts of a packed struct, and return those of the field."""
    stored = column.stored or field
    array = yield from _read_leaf(field_to_arrow(stored).type, column, rows)
    if stored is field:
        return array  # the parts of a blob's description have no ids
    index_by_id = {child.id: index for index, child in enumerate(stored.children)}
    parts = []
    for child in field.children:
        arrow = field_to_arrow(child).type
        if child.id not in index_by_id:
            parts.append(pa.nulls(len(rows), arrow))
            continue
        part = array.field(index_by_id[child.id])
        if part.type != arrow:
            raise CorruptDataError(
                f"the part {child.name!r} of a packed struct is stored as {part.type}, not {arrow}"
            )
        parts.append(part)
    return pa.Array.from_buffers(
        field_to_arrow(field).type, len(rows), array.buffers()[:1], children=parts
    )


def _read_nothing(field: Field, rows: Rows) -> ByteRequests[pa.Array]:
    yield from ()
    return pa.nulls(len(rows), field_to_arrow(field).type)


def _read_lists(
    field: Field,
    arrow: pa.DataType,
    columns: Mapping[int, PagedColumn],
    rows: Rows,
    cached: CachedRanges,
) -> ByteRequests[pa.Array]:
    column = columns[field.id]
    (item,) = field.children
    prefetched = indices_ahead(item, columns, column, rows)
    both: list[ByteRequests[Any]] = [
        _read_spans(column, rows, cached),
        cached.serve(read_all(prefetched)),
    ]
    spans, values = yield from read_together(both)
    num_items = int(column.item_starts[-1])
    items = yield from read_field(
        item, columns, num_items, spans.items(), cached.extended(prefetched, values)
    )
    offsets = spans.arrow_offsets(arrow, "items of lists")
    return pa.Array.from_buffers(arrow, len(rows), [spans.validity(), offsets], children=[items])


def _read_strings_in_lists(
    arrow: pa.DataType,
    column: PagedColumn,
    bytes_column: PagedColumn,
    rows: Rows,
    cached: CachedRanges,
) -> ByteRequests[pa.Array]:
    if not is_binary_like(arrow):
        raise CorruptDataError(f"lists of bytes are stored for a column of type {arrow}")
    spans = yield from _read_spans(column, rows, cached)
    bytes_column.check_num_rows(int(column.item_starts[-1]))
    data = yield from _read_leaf(pa.uint8(), bytes_column, spans.items())
    if data.null_count:
        raise CorruptDataError("a byte of a string is null")
    offsets = spans.arrow_offsets(arrow, "bytes")
    first = data.offset
    array = pa.Array.from_buffers(
        arrow, len(rows), [spans.validity(), offsets, data.buffers()[1][first : first + len(data)]]
    )
    check_text(array)
    return array


def _read_spans(column: PagedColumn, rows: Rows, cached: CachedRanges) -> ByteRequests[Spans]:
    """Read the positions of the items of some lists, counted from the file's first one."""
    parts = column.split(rows)
    spans_of_pages = yield from read_together(
        [
            read_lists(
                list_encoding(column.encoding(page)),
                column.buffers(page, cached),
                part,
                decode_array,
            )
            for page, part in parts
        ]
    )
    return _spans_in_file(
        [
            (spans, int(column.item_starts[page]))
            for spans, (page, _) in zip(spans_of_pages, parts, strict=True)
        ]
    )


def _spans_in_file(spans_of_pages: Sequence[tuple[Spans, int]]) -> Spans:
    """Count items from the file's first one instead of each page's first one."""
    if not spans_of_pages:
        return NO_SPANS
    first = spans_of_pages[0][0].first + spans_of_pages[0][1]
    stops = _joined(
        [spans.stops + before if before else spans.stops for spans, before in spans_of_pages]
    )
    is_null = None
    if any(spans.is_null is not None for spans, _ in spans_of_pages):
        is_null = _joined(
            [
                np.zeros(len(spans.stops), np.bool_) if spans.is_null is None else spans.is_null
                for spans, _ in spans_of_pages
            ]
        )
    are_adjacent = all(
        one.starts is None
        and other.starts is None
        and one.stop + before_one == other.first + before_other
        for (one, before_one), (other, before_other) in pairwise(spans_of_pages)
    )
    starts = None
    if not are_adjacent or spans_of_pages[0][0].starts is not None:
        starts = _joined([spans.bounds()[0] + before for spans, before in spans_of_pages])
    return Spans(first, stops, starts, is_null)


def _joined(parts: Sequence[npt.NDArray[T]]) -> npt.NDArray[T]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _join(arrays: Sequence[pa.Array], arrow: pa.DataType) -> pa.Array:
    if not arrays:
        return pa.nulls(0, arrow)
    if len(arrays) == 1:
        return arrays[0]
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"the rows of {len(arrays)} pages do not fit into one array of {arrow} ({error}); "
            "read fewer rows at a time"
        ) from None
