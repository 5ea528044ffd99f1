"""Rebases our operation: merges deletes in fragments in which both writers delete rows.

Our Delete (or Update) was planned on one version. For each fragment that it touches, it has a
deletion file with the rows that were deleted in that version and the rows that we delete.
Meanwhile, another writer has published a version in which other rows of the fragment are deleted.
Both can be merged, unless both deleted the same row:

    ours              deleted when we planned, and by us
    read              deleted when we planned
    newest            deleted now
    ours - read       deleted by us; must not be in newest
    ours | newest     deleted after the rebase

The caller reads and writes the deletion files: `plan_rebase` returns the files to merge, `unite`
the merged offsets, and `rebased` the operation with the new files.

A new index is rebased by removing fragments whose indexed columns were changed in place from its
coverage (`rebased_indices`).

Source:  measured on the reference: deletions of different rows of one fragment are merged, those
         of the same row conflict.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap

from lance_stream.arrays import RowOffsets
from lance_stream.errors import RetryableConflictError
from lance_stream.table.apply.index_coverage import coverage, has_zones
from lance_stream.table.fragments.fragment import DeletionFile, Fragment
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.lineage.ascending import difference, union
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.rows import Delete, Update
from lance_stream.table.operations.versions import CreateIndex

_NUM_EXAMPLES = 5


class DeletionFilesToUnite(NamedTuple):
    """The deletion files of one fragment that must be read and merged.

    Attributes:
        fragment_id: The fragment.
        physical_rows: The number of rows of the fragment.
        ours: The file of our operation.
        read: The file of the version that we planned on; None if no row was deleted.
        newest: The file of the newest version; None if no row is deleted.
    """

    fragment_id: int
    physical_rows: int
    ours: DeletionFile
    read: DeletionFile | None
    newest: DeletionFile | None


def plan_rebase(
    operation: Delete | Update, read: Manifest, newest: Manifest
) -> list[DeletionFilesToUnite]:
    """Return the deletion files that must be merged to rebase ours on the newest version.

    Args:
        operation: Our operation.
        read: The version that it was planned on.
        newest: The newest version; all versions between allow a rebase.

    Raises:
        RetryableConflictError: A fragment that ours changes no longer exists.
    """
    to_unite: list[DeletionFilesToUnite] = []
    for fragment in operation.updated_fragments:
        planned, current = read.fragments.by_id(fragment.id), newest.fragments.by_id(fragment.id)
        if planned is None or current is None:
            raise RetryableConflictError(
                f"rows were to be deleted from fragment {fragment.id}, which version "
                f"{newest.version} no longer has. Plan the operation again on that version",
                newest.version,
            )
        if planned.deletion_file != current.deletion_file and fragment.deletion_file is not None:
            to_unite.append(
                DeletionFilesToUnite(
                    fragment.id,
                    current.physical_rows,
                    fragment.deletion_file,
                    planned.deletion_file,
                    current.deletion_file,
                )
            )
    return to_unite


def unite(
    files: DeletionFilesToUnite,
    ours: RowOffsets,
    read: RowOffsets,
    newest: RowOffsets,
    version: int,
) -> RowOffsets:
    """Return the offsets of all rows of a fragment that are deleted after the rebase.

    Args:
        files: The fragment and its files.
        ours: The offsets in our operation's file.
        read: The offsets in the file of the version that we planned on; empty without one.
        newest: The offsets in the file of the newest version; empty without one.
        version: The newest version.

    Returns:
        (n,) u32, ascending.

    Raises:
        RetryableConflictError: A row that we delete was deleted or moved by another writer.
    """
    new = difference(ours, read)
    twice = difference(new, difference(new, newest))
    if len(twice):
        raise RetryableConflictError(
            f"{len(twice)} rows of fragment {files.fragment_id} were to be deleted or changed, but "
            f"other writers deleted or changed them before version {version}, for example at the "
            f"offsets {twice[:_NUM_EXAMPLES].tolist()}. Plan the operation again on that version",
            version,
        )
    return union(ours, newest).astype(np.uint32, copy=False)


def rebased(
    operation: Delete | Update, files: Mapping[int, DeletionFile | None]
) -> Delete | Update:
    """Return the operation with other deletion files.

    Args:
        operation: Our operation.
        files: The new deletion file by fragment id; None if all of the fragment's rows are deleted.
    """
    updated = tuple(
        replace(fragment, deletion_file=files[fragment.id]) if fragment.id in files else fragment
        for fragment in operation.updated_fragments
        if files.get(fragment.id, fragment) is not None
    )
    emptied = tuple(fragment_id for fragment_id, file in files.items() if file is None)
    if isinstance(operation, Delete):
        return replace(
            operation,
            updated_fragments=updated,
            deleted_fragment_ids=operation.deleted_fragment_ids + emptied,
        )
    return replace(
        operation,
        updated_fragments=updated,
        removed_fragment_ids=operation.removed_fragment_ids + emptied,
    )


def rebased_indices(operation: CreateIndex, read: Manifest, newest: Manifest) -> CreateIndex:
    """Return the operation without coverage of fragments whose indexed columns were changed since.

    Rows that were deleted or moved since do not matter: readers skip their index entries.

    Args:
        operation: Our operation.
        read: The version that it was planned on.
        newest: The newest version; all versions between allow a rebase.

    Raises:
        RetryableConflictError: One of the columns has a zone map or a Bloom filter.
    """
    return replace(
        operation,
        new_indices=tuple(_rebased_index(index, read, newest) for index in operation.new_indices),
    )


def _rebased_index(index: IndexMetadata, read: Manifest, newest: Manifest) -> IndexMetadata:
    if not index.fragment_bitmap:
        return index
    parts = set(index.field_ids)
    for field_id in index.field_ids:
        field = newest.schema.field_by_id(field_id)
        parts |= {part.id for part in field.walk()} if field is not None else set()
    covered = coverage(index)
    changed_ids = BitMap()
    for fragment_id in covered:
        planned, current = (manifest.fragments.by_id(fragment_id) for manifest in (read, newest))
        if (
            planned is not None
            and current is not None
            and _locations(planned, parts) != _locations(current, parts)
        ):
            changed_ids.add(fragment_id)
    if changed_ids and has_zones(index):
        raise RetryableConflictError(
            f"columns of the index {index.name!r} have new values in version {newest.version}. An "
            "update of the index would keep the zones of the old values. Create the index again "
            "on that version",
            newest.version,
        )
    return (
        replace(index, fragment_bitmap=(covered - changed_ids).serialize())
        if changed_ids
        else index
    )


def _locations(fragment: Fragment, field_ids: Collection[int]) -> set[tuple[int, str, int | None]]:
    """Return the files of a fragment in which some columns are stored."""
    return {
        (field_id, file.path, file.base_id)
        for file in fragment.files
        for field_id in file.field_ids
        if field_id in field_ids
    }
