"""Decides which columns a derivation may write: new columns, and those that it created.

A column of the same name may be a user's, or another derivation's. What tells them apart:

    the progress           has the ids of the columns that it is about, which survive a new name
    the column of states   bears the derivation's name, and comes with the outputs in one commit; it
                           tells if there is no progress, or one of columns that were overwritten.
                           Without it nothing is the derivation's: ids are used again once all
                           columns with higher ones have been dropped
"""

from collections.abc import Sequence

import pyarrow as pa

from lance_stream.derived.declaration import SOURCE_ROW_ID, STATE_SUFFIX, Declaration
from lance_stream.derived.progress import Progress, read_all
from lance_stream.errors import InvalidInputError
from lance_stream.schema.arrow_schemas import field_to_arrow, to_arrow
from lance_stream.schema.fields import Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.columns.add_columns import Addition, additions
from lance_stream.verbs.create import new_schema


def check_columns(table: TableVersion, declaration: Declaration) -> None:
    """Raise if a column that would be written is not the derivation's own.

    Args:
        table: The newest version of the table with the values.
        declaration: What is computed.

    Raises:
        InvalidInputError: One is not.
        CorruptDataError: The config's entry of the progress is damaged.
    """
    entries = read_all(table.manifest.config, declaration.name)
    columns = {field.name: field for field in table.schema.fields}
    there = [columns[name] for name in declaration.written.names if name in columns]
    for field in there:
        if field.primary_key_position is not None or field.name == SOURCE_ROW_ID:
            raise InvalidInputError(
                f"the derived column {declaration.name!r} would write {field.name!r}, which is in "
                f"the primary key of {table.uri}. Give {_what(declaration, field)} another name"
            )
        for name, other in entries.items():
            state = columns.get(name + STATE_SUFFIX)
            is_about_these = state is not None and state.id in other.outputs
            if name != declaration.name and is_about_these and field.id in other.outputs:
                raise InvalidInputError(
                    f"the derived column {declaration.name!r} would write {field.name!r}, which "
                    f"belongs to the derived column {name!r} of {table.uri}. Give "
                    f"{_what(declaration, field)} another name, or, to replace that one, drop its "
                    f"columns first: {_drop([field.name, name + STATE_SUFFIX])}"
                )
    derived_names = _derived_columns(there, declaration, entries.get(declaration.name))
    for field in there:
        if field.name not in derived_names:
            raise InvalidInputError(
                f"the table {table.uri} has a column {field.name!r} that the derived column "
                f"{declaration.name!r} did not create and would overwrite. Nothing was "
                f"written. Give {_what(declaration, field)} another name, or drop the column "
                f"first, with its values: {_drop([field.name])}"
            )


def _derived_columns(
    there: Sequence[Field], declaration: Declaration, progress: Progress | None
) -> set[str]:
    """Return which of the columns that are there the derivation has made."""
    state = [field for field in there if field.name == declaration.state_column]
    if not state and (progress is None or not progress.renews):
        return set()  # dropped with the outputs: a later column may have got the id of one of them
    ids = () if progress is None else progress.outputs or progress.fields
    if progress is None or (state and state[0].id not in ids):
        # No progress is about these columns. They came with the column of states, or without it.
        return {field.name for field in there} if len(there) > 1 else set()
    return {field.name for field in there if field.id in ids}


def missing_columns(table: TableVersion, declaration: Declaration) -> list[str]:
    """Return which columns, or parts of their structs, are not there yet.

    Raises:
        InvalidInputError: One that is there has another type.
    """

    def check(target: pa.Field, existing: Field) -> None:
        (stored,) = to_arrow(new_schema(pa.schema([target]), table.file_version))
        kind = field_to_arrow(existing).type
        if stored.type != kind:
            there = [name for name in declaration.written.names if name in table.schema.names]
            raise InvalidInputError(
                f"the table {table.uri} has {target.name!r} of the derived column "
                f"{declaration.name!r} with the type {kind}, not {target.type}, and its type "
                f"cannot change. Drop the computed values, {_drop(there)}, and run again, or give "
                "the output another name"
            )

    return [
        addition.field.name
        for column in declaration.written
        for addition in (
            additions(table, column, check)
            if column.name in table.schema.names
            else [Addition(column)]
        )
    ]


def _what(declaration: Declaration, column: Field) -> str:
    if column.name == declaration.state_column:
        return "the derivation, name=...,"
    return "the output"


def _drop(names: Sequence[str]) -> str:
    return f"ds.drop_columns({list(names)!r})"
