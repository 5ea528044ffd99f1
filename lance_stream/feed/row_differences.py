"""The rows that differ between two versions.

For adjacent versions, comparing their manifests is sufficient (see `table.changes.diff`). Between
versions further apart, and across a restore, it may not be: if a row has moved but its row versions
are the same, either a compaction moved it, or a writer changed it without setting row versions.
Only then are the versions in between examined, each compared with the previous one, for rows that
such a writer changed; and, if a restore is among them, the versions that it undid. If one of them
dropped row versions, these do not show what any of them changed: then a row that has moved counts
as updated if one of the versions changed it. If versions in between no longer exist, row versions
are trusted, and rows without row versions count as updated if they have moved. A restored version
that no longer exists is recreated from its restore, which has the same rows.

A compaction may drop row versions as well. Its rows have only moved, as its operation shows.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from lance_stream.arrays import U64s
from lance_stream.errors import NotFoundError
from lance_stream.feed.ancestry import Ancestry, restored_version, version_restored_by
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.snapshot.history import read_operation_kind
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.changes.diff import (
    NOTHING_HIDDEN,
    DiffPlan,
    History,
    Sequences,
    TableChanges,
    changed_row_ids,
    diff,
    plan_diff,
)
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import SupportedOperation
from lance_stream.table.operations.versions import Restore

_UNKNOWN: Final = History(np.empty(0, np.uint64), has_old_columns=True, is_complete=False)
"""History across a restore of a missing version: trusts row versions; columns may be back."""


class _HiddenChanges(NamedTuple):
    """What a version changed that a comparison of versions before and after it does not show.

    Attributes:
        unstamped: (n,) u64, ids of rows that may have changed without new row versions.
        drops_row_versions: Whether it dropped row versions, so that changes before it are hidden.
        has_old_columns: Whether it is a restore that brought back dropped columns.
    """

    unstamped: U64s
    drops_row_versions: bool
    has_old_columns: bool


class RowDifferences:
    """Compares versions of one table, and caches results for the versions in between.

    Args:
        table: Any version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._table = table
        self._ancestry = Ancestry(table)
        self._hidden: dict[int, _HiddenChanges] = {}
        self._touched: dict[tuple[int, bool], U64s] = {}
        self._kinds: dict[int, type[SupportedOperation] | None] = {}
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
        history = self._history_of(
            older, newer, drops=changed.drops_row_versions, column_backfills=column_backfills
        )
        is_step = older.version + 1 == newer.version
        if history is None and len(changed.unstamped) and is_step:
            history = NOTHING_HIDDEN if self._kind_of(newer) is Rewrite else None
        if history is None:
            return changed, sequences
        if history.has_old_columns:
            # Columns added after a restore may reuse ids of the columns that it brought back.
            plan = plan_diff(older.manifest, newer.manifest, self._new_field_ids(older, newer))
        return _diff(plan, newer, history, column_backfills=column_backfills)

    def _history_of(
        self, older: TableVersion, newer: TableVersion, *, drops: bool, column_backfills: bool
    ) -> History | None:
        """Return the changes in between that a comparison of both versions does not show.

        Args:
            older: The earlier version.
            newer: The later version.
            drops: Whether the later one lacks row versions that the earlier one has.
            column_backfills: Whether a row that only got a value in a new column counts as updated.

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
            versions, are_all = self._versions_between(first, last)
            hidden = [self._hidden_changes(version) for version in versions]
            drops |= any(changes.drops_row_versions for changes in hidden)
            touched, unstamped = None, [changes.unstamped for changes in hidden]
            if drops or not column_backfills:
                # In ascending order: earlier versions are cached when a restore needs them.
                by_version = {
                    version: self._touched_by(version, column_backfills=column_backfills)
                    for version in versions
                }
                unstamped = [*by_version.values()] if drops else unstamped
                if not column_backfills:
                    touched = _union(by_version[version] for version in range(first + 1, last + 1))
        except NotFoundError:  # cleaned up
            return None if origin is None else _UNKNOWN
        return History(
            _union(unstamped),
            touched,
            not are_all
            or first < older.version
            or any(changes.has_old_columns for changes in hidden),
            is_complete=are_all,
        )

    def _versions_between(self, after: int, through: int) -> tuple[list[int], bool]:
        """Return the versions of an interval, and those that its restores undid.

        A restore may undo changes that were made without new row versions.

        Returns:
            The existing versions, ascending; and whether none is missing.

        Raises:
            NotFoundError: A version of the interval is missing.
        """
        versions, are_all, ranges = set[int](), True, [(after, through)]
        while ranges:
            start, stop = ranges.pop()
            try:
                for version in range(start + 1, stop + 1):
                    if version in versions:
                        break  # so are all later ones: each range ends before a version of the set
                    restored = self._restored_by(version)
                    versions.add(version)
                    if restored is not None:
                        ranges.append((restored, version - 1))
            except NotFoundError:
                if (start, stop) == (after, through):
                    raise
                are_all = False
        return sorted(versions), are_all

    def _hidden_changes(self, version: int) -> _HiddenChanges:
        if version not in self._hidden:
            older, newer = self._neighbors(version)
            changed = self.changes(older, newer)
            is_restore = self._restored_by(version) is not None
            has_old_columns = is_restore and bool(self._new_field_ids(older, newer))
            self._hidden[version] = _HiddenChanges(
                changed.unstamped, changed.drops_row_versions, has_old_columns
            )
        return self._hidden[version]

    def _touched_by(self, version: int, *, column_backfills: bool) -> U64s:
        """Return the ids of rows inserted, deleted, or changed, maybe by only a new column."""
        key = version, column_backfills
        if key not in self._touched:
            compared = self._compare(*self._neighbors(version), column_backfills=column_backfills)
            self._touched[key] = changed_row_ids(*compared)
        return self._touched[key]

    def _restored_by(self, version: int) -> int | None:
        if version not in self._restored:
            self._restored_version_of(self._at(version))
        return self._restored[version]

    def _restored_version_of(self, table: TableVersion) -> int | None:
        if table.version not in self._restored:
            origin = restored_version(table) if self._kind_of(table) is Restore else None
            self._restored[table.version] = origin
            if origin is not None:
                self._restores.setdefault(origin, table)
        return self._restored[table.version]

    def _kind_of(self, table: TableVersion) -> type[SupportedOperation] | None:
        if table.version not in self._kinds:
            self._kinds[table.version] = read_operation_kind(table.store, table.manifest)
        return self._kinds[table.version]

    def _neighbors(self, version: int) -> tuple[TableVersion, TableVersion]:
        """Return the previous version, recreated from a restore if it is missing, and this one."""
        try:
            older = self._at(version - 1)
        except NotFoundError:
            if version - 1 not in self._restores:
                raise
            older = version_restored_by(self._restores[version - 1], version - 1)
        return older, self._at(version)

    def _new_field_ids(self, older: TableVersion, newer: TableVersion) -> set[int]:
        """Return field ids of one version that mean another field, or no field, in another one."""
        ids = FeedColumns(newer, None, ancestry=self._ancestry).ids_in(older)
        return {field.id for field in newer.schema.walk() if ids.get(field.id) != field.id}

    def _at(self, version: int) -> TableVersion:
        if version == self._table.version:
            return self._table
        return self._table.read_at(version)


def _union(parts: Iterable[U64s]) -> U64s:
    return np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))


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
