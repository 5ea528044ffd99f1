"""Determines which columns a derivation may write: new columns, and those that it created.

A column of the same name may belong to the user or to another derivation. They are distinguished by

    the progress        contains the ids of the derivation's columns, which renames do not change
    the state column    has the derivation's name, and is added with the outputs in one commit. It
                        decides if there is no progress, or if the columns of the progress were
                        overwritten. If it does not exist, the derivation has no columns: ids are
                        reused after all columns with higher ids have been dropped
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
    """Raise if the derivation would write a column that it did not create.

    Args:
        table: The newest version of the table with the values.
        declaration: The derived columns.

    Raises:
        InvalidInputError: A column belongs to the user, the primary key, or another derivation.
        CorruptDataError: The config entry of the progress is damaged.
    """
    entries = read_all(table.manifest.config, declaration.name)
    columns = {field.name: field for field in table.schema.fields}
    existing = [columns[name] for name in declaration.written.names if name in columns]
    for field in existing:
        if field.primary_key_position is not None or field.name == SOURCE_ROW_ID:
            raise InvalidInputError(
                f"the derived column {declaration.name!r} would write {field.name!r}, which is "
                f"part of the primary key of {table.uri}. Give "
                f"{_renamed_part(declaration, field)} another name"
            )
        for name, other in entries.items():
            state = columns.get(name + STATE_SUFFIX)
            is_about_these = state is not None and state.id in other.outputs
            if name != declaration.name and is_about_these and field.id in other.outputs:
                raise InvalidInputError(
                    f"the derived column {declaration.name!r} would write {field.name!r}, which "
                    f"belongs to the derived column {name!r} of {table.uri}. Give "
                    f"{_renamed_part(declaration, field)} another name; or, to replace that "
                    "derived column, drop it first: "
                    f"{_drop_call([field.name, name + STATE_SUFFIX])}"
                )
    derived_names = _derived_columns(existing, declaration, entries.get(declaration.name))
    for field in existing:
        if field.name not in derived_names:
            raise InvalidInputError(
                f"the table {table.uri} has a column {field.name!r} that the derived column "
                f"{declaration.name!r} did not create and would overwrite. Nothing was "
                f"written. Give {_renamed_part(declaration, field)} another name; or drop the "
                f"column and its values first: {_drop_call([field.name])}"
            )


def _derived_columns(
    existing: Sequence[Field], declaration: Declaration, progress: Progress | None
) -> set[str]:
    """Return the names of the existing columns that the derivation created."""
    state = [field for field in existing if field.name == declaration.state_column]
    if not state and (progress is None or not progress.renews):
        return set()  # dropped with the outputs, whose ids a later column may have reused
    ids = () if progress is None else progress.outputs or progress.fields
    if progress is None or (state and state[0].id not in ids):
        # The progress is not about these columns: they were added together with the state column,
        # or there is only a column of the same name.
        return {field.name for field in existing} if len(existing) > 1 else set()
    return {field.name for field in existing if field.id in ids}


def missing_columns(table: TableVersion, declaration: Declaration) -> list[str]:
    """Return the columns, or fields of structs, that do not exist yet.

    Raises:
        InvalidInputError: An existing column has another type.
    """

    def check(target: pa.Field, existing: Field) -> None:
        (stored,) = to_arrow(new_schema(pa.schema([target]), table.file_version))
        kind = field_to_arrow(existing).type
        if stored.type != kind:
            names = [name for name in declaration.written.names if name in table.schema.names]
            raise InvalidInputError(
                f"{target.name!r} of the derived column {declaration.name!r} has type {kind} in "
                f"{table.uri}, not {target.type}, and its type cannot change. Drop the computed "
                f"values, {_drop_call(names)}, and run again; or give the output another name"
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


def _renamed_part(declaration: Declaration, column: Field) -> str:
    """Return what to rename so that the derivation does not write a column."""
    if column.name == declaration.state_column:
        return "the derivation, name=...,"
    return "the output"


def _drop_call(names: Sequence[str]) -> str:
    return f"ds.drop_columns({list(names)!r})"
