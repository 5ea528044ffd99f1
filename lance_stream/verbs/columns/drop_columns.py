"""Drops columns: only the schema changes, and no row.

One Project lists the remaining columns. The values of the dropped ones stay in the data files until
a compaction rewrites the rows; a file that has no other columns is no longer referenced. Row ids
and row versions are kept, and the change feed is empty.

A part of a struct can be dropped only if every fragment that stores it also stores another part of
the struct: the parts also store which structs are null, and how long lists are.

Source:  transaction.proto; measured on the reference.
Differs: The reference drops a column of the primary key, and silently drops an index with it. It
         drops a struct together with its last part; here the struct must be named. After dropping
         the last part that is stored, it reads the structs, and the lists that contain them, as
         null.
"""

from collections.abc import Sequence, Set
from dataclasses import replace

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import Field
from lance_stream.schema.projections import find
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.columns.schema_changes import (
    change_schema,
    check_no_index,
    check_not_remembered_by,
)


def drop_columns(table: TableVersion, columns: Sequence[str]) -> TableVersion:
    """Drop columns; see `Dataset.drop_columns`.

    Args:
        table: Any version; the columns of the newest one are dropped.
        columns: Names, or paths into structs.

    Raises:
        NotFoundError: A column does not exist.
        InvalidInputError: A column is in the primary key, has an index, or is needed for
            tombstones; or the table, or a struct, would have no column left.
        CommitError: Every attempt conflicted with other commits.
    """

    def remaining_fields(newest: TableVersion) -> tuple[Field, ...]:
        dropped = set()
        for column in columns:
            path = find(newest.schema, column)
            _check_can_be_dropped(newest, column, path)
            dropped.add(path[-1].id)
        check_not_remembered_by(
            newest, [field.name for field in newest.schema.fields if field.id in dropped], "dropped"
        )
        fields = _without(newest.schema.fields, dropped, None)
        _check_still_stored(newest, fields)
        return fields

    return change_schema(table, remaining_fields)


def _check_can_be_dropped(table: TableVersion, column: str, path: tuple[Field, ...]) -> None:
    for step in path[:-1]:
        if step.is_packed:
            raise InvalidInputError(
                f"{column!r} cannot be dropped because it is part of a packed struct, "
                f"{step.name!r}, which can only be dropped as a whole"
            )
    removed = list(path[-1].walk())
    if any(field.primary_key_position is not None for field in removed):
        raise InvalidInputError(
            f"the column {column!r} cannot be dropped because it is part of the table's primary key"
        )
    check_no_index(table, column, {field.id for field in removed})


def _without(fields: Sequence[Field], dropped: set[int], parent: Field | None) -> tuple[Field, ...]:
    """Return fields without the dropped ones, at any depth.

    Args:
        fields: The table's columns, or the parts of a struct.
        dropped: The ids of the dropped fields.
        parent: The struct that they are parts of; None for the table's columns.
    """
    remaining = tuple(
        replace(field, children=_without(field.children, dropped, field))
        if field.children
        else field
        for field in fields
        if field.id not in dropped
    )
    if fields and not remaining:
        what = "the table" if parent is None else f"the struct {parent.name!r}"
        remedy = "keep one" if parent is None else "drop it as a whole"
        raise InvalidInputError(f"{what} would have no column left; {remedy}")
    return remaining


def _check_still_stored(table: TableVersion, remaining: Sequence[Field]) -> None:
    """Raise if a fragment that stores parts of a column would store none of the remaining ones."""
    existing = {field.id: field for field in table.schema.fields}
    changed = [field for field in remaining if field.children and existing[field.id] != field]
    if not changed:
        return
    for fragment in table.manifest.fragments:
        stored_ids = {field_id for file in fragment.files for field_id in file.field_ids}
        for top in changed:
            before = {field.id: field for field in existing[top.id].walk()}
            for field in top.walk():
                if _is_stored(before[field.id], stored_ids) and not _is_stored(field, stored_ids):
                    raise InvalidInputError(
                        f"the struct {field.name!r} of {top.name!r} would lose the only part that "
                        "is stored in some of its rows, which would become null. Compact the "
                        "table first: that stores the parts that were added without values"
                    )


def _is_stored(field: Field, stored_ids: Set[int]) -> bool:
    return any(leaf.id in stored_ids for leaf in field.leaves())
