"""Counts the rows that a version inserted, updated and deleted, from two manifests alone.

The change feed finds the rows themselves, and may have to read deletion files. The counts usually
follow from the manifests:

    inserted    rows of new fragments whose row id was never used before the version
    updated     rows of new fragments with an earlier row id and a row version of this version
    deleted     live rows before + inserted - live rows after

The last line holds for every version. The first two hold unless rows are brought back (by a
restore), values are replaced in place, or a new fragment already has deleted rows. For such
versions, and if a manifest lacks a count, the result is None: unknown without reading files.

Without stable row ids, only versions that only append, only delete, or change no rows can be
counted.

This is pure: two adjacent manifests, and the operation of the newer one.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from lance_stream.errors import BadDataError
from lance_stream.table.changes.appended import appended_fragments
from lance_stream.table.changes.diff import (
    NOTHING_HIDDEN,
    DiffPlan,
    TableChanges,
    diff,
    plan_diff,
)
from lance_stream.table.feature_flags import has_stable_row_ids
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.row_ids import Ranges, RowIdSequence, decode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update

MAX_ROWS: Final = 1 << 24
"""Changes of at most this many rows are counted by finding the rows."""

_NEVER_BRING_BACK_ROWS: Final = (Append, Delete, Overwrite, Rewrite, Update)


@dataclass(frozen=True, slots=True)
class ChangedRowCounts:
    """The numbers of rows that a version changed.

    Attributes:
        inserted: The number of rows that are live only in this version.
        updated: The number of rows that are live in both and that this version changed.
        deleted: The number of rows that are live only in the previous version.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        """The number of rows that differ."""
        return self.inserted + self.updated + self.deleted

    @classmethod
    def of(cls, changed: TableChanges) -> "ChangedRowCounts":
        """Return the numbers of the rows in which two versions differ."""
        return cls(
            sum(len(insert.offsets) for insert in changed.inserts),
            sum(len(update.offsets) for update in changed.updates),
            sum(len(delete.offsets) for delete in changed.deletes),
        )


def count_changed_rows(
    older: Manifest | None, newer: Manifest, operation: Operation | None
) -> ChangedRowCounts | None:
    """Return how many rows a version changed; None if the manifests do not show it.

    Args:
        older: The previous version; None for the state before the first one.
        newer: The version.
        operation: Its operation; None if unknown.
    """
    if older is not None and older.fragments == newer.fragments and older.schema == newer.schema:
        return ChangedRowCounts()
    with suppress(BadDataError):  # reading the rows reports the error
        if not has_stable_row_ids(newer):
            return _by_fragments(older, newer, operation)
        if older is None:
            inserted = _live_rows(newer.fragments)
            return None if inserted is None else ChangedRowCounts(inserted)
        return _by_row_ids(plan_diff(older, newer), older, operation)
    return None


def _by_fragments(
    older: Manifest | None, newer: Manifest, operation: Operation | None
) -> ChangedRowCounts | None:
    appended = appended_fragments(older, newer, operation)
    if appended.changes is None:
        inserted = _live_rows(appended.fragments)
        return None if inserted is None else ChangedRowCounts(inserted)
    before = None if older is None else _live_rows(older.fragments)
    after = _live_rows(newer.fragments)
    if isinstance(operation, Delete) and before is not None and after is not None:
        return ChangedRowCounts(deleted=before - after)
    return None


def _by_row_ids(
    plan: DiffPlan, older: Manifest, operation: Operation | None
) -> ChangedRowCounts | None:
    after = _live_rows([*plan.added, *(newer for _, newer in plan.common)])
    if not plan.removed and not plan.common:
        return None if after is None else ChangedRowCounts(inserted=after)
    never_revives = isinstance(operation, _NEVER_BRING_BACK_ROWS)
    if not plan.sequences and not plan.deletion_files_of and _physical_rows(plan) <= MAX_ROWS:
        history = NOTHING_HIDDEN if isinstance(operation, Rewrite) else None
        changed = diff(plan, history=history)
        return ChangedRowCounts.of(changed) if never_revives or not changed.is_ambiguous else None
    before = _live_rows([*plan.removed, *(older for older, _ in plan.common)])
    if before is None or after is None or not never_revives or not _is_countable(plan):
        return None
    inserted = updated = 0
    for fragment in plan.added:
        written = _written_rows(fragment, plan.version, older.next_row_id)
        if written is None or not _is_usual(written, operation):
            return None
        inserted += written.inserted
        updated += written.updated
    deleted = before + inserted - after
    return ChangedRowCounts(inserted, updated, deleted) if deleted >= 0 else None


def _physical_rows(plan: DiffPlan) -> int:
    fragments = chain(plan.removed, plan.added, *plan.common)
    return sum(fragment.physical_rows for fragment in fragments)


def _is_countable(plan: DiffPlan) -> bool:
    """Return whether rows were only deleted from old fragments, and written to new ones."""
    return (
        not plan.new_field_ids
        and all(fragment.deletion_file is None for fragment in plan.added)
        and all(
            before.files == after.files
            and before.last_updated_at_versions == after.last_updated_at_versions
            for before, after in plan.common
        )
    )


class _Written(NamedTuple):
    inserted: int
    updated: int
    moved: int


def _is_usual(written: _Written, operation: Operation | None) -> bool:
    """Return whether an operation can write such rows; otherwise the counts are wrong."""
    may_move, may_update = isinstance(operation, Rewrite), isinstance(operation, Update)
    return (may_move or not written.moved) and (may_update or not written.updated)


def _written_rows(fragment: Fragment, version: int, next_row_id: int) -> _Written | None:
    """Count the inserted, updated and moved rows of a new fragment.

    Returns None if this would take too much memory, or requires reading a file.
    """
    stored = fragment.last_updated_at_versions
    if not isinstance(fragment.row_ids, bytes) or not isinstance(stored, bytes | None):
        return None
    ids = decode_row_ids(fragment.row_ids, fragment.physical_rows or None)
    versions = decode_row_versions(stored, ids.num_ids)
    is_written = versions.versions == version
    inserted = _num_ids_from(next_row_id, ids)
    if inserted is None:
        return None
    moved = ids.num_ids - inserted
    if moved == 0 or is_written.all():
        return _Written(inserted, moved, 0)
    if not is_written.any():
        return _Written(inserted, 0, moved)
    if ids.num_ids > MAX_ROWS:
        return None
    updated = int(((ids.to_array() < next_row_id) & (versions.to_array() == version)).sum())
    return _Written(inserted, updated, moved - updated)


def _num_ids_from(first: int, ids: RowIdSequence) -> int | None:
    """Count the row ids from `first` on; return None if this would take too much memory."""
    num_ids = 0
    for segment in ids.segments:
        if isinstance(segment, Ranges):
            starts = np.maximum(segment.starts, np.uint64(first))
            num_ids += int((segment.stops - np.minimum(starts, segment.stops)).sum())
        elif len(segment) > MAX_ROWS:
            return None
        else:
            num_ids += int((segment.to_array() >= first).sum())
    return num_ids


def _live_rows(fragments: Iterable[Fragment]) -> int | None:
    """Return the number of live rows; None if an old writer omitted it from the manifest."""
    rows = 0
    for fragment in fragments:
        file = fragment.deletion_file
        if not fragment.physical_rows or (file is not None and not file.num_deleted_rows):
            return None
        rows += fragment.num_live_rows
    return rows
