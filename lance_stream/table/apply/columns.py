"""Operations on columns: adding, dropping and replacing them.

    Merge              replaces the schema and all fragments, which have more data files
    Project            replaces the schema; data files without a remaining column are dropped
    DataReplacement    replaces a data file by another with the same columns

A row whose values were replaced, or that got values in a new column, counts as updated in this
version.

Source: transaction.proto; measured on the reference.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import TOMBSTONED_ID, Schema
from lance_stream.table.apply import index_coverage
from lance_stream.table.apply.new_fragments import (
    check_file_version,
    max_fragment_id,
    uniform_stamps,
    with_new_fragments,
)
from lance_stream.table.feature_flags import has_stable_row_ids
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.manifest import FragmentList, Manifest
from lance_stream.table.operations.columns import DataReplacement, Merge, Project


def merge(start: Manifest, operation: Merge) -> Manifest:
    """Return the version with the fragments and columns of a merge.

    Raises:
        InvalidInputError: A fragment of the table is missing, or has another number of rows.
    """
    before = {fragment.id: fragment for fragment in start.fragments}
    merged: list[Fragment] = []
    new: list[Fragment] = []
    rewritten: dict[int, Collection[int]] = {}
    for planned in operation.fragments:
        old = before.pop(planned.id, None)
        if old is None:
            new.append(replace(planned, id=0))
            continue
        # A plan made from a fragment of an old writer has no row count either.
        if planned.physical_rows and old.physical_rows != planned.physical_rows:
            raise InvalidInputError(
                f"fragment {old.id} has {old.physical_rows} rows, but {planned.physical_rows} "
                "after the merge"
            )
        for file in planned.files:
            if file not in old.files:
                check_file_version(start, file)
        fragment = replace(old, files=planned.files)
        if fragment.files != old.files:
            rewritten[old.id] = _moved_fields(old, fragment)
            if has_stable_row_ids(start):
                fragment = replace(
                    fragment, last_updated_at_versions=uniform_stamps(fragment, start.version)
                )
        merged.append(fragment)
    if before:
        raise InvalidInputError(
            f"a merge must list every fragment of the table, but {sorted(before)} are missing"
        )
    manifest = with_new_fragments(
        replace(start, schema=operation.schema), FragmentList.of(merged), new
    )
    return _with_indices(manifest, rewritten)


def project(start: Manifest, operation: Project) -> Manifest:
    """Return the version with some of the columns, or with renamed ones."""
    schema = Schema(operation.fields, start.schema.metadata)
    field_ids = schema.ids_in_files()
    fragments = start.fragments
    if not field_ids.issuperset(field.id for field in start.schema.walk()):
        changes: dict[int, Fragment | None] = {}
        for index, fragment in enumerate(fragments):
            files = tuple(
                file for file in fragment.files if not field_ids.isdisjoint(file.field_ids)
            )
            if files != fragment.files:
                changes[index] = replace(fragment, files=files)
        fragments = fragments.replaced(changes)
    manifest = replace(
        start, schema=schema, fragments=fragments, max_fragment_id=max_fragment_id(start)
    )
    return _with_indices(manifest, {})


def data_replacement(start: Manifest, operation: DataReplacement) -> Manifest:
    """Return the version in which some columns of fragments are in other files.

    Raises:
        InvalidInputError: A fragment does not exist, or the files have different columns.
    """
    if len({file.field_ids for _, file in operation.replacements}) > 1:
        raise InvalidInputError("all files of a data replacement must hold the same columns")
    positions = start.fragments.index_by_id
    changes: dict[int, Fragment | None] = {}
    rewritten: dict[int, Collection[int]] = defaultdict(set)
    for fragment_id, file in operation.replacements:
        if fragment_id not in positions:
            raise InvalidInputError(
                f"columns of fragment {fragment_id} are to be replaced, but version "
                f"{start.version - 1} has no such fragment"
            )
        check_file_version(start, file)
        index = positions[fragment_id]
        old = start.fragments[index]
        fragment = replace(old, files=_replaced(old, file, start.schema))
        if has_stable_row_ids(start):
            fragment = replace(
                fragment, last_updated_at_versions=uniform_stamps(fragment, start.version)
            )
        changes[index] = fragment
        rewritten[fragment_id] = {*rewritten[fragment_id], *file.field_ids}
    manifest = replace(start, fragments=start.fragments.replaced(changes))
    return _with_indices(manifest, rewritten)


def _replaced(fragment: Fragment, file: DataFile, schema: Schema) -> tuple[DataFile, ...]:
    """Return the files of a fragment, with a new one that replaces its columns."""
    for index, old in enumerate(fragment.files):
        if old.field_ids == file.field_ids:
            return (*fragment.files[:index], file, *fragment.files[index + 1 :])
    stored_ids = {field_id for old in fragment.files for field_id in old.field_ids}
    if stored_ids.isdisjoint(file.field_ids):
        return (*fragment.files, file)
    if not stored_ids.issuperset(file.field_ids):
        raise InvalidInputError(
            f"the data file {file.path!r} holds columns that fragment {fragment.id} stores "
            "together with columns that it does not; write two files"
        )
    new_ids = set(file.field_ids)
    if any(file.file_version[0] < 2 and new_ids & set(file.field_ids) for file in fragment.files):
        raise InvalidInputError(
            f"columns of fragment {fragment.id} are stored in a file of version 0.1, which can "
            "only be replaced as a whole"
        )
    used_ids = schema.ids_in_files()
    old_files = [_without(old, file.field_ids) for old in fragment.files]
    return (
        *(old_file for old_file in old_files if not used_ids.isdisjoint(old_file.field_ids)),
        file,
    )


def _without(file: DataFile, field_ids: Collection[int]) -> DataFile:
    remaining_ids = tuple(
        TOMBSTONED_ID if field_id in field_ids else field_id for field_id in file.field_ids
    )
    return replace(file, field_ids=remaining_ids)


def _moved_fields(old: Fragment, new: Fragment) -> set[int]:
    """Return the ids of the fields that are in another file than before."""
    before = {field_id: file.path for file in old.files for field_id in file.field_ids}
    after = {field_id: file.path for file in new.files for field_id in file.field_ids}
    return {key for key, path in after.items() if before.get(key, path) != path}


def _with_indices(manifest: Manifest, rewritten: dict[int, Collection[int]]) -> Manifest:
    if manifest.index_section is None:
        return manifest
    manifest = index_coverage.with_indices(
        manifest,
        lambda indices: index_coverage.without_rewritten_columns(
            indices, rewritten, manifest.schema
        ),
    )
    return index_coverage.with_indices(
        manifest,
        lambda indices: index_coverage.relevant(indices, manifest.schema, manifest.fragments.ids),
    )
