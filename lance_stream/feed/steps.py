"""What one version changed, counted and split into work units before any data is read.

A step's row changes are in the feed's order: deleted rows, updated rows, inserted rows. An update
is one row change even if it gives two rows, so wherever a step is split, the pre-image and the
post-image stay together. The number of a row change is therefore a stable position within a
version, the same for every reader: a stream that stops within a large version records how many it
has delivered.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.feed.change_units import (
    DELETE,
    INSERT,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    ChangeUnit,
)
from lance_stream.feed.columns_of_versions import FeedColumns, ReadsOfVersion
from lance_stream.feed.intervals import (
    commit_time,
    remember_commit_time,
    version_of_interval,
)
from lance_stream.feed.row_differences import RowDifferences
from lance_stream.feed.rules import FeedRules
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import LONG_AGO
from lance_stream.table.diff import RowsOfFragment, TableChanges, UpdatedRows
from lance_stream.table.row_addresses import unpack_addresses


@dataclass(frozen=True)
class VersionChanges:
    """What one version changed in another, usually the previous one.

    Attributes:
        older: The other version; None before the first version.
        newer: The version.
        changed: The rows in which they differ.
        timestamp: The commit timestamp that the changes show, in UTC.
        columns: The feed's columns.
        rules: The reader's settings.
    """

    older: TableVersion | None
    newer: TableVersion
    changed: TableChanges
    timestamp: datetime
    columns: FeedColumns
    rules: FeedRules

    @cached_property
    def num_row_changes(self) -> int:
        """How many rows were deleted, updated or inserted."""
        return self.changed.num_changes

    def num_rows(self, start: int = 0, stop: int | None = None) -> int:
        """How many rows some of the row changes give: an update may give two.

        Args:
            start: The first row change, from 0.
            stop: One past the last; None for all.
        """
        deletes, updates = self._kinds
        stop = self.num_row_changes if stop is None else min(stop, self.num_row_changes)
        start = min(start, stop)
        updated = max(min(stop, deletes + updates) - max(start, deletes), 0)
        gives_two = self.rules.pre_images or not self.rules.compute_updates
        return stop - start + (updated if gives_two else 0)

    @cached_property
    def _kinds(self) -> tuple[int, int]:
        """How many row changes are deletes, and how many are updates."""
        changed = self.changed
        return (
            sum(len(each.offsets) for each in changed.deletes),
            sum(len(each.offsets) for each in changed.updates),
        )

    def units(self, start: int = 0, stop: int | None = None) -> Iterator[ChangeUnit]:
        """Yield the work units that read some of the row changes, in the feed's order.

        Args:
            start: The first row change, from 0.
            stop: One past the last; None for all.
        """
        stop = self.num_row_changes if stop is None else stop
        deletes, start, stop = _cut(self.changed.deletes, start, stop)
        updates, start, stop = _cut(self.changed.updates, start, stop)
        inserts, start, stop = _cut(self.changed.inserts, start, stop)
        before = [(DELETE, RowsOfFragment(*each[:2])) for each in deletes]
        if self.rules.pre_images or not self.rules.compute_updates:
            name = UPDATE_PREIMAGE if self.rules.compute_updates else DELETE
            before += [(name, each) for each in self._rows_before(updates)]
        name = UPDATE_POSTIMAGE if self.rules.compute_updates else INSERT
        now = [(name, RowsOfFragment(*each[:2])) for each in updates]
        now += [(INSERT, RowsOfFragment(*each[:2])) for each in inserts]
        if self.older is not None:
            yield from self._read_in(self.older, before)
        yield from self._read_in(self.newer, now)

    def _rows_before(self, updates: Sequence[RowsOfFragment | UpdatedRows]) -> list[RowsOfFragment]:
        """Return where updated rows are in the older version."""
        addresses = [each.addresses_before for each in updates if isinstance(each, UpdatedRows)]
        if self.older is None or not addresses:
            return []
        fragment_ids, offsets = unpack_addresses(np.sort(np.concatenate(addresses)))
        fragments = self.older.manifest.fragments
        found = []
        for fragment_id in np.unique(fragment_ids).tolist():
            low, high = np.searchsorted(fragment_ids, [fragment_id, fragment_id + 1])
            fragment = fragments[fragments.place_of[fragment_id]]
            found.append(RowsOfFragment(fragment, offsets[low:high].astype(np.uint32)))
        return found

    def _read_in(
        self, table: TableVersion, rows: Iterable[tuple[str, RowsOfFragment]]
    ) -> Iterator[ChangeUnit]:
        reads = ReadsOfVersion(self.columns, table, self.newer.version, self.timestamp)
        place_of = table.manifest.fragments.place_of
        for change_type, (fragment, offsets) in rows:
            yield reads.unit(place_of[fragment.id], change_type, offsets=offsets)


def walk(
    table: TableVersion, after: int, through: int, rules: FeedRules, columns: FeedColumns
) -> Iterator[VersionChanges]:
    """Yield the changes of each version of an interval; for net changes, of all together.

    Args:
        table: Any version of the table; passing version `through` saves reading it.
        after: The version after which the interval begins; 0 is before the first.
        through: Its last version.
        rules: The reader's settings.
        columns: The feed's columns.

    Raises:
        NotFoundError: A version of the interval no longer exists.
        UnsupportedFeatureError: A version has no stable row ids.
    """
    if after == through:
        return
    differences = RowDifferences(table)
    older = version_of_interval(table, after, after, through) if after else None
    timestamp = commit_time(older) if older else LONG_AGO
    for version in range(through if rules.is_net else after + 1, through + 1):
        newer = version_of_interval(table, version, after, through)
        said = commit_time(newer) if rules.is_net else newer.timestamp
        timestamp = max(timestamp, said or timestamp)
        remember_commit_time(newer, timestamp)
        changed = differences.changes(older, newer, column_backfills=rules.column_backfills)
        yield VersionChanges(older, newer, changed, timestamp, columns, rules)
        older = newer


def check_has_feed(table: TableVersion) -> None:
    """Raise unless rows can be followed from version to version.

    Raises:
        UnsupportedFeatureError: The table has no stable row ids.
    """
    if not table.has_stable_row_ids:
        raise UnsupportedFeatureError(
            "the table has no stable row ids, so rows cannot be followed across versions and "
            "there is no change feed. lance_stream.migrate_to_stable_row_ids(uri) assigns row ids; "
            "changes are available from the next version on"
        )


def _cut(
    parts: Sequence[RowsOfFragment] | Sequence[UpdatedRows], start: int, stop: int
) -> tuple[list[RowsOfFragment | UpdatedRows], int, int]:
    """Return the parts' rows from `start` to `stop`, and both counted from the parts' end."""
    chosen: list[RowsOfFragment | UpdatedRows] = []
    for each in parts:
        num_rows = len(each.offsets)
        rows = slice(max(start, 0), max(min(stop, num_rows), 0))
        if rows.start == 0 and rows.stop == num_rows:
            chosen.append(each)
        elif rows.start < rows.stop:
            chosen.append(
                UpdatedRows(each.fragment, each.offsets[rows], each.addresses_before[rows])
                if isinstance(each, UpdatedRows)
                else RowsOfFragment(each.fragment, each.offsets[rows])
            )
        start, stop = start - num_rows, stop - num_rows
    return chosen, start, stop
