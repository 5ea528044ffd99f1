"""Fields that two data files of a fragment hold, as writers of Lance 0.10 left them.

A column that was replaced got its new values in another file under its old id, and the old file
kept the id. The last file is the one that is read (`table.fragments.columns_of_files`). The next
version says of the old files that their column is void, so that no reader can take the old values
for the new ones; a file in which nothing is left is dropped.

Of a file of version 0.1, whose columns are counted from the first field's id, the first field
cannot be void: such a fragment is left as it is.

Source:  the reference's crate lance, io/commit, fix_schema.
Differs: The reference gives the column a new id, in the schema and in the last files. A file of
         0.1 that is appended by the same commit then has its columns elsewhere.
"""

from collections.abc import Container, Sequence
from dataclasses import replace

from lance_stream.schema.fields import TOMBSTONED_ID
from lance_stream.table.fragments import DataFile, Fragment
from lance_stream.table.manifest import Manifest, WriterVersion

_LAST_RELEASE = (0, 10)


def may_have_field_twice(manifest: Manifest | None) -> bool:
    """Say whether a version comes from a writer that may have left a field in two files."""
    # writers before 0.8 did not say who they are, and added no columns to files
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


def with_fields_once(made: Manifest) -> Manifest:
    """Return a version in which no field lies in two data files of a fragment."""
    # the parts of a struct may lie in several files, which name the struct, too
    structs = {each.id for each in made.schema.walk() if not each.is_leaf}
    changes: dict[int, Fragment | None] = {}
    for place, fragment in enumerate(made.fragments):
        files = _with_last_only(fragment.files, structs)
        if files != fragment.files:
            changes[place] = replace(fragment, files=files)
    return replace(made, fragments=made.fragments.replaced(changes)) if changes else made


def _with_last_only(files: Sequence[DataFile], structs: Container[int]) -> tuple[DataFile, ...]:
    seen: set[int] = set()
    left: list[DataFile] = []
    for file in reversed(files):
        ids = tuple(
            TOMBSTONED_ID if each in seen and each not in structs else each
            for each in file.field_ids
        )
        seen.update(file.field_ids)
        if all(each == TOMBSTONED_ID for each in ids):
            continue
        if ids[0] == TOMBSTONED_ID and not file.column_indices:
            return tuple(files)
        left.append(file if ids == file.field_ids else replace(file, field_ids=ids))
    return tuple(reversed(left))
