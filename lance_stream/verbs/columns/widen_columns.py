"""Widens the columns of a table so that they hold the values of incoming rows.

    table               incoming            afterwards
    int32               int64               int64
    int64               int32               int64: the rows are cast
    decimal(10, 2)      decimal(8, 4)       decimal(12, 4)
    struct<a: int32>    struct<a: int64>    struct<a: int64>; likewise in lists and maps
    uint32              int64               uint32: Spark passes it as int64; values are checked
    int32               string              an error: no type holds the values of both

Spark passes some types as others, such as unsigned integers and units of time. Such columns keep
the table's type, and values that do not fit are refused, as without widening.

The new types are planned on the newest version, and again after each conflict, so that concurrent
writers of wider rows agree.
"""

from collections.abc import Sequence

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.types.logical_types import is_list_type
from lance_stream.schema.types.widening import is_wider, wider_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.columns.alter_columns import Change, alter_as_planned
from lance_stream.write.casting import check_castable


def widen_columns(
    table: TableVersion, incoming: pa.Schema, *, may_have_new: bool = False
) -> TableVersion:
    """Widen the columns of a table that cannot hold the values of incoming rows.

    Args:
        table: Any version; the columns of the newest one are widened.
        incoming: The rows' schema. Columns that the table lacks are ignored.
        may_have_new: Whether the rows may have parts of structs that the table lacks.

    Returns:
        The committed version; the newest one if all columns are wide enough.

    Raises:
        InvalidInputError: The rows would not fit even wider columns; or a column cannot be cast,
            for example because it has an index. Nothing is changed.
        CommitError: Every attempt conflicted with other commits.
    """

    def plan(newest: TableVersion) -> Sequence[Change]:
        changes = []
        for existing in newest.arrow_schema:
            index = incoming.get_field_index(existing.name)
            if index < 0:
                continue
            field = incoming.field(index)
            wider = widened(existing.type, field.type)
            if not may_have_new:
                check_castable(pa.schema([field]), pa.schema([existing.with_type(wider)]))
            if not wider.equals(existing.type):
                changes.append(Change(quote_path((existing.name,)), data_type=wider))
        return changes

    return alter_as_planned(table, plan)


def widened(existing: pa.DataType, incoming: pa.DataType) -> pa.DataType:
    """Return the type that a column needs to hold incoming values; its current one if it does.

    Args:
        existing: The column's type.
        incoming: The type of the incoming values.
    """
    types = pa.types
    if types.is_struct(existing) and types.is_struct(incoming):
        parts = {part.name: part.type for part in incoming}
        return pa.struct(
            [
                part.with_type(widened(part.type, parts.get(part.name, part.type)))
                for part in existing
            ]
        )
    if is_list_type(existing) and is_list_type(incoming):
        item = existing.value_field.with_type(widened(existing.value_type, incoming.value_type))
        if types.is_fixed_size_list(existing):
            return pa.list_(item, existing.list_size)
        return pa.list_(item) if types.is_list(existing) else pa.large_list(item)
    if types.is_map(existing) and types.is_map(incoming):
        key = widened(existing.key_type, incoming.key_type)
        value = existing.item_field.with_type(widened(existing.item_type, incoming.item_type))
        return pa.map_(existing.key_field.with_type(key), value)
    return existing if _holds(existing, incoming) else wider_of(existing, incoming) or existing


def _holds(existing: pa.DataType, incoming: pa.DataType) -> bool:
    """Return whether a column's type holds incoming values."""
    if pa.types.is_decimal(existing) and pa.types.is_decimal(incoming):
        return is_wider(incoming, existing)
    try:
        check_castable(pa.schema([("", incoming)]), pa.schema([("", existing)]))
    except InvalidInputError:
        return False
    return True
