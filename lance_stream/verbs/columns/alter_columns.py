"""Alters columns: their names, nullability and types. A type can only be widened.

    name, nullable     one Project with the new schema; no data file is touched
    type               one Merge: each fragment gets an additional file with the cast values,
                       under new field ids; every row counts as updated by that version

A cast of a part of a struct writes only that part. A cast within a list or a map writes the whole
list or map. In files of version 2.0 it writes the whole column, because the reference cannot read a
column of that version whose parts are in two files.

Readers of the change feed follow a column through a cast (`schema.identity`), and see its old
values in the type of the version whose columns they read. Rows that other writers have staged for
the old type no longer fit and must be written again.

Source:  transaction.proto; measured on the reference.
Differs: The reference casts to any type that the values happen to fit, and drops an index on the
         column. It casts a part of a column of version 2.0 so that it cannot be read, and loses
         values that were written for the old type and are appended after the cast.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arguments import as_mapping
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import InvalidInputError
from lance_stream.file.type_support import check_types
from lance_stream.file.versions import FileVersion
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import unit_of
from lance_stream.schema.arrow_schemas import field_from_arrow, field_to_arrow, to_arrow
from lance_stream.schema.column_names import check_new_name
from lance_stream.schema.fields import EXTENSION_NAME_KEY, LINEAGE_IDS, Field, Schema
from lance_stream.schema.identity import same_fields
from lance_stream.schema.projections import find, narrowed
from lance_stream.schema.types.logical_types import STRUCT
from lance_stream.schema.types.widening import is_wider
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import check_may_write
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.operations.columns import Merge, Project
from lance_stream.verbs.columns.column_files import ColumnFiles, commit_columns, write_columns
from lance_stream.verbs.columns.schema_changes import (
    check_no_index,
    check_not_remembered_by,
    check_remembers_in_wider_type,
    first_free_id,
    identities,
    unchanged_since,
    with_names,
)
from lance_stream.write.casting import cast_batch
from lance_stream.write.planning import commit_planned

_KEYS: Final = ("path", "name", "nullable", "data_type")
_EXAMPLE: Final = "alter_columns({'path': 'price', 'data_type': pa.float64()})"


@dataclass(frozen=True)
class Change:
    """An alteration of one column.

    Attributes:
        path: The column's name, or its path into structs and lists.
        name: The new name; None to keep it.
        nullable: Whether it may be null; None to keep its nullability.
        data_type: The new type; None to keep it.
    """

    path: str
    name: str | None = None
    nullable: bool | None = None
    data_type: pa.DataType | None = None


def as_changes(alterations: Sequence[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Return the user's alterations.

    Raises:
        InvalidInputError: An alteration is not a mapping with a path and at least one change.
    """
    if not alterations:
        raise InvalidInputError(f"pass at least one alteration: {_EXAMPLE}")
    return tuple(map(_as_change, alterations))


def _as_change(alteration: Mapping[str, Any]) -> Change:
    as_mapping(alteration, f"pass each column to alter as a mapping: {_EXAMPLE}")
    unknown = [key for key in alteration if key not in _KEYS]
    if unknown:
        raise InvalidInputError(
            f"unknown property {unknown[0]!r}; columns have {', '.join(_KEYS[1:])}: {_EXAMPLE}"
        )
    change = Change(**alteration) if "path" in alteration else None
    if change is None or not isinstance(change.path, str) or len(alteration) == 1:
        raise InvalidInputError(
            "an alteration needs the path of a column and at least one change, not "
            f"{alteration!r:.200}: {_EXAMPLE}"
        )
    kinds = (("name", change.name, str), ("nullable", change.nullable, bool))
    for key, value, kind in (*kinds, ("data_type", change.data_type, pa.DataType)):
        if value is not None and not isinstance(value, kind):
            raise InvalidInputError(
                f"the {key} of {change.path!r} must be a {kind.__name__}, not {value!r:.200}: "
                f"{_EXAMPLE}"
            )
    return change


def alter_columns(
    table: TableVersion, changes: Sequence[Change], environment: Environment = MACHINE
) -> TableVersion:
    """Alter columns; see `Dataset.alter_columns`.

    Args:
        table: Any version; the columns of the newest one are altered.
        changes: The alterations.
        environment: The clock and randomness; sleeps between two attempts.

    Returns:
        The committed version; the newest one if the columns are already as requested.

    Raises:
        NotFoundError: A column does not exist.
        InvalidInputError: A type is not wider than the column's, or an index is on the column; it
            has nulls, or is part of the primary key; a name is invalid or taken. Nothing is
            changed, and no file is left behind.
        CommitError: Every attempt conflicted with other commits.
    """
    return alter_as_planned(table, lambda _: changes, environment)


def alter_as_planned(
    table: TableVersion,
    plan: Callable[[TableVersion], Sequence[Change]],
    environment: Environment = MACHINE,
) -> TableVersion:
    """Alter columns as `plan` decides for the newest version; otherwise like `alter_columns`."""

    def attempt(newest: TableVersion, files: ColumnFiles) -> TableVersion:
        altered = AlteredColumns.of(newest, plan(newest))
        if altered.fields == newest.schema.fields:
            return newest
        check_may_write(newest.manifest, replace(newest.schema, fields=altered.fields))
        altered.check_nulls()
        operation = _operation(altered, files)
        check = unchanged_since(newest.manifest)
        return commit_planned(newest, operation, check=check, environment=environment).table

    return commit_columns(table, attempt, environment)


def _operation(altered: "AlteredColumns", files: ColumnFiles) -> Merge | Project:
    if altered.cast == altered.table.schema.fields:
        return Project(altered.fields, preserves_nullability=not altered.tightened)
    fragments = _merged(altered, files)
    schema = replace(altered.table.schema, fields=altered.fields)
    # False, so that an append of rows in the old type conflicts with this Merge.
    return Merge(fragments, schema, preserves_nullability=False)


@dataclass(frozen=True)
class AlteredColumns:
    """The columns of a version, before and after they are altered.

    Attributes:
        table: The version that is altered.
        cast: The columns with new types and ids, but their old names and nullability.
        fields: The columns with all alterations.
        tightened: The paths of columns that may no longer be null.
    """

    table: TableVersion
    cast: tuple[Field, ...]
    fields: tuple[Field, ...]
    tightened: tuple[str, ...]

    @classmethod
    def of(cls, table: TableVersion, changes: Sequence[Change]) -> "AlteredColumns":
        """Apply alterations to the columns of a version.

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: A column cannot be altered in this way.
        """
        by_id: dict[int, Change] = {}
        for change in changes:
            path = find(table.schema, change.path)
            if path[-1].id in by_id:
                raise InvalidInputError(f"the column {change.path!r} is altered twice")
            by_id[path[-1].id] = _check_change(table, change, path)
        cast = _cast(table, by_id)
        field_ids = {field.id for top in cast for field in top.walk()}
        for change in by_id.values():
            removed = {field.id for field in find(table.schema, change.path)[0].walk()} - field_ids
            check_no_index(table, change.path, removed, "cast")
        old_ids = same_fields(table.schema.fields, cast, ids_match=True)
        new_ids = {old: new for new, old in old_ids.items()}
        names = {
            new_ids[old]: change.name for old, change in by_id.items() if change.name is not None
        }
        nullable = {new_ids[old]: change.nullable for old, change in by_id.items()}
        named = with_names(cast, names)
        fields = _with_nullability(named, nullable)
        _check_identified(table.schema.fields, fields, old_ids)
        tightened = tuple(
            change.path
            for old, change in by_id.items()
            if change.nullable is False and table.schema.field_by_id(old).nullable  # type: ignore[union-attr]  # it exists: `find` returned it
        )
        return cls(table, cast, fields, tightened)

    def check_nulls(self) -> None:
        """Raise if a column that may no longer be null has nulls.

        Raises:
            InvalidInputError: A column has nulls.
        """
        for column in self.tightened:
            path = find(self.table.schema, column)
            whole = narrowed(path)
            required = field_to_arrow(_with_nullability((whole,), {path[-1].id: False})[0])
            units = [
                unit_of(self.table, index, fields=(whole,))
                for index in range(len(self.table.manifest.fragments))
            ]
            try:
                for batch in read_units(units):
                    cast_batch(batch, pa.schema([required]))
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"the column {column!r} cannot become non-nullable because some rows are null "
                    "in it; update or delete them first"
                ) from error


# --- the new columns


def _check_change(table: TableVersion, change: Change, path: tuple[Field, ...]) -> Change:
    """Return a change, after checking that it can be applied to the column."""
    field = path[-1]
    if change.name is not None:
        check_new_name(change.name, is_part=len(path) > 1)
        if change.name != field.name:
            check_not_remembered_by(table, [field.name] if len(path) == 1 else [], "renamed")
    if change.nullable and any(part.primary_key_position is not None for part in field.walk()):
        raise InvalidInputError(
            f"the column {change.path!r} cannot become nullable because it, or a part of it, is in "
            "the table's primary key"
        )
    if change.data_type is not None:
        _check_type(table, change, change.data_type, path)
    return change


def _check_type(
    table: TableVersion, change: Change, target: pa.DataType, path: tuple[Field, ...]
) -> None:
    leaf = path[-1]
    existing = field_to_arrow(leaf)
    if existing.type.equals(target):
        return
    if not is_wider(existing.type, target):
        if pa.types.is_nested(existing.type) or pa.types.is_nested(target):
            remedy = "No expression converts it: write the rows to a new table whose schema has it"
        else:
            remedy = (
                "To convert the values nevertheless, compute another column "
                f"(add_columns({{'new': 'CAST({leaf.name} AS ...)'}})), drop this one and rename "
                "the new one"
            )
        raise InvalidInputError(
            f"the column {change.path!r} is {existing.type}, and {target} cannot hold all of its "
            f"values unchanged. {remedy}"
        )
    if any(
        field.is_blob or field.extension_name or EXTENSION_NAME_KEY in field.metadata
        for field in _recast(leaf, target)
    ):
        raise InvalidInputError(
            f"the column {change.path!r} is a blob or has an extension type, whose values cannot "
            "be cast; add another column instead"
        )
    check_types([field_from_arrow(pa.field(leaf.name, target))], table.file_version)
    if len(path) == 1:
        check_remembers_in_wider_type(table, leaf.name, existing.type, target)


def _recast(field: Field, target: pa.DataType) -> Iterator[Field]:
    """Yield the fields, from `field` down, whose types differ in a wider type."""

    def differing(field: Field, other: Field) -> Iterator[Field]:
        if field.logical_type != other.logical_type:
            yield field
        for pair in zip(field.children, other.children, strict=True):
            yield from differing(*pair)

    return differing(field, field_from_arrow(pa.field(field.name, target)))


def _cast(table: TableVersion, by_id: Mapping[int, Change]) -> tuple[Field, ...]:
    """Return the columns with new types, and with new ids where their values are written again."""
    types = {old: change.data_type for old, change in by_id.items() if change.data_type is not None}
    typed = tuple(_with_types(field, types) for field in table.schema.fields)
    if typed == table.schema.fields:
        return typed
    parts_alone = table.file_version not in (FileVersion.V0_1, FileVersion.V2_0)
    numbers = iter(range(first_free_id(table), sys.maxsize))
    pairs = zip(table.schema.fields, typed, strict=True)
    return tuple(_with_new_ids(*pair, numbers, parts_alone=parts_alone) for pair in pairs)


def _with_types(field: Field, types: Mapping[int, pa.DataType]) -> Field:
    if field.id in types and not field_to_arrow(field).type.equals(types[field.id]):
        return _as_type(field, field_from_arrow(pa.field(field.name, types[field.id])))
    children = tuple(_with_types(child, types) for child in field.children)
    return replace(field, children=children)


def _as_type(field: Field, target: Field) -> Field:
    """Return a field with the types of another field, but otherwise unchanged."""
    pairs = zip(field.children, target.children, strict=True)
    children = tuple(_as_type(*pair) for pair in pairs)
    return replace(field, logical_type=target.logical_type, children=children)


def _with_new_ids(
    before: Field, after: Field, numbers: Iterator[int], *, parts_alone: bool
) -> Field:
    if before == after:
        return after
    if parts_alone and after.logical_type == STRUCT and not after.is_packed:
        pairs = zip(before.children, after.children, strict=True)
        children = (_with_new_ids(*pair, numbers, parts_alone=True) for pair in pairs)
        return replace(after, children=tuple(children))
    if any(field.is_blob for field in before.walk()):
        raise InvalidInputError(
            f"a part of the column {before.name!r} cannot be cast because it would have to be "
            "written together with blobs in other parts"
        )
    return _renumbered(after, numbers)


def _renumbered(field: Field, numbers: Iterator[int]) -> Field:
    field_id = next(numbers)
    return replace(
        field, id=field_id, children=tuple(_renumbered(child, numbers) for child in field.children)
    )


def _with_nullability(
    fields: Sequence[Field], nullable: Mapping[int, bool | None]
) -> tuple[Field, ...]:
    return tuple(
        replace(
            field,
            nullable=field.nullable
            if (is_nullable := nullable.get(field.id)) is None
            else is_nullable,
            children=_with_nullability(field.children, nullable),
        )
        for field in fields
    )


def _check_identified(
    before: Sequence[Field], after: Sequence[Field], expected: Mapping[int, int]
) -> None:
    """Raise if readers of the table's history could not match old and new columns."""
    new_ids = same_fields(before, after, ids_match=True)
    names = [
        field.name
        for top in after
        for field in top.walk()
        if new_ids.get(field.id) != expected[field.id]
    ]
    if names:
        raise InvalidInputError(
            f"the column {names[0]!r} could not be identified in older versions if several columns "
            "were cast and renamed in one call; rename them in a second call"
        )


# --- the new files


def _merged(altered: AlteredColumns, files: ColumnFiles) -> tuple[Fragment, ...]:
    """Return the fragments of a version with their files of cast values, written if needed."""
    table = altered.table
    field_ids = {field.id for field in table.schema.walk()}
    added = tuple(field for field in map(partial(_only_new, field_ids), altered.cast) if field)
    same = same_fields(table.schema.fields, altered.cast, ids_match=True)
    source = tuple(
        part for field in table.schema.fields if (part := _only_sources(field, added, same))
    )
    ids = tuple(field.id for top in added for field in top.walk())
    remaining_ids = {*LINEAGE_IDS, *(field.id for top in altered.cast for field in top.walk())}
    merged = []
    with files.deleted_on_error():
        for index, fragment in enumerate(table.manifest.fragments):
            old_files = tuple(
                file for file in fragment.files if not remaining_ids.isdisjoint(file.field_ids)
            )
            if _holds(fragment, source, field_ids & remaining_ids):
                write = partial(_write, table, index, source, added)
                deleted = table.deleted_offsets(fragment)
                old_files += files.of(fragment, ids, identities(source), deleted, write)
            merged.append(replace(fragment, files=old_files))
    return tuple(merged)


def _only_new(field_ids: set[int], field: Field) -> Field | None:
    """Return a column without the parts that keep their ids; None if nothing is new."""
    if field.id not in field_ids:
        return field
    parts = tuple(part for child in field.children if (part := _only_new(field_ids, child)))
    return replace(field, children=parts) if parts else None


def _only_sources(field: Field, added: Sequence[Field], same: Mapping[int, int]) -> Field | None:
    """Return the parts of a column from whose values its new parts are cast."""
    target = next((new for new in added if same[new.id] == field.id), None)
    if target is None:
        return None
    if target.id != field.id:
        return field
    parts = (_only_sources(child, target.children, same) for child in field.children)
    return replace(field, children=tuple(part for part in parts if part))


def _holds(fragment: Fragment, source: Sequence[Field], field_ids: set[int]) -> bool:
    """Return whether a fragment stores values of the columns; otherwise they are null."""
    source_ids = {field.id for top in source for field in top.walk()} - field_ids
    return any(not source_ids.isdisjoint(file.field_ids) for file in fragment.files)


def _write(
    table: TableVersion, index: int, source: tuple[Field, ...], added: Sequence[Field]
) -> Fragment:
    """Write the file of one fragment's cast columns."""
    schema = Schema(tuple(added))
    return write_columns(table, index, schema, partial(_cast_rows, to_arrow(schema)), fields=source)


def _cast_rows(
    target: pa.Schema, rows: pa.RecordBatch, is_live: npt.NDArray[np.bool_]
) -> pa.RecordBatch:
    """Cast rows. A deleted row gets the values of a live one, since its own may not be castable."""
    if is_live.all() or not is_live.any():
        return cast_batch(rows, target)
    # For each row the position, among the live rows, of the last live one up to it.
    nearest = np.maximum(np.cumsum(is_live) - 1, 0)
    return cast_batch(rows.filter(pa.array(is_live)), target).take(pa.array(nearest))
