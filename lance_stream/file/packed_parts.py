"""Parts of packed structs: reads all of them, and returns the requested ones.

The parts of a packed struct are stored next to each other in one column, and only the file's schema
lists them all. `with_whole_structs` adds the missing ones to a projected field; `without_parts`
removes them from the result.
"""

from dataclasses import replace

import pyarrow as pa

from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.arrow_blocks import nulls
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.types.logical_types import STRUCT


def with_whole_structs(field: Field, stored: Schema) -> Field:
    """Return a field with all parts of its packed structs in a file.

    Args:
        field: The field; parts of structs may be projected away.
        stored: The file's own schema.

    Raises:
        CorruptDataError: A packed struct is not a struct in the file's schema.
    """
    if not field.children or field.is_blob:
        return field
    if field.is_packed:
        whole = stored.field_by_id(field.id)
        if whole is None or whole.logical_type != STRUCT:
            raise CorruptDataError(
                f"the packed struct {field.name!r} (field {field.id}) is not a packed struct in "
                "the file's schema"
            )
        same = [child.id for child in whole.children] == [child.id for child in field.children]
        return field if same else replace(field, children=whole.children)
    children = tuple(with_whole_structs(child, stored) for child in field.children)
    same = all(one is other for one, other in zip(children, field.children, strict=True))
    return field if same else replace(field, children=children)


def without_parts(array: pa.Array, read: Field, field: Field) -> pa.Array:
    """Return a field's values without the parts that were not requested.

    Args:
        array: The values, from the start of their buffers.
        read: The field from `with_whole_structs`.
        field: The requested field.

    Returns:
        The same number of values, of exactly the field's Arrow type.
    """
    if read is field or not field.children:
        return array
    arrow_type = field_to_arrow(field).type
    if pa.types.is_struct(arrow_type):
        index_by_id = {child.id: index for index, child in enumerate(read.children)}
        children = [
            without_parts(
                array.field(index_by_id[child.id]), read.children[index_by_id[child.id]], child
            )
            if child.id in index_by_id
            else nulls(len(array), arrow_type.field(index).type)
            for index, child in enumerate(field.children)
        ]
        # `field` has applied the offset to the parts: the struct's own validity must follow.
        return pa.StructArray.from_arrays(
            children,
            fields=list(arrow_type),
            mask=array.is_null() if array.null_count else None,
        )
    if pa.types.is_map(arrow_type):
        inner = without_parts(_entries(array), read.children[0], field.children[0])
    else:
        inner = without_parts(array.values, read.children[0], field.children[0])
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(arrow_type) else 2]
    return pa.Array.from_buffers(
        arrow_type, len(array), buffers, array.null_count, array.offset, [inner]
    )


def _entries(array: pa.Array) -> pa.Array:
    keys, items = array.keys, array.items
    return pa.StructArray.from_arrays(
        [keys, items], fields=[array.type.key_field, array.type.item_field]
    )
