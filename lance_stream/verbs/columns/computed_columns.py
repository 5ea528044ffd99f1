"""Adds columns with values: SQL expressions over each row.

    CAST(price AS decimal(9, 2)) * quantity    one more data file per fragment
    CAST(NULL AS double)                       no file: the same as a nullable column

Only the columns that the expressions name are read, and only the new ones written. The new file has
as many rows as the fragment's other files; deleted rows are null in it. One Merge lists all
fragments with their new files. Rows keep their ids, and all count as updated by that version.

A new part of a struct, "place.code", is written together with the structs that enclose it, which
keep their nulls. Files of version 2.0 are excluded: the reference cannot read a struct in two of
them.

A Merge conflicts with every operation that changes rows, and is then planned again. Files that have
been written are reused for unchanged fragments.

Source:  transaction.proto; measured on the reference.
Differs: The reference makes a column non-nullable if its expression is never null; here every
         column is nullable, so that writers that do not know it can continue.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arguments import as_mapping
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import (
    Expression,
    evaluate,
    parse_expression,
    parse_value,
)
from lance_stream.file.versions import FileVersion
from lance_stream.schema.column_paths import quote_path, split_path
from lance_stream.schema.fields import UNASSIGNED_ID, Field, Schema
from lance_stream.schema.projections import find
from lance_stream.schema.types.logical_types import STRUCT
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import check_may_write
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.operations.columns import Merge
from lance_stream.verbs.columns.add_columns import Addition, additions, schema_with
from lance_stream.verbs.columns.column_files import ColumnFiles, commit_columns, write_columns
from lance_stream.verbs.columns.schema_changes import identities
from lance_stream.write.planning import commit_planned

Expressions: TypeAlias = Mapping[str, Expression]


def add_computed_columns(
    table: TableVersion, columns: Mapping[str, str], environment: Environment = MACHINE
) -> TableVersion:
    """Add columns whose values are computed from each row; see `Dataset.add_columns`.

    Args:
        table: Any version; the columns are added to the newest one.
        columns: Maps each new name to a SQL expression over the existing columns.
        environment: The clock and randomness; sleeps between two attempts.

    Returns:
        The committed version; the newest one if no column is named.

    Raises:
        NotFoundError: An expression names a column that does not exist.
        InvalidInputError: An expression is invalid, cannot be computed, or has no type; a column
            of that name exists. Nothing is changed, and no file is left behind.
        CommitError: Every attempt conflicted with other commits.
    """
    as_mapping(columns, "new columns must map text to text, {'total': 'price * quantity'}")
    for text in columns.values():
        parse_expression(text)
    if not columns:
        return newest_version_of(table)

    def attempt(newest: TableVersion, files: ColumnFiles) -> TableVersion:
        expressions = {
            name: parse_value(text, newest.arrow_schema) for name, text in columns.items()
        }
        schema = schema_with(newest, _additions(newest, expressions))
        computed = _with_values(newest, schema, expressions)
        check_may_write(newest.manifest, schema if computed.expressions else None)
        fragments = _merged(newest, computed, files)
        operation = Merge(fragments, schema, preserves_nullability=True)
        return commit_planned(newest, operation, environment=environment).table

    return commit_columns(table, attempt, environment)


def _merged(
    table: TableVersion, new: "_ComputedColumns", files: ColumnFiles
) -> tuple[Fragment, ...]:
    """Return the fragments of a version with their files of new columns, written if needed.

    Args:
        table: The version.
        new: The new columns that have values.
        files: The files that earlier attempts have written.
    """
    ids = tuple(new.expressions)
    named = {path[0] for expression in new.expressions.values() for path in expression.paths}
    source = identities(field for field in table.schema.fields if field.name in named)
    if not ids:
        return tuple(table.manifest.fragments)

    def added(index: int, fragment: Fragment) -> tuple[DataFile, ...]:
        def write() -> Fragment:
            return _write(table, index, new)

        return files.of(fragment, ids, source, table.deleted_offsets(fragment), write)

    with files.deleted_on_error():
        return tuple(
            replace(fragment, files=(*fragment.files, *added(index, fragment)))
            for index, fragment in enumerate(table.manifest.fragments)
        )


def _additions(table: TableVersion, expressions: Expressions) -> list[Addition]:
    """Return the new columns. An empty batch tells the types of their expressions."""
    no_rows = pa.RecordBatch.from_pylist([], schema=table.arrow_schema)
    new = []
    for name, expression in expressions.items():
        data_type = evaluate(expression, no_rows).type
        if pa.types.is_null(data_type):
            raise InvalidInputError(
                f"the new column {name!r} is null in every row, and {expression.text!r} does not "
                "define its type: write CAST(NULL AS double), or pass a pyarrow.Field"
            )
        added = additions(table, pa.field(name, data_type), _no_check)
        if not added:
            raise InvalidInputError(
                f"the table already has a column {name!r}; change its values with update, or give "
                "the new column another name"
            )
        if added[0].parent_id != UNASSIGNED_ID:
            _check_parent(table, name)
        new += added
    return new


def _no_check(_target: pa.Field, _existing: Field) -> None:
    """Accept an existing column: the caller raises because there is nothing to add."""


def _check_parent(table: TableVersion, name: str) -> None:
    path = find(table.schema, quote_path(split_path(name)[:-1]))
    if any(step.logical_type != STRUCT for step in path):
        raise InvalidInputError(
            f"{name!r} cannot be computed because it is part of a list, and expressions are "
            "evaluated per row, not per item; add it without values (pass a pyarrow.Field)"
        )
    if table.file_version is FileVersion.V2_0:
        raise InvalidInputError(
            f"{name!r} cannot be computed because structs in files of version 2.0 must be stored "
            "as a whole; add a column, or a part without values (pass a pyarrow.Field)"
        )


@dataclass(frozen=True)
class _ComputedColumns:
    """New columns that have values.

    Attributes:
        schema: The new columns, and columns with new parts, reduced to these parts.
        expressions: The expression of each new column or part, by its id.
    """

    schema: Schema
    expressions: Mapping[int, Expression]


def _with_values(table: TableVersion, schema: Schema, expressions: Expressions) -> _ComputedColumns:
    """Return the new columns, except those that are null in every row."""
    one_row = pa.RecordBatch.from_arrays([pa.nulls(1)], names=[""])
    field_ids = {field.id for field in table.schema.walk()}
    by_id = {}
    for name, expression in expressions.items():
        if expression.paths or evaluate(expression, one_row).null_count == 0:
            column = name if "." in name else quote_path((name,))
            by_id[find(schema, column)[-1].id] = expression
    fields = (_only(field, by_id.keys(), field_ids) for field in schema.fields)
    return _ComputedColumns(Schema(tuple(field for field in fields if field)), by_id)


def _only(field: Field, target_ids: Set[int], existing_ids: Set[int]) -> Field | None:
    """Return a column with only its computed parts; None if it has none."""
    if field.id not in existing_ids:
        return field if field.id in target_ids else None
    parts = tuple(
        part for child in field.children if (part := _only(child, target_ids, existing_ids))
    )
    return replace(field, children=parts) if parts else None


def _write(table: TableVersion, index: int, new: _ComputedColumns) -> Fragment:
    named = (path[:1] for expression in new.expressions.values() for path in expression.paths)
    enclosing = ((field.name,) for field in new.schema.fields if field.id not in new.expressions)
    columns = tuple(dict.fromkeys(map(quote_path, (*named, *enclosing))))
    return write_columns(table, index, new.schema, partial(_compute, new), columns=columns)


def _compute(
    new: _ComputedColumns, rows: pa.RecordBatch, is_live: npt.NDArray[np.bool_]
) -> pa.RecordBatch:
    """Return the new columns, which are null in deleted rows."""
    live, positions = rows, None
    if not is_live.all():
        live = rows.filter(pa.array(is_live))
        # The position of each live row among the live rows; null for deleted rows.
        positions = pa.array(np.cumsum(is_live) - 1, mask=~is_live)
    values = {}
    for field_id, expression in new.expressions.items():
        computed = evaluate(expression, live)
        values[field_id] = computed if positions is None else computed.take(positions)
    columns = [
        values[field.id] if field.id in values else _within(rows.column(field.name), field, values)
        for field in new.schema.fields
    ]
    return pa.RecordBatch.from_arrays(columns, names=new.schema.names)


def _within(existing: pa.StructArray, field: Field, values: Mapping[int, pa.Array]) -> pa.Array:
    """Return structs of new parts, which are null where the existing structs are.

    Args:
        existing: The existing structs.
        field: The struct, reduced to its new parts and the structs that enclose them.
        values: The values of the new parts, by field id.
    """
    parts = [
        values[child.id]
        if child.id in values
        else _within(existing.field(child.name), child, values)
        for child in field.children
    ]
    mask = existing.is_null() if existing.null_count else None
    return pa.StructArray.from_arrays(parts, [child.name for child in field.children], mask=mask)
