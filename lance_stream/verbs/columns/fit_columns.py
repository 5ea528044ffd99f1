"""Evolves the columns of a table to fit incoming rows, as far as the user allows.

widen_types     columns become wide enough for the rows' values
add_columns     columns, and parts of structs, that only the rows have are added to the table
"""

from collections.abc import Container, Sequence

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.columns.add_columns import add_missing_columns
from lance_stream.verbs.columns.widen_columns import widen_columns
from lance_stream.write.casting import check_rows_fit


def fit_columns(
    table: TableVersion,
    incoming: pa.Schema,
    schema_evolution: Container[str],
    *,
    case_sensitive: bool,
    key: Sequence[str] = (),
) -> TableVersion:
    """Return a version whose columns fit incoming rows, committed if the columns had to change.

    Args:
        table: The newest version.
        incoming: The rows' schema.
        schema_evolution: Which changes the user allows: "widen_types", "add_columns".
        case_sensitive: Whether a new name may differ from an existing one only in case.
        key: The key columns of an upsert, whose rows may lack other columns; empty for an append.

    Raises:
        InvalidInputError: The rows do not fit, or the table lacks a key column.
        CommitError: Every attempt conflicted with other commits.
    """
    _check_has_key(table, key)
    adds_columns = "add_columns" in schema_evolution
    if "widen_types" in schema_evolution:
        table = widen_columns(table, incoming, may_have_new=adds_columns)
    if adds_columns:
        table = add_missing_columns(table, incoming, case_sensitive=case_sensitive)
    columns = table.arrow_schema
    if key:
        columns = pa.schema([field for field in columns if field.name in incoming.names])
    check_rows_fit(incoming, columns)
    return table


def _check_has_key(table: TableVersion, key: Sequence[str]) -> None:
    """Raise if a table lacks a key column: a new one would be null in all rows, and match no key.

    Raises:
        InvalidInputError: It does.
    """
    for name in key:
        if name not in table.schema.names:
            raise InvalidInputError(
                f"the table {table.uri} has no key column {name!r}, so an upsert would find none "
                "of its rows and insert all of them again. If the column was renamed or dropped, "
                "rename it back, or use the new name in `on` and in the rows; otherwise add it "
                "with its values first: ds.add_columns. The table has the columns "
                f"{', '.join(table.schema.names)}"
            )
