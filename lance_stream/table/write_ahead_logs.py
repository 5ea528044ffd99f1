"""The write-ahead log (MemWAL) of a table, and the column changes that would lose its rows.

Rows in the log are not part of a version. Their writer merges them later, and readers of the log
match their values with the table's columns by field id. A commit cannot see these rows. So a table
with a log refuses changes that would leave them without values, or with values that do not fit:

    a column with another type             its values get a new field id, unknown to rows in the log
    a new column that has values           rows in the log would be null in it
    a column that may no longer be null    rows in the log may have nulls
    another primary key                    open writers of the log know the key by its names

Renaming and dropping other columns, and adding columns without values, are safe. An overwrite
removes the log together with the rows, and so does restoring a version from before the log.

Source:  lance/src/dataset/schema_evolution.rs of release 14 (`reject_on_mem_wal`), and experiments.
Differs: The reference accepts values of a new column if they come from a join (`merge`), new
         non-nullable columns, and dropping the primary key. It looks for the log only before the
         commit.
"""

from collections.abc import Collection
from typing import Final

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import Field, Schema
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import Manifest

WRITE_AHEAD_LOG: Final = "__lance_mem_wal"
"""The name of the index that describes a table's write-ahead log."""

_REMEDY: Final = "Merge its rows into the table and drop the log, with the program that writes it"


def has_write_ahead_log(manifest: Manifest) -> bool:
    """Return whether a table is written through a write-ahead log.

    Raises:
        CorruptDataError: The index section is damaged.
    """
    section = manifest.index_section
    if section is None or WRITE_AHEAD_LOG.encode() not in section:
        return False
    return any(index.name == WRITE_AHEAD_LOG for index in decode_index_section(section))


def check_rows_in_log(
    manifest: Manifest, schema: Schema, with_values: Collection[int] | None = None
) -> None:
    """Raise if a table has a write-ahead log whose rows would not fit new columns.

    Args:
        manifest: The version.
        schema: The columns of the next version.
        with_values: The ids of the fields that have values in the next version; None if all new
            columns have values.

    Raises:
        InvalidInputError: The rows in the log would not fit; the message names the column.
        CorruptDataError: The index section is damaged.
    """
    if schema.fields == manifest.schema.fields or not has_write_ahead_log(manifest):
        return
    reason = _reason(_by_id(manifest.schema), _by_id(schema), with_values)
    if reason is not None:
        raise InvalidInputError(
            f"{reason}. The table has a write-ahead log (MemWAL), which may have rows that are not "
            f"in any version yet. {_REMEDY}; then change the column"
        )


_Fields = dict[int, tuple[str, Field]]


def _reason(before: _Fields, after: _Fields, with_values: Collection[int] | None) -> str | None:
    """Return why rows in the log would not fit the new columns; None if they fit."""
    removed = {path for field_id, (path, _) in before.items() if field_id not in after}
    for field_id, (path, field) in after.items():
        if field_id not in before:
            if path in removed:
                return f"the type of the column {path!r} cannot be changed"
            if not field.nullable or with_values is None or field_id in with_values:
                return (
                    f"the column {path!r} can only be added as a nullable column without values: "
                    "rows in the log would be null in it"
                )
            continue
        old = before[field_id][1]
        if field.logical_type != old.logical_type:
            return f"the type of the column {path!r} cannot be changed"
        if old.nullable and not field.nullable:
            return f"the column {path!r} cannot become non-nullable: rows in the log may be null"
    old_key, new_key = _key(before), _key(after)
    if old_key != new_key:
        names = ", ".join(path for path, _ in old_key.values())
        return f"the primary key ({names}) cannot be changed or renamed: writers of the log use it"
    return None


def _by_id(schema: Schema) -> _Fields:
    fields: _Fields = {}

    def add(field: Field, prefix: str) -> None:
        path = prefix + field.name
        fields[field.id] = path, field
        for child in field.children:
            add(child, f"{path}.")

    for field in schema.fields:
        add(field, "")
    return fields


def _key(fields: _Fields) -> dict[int, tuple[str, int | None]]:
    return {
        field_id: (path, field.primary_key_position)
        for field_id, (path, field) in fields.items()
        if field.primary_key_position is not None
    }
