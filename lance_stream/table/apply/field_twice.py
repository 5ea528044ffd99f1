"""Repairs fields that are in two data files of a fragment, as Lance 0.10 wrote them.

Lance 0.10 wrote the new values of a replaced column to another file under the same field id,
without removing the id from the old file. Readers use the last file
(`table.fragments.fragment.columns_of_files`). The next version marks the column as unused in the
older files, so that no reader mistakes the old values for the new ones, and drops files without any
used column.

In a file of version 0.1, whose columns are numbered from the first field's id, the first field
cannot be marked: such a fragment is left unchanged.

Source:  the reference's crate lance, io/commit, fix_schema.
Differs: The reference gives the column a new id, in the schema and in the last files. Then the
         columns of a 0.1 file that the same commit appends are at the wrong positions.
"""

from collections.abc import Container, Sequence
from dataclasses import replace

from lance_stream.schema.fields import TOMBSTONED_ID
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.manifest import Manifest, WriterVersion

_LAST_RELEASE = (0, 10)


def may_have_field_twice(manifest: Manifest | None) -> bool:
    """Return whether the writer of a version may have stored a field in two files."""
    # Writers before 0.8 recorded no writer version, and did not add columns.
    return (
        manifest is not None
        and manifest.writer_version is not None
        and _is_old(manifest.writer_version)
    )


def _is_old(writer: WriterVersion) -> bool:
    major, _, rest = writer.version.partition(".")
    minor = rest.partition(".")[0]
    if writer.library != "lance" or not (major.isdecimal() and minor.isdecimal()):
        return False
    return (int(major), int(minor)) <= _LAST_RELEASE


def with_fields_once(manifest: Manifest) -> Manifest:
    """Return a version in which no field is in two data files of a fragment."""
    # The parts of a struct may be in several files, all of which name the struct.
    structs = {field.id for field in manifest.schema.walk() if not field.is_leaf}
    changes: dict[int, Fragment | None] = {}
    for index, fragment in enumerate(manifest.fragments):
        files = _with_last_only(fragment.files, structs)
        if files != fragment.files:
            changes[index] = replace(fragment, files=files)
    return (
        replace(manifest, fragments=manifest.fragments.replaced(changes)) if changes else manifest
    )


def _with_last_only(files: Sequence[DataFile], structs: Container[int]) -> tuple[DataFile, ...]:
    seen_ids: set[int] = set()
    data_files: list[DataFile] = []
    for file in reversed(files):
        ids = tuple(
            TOMBSTONED_ID if field_id in seen_ids and field_id not in structs else field_id
            for field_id in file.field_ids
        )
        seen_ids.update(file.field_ids)
        if all(field_id == TOMBSTONED_ID for field_id in ids):
            continue
        if ids[0] == TOMBSTONED_ID and not file.column_indices:
            return tuple(files)
        data_files.append(file if ids == file.field_ids else replace(file, field_ids=ids))
    return tuple(reversed(data_files))
