"""Incoming structs that lack some fields: the stored values of these fields are kept.

    stored    {a: 1, b: {x: 2, y: 3}}
    incoming  {a: 5, b: {x: 6}}             the data has no field b.y
    changed   {a: 5, b: {x: 6, y: 3}}

The same is true of missing columns. A struct that arrives as null is stored as null. A missing
field is null if the stored struct is null or the row is new. Lists and maps are replaced as a
whole, so that no stored item corresponds to an incoming one: structs inside them must be complete.
"""

from collections.abc import Mapping

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.schema.types.logical_types import is_list_type


def partial_columns(incoming: pa.Schema, table: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns whose structs arrive incomplete, with their incoming types.

    Args:
        incoming: The columns of the data.
        table: The columns of the table.

    Raises:
        InvalidInputError: A struct in a list or a map lacks a field.
    """
    types: dict[str, pa.DataType] = {}
    for target in table:
        index = incoming.get_field_index(target.name)
        if index >= 0 and _lacks_parts(incoming.field(index).type, target.type, target.name, ""):
            types[target.name] = incoming.field(index).type
    return types


def arriving_parts(column: pa.Field, incoming: pa.DataType) -> pa.Field:
    """Return a column of the table without the struct fields that the data lacks."""
    if isinstance(incoming, pa.BaseExtensionType):
        incoming = incoming.storage_type
    if not (pa.types.is_struct(column.type) and pa.types.is_struct(incoming)):
        return column
    positions = [(part, incoming.get_field_index(part.name)) for part in column.type]
    parts = [
        arriving_parts(part, incoming.field(index).type) for part, index in positions if index >= 0
    ]
    return column.with_type(pa.struct(parts))


def _lacks_parts(incoming: pa.DataType, target: pa.DataType, path: str, around: str) -> bool:
    """Return whether a struct lacks fields that the table has.

    Args:
        incoming: The incoming type.
        target: The table's type.
        path: The path of the column or field.
        around: The collection that contains it: "list", "map", or empty.
    """
    if isinstance(incoming, pa.BaseExtensionType):
        incoming = incoming.storage_type
    if pa.types.is_struct(target) and pa.types.is_struct(incoming):
        lacks = False
        for part in target:
            part_path = f"{path}.{part.name}"
            index = incoming.get_field_index(part.name)
            if index < 0 and around:
                raise InvalidInputError(
                    f"the structs in the {around} {path!r} lack the field {part.name!r} of the "
                    f"table. A {around} is replaced as a whole, so the stored values of this field "
                    "would be lost. Supply all fields (null where there is no value), or omit the "
                    "whole column, which then keeps its values"
                )
            lacks |= index < 0 or _lacks_parts(
                incoming.field(index).type, part.type, part_path, around
            )
        return lacks
    for inner, inner_target, name in _items(incoming, target):
        _lacks_parts(inner, inner_target, f"{path}.{name}", "map" if _is_map(target) else "list")
    return False


def _items(
    incoming: pa.DataType, target: pa.DataType
) -> list[tuple[pa.DataType, pa.DataType, str]]:
    if _is_map(target):
        if _is_map(incoming):
            return [(incoming.item_type, target.item_type, "value")]
        if is_list_type(incoming) and pa.types.is_struct(incoming.value_type):
            entry = incoming.value_type
            if entry.num_fields == 2:
                return [(entry.field(1).type, target.item_type, "value")]
        return []
    if is_list_type(target) and is_list_type(incoming):
        return [(incoming.value_type, target.value_type, "item")]
    return []


def _is_map(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_map(arrow))


def with_stored_parts(
    rows: pa.RecordBatch, stored: pa.RecordBatch, partial: Mapping[str, pa.DataType]
) -> pa.RecordBatch:
    """Return rows whose incomplete structs are completed with stored values.

    Args:
        rows: (n,) rows in the table's types.
        stored: (n,) the stored rows, with at least the partial columns.
        partial: The columns whose structs are incomplete, from `partial_columns`.
    """
    columns = [
        _merged(column, stored.column(name), partial[name]) if name in partial else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _merged(values: pa.Array, stored: pa.Array, incoming: pa.DataType) -> pa.Array:
    if isinstance(incoming, pa.BaseExtensionType):
        incoming = incoming.storage_type
    if not (pa.types.is_struct(values.type) and pa.types.is_struct(incoming)):
        return values
    parts = []
    for index, (part, stored_part) in enumerate(zip(values.type, stored.flatten(), strict=True)):
        at = incoming.get_field_index(part.name)
        came = values.field(index)
        parts.append(stored_part if at < 0 else _merged(came, stored_part, incoming.field(at).type))
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=mask)
