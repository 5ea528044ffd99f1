"""Updates: sets columns of the rows that match a condition to the values of SQL expressions.

A row keeps its row id. It is either written to a new fragment with all its columns, and deleted
from its old one; or, where that costs less, it stays in place and only the columns that are set are
written again (`row_updates.in_place`). All expressions see the row as it was before the update.

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from lance_stream.arguments import as_mapping
from lance_stream.arrays import RowAddresses
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.predicates import Expression, evaluate, parse_value
from lance_stream.row_updates.changed_rows import (
    by_fragment,
    chosen_rows,
    moved_lineage,
    read_rows,
    with_moved_lineage,
    without_rows,
)
from lance_stream.row_updates.in_place import (
    ColumnsJob,
    changed_offsets,
    columns_job,
    columns_that_may_stay,
    fragments_that_stay,
    ids_of,
    with_new_columns,
    write_all_columns,
)
from lance_stream.schema.computed_columns import check_not_computed
from lance_stream.schema.fields import Field
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.operations.rows import Update, UpdateMode
from lance_stream.write.casting import cast_batch
from lance_stream.write.fragments import WriteTarget, delete_files, write_fragments, write_target
from lance_stream.write.lineage_files import with_lineage_files
from lance_stream.write.planning import StagedFiles, commit_planned, replan_on_conflict


def update(
    table: TableVersion,
    values: Mapping[str, str],
    where: str | None = None,
    environment: Environment = MACHINE,
) -> TableVersion:
    """Set columns of some rows to other values; see `Dataset.update`.

    Args:
        table: Any version; the newest one is changed.
        values: Maps each column to change to a SQL expression over the columns.
        where: A SQL expression that selects the rows; None for all.
        environment: The clock and randomness; sleeps between two attempts.

    Raises:
        NotFoundError: A column does not exist.
        InvalidInputError: An expression is invalid, or its value does not fit its column. Nothing
            is changed.
        CommitError: The update was not committed, or the outcome is unknown.
    """
    as_mapping(values, "new values must be a mapping from text to text, {'price': 'price * 2'}")
    if not values:
        raise InvalidInputError("an update needs at least one column and its expression")

    def attempt() -> TableVersion:
        newest = newest_version_of(table)
        expressions = _expressions(newest, values)
        addresses = chosen_rows(newest, "true" if where is None else where)
        if not len(addresses):
            return newest
        target = write_target(newest)
        fields = columns_that_may_stay(newest, values, values, 0)
        stays = fragments_that_stay(newest, addresses, fields)
        staying, moving = addresses[stays], addresses[~stays]
        in_place = write_all_columns(_jobs(newest, staying, fields, expressions, target))
        try:
            new = write_fragments(_changed(newest, moving, expressions), target)
        except BaseException:
            delete_files(newest.store, in_place)
            raise
        updated, removed = without_rows(newest, moving, environment)
        if newest.has_stable_row_ids:
            lineage = moved_lineage(newest, moving)
            new = with_lineage_files(newest, with_moved_lineage(new, lineage))
        operation = Update(
            removed_fragment_ids=removed,
            updated_fragments=with_new_columns(newest, updated, in_place),
            new_fragments=tuple(new),
            fields_modified=_fields_of(newest, values) if in_place else (),
            fields_for_preserving_frag_bitmap=_fields_of(newest, values),
            update_mode=UpdateMode.REWRITE_COLUMNS if in_place else UpdateMode.REWRITE_ROWS,
            updated_fragment_offset_bitmaps=changed_offsets(staying, in_place),
        )
        staged = StagedFiles((*new, *in_place), updated)
        return commit_planned(newest, operation, staged, environment=environment).table

    return replan_on_conflict(attempt, environment=environment)


def _expressions(table: TableVersion, values: Mapping[str, str]) -> dict[str, Expression]:
    names = table.schema.names
    check_not_computed(values, table.arrow_schema)
    for name in values:
        if name not in names:
            raise NotFoundError(f"the table has no column {name!r}; it has: {', '.join(names)}")
    schema = table.arrow_schema
    return {name: parse_value(text, schema) for name, text in values.items()}


def _changed(
    table: TableVersion, addresses: RowAddresses, expressions: Mapping[str, Expression]
) -> Iterator[pa.RecordBatch]:
    schema = table.arrow_schema
    for rows in read_rows(table, addresses, schema.names):
        columns = {
            name: _fitting(evaluate(expression, rows), schema.field(name), name)
            for name, expression in expressions.items()
        }
        arrays = [
            columns.get(name, column)
            for name, column in zip(schema.names, rows.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _jobs(
    table: TableVersion,
    staying: RowAddresses,
    fields: Sequence[Field],
    expressions: Mapping[str, Expression],
    target: WriteTarget,
) -> list[ColumnsJob]:
    """Return one job per fragment that writes the new columns of rows that stay in place."""
    schema = table.arrow_schema

    def new(stored: pa.RecordBatch, _which: slice) -> pa.RecordBatch:
        names = [field.name for field in fields]
        columns = [
            _fitting(evaluate(expressions[name], stored), schema.field(name), name)
            for name in names
        ]
        return pa.RecordBatch.from_arrays(columns, names)

    named = {path[0] for expression in expressions.values() for path in expression.paths}
    sources = [name for name in schema.names if name in named]
    return [
        columns_job(table, fragment_id, offsets, fields, new, target, sources)
        for fragment_id, offsets in by_fragment(staying)
    ]


def _fitting(values: pa.Array, field: pa.Field, name: str) -> pa.Array:
    """Return values in a column's type. They must fit exactly, except that floats are rounded.

    Times without a time zone are in UTC, so a column without a time zone takes times with one.
    """
    values = _as_stored(values, field.type)
    batch = pa.RecordBatch.from_arrays([values], [name])
    if pa.types.is_integer(values.type) and pa.types.is_integer(field.type):
        # Arithmetic widens types, so check the values rather than the type.
        try:
            batch = pa.RecordBatch.from_arrays([values.cast(field.type)], [name])
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"the expression for {name!r} gives values that do not fit a {field.type}: {error}"
            ) from None
    return cast_batch(batch, pa.schema([field])).column(0)


def _as_stored(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values that SQL computes in another type than the column has, such as decimals."""
    from lance_stream.expressions.evaluation.numbers import to_float

    source = values.type
    is_number = pa.types.is_decimal(source) or pa.types.is_floating(source)
    if is_number and pa.types.is_floating(target):
        # as Spark's UPDATE does: `price * 2` is a double if `price` is a float
        return to_float(values, pa.float32() if pa.types.is_float16(target) else target)
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target) and source.tz != target.tz:
        return values.cast(pa.timestamp(source.unit)).cast(pa.timestamp(source.unit, target.tz))
    has_items = pa.types.is_list(target) or pa.types.is_fixed_size_list(target)
    if pa.types.is_list(source) and has_items:
        items = _as_stored(values.values, target.value_type)
        # A copy, since `from_arrays` takes no mask with sliced offsets.
        offsets = pa.array(values.offsets.to_numpy())
        return pa.ListArray.from_arrays(offsets, items, mask=_null_mask(values))
    return values


def _null_mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None


def _fields_of(table: TableVersion, names: Mapping[str, str]) -> tuple[int, ...]:
    return ids_of(field for field in table.schema.fields if field.name in names)
