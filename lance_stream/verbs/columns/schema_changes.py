"""What dropping, renaming and altering columns have in common.

Dropping and renaming are a Project with the resulting columns. No data file is touched: they name
columns by field id. A Project replaces the whole schema, so it is planned again if other writers
change the schema, an index, or the columns of the tombstones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from lance_stream.errors import InvalidInputError, RetryableConflictError
from lance_stream.schema.fields import Field
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.tombstones import CONFIG_KEY, read_tombstones
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.columns import Project
from lance_stream.write.casting import check_castable
from lance_stream.write.planning import commit_planned, replan_on_conflict

Identity: TypeAlias = tuple[int, str, str]
"""The id, name and type of a column or a part of one."""


def change_schema(
    table: TableVersion, plan: Callable[[TableVersion], Sequence[Field]]
) -> TableVersion:
    """Change the schema of a table's newest version, without touching data files.

    Args:
        table: Any version.
        plan: Returns the resulting top-level columns, with their ids, given the newest version.

    Returns:
        The committed version; the newest one if no column changes.

    Raises:
        CommitError: Every attempt conflicted with other commits.
    """

    def attempt() -> TableVersion:
        newest = newest_version_of(table)
        fields = tuple(plan(newest))
        if fields == newest.schema.fields:
            return newest
        operation = Project(fields, preserves_nullability=True)
        return commit_planned(newest, operation, check=unchanged_since(newest.manifest)).table

    return replan_on_conflict(attempt)


def check_not_remembered_by(table: TableVersion, names: Sequence[str], verb: str) -> None:
    """Raise if the table's tombstones need one of some columns.

    Raises:
        InvalidInputError: They need it.
    """
    tombstones = read_tombstones(table.manifest.config)
    if tombstones is None or not tombstones.files:
        return
    for name in names:
        if name in tombstones.columns:
            raise InvalidInputError(
                f"the column {name!r} cannot be {verb}: the table has tombstones (remembered "
                f"deletes) with the columns {', '.join(map(repr, tombstones.columns))}. To drop "
                f"the tombstones, remove the key {CONFIG_KEY!r} from the table's config"
            )


def check_remembers_in_wider_type(
    table: TableVersion, name: str, old: pa.DataType, new: pa.DataType
) -> None:
    """Raise if the table's tombstones have a column whose values there cannot be cast.

    Raises:
        InvalidInputError: They cannot be cast.
    """
    try:
        check_castable(pa.schema([(name, old)]), pa.schema([(name, new)]))
    except InvalidInputError:
        check_not_remembered_by(table, [name], f"cast to {new}")


def check_no_index(
    table: TableVersion, name: str, field_ids: set[int], verb: str = "dropped"
) -> None:
    """Raise if an index is on one of some fields, or includes its values.

    Args:
        table: The version.
        name: What the user calls the column.
        field_ids: The column and its parts.
        verb: What cannot be done to it, for the message.

    Raises:
        InvalidInputError: There is such an index.
    """
    section = table.manifest.index_section
    for index in () if section is None else decode_index_section(section):
        if not field_ids.isdisjoint((*index.field_ids, *index.covering_field_ids)):
            raise InvalidInputError(
                f"the column {name!r} cannot be {verb} because the index {index.name!r} is on it; "
                "drop the index first, with the program that created it"
            )


def with_names(fields: Sequence[Field], name_of: Mapping[int, str]) -> tuple[Field, ...]:
    """Return fields with some of them, at any depth, renamed.

    Args:
        fields: The table's columns, or the parts of one.
        name_of: The new names by field id.

    Raises:
        InvalidInputError: Two fields of one struct would have the same name.
    """
    renamed = tuple(
        replace(
            field,
            name=name_of.get(field.id, field.name),
            children=with_names(field.children, name_of),
        )
        for field in fields
    )
    names: set[str] = set()
    for field in renamed:
        if field.name in names:
            raise InvalidInputError(
                f"two columns would be named {field.name!r}; rename or drop the other one first"
            )
        names.add(field.name)
    return renamed


def first_free_id(table: TableVersion) -> int:
    """Return the first field id that occurs neither in a version's schema nor in its data files.

    A dropped column may still be stored in data files, so its id is not reused.
    """
    used = (
        field_id
        for fragment in table.manifest.fragments
        for file in fragment.files
        for field_id in file.field_ids
    )
    return max([table.schema.max_field_id(), *used]) + 1


def identities(fields: Iterable[Field]) -> tuple[Identity, ...]:
    """Return the identities of columns and their parts.

    A file that was computed from columns can be reused by the next attempt only if their identities
    are unchanged: other writers may have dropped or renamed columns, which changes no data file.
    """
    return tuple(
        (field.id, field.name, field.logical_type) for top in fields for field in top.walk()
    )


def unchanged_since(planned: Manifest) -> Callable[[Manifest], None]:
    """Return a check that a version has the columns and indices of the planned version."""

    def check(newest: Manifest) -> None:
        if (
            newest.schema != planned.schema
            or newest.index_section != planned.index_section
            or newest.config.get(CONFIG_KEY) != planned.config.get(CONFIG_KEY)
        ):
            raise RetryableConflictError(
                f"the change of columns was planned on version {planned.version}, but other "
                f"writers changed columns or indices before version {newest.version}. Plan it "
                "again on the newest version",
                newest.version,
            )

    return check
