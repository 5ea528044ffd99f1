"""Widens the columns of a table so that they hold the values of incoming rows.

    table               incoming            afterwards
    int32               int64               int64
    int64               int32               int64: the rows are cast
    decimal(10, 2)      decimal(8, 4)       decimal(12, 4)
    struct<a: int32>    struct<a: int64>    struct<a: int64>; likewise in lists and maps
    uint32              int64               uint32: so Spark carries it; each value is checked
    int32               string              an error: no type holds the values of both

Types that Spark carries as others, such as unsigned integers and units of time, stay the table's:
values that do not fit are refused, as without widening.

The new types are planned from the newest version, again after each conflict, so that concurrent
writers of wider rows agree.
"""

from collections.abc import Sequence

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.logical_types import is_list_type
from lance_stream.schema.widening import is_wider, wider_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.alter_columns import Change, alter_as_planned
from lance_stream.write.casting import check_castable


def widen_columns(
    table: TableVersion, incoming: pa.Schema, *, may_have_new: bool = False
) -> TableVersion:
    """Widen the columns of a table that do not hold the values of incoming rows.

    Args:
        table: Any version; the columns of the newest one are widened.
        incoming: The rows' schema. Columns that the table lacks are ignored.
        may_have_new: Whether the rows may have parts of structs that the table lacks.

    Returns:
        The committed version; the newest one if no column has to be wider.

    Raises:
        InvalidInputError: The rows would not fit the table nevertheless; or a column cannot be
            cast, for example because it has an index. Nothing is changed.
        CommitError: Every attempt conflicted with other commits.
    """

    def plan(newest: TableVersion) -> Sequence[Change]:
        changes = []
        for known in newest.arrow_schema:
            place = incoming.get_field_index(known.name)
            if place < 0:
                continue
            own = incoming.field(place)
            wider = widened(known.type, own.type)
            if not may_have_new:
                check_castable(pa.schema([own]), pa.schema([known.with_type(wider)]))
            if not wider.equals(known.type):
                changes.append(Change(quote_path((known.name,)), data_type=wider))
        return changes

    return alter_as_planned(table, plan)


def widened(known: pa.DataType, incoming: pa.DataType) -> pa.DataType:
    """Return the type that a column needs to hold incoming values; its own if it holds them.

    Args:
        known: The column's type.
        incoming: The type of the incoming values.
    """
    types = pa.types
    if types.is_struct(known) and types.is_struct(incoming):
        parts = {each.name: each.type for each in incoming}
        return pa.struct(
            [each.with_type(widened(each.type, parts.get(each.name, each.type))) for each in known]
        )
    if is_list_type(known) and is_list_type(incoming):
        item = known.value_field.with_type(widened(known.value_type, incoming.value_type))
        if types.is_fixed_size_list(known):
            return pa.list_(item, known.list_size)
        return pa.list_(item) if types.is_list(known) else pa.large_list(item)
    if types.is_map(known) and types.is_map(incoming):
        key = widened(known.key_type, incoming.key_type)
        value = known.item_field.with_type(widened(known.item_type, incoming.item_type))
        return pa.map_(known.key_field.with_type(key), value)
    return known if _holds(known, incoming) else wider_of(known, incoming) or known


def _holds(known: pa.DataType, incoming: pa.DataType) -> bool:
    """Return whether values need no wider type than a column has."""
    if pa.types.is_decimal(known) and pa.types.is_decimal(incoming):
        return is_wider(incoming, known)
    try:
        check_castable(pa.schema([("", incoming)]), pa.schema([("", known)]))
    except InvalidInputError:
        return False
    return True
