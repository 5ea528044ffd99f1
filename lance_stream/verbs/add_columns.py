"""Adding columns without values: nullable ones, in which every row there is reads null.

No data file is touched: a column that no file of a fragment holds reads as nulls. One Merge states
the fragments as they are and the schema with the new columns, as the reference's does. So row ids,
stamps and indices stay, and the change feed is empty. A Merge states all fragments, so whatever
others commit meanwhile makes it be planned again.

Adding a column that is there with the same type changes nothing: two writers that meet the same
new column both succeed, and a batch that is done again finds its columns there.

Source:  facts of the format, sections 4 and 5; measured on the reference.
Differs: The reference takes a name that begins like one of its own ("_rowid"), and an empty one.
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
from lance_stream.write.casting import check_castable
from lance_stream.write.planning import commit_operation, planning_again

_KEY_METADATA = (PRIMARY_KEY_METADATA.encode(), PRIMARY_KEY_POSITION_METADATA.encode())


def add_columns(table: TableVersion, columns: pa.Schema) -> TableVersion:
    """Add nullable columns without values; see `Dataset.add_columns`.

    Args:
        table: Any version; the columns are added to the newest one.
        columns: The columns. Those that the table has with the same type are left as they are.

    Returns:
        The version that was made; the newest one if the table has all of them.

    Raises:
        InvalidInputError: A column must not be null, or is a key; its name is another column's of
            another type, or none that a column can have; its type cannot be stored, or the table
            is of file version 0.1.
        CommitError: Others were in the way each time.
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
    """Add the columns that incoming rows have and a table has not, so that they can be taken in.

    Args:
        table: Any version; the columns are added to the newest one.
        incoming: The rows' schema. Its new columns become nullable, for the rows there are have
            no values in them, and are no part of a key.
        case_sensitive: Whether a new name may differ from another column's in case only.

    Returns:
        The version that was made; the newest one if the table has all of them. Each incoming
        column can be cast to it (see `casting`), as far as types tell.

    Raises:
        InvalidInputError: A column that the table has would have to change its type; a new one has
            only nulls for a type, or a name that differs from another's in case only; and as in
            `add_columns`. Nothing is changed.
        CommitError: Others were in the way each time.
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
    """Return what a user names as new columns as a schema.

    Raises:
        InvalidInputError: It is neither a field nor a number of fields.
    """
    fields = [columns] if isinstance(columns, pa.Field) else columns
    if isinstance(fields, Iterable) and not isinstance(fields, str | Mapping):
        fields = list(fields)
        if fields and all(isinstance(each, pa.Field) for each in fields):
            return pa.schema(fields)
    raise InvalidInputError(
        "new columns are a pyarrow.Field, several of them, or a pyarrow.Schema: "
        "add_columns(pa.field('price', pa.float64())); or SQL expressions by the columns' names: "
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
    """Return a version's columns, and more behind them, whose ids none of its data files has.

    A column that was dropped may still stand in data files beside others: its id is used up.

    Raises:
        InvalidInputError: A column cannot be added: its name is none, its type cannot be stored, or
            the table is of file version 0.1.
    """
    schema, version = table.schema, table.file_version
    used = [
        each
        for fragment in table.manifest.fragments
        for file in fragment.files
        for each in file.field_ids
    ]
    if version is FileVersion.V0_1:
        raise InvalidInputError(
            f"the column {new[0].name!r} cannot be added: files of version 0.1 say nothing of "
            "columns that they do not hold. Write the rows into a new table of version 2.2 first"
        )
    first_id = max([schema.max_field_id(), *used]) + 1
    added = new_schema(pa.schema(new), version, first_id)
    check_types(added.fields, version)
    return Schema(schema.fields + added.fields, schema.metadata)


def _check_nullable(columns: pa.Schema) -> None:
    for each in columns:
        if not each.nullable:
            raise InvalidInputError(
                f"the column {each.name!r} must not be null, but the rows there are would have no "
                "value in it; add it as a nullable column, and update it"
            )
        if any(key in _KEY_METADATA for key in each.metadata or {}):
            raise InvalidInputError(
                f"the column {each.name!r} is declared a primary key, but the rows there are would "
                "all be null in it; the key of a table is declared when it is made"
            )


def _check_same(wanted: pa.Field, known: pa.Field, version: FileVersion) -> None:
    (stored,) = to_arrow(new_schema(pa.schema([wanted]), version))  # as the table would have it
    if stored.type != known.type:
        raise InvalidInputError(
            f"the table has a column {wanted.name!r} already, which is {known.type} and not "
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
                f"the new column {each.name!r} has nulls only, and no type that the table could "
                "give it; cast it to the type that its values will have, or leave it out"
            )


def _check_case(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidInputError(
                f"the column {name!r} is not added, for the table has {other!r}, and Spark does "
                "not tell them apart unless spark.sql.caseSensitive is true; rename the incoming "
                "column"
            )
