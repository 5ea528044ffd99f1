"""Prefetches the indices of nested fields, so that reading a row takes two rounds of requests.

The contents of a list of strings are found in three steps, each depending on the previous one: the
ends of the lists, the ends of the strings, their bytes. But the metadata of a page of lists state
the range of its lists' items. So the ends of all these items are requested together with the ends
of the lists, as long as they are few:

    round 1     the ends of the lists; the ends of all strings of the lists' page
    round 2     the bytes of the strings

The same applies to lists of lists, and to the items of dictionaries. We write pages of lists with
few enough indices below them (`MAX_INDICES_OF_PAGE`); the reference does not, and if its pages are
too large, each level of nesting takes a separate round.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import Buffer, ByteRange, ByteRequests
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.binary import is_binary_like
from lance_stream.file.v2_0.encodings.end_offsets import offsets_of
from lance_stream.file.v2_0.encodings.flat import is_compressed, plain_flat
from lance_stream.file.v2_0.encodings.lists import list_encoding
from lance_stream.file.v2_0.paged_columns import PagedColumn
from lance_stream.file.v2_0.pages import PageBuffers
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import STRUCT

MAX_AHEAD_BYTES: Final = 512 << 10
"""The most that is read ahead for a field, although little of it may be needed."""

MAX_INDICES_OF_PAGE: Final = 32 << 10
"""The most end offsets below the lists of a page that we write, unless one list has more."""

_END_BYTES: Final = 8


def indices_ahead(
    item: Field, columns: Mapping[int, PagedColumn], column: PagedColumn, rows: Rows
) -> list[ByteRange]:
    """Return the ranges of the indices of some lists' items; nothing if they are too many.

    Args:
        item: The field of the items.
        columns: The columns of that field and of those below it, by field id.
        column: The column of the lists.
        rows: The lists.

    Raises:
        BadDataError: Page metadata are damaged.
    """
    ranges: list[ByteRange] = []
    all_are_needed = True
    for page, part in column.split(rows):
        items = Rows(int(column.item_starts[page]), int(column.item_starts[page + 1]))
        ranges += _indices_of(item, columns, items)
        num_lists = int(column.row_starts[page + 1] - column.row_starts[page])
        all_are_needed &= len(part) == num_lists
    merged = _merged(ranges)
    if not all_are_needed and sum(span.size_bytes for span in merged) > MAX_AHEAD_BYTES:
        return []
    return merged


def read_all(ranges: list[ByteRange]) -> ByteRequests[list[Buffer]]:
    """Read ranges in one round."""
    return (yield ranges)


def has_indices(field: Field) -> bool:
    """Return whether a field or one below it has end offsets; dictionaries do not count."""
    if field.is_leaf:
        return is_binary_like(field_to_arrow(field).type)
    return field.logical_type != STRUCT or any(has_indices(child) for child in field.children)


def indices_below(
    lists: pa.Array, field: Field, positions: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64] | None:
    """Return the number of end offsets below the lists before some positions, without their own.

    Args:
        lists: Values of a field of lists.
        field: The field.
        positions: (n,) ascending, up to the number of lists; None: all of them.

    Returns:
        (n,) counts; None if there are no end offsets.
    """
    offsets = offsets_of(lists)
    first = int(offsets[0])
    items = lists.values.slice(first, int(offsets[-1]) - first)
    at = (offsets if positions is None else offsets[positions]).astype(np.int64)
    if first:
        at -= first
    return _indices_before(items, field.children[0], at)


def _indices_before(
    array: pa.Array, field: Field, positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    """Return the same for values of any field, including those of the field itself."""
    if not has_indices(field):
        return None
    if field.is_leaf:
        return positions
    if field.logical_type != STRUCT:
        below = indices_below(array, field, positions)
        return positions if below is None else positions + below
    counts = np.zeros(len(positions), np.int64)
    for index, child in enumerate(field.children):
        of_child = _indices_before(array.field(index), child, positions)
        if of_child is not None:
            counts += of_child
    return counts


def _merged(ranges: list[ByteRange]) -> list[ByteRange]:
    """Return ranges in ascending order, adjacent ones joined, without empty ones."""
    merged: list[ByteRange] = []
    for span in sorted(span for span in ranges if span.size_bytes):
        if merged and span.start <= merged[-1].stop:
            merged[-1] = ByteRange(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return merged


def _indices_of(field: Field, columns: Mapping[int, PagedColumn], rows: Rows) -> list[ByteRange]:
    """Return the ranges of the indices of a range of a field's rows, and of everything below."""
    column = columns.get(field.id)
    if column is None or not len(rows):
        return []
    parts = column.split(rows)
    if field.is_leaf and column.kind != "list":
        return [
            span
            for page, part in parts
            for span in _indices_of_values(column.encoding(page), column.buffers(page), part)
        ]
    if field.logical_type == STRUCT:
        if column.kind == "packed_struct":
            return []
        return [span for child in field.children for span in _indices_of(child, columns, rows)]
    ranges: list[ByteRange] = []
    for page, part in parts:
        offsets = list_encoding(column.encoding(page)).offsets
        ranges += _ends(offsets, column.buffers(page), part)
        items = Rows(int(column.item_starts[page]), int(column.item_starts[page + 1]))
        for child in field.children:
            ranges += _indices_of(child, columns, items)
    return ranges


def _indices_of_values(
    encoding: pb.ArrayEncoding, page: PageBuffers, rows: Rows
) -> list[ByteRange]:
    kind = encoding.WhichOneof("array_encoding")
    if kind == "nullable":
        nullable = encoding.nullable
        if nullable.WhichOneof("nullability") == "no_nulls":
            return _indices_of_values(nullable.no_nulls.values, page, rows)
        if nullable.WhichOneof("nullability") == "some_nulls":
            return _indices_of_values(nullable.some_nulls.values, page, rows)
    if kind == "fsst":
        return _indices_of_values(encoding.fsst.binary, page, rows)
    if kind == "binary":
        return _ends(encoding.binary.indices, page, rows)
    if kind == "dictionary":
        items = Rows(0, encoding.dictionary.num_dictionary_items)
        return _indices_of_values(encoding.dictionary.items, page, items)
    return []


def _ends(encoding: pb.ArrayEncoding, page: PageBuffers, rows: Rows) -> list[ByteRange]:
    """Return the ranges of the end offsets of a range of rows, and the one before."""
    flat = plain_flat(encoding)
    if flat is None:
        return []
    buffer = page.find(flat.buffer)
    if is_compressed(flat):
        return [buffer]
    needed = rows.with_predecessors()
    return [
        ByteRange(
            min(buffer.start + needed.start * _END_BYTES, buffer.stop),
            min(buffer.start + needed.stop * _END_BYTES, buffer.stop),
        )
    ]
