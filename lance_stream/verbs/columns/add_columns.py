"""Adds nullable columns, or parts of structs, without values: existing rows read as null in them.

    pa.field("price", …)                       a column
    pa.field("place.city", …)                  a part of the struct `place`; of the structs in a
                                               list, if `place` is one
    pa.field("place", struct with a city)      the same, as the reference spells it

No data file is touched: a column that no file of a fragment has reads as null. As in the reference,
one Merge lists the unchanged fragments and the schema with the new columns. So row ids, row
versions and indices are kept, and the change feed is empty. Since a Merge lists all fragments, it
is planned again after any concurrent commit.

Adding a column that exists with the same type changes nothing: two writers that need the same new
column both succeed, and a repeated batch finds the columns that its first attempt added.

Source:  transaction.proto; measured on the reference.
Differs: The reference accepts names with a reserved prefix ("_rowid"), and an empty name. It adds
         parts of structs only to tables of file version 2.2, but also reads them in 2.0 and 2.1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from lance_stream.commit.committer import NothingToCommit
from lance_stream.errors import InvalidInputError
from lance_stream.file.type_support import check_types
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import (
    PRIMARY_KEY_METADATA,
    PRIMARY_KEY_POSITION_METADATA,
    field_to_arrow,
    from_arrow,
    metadata_from_arrow,
    to_arrow,
)
from lance_stream.schema.column_paths import quote_path, split_path
from lance_stream.schema.fields import UNASSIGNED_ID, Field, Schema
from lance_stream.schema.identity import is_list
from lance_stream.schema.projections import find
from lance_stream.schema.types.logical_types import (
    STRUCT,
    is_fixed_size_list_of_structs,
    is_list_type,
)
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.operations.columns import Merge
from lance_stream.verbs.columns.schema_changes import first_free_id
from lance_stream.verbs.create import new_schema
from lance_stream.write.after_commit import after_commit
from lance_stream.write.casting import check_castable
from lance_stream.write.planning import commit_operation, replan_on_conflict

_KEY_METADATA = (PRIMARY_KEY_METADATA.encode(), PRIMARY_KEY_POSITION_METADATA.encode())


@dataclass(frozen=True)
class Addition:
    """A new column, or a new part of a struct.

    Attributes:
        field: The name and type.
        parent_id: The id of the struct; `UNASSIGNED_ID` for a column.
        siblings: The names of the other fields at the same level.
    """

    field: pa.Field
    parent_id: int = UNASSIGNED_ID
    siblings: tuple[str, ...] = ()


Check: TypeAlias = Callable[[pa.Field, Field], None]
Entries: TypeAlias = Callable[[Schema], dict[str, str]]


def add_columns(
    table: TableVersion, columns: pa.Schema, entries: Entries | None = None
) -> TableVersion:
    """Add nullable columns without values; see `Dataset.add_columns`.

    Args:
        table: Any version; the columns are added to the newest one.
        columns: The columns, or parts of structs. Those that the table has with the same type are
            skipped. The metadata of this schema is added, too, except for keys that the table has.
        entries: Returns the config entries that the commit sets, given the new schema.

    Returns:
        The committed version; the newest one if the table already has all columns.

    Raises:
        NotFoundError: A nested struct to which a part is added does not exist.
        InvalidInputError: A column is not nullable, or is a key; its name is invalid, or taken by a
            column of another type; its type cannot be stored, or the table is of file version
            0.1; a part is added to something other than a struct.
        CommitError: Every attempt conflicted with other commits.
    """

    def missing(newest: TableVersion) -> list[Addition]:
        _check_nullable(columns)

        def check(target: pa.Field, existing: Field) -> None:
            _check_same(target, field_to_arrow(existing), newest.file_version)

        added = [part for column in columns for part in additions(newest, column, check)]
        _check_nullable(addition.field for addition in added)
        return added

    return _add(table, missing, entries, metadata_from_arrow(columns.metadata))


def add_missing_columns(
    table: TableVersion, incoming: pa.Schema, *, case_sensitive: bool = False
) -> TableVersion:
    """Add the columns and parts of structs that incoming rows have and a table lacks.

    Args:
        table: Any version; the columns are added to the newest one.
        incoming: The rows' schema. New columns become nullable, since they are null in existing
            rows, and are not part of a key.
        case_sensitive: Whether a new name may differ from an existing one only in case.

    Returns:
        The committed version; the newest one if the table already has all columns. The types of all
        incoming columns can be cast to its types (see `casting`).

    Raises:
        InvalidInputError: An existing column would have to change its type; a new one has the type
            null, or a name that differs from another one only in case; or as for `add_columns`.
            Nothing is changed.
        CommitError: Every attempt conflicted with other commits.
    """

    def missing(newest: TableVersion) -> list[Addition]:
        existing = {field.name: field for field in newest.schema.fields}
        new: list[Addition] = []
        for field in incoming:
            if field.name not in existing:
                new.append(Addition(_as_new(field), siblings=tuple(existing)))
                continue
            parts = missing_parts(field, existing[field.name], lambda *_: None)
            new += [replace(part, field=_as_new(part.field)) for part in parts]
        _check_column_types([addition.field for addition in new])
        if not case_sensitive:
            _check_case(new)
        target = to_arrow(schema_with(newest, new) if new else newest.schema)
        for field in incoming:
            check_castable(pa.schema([field]), pa.schema([target.field(field.name)]))
        return new

    return _add(table, missing)


def additions(table: TableVersion, target: pa.Field, check: Check) -> list[Addition]:
    """Return the additions that give a version a column, or a part of one.

    Args:
        table: The version.
        target: The column; or a part of a struct, whose name is its path.
        check: Called with each column or part that exists; raises if it has another type.

    Raises:
        NotFoundError: A nested struct to which a part is to be added does not exist.
        InvalidInputError: The part's parent is not a struct.
    """
    existing = {field.name: field for field in table.schema.fields}
    if target.name in existing:
        return list(missing_parts(target, existing[target.name], check))
    path = _path_of_part(target.name)
    if path[0] not in existing:
        return [Addition(target, siblings=tuple(existing))]
    column = quote_path(path[:-1])
    parent = find(table.schema, column)[-1]
    while is_list(parent):
        _check_lengths_vary(parent)
        parent = parent.children[0]
    if parent.logical_type != STRUCT:
        raise InvalidInputError(
            f"{target.name!r} cannot be added because {column!r} is not a struct: it is "
            f"{field_to_arrow(parent).type}"
        )
    part = target.with_name(path[-1])
    parent_with_part = pa.field(parent.name, pa.struct([part]))
    return list(missing_parts(parent_with_part, parent, check))


def _path_of_part(name: str) -> tuple[str, ...]:
    """Split a name into a path; a name that is not a valid path is one part."""
    try:
        return split_path(name) if "." in name else (name,)
    except InvalidInputError:
        return (name,)


def missing_parts(target: pa.Field, existing: Field, check: Check) -> Iterator[Addition]:
    """Yield the parts of structs that a column lacks.

    Args:
        target: The column with the parts; it may lack parts that exist.
        existing: The column.
        check: As for `additions`.

    Raises:
        InvalidInputError: Parts cannot be added to the struct, because it is packed.
    """
    if pa.types.is_struct(target.type) and existing.logical_type == STRUCT and not existing.is_blob:
        parts = {child.name: child for child in existing.children}
        for part in target.type:
            if part.name in parts:
                yield from missing_parts(part, parts[part.name], check)
            elif existing.is_packed:
                raise InvalidInputError(
                    f"{part.name!r} cannot be added to {existing.name!r}, which is a packed "
                    "struct: its values are stored as a whole"
                )
            else:
                yield Addition(part, existing.id, tuple(parts))
    elif is_list_type(target.type) and is_list(existing):
        for missing_part in missing_parts(target.type.value_field, existing.children[0], check):
            _check_lengths_vary(existing)
            yield missing_part
    else:
        check(target, existing)


def _check_lengths_vary(existing: Field) -> None:
    """Raise for a fixed-size list: the reference cannot read its structs if a part has no values.

    Raises:
        InvalidInputError: The field is a fixed-size list of structs.
    """
    if is_fixed_size_list_of_structs(existing.logical_type):
        raise InvalidInputError(
            f"parts cannot be added to the structs in the fixed-size list {existing.name!r}, which "
            "are stored as a whole; add another column"
        )


def as_schema(columns: pa.Field | Iterable[pa.Field]) -> pa.Schema:
    """Return the user's new columns as a schema.

    Raises:
        InvalidInputError: It is neither a field nor a sequence of fields.
    """
    if isinstance(columns, pa.Schema) and len(columns):
        return columns
    fields = [columns] if isinstance(columns, pa.Field) else columns
    if isinstance(fields, Iterable) and not isinstance(fields, str | Mapping):
        fields = list(fields)
        if fields and all(isinstance(field, pa.Field) for field in fields):
            return pa.schema(fields)
    raise InvalidInputError(
        "pass new columns as a pyarrow.Field, several of them, or a pyarrow.Schema: "
        "add_columns(pa.field('price', pa.float64())); or as SQL expressions by column name: "
        f"add_columns({{'total': 'price * quantity'}}); not {columns!r}"
    )


def _add(
    table: TableVersion,
    missing: Callable[[TableVersion], list[Addition]],
    entries: Entries | None = None,
    metadata: Mapping[str, bytes] = MappingProxyType({}),
) -> TableVersion:
    def attempt() -> TableVersion:
        newest = newest_version_of(table)
        new = missing(newest)
        if not new:
            return newest
        fragments = tuple(newest.manifest.fragments)
        schema = schema_with(newest, new)
        schema = replace(schema, metadata={**metadata, **schema.metadata})
        operation = Merge(fragments, schema, preserves_nullability=True)
        config_entries = None if entries is None else entries(schema)
        result = commit_operation(
            table.log,
            newest.manifest,
            operation,
            config_entries=None if config_entries is None else lambda *_: config_entries,
        )
        if isinstance(result, NothingToCommit):
            raise InvalidInputError(f"no column was added: {result.reason}")
        committed = table.at(result.manifest)
        after_commit(committed)
        return committed

    return replan_on_conflict(attempt)


def schema_with(table: TableVersion, new: Sequence[Addition]) -> Schema:
    """Return a version's columns with new ones, whose ids occur in none of its data files.

    Raises:
        InvalidInputError: A column cannot be added: its name is invalid, its type cannot be
            stored, or the table is of file version 0.1.
    """
    schema, version = table.schema, table.file_version
    if version is FileVersion.V0_1:
        raise InvalidInputError(
            f"the column {new[0].field.name!r} cannot be added: files of version 0.1 must hold all "
            "columns of the table. Write the rows into a new table of version 2.2 first"
        )
    parts_by_parent: dict[int, list[Field]] = {}
    next_id = first_free_id(table)
    for addition in new:
        (numbered,) = new_schema(pa.schema([addition.field]), version, next_id).fields
        next_id += len(list(numbered.walk()))
        siblings = parts_by_parent.setdefault(addition.parent_id, [])
        if numbered.name in (*addition.siblings, *(other.name for other in siblings)):
            raise InvalidInputError(
                f"columns must have different names, but {numbered.name!r} occurs twice"
            )
        siblings.append(numbered)
    fields = (
        *(_with_parts(top, parts_by_parent) for top in schema.fields),
        *parts_by_parent.get(UNASSIGNED_ID, ()),
    )
    changed = [field for field in fields if field not in schema.fields]
    from_arrow(to_arrow(Schema(tuple(changed))))  # rejects what cannot be nested
    check_types(changed, version)
    return Schema(fields, schema.metadata)


def _with_parts(field: Field, parts_by_parent: Mapping[int, Sequence[Field]]) -> Field:
    """Return a field with new parts, which are given by the id of their parent."""
    if not field.children:
        return field
    children = tuple(_with_parts(child, parts_by_parent) for child in field.children)
    return replace(field, children=(*children, *parts_by_parent.get(field.id, ())))


def _check_nullable(columns: Iterable[pa.Field]) -> None:
    for column in columns:
        if not column.nullable:
            raise InvalidInputError(
                f"the column {column.name!r} is not nullable, but existing rows would have no "
                "value in it; add it as a nullable column, then update it"
            )
        if any(key in _KEY_METADATA for key in column.metadata or {}):
            raise InvalidInputError(
                f"the column {column.name!r} is declared a primary key, but it would be null in "
                "all existing rows; declare the primary key when you create the table"
            )


def _check_same(target: pa.Field, existing: pa.Field, version: FileVersion) -> None:
    # The table may store the type as another one.
    (stored,) = to_arrow(new_schema(pa.schema([target]), version))
    if stored.type != existing.type:
        raise InvalidInputError(
            f"the table already has a column {target.name!r} of type {existing.type}, not "
            f"{target.type}. Give the new column another name, or write the rows into a new table"
        )


def _as_new(incoming: pa.Field) -> pa.Field:
    metadata = {k: v for k, v in (incoming.metadata or {}).items() if k not in _KEY_METADATA}
    return incoming.with_nullable(True).with_metadata(metadata or None)


def _check_column_types(new: Sequence[pa.Field]) -> None:
    for field in new:
        if pa.types.is_null(field.type):
            raise InvalidInputError(
                f"the new column {field.name!r} contains only nulls and has no type that the table "
                "could store; cast it to the type that its values will have, or omit it"
            )


def _check_case(new: Sequence[Addition]) -> None:
    seen: dict[tuple[int, str], str] = {}
    for field in new:
        for name in (*field.siblings, field.field.name):
            other = seen.setdefault((field.parent_id, name.casefold()), name)
            if other != name:
                raise InvalidInputError(
                    f"the column {name!r} is not added because the table has {other!r}, and Spark "
                    "does not distinguish them unless spark.sql.caseSensitive is true; rename the "
                    "incoming column"
                )
