"""The rows that differ between two versions.

For adjacent versions, comparing their manifests is sufficient (see `table.changes.diff`). Between
versions further apart, and across a restore, it may not be: if a row has moved but its row versions
are the same, either a compaction moved it, or a writer changed it without setting row versions.
Only then are the versions in between examined, one step at a time, for rows that such a writer
changed. If they no longer exist, row versions are trusted. A restored version that no longer exists
is recreated from its restore, which has the same rows.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np

from lance_stream.arrays import U64s
from lance_stream.errors import NotFoundError
from lance_stream.feed.ancestry import restored_version, version_restored_by
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.changes.diff import (
    DiffPlan,
    History,
    Sequences,
    TableChanges,
    changed_row_ids,
    diff,
    plan_diff,
)

_UNKNOWN: Final = History(np.empty(0, np.uint64), has_old_columns=True)
"""History across a restore of a missing version: trusts row versions; columns may be back."""


class RowDifferences:
    """Compares versions of one table, and caches results for the versions in between.

    Args:
        table: Any version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._table = table
        self._unstamped: dict[int, U64s] = {}
        self._touched: dict[int, U64s] = {}
        self._restored: dict[int, int | None] = {}
        self._restores: dict[int, TableVersion] = {}  # by restored version

    def changes(
        self, older: TableVersion | None, newer: TableVersion, *, column_backfills: bool = True
    ) -> TableChanges:
        """Return the rows in which two versions differ.

        Args:
            older: The earlier version; None if `newer` is the first version.
            newer: The later version.
            column_backfills: Whether a row that only got a value in a new column counts as updated.

        Raises:
            UnsupportedFeatureError: A version has no stable row ids.
        """
        return self._compare(older, newer, column_backfills=column_backfills)[0]

    def _compare(
        self, older: TableVersion | None, newer: TableVersion, *, column_backfills: bool
    ) -> tuple[TableChanges, Sequences]:
        plan = plan_diff(older.manifest if older else None, newer.manifest)
        changed, sequences = _diff(plan, newer, None, column_backfills=column_backfills)
        if older is None or (column_backfills and not changed.is_ambiguous):
            return changed, sequences
        history = self._history_of(older, newer, column_backfills=column_backfills)
        if history is None:
            return changed, sequences
        if history.has_old_columns:
            # Columns added after a restore may reuse ids of the columns that it brought back.
            plan = plan_diff(older.manifest, newer.manifest, _new_field_ids(older, newer))
        return _diff(plan, newer, history, column_backfills=column_backfills)

    def _history_of(
        self, older: TableVersion, newer: TableVersion, *, column_backfills: bool
    ) -> History | None:
        """Return the changes in between that a comparison of both versions does not show.

        Returns:
            None if the versions are adjacent, or if a version in between no longer exists.
        """
        first, last = older.version, newer.version
        origin = self._restored_version_of(newer) if first + 1 == last else None
        if origin is not None:
            first, last = origin, older.version
        elif first + 1 == last:
            return None
        try:
            unstamped, has_old_columns = self._unstamped_between(first, last)
            return History(
                unstamped,
                None if column_backfills else self._touched_between(first, last),
                has_old_columns or first < older.version,
            )
        except NotFoundError:  # cleaned up
            return None if origin is None else _UNKNOWN

    def _unstamped_between(self, after: int, through: int) -> tuple[U64s, bool]:
        """Return the ids of rows that may have changed without new row versions.

        Returns:
            The row ids; and whether a restore in the interval brought back dropped columns, or
            may have done so.
        """
        has_old_columns = False
        row_ids, ranges, seen = [np.empty(0, np.uint64)], [(after, through)], set[int]()
        while ranges:
            start, stop = ranges.pop()
            if start + 1 in seen:
                continue  # all of it: a range ends where the one with its restore goes on
            try:
                for older, newer in self._steps(start, stop):
                    if newer.version in seen:
                        continue
                    seen.add(newer.version)
                    if newer.version not in self._unstamped:
                        self._unstamped[newer.version] = self.changes(older, newer).unstamped
                    row_ids.append(self._unstamped[newer.version])
                    origin = self._restored_version_of(newer)
                    if origin is not None:
                        has_old_columns |= bool(_new_field_ids(older, newer))
                        # It may undo changes that were made since without new row versions.
                        ranges.append((origin, older.version))
            except NotFoundError:
                if (start, stop) == (after, through):
                    raise
                has_old_columns = True
        return np.unique(np.concatenate(row_ids)), has_old_columns

    def _touched_between(self, after: int, through: int) -> U64s:
        """Return the ids of rows inserted, deleted, or changed by more than a new column."""
        row_ids = [np.empty(0, np.uint64)]
        for older, newer in self._steps(after, through):
            if newer.version not in self._touched:  # otherwise each restore would recompute those
                compared = self._compare(older, newer, column_backfills=False)
                self._touched[newer.version] = changed_row_ids(*compared)
            row_ids.append(self._touched[newer.version])
        return np.unique(np.concatenate(row_ids))

    def _restored_version_of(self, table: TableVersion) -> int | None:
        if table.version not in self._restored:
            origin = self._restored[table.version] = restored_version(table)
            if origin is not None:
                self._restores.setdefault(origin, table)
        return self._restored[table.version]

    def _steps(self, after: int, through: int) -> Iterator[tuple[TableVersion, TableVersion]]:
        if after == through:
            return
        older = self._start_version(after)
        for version in range(after + 1, through + 1):
            newer = self._at(version)
            yield older, newer
            older = newer

    def _start_version(self, version: int) -> TableVersion:
        """Return the version before the first step, recreated from a restore if it is missing."""
        try:
            return self._at(version)
        except NotFoundError:
            if version not in self._restores:
                raise
            return version_restored_by(self._restores[version], version)

    def _at(self, version: int) -> TableVersion:
        if version == self._table.version:
            return self._table
        return self._table.read_at(version)


def _diff(
    plan: DiffPlan, newer: TableVersion, history: History | None, *, column_backfills: bool
) -> tuple[TableChanges, Sequences]:
    for fragment in (*plan.removed, *plan.added, *chain.from_iterable(plan.common)):
        newer.check_stated_rows(fragment)
    deleted = newer.deleted_offsets_of(plan.deletion_files_of)
    deleted_rows = {
        (fragment.id, fragment.deletion_file): offsets
        for fragment, offsets in zip(plan.deletion_files_of, deleted, strict=True)
        if fragment.deletion_file is not None
    }
    sequences = {sequence: newer.files.sequence(sequence) for sequence in plan.sequences}
    changes = diff(plan, deleted_rows, sequences, history, column_backfills=column_backfills)
    return changes, sequences


def _new_field_ids(older: TableVersion, newer: TableVersion) -> set[int]:
    """Return field ids of one version that mean another field, or no field, in another version."""
    ids = FeedColumns(newer, None).ids_in(older)
    return {field.id for field in newer.schema.walk() if ids.get(field.id) != field.id}
