"""Rebuilds arrays of nested types with other items, or with other values of their blobs."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field

Change = Callable[[Field, pa.Array], pa.Array]


def holds_blobs(field: Field) -> bool:
    """Return whether a column is a blob column or has blobs at any depth."""
    return any(part.is_blob for part in field.walk())


def map_blobs(field: Field, array: pa.Array, change: Change) -> pa.Array:
    """Return a column with other values in place of its blobs, at any depth.

    Args:
        field: The column, with the types that it will have.
        array: Its values.
        change: Returns the new values for a blob field and its old values. Values below null
            structs are arbitrary.
    """
    if field.is_blob:
        return change(field, array)
    if not holds_blobs(field):
        return array
    arrow = field_to_arrow(field).type
    if pa.types.is_struct(arrow):
        children = [
            map_blobs(child, array.field(index), change)
            for index, child in enumerate(field.children)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)
    return with_items(arrow, array, map_blobs(field.children[0], items_of(array), change))


def items_of(lists: pa.Array) -> pa.Array:
    """Return the items of all lists, or the entries of all maps, including those under nulls."""
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        return lists.values.slice(lists.offset * size, len(lists) * size)
    first, last = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    if pa.types.is_map(lists.type):
        entries = pa.StructArray.from_arrays(
            [lists.keys, lists.items], fields=[lists.type.key_field, lists.type.item_field]
        )
        return entries.slice(first, last - first)
    return lists.values.slice(first, last - first)


def with_items(arrow: pa.DataType, lists: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists of the same lengths and nulls with other items.

    Args:
        arrow: The type of the new lists.
        lists: The lists.
        items: The items that replace those of `items_of`, one for one.
    """
    if pa.types.is_fixed_size_list(arrow):
        mask = lists.is_null() if lists.null_count else None
        return pa.FixedSizeListArray.from_arrays(items, type=arrow, mask=mask)
    offsets = pc.subtract(lists.offsets, lists.offsets[0])
    bitmap = pc.is_valid(lists).buffers()[1] if lists.null_count else None
    return pa.Array.from_buffers(
        arrow, len(lists), [bitmap, offsets.buffers()[1]], children=[items]
    )
