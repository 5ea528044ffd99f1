"""Adds nullable columns without values: existing rows read as null in them.

No data file is touched: a column that no file of a fragment has reads as null. One Merge states the
unchanged fragments and the schema with the new columns, as the reference's does. So row ids, row
versions and indices are kept, and the change feed is empty. Since a Merge states all fragments, any
concurrent commit makes it be planned again.

Adding a column that exists with the same type changes nothing: two writers that both need the same
new column succeed, and a repeated batch finds its columns in place.

Source:  facts of the format, sections 4 and 5; observed in the reference.
Differs: The reference accepts names with a reserved prefix ("_rowid"), and an empty name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from lance_stream.commit.committer import Skipped
from lance_stream.errors import InvalidInputError
from lance_stream.file.type_support import check_types
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import (
    PRIMARY_KEY_METADATA,
    PRIMARY_KEY_POSITION_METADATA,
    to_arrow,
)
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.opening import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.operations import Merge
from lance_stream.verbs.create import new_schema
from lance_stream.verbs.schema_changes import first_free_id
from lance_stream.write.casting import check_castable
from lance_stream.write.planning import commit_operation, planning_again

_KEY_METADATA = (PRIMARY_KEY_METADATA.encode(), PRIMARY_KEY_POSITION_METADATA.encode())


def add_columns(table: TableVersion, columns: pa.Schema) -> TableVersion:
    """Add nullable columns without values; see `Dataset.add_columns`.

    Args:
        table: Any version; the columns are added to the newest one.
        columns: The columns. Columns that the table has with the same type are skipped.

    Returns:
        The committed version; the newest one if the table already has all columns.

    Raises:
        InvalidInputError: A column is not nullable, or is a key; its name is invalid, or taken by a
            column of another type; its type cannot be stored, or the table is of file version
            0.1.
        CommitError: Every attempt conflicted with other commits.
    """

    def missing(newest: TableVersion) -> list[pa.Field]:
        _check_nullable(columns)
        known = {each.name: each for each in newest.arrow_schema}
        for each in columns:
            if each.name in known:
                _check_same(each, known[each.name], newest.file_version)
        return [each for each in columns if each.name not in known]

    return _add(table, missing)


def add_missing_columns(
    table: TableVersion, incoming: pa.Schema, *, case_sensitive: bool = False
) -> TableVersion:
    """Add the columns that incoming rows have and a table lacks, so that they can be stored.

    Args:
        table: Any version; the columns are added to the newest one.
        incoming: The rows' schema. Its new columns become nullable, since existing rows have no
            values in them, and are not part of a key.
        case_sensitive: Whether a new name may differ from another column's in case only.

    Returns:
        The committed version; the newest one if the table already has all columns. Each incoming
        column can be cast to it (see `casting`), as far as its type shows.

    Raises:
        InvalidInputError: An existing column would have to change its type; a new one has only
            nulls for a type, or a name that differs from another's only in case; or as for
            `add_columns`. Nothing is changed.
        CommitError: Every attempt conflicted with other commits.
    """

    def missing(newest: TableVersion) -> list[pa.Field]:
        known = {each.name: each for each in newest.arrow_schema}
        for each in incoming:
            if each.name in known:
                check_castable(pa.schema([each]), pa.schema([known[each.name]]))
        new = [_as_new(each) for each in incoming if each.name not in known]
        _check_types_known(new)
        if not case_sensitive:
            _check_case([*known, *(each.name for each in new)])
        return new

    return _add(table, missing)


def as_schema(columns: pa.Field | Iterable[pa.Field]) -> pa.Schema:
    """Return the user's new columns as a schema.

    Raises:
        InvalidInputError: It is neither a field nor several fields.
    """
    fields = [columns] if isinstance(columns, pa.Field) else columns
    if isinstance(fields, Iterable) and not isinstance(fields, str | Mapping):
        fields = list(fields)
        if fields and all(isinstance(each, pa.Field) for each in fields):
            return pa.schema(fields)
    raise InvalidInputError(
        "pass new columns as a pyarrow.Field, several of them, or a pyarrow.Schema: "
        "add_columns(pa.field('price', pa.float64())); or as SQL expressions by column name: "
        f"add_columns({{'total': 'price * quantity'}}); not {columns!r}"
    )


def _add(table: TableVersion, missing: Callable[[TableVersion], list[pa.Field]]) -> TableVersion:
    def attempt() -> TableVersion:
        newest = checkout(table, None)
        new = missing(newest)
        if not new:
            return newest
        fragments = tuple(newest.manifest.fragments)
        operation = Merge(fragments, schema_with(newest, new), preserves_nullability=True)
        result = commit_operation(table.log, newest.manifest, operation)
        if isinstance(result, Skipped):
            raise InvalidInputError(f"no column was added: {result.reason}")
        return table.at(result.manifest)

    return planning_again(attempt)


def schema_with(table: TableVersion, new: Sequence[pa.Field]) -> Schema:
    """Return a version's columns followed by new ones, with ids that none of its data files has.

    Raises:
        InvalidInputError: A column cannot be added: its name is invalid, its type cannot be
            stored, or the table is of file version 0.1.
    """
    schema, version = table.schema, table.file_version
    if version is FileVersion.V0_1:
        raise InvalidInputError(
            f"the column {new[0].name!r} cannot be added: files of version 0.1 must hold all "
            "columns of the table. Write the rows into a new table of version 2.2 first"
        )
    added = new_schema(pa.schema(new), version, first_free_id(table))
    check_types(added.fields, version)
    return Schema(schema.fields + added.fields, schema.metadata)


def _check_nullable(columns: pa.Schema) -> None:
    for each in columns:
        if not each.nullable:
            raise InvalidInputError(
                f"the column {each.name!r} is not nullable, but existing rows would have no "
                "value in it; add it as a nullable column, and update it"
            )
        if any(key in _KEY_METADATA for key in each.metadata or {}):
            raise InvalidInputError(
                f"the column {each.name!r} is declared a primary key, but it would be null in all "
                "existing rows; the key of a table is declared when the table is created"
            )


def _check_same(wanted: pa.Field, known: pa.Field, version: FileVersion) -> None:
    (stored,) = to_arrow(new_schema(pa.schema([wanted]), version))  # as the table would store it
    if stored.type != known.type:
        raise InvalidInputError(
            f"the table already has a column {wanted.name!r} of type {known.type}, not "
            f"{wanted.type}; the type of a column cannot be changed. Give the new column another "
            "name, or write the rows into a new table"
        )


def _as_new(incoming: pa.Field) -> pa.Field:
    metadata = {k: v for k, v in (incoming.metadata or {}).items() if k not in _KEY_METADATA}
    return incoming.with_nullable(True).with_metadata(metadata or None)


def _check_types_known(new: Sequence[pa.Field]) -> None:
    for each in new:
        if pa.types.is_null(each.type):
            raise InvalidInputError(
                f"the new column {each.name!r} contains only nulls and has no type that the table "
                "could store; cast it to the type that its values will have, or omit it"
            )


def _check_case(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidInputError(
                f"the column {name!r} is not added because the table has {other!r}, and Spark does "
                "not distinguish them unless spark.sql.caseSensitive is true; rename the incoming "
                "column"
            )
