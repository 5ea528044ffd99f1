"""The changes of one version, counted and split into work units before any data is read.

A step's row changes are in the feed's order: deleted rows, pre-images, post-images, inserted rows.
An update counts as two row changes, even for a reader that leaves out pre-images. So the number of
a row change is a stable position within a version, the same for every reader: a stream that stops
within a large version records how many row changes it has delivered.

All rows that a version removes precede all rows that it adds, however the version is split. This
makes a split safe for consumers that apply changes by key: after `SET id = id + 1`, the pre-image
of one row has the same key as the post-image of another row, and must not remove it.

Earlier releases counted an update as one row change, and did not separate its two images (see
`units_by_pairs`). Checkpoints may still contain such positions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np

from lance_stream.arrays import U64s
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.feed.change_units import (
    DELETE,
    INSERT,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    ChangeUnit,
)
from lance_stream.feed.columns_of_versions import ChangeUnitFactory, FeedColumns
from lance_stream.feed.intervals import (
    cache_commit_time,
    commit_time,
    version_of_interval,
)
from lance_stream.feed.row_differences import RowDifferences
from lance_stream.feed.rules import FeedRules
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import LONG_AGO
from lance_stream.table.changes.diff import RowsOfFragment, TableChanges, UpdatedRows
from lance_stream.table.lineage.row_addresses import unpack_addresses

RowsT = TypeVar("RowsT", RowsOfFragment, UpdatedRows)

_NO_ADDRESSES: Final[U64s] = np.empty(0, np.uint64)


@dataclass(frozen=True)
class VersionChanges:
    """The changes from one version to a later one, usually the next.

    Attributes:
        older: The earlier version; None if `newer` is the first version.
        newer: The later version, whose number is the commit version of the changes.
        changed: The rows in which they differ.
        timestamp: The commit timestamp of the changes, in UTC.
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
        """The number of deleted, updated (counted twice) and inserted rows."""
        return self.changed.num_changes + self._num_deletes_and_updates[1]

    def num_rows(self, start: int = 0, stop: int | None = None) -> int:
        """Return how many rows a range of row changes has for the reader, who may skip pre-images.

        Args:
            start: The first row change, from 0.
            stop: One past the last; None for all.
        """
        deletes, updates = self._num_deletes_and_updates
        stop = self.num_row_changes if stop is None else min(stop, self.num_row_changes)
        start = min(start, stop)
        pre_images = max(min(stop, deletes + updates) - max(start, deletes), 0)
        return stop - start - (0 if self._includes_pre_images else pre_images)

    @property
    def _includes_pre_images(self) -> bool:
        return self.rules.pre_images or not self.rules.compute_updates

    @cached_property
    def _num_deletes_and_updates(self) -> tuple[int, int]:
        """The number of deleted rows, and of updated rows (counted once)."""
        changed = self.changed
        return (
            sum(len(delete.offsets) for delete in changed.deletes),
            sum(len(update.offsets) for update in changed.updates),
        )

    def units(self, start: int = 0, stop: int | None = None) -> Iterator[ChangeUnit]:
        """Yield the work units that read a range of row changes, in the feed's order.

        Args:
            start: The first row change, from 0.
            stop: One past the last; None for all.
        """
        stop = self.num_row_changes if stop is None else stop
        deletes, updates = self._num_deletes_and_updates
        pre_images = slice(max(start - deletes, 0), max(min(stop - deletes, updates), 0))
        after = deletes + updates
        yield from self._build_units(
            _slice_parts(self.changed.deletes, start, stop),
            self._pre_image_addresses[pre_images]
            if pre_images.start < pre_images.stop
            else _NO_ADDRESSES,
            _slice_parts(self.changed.updates, start - after, stop - after),
            _slice_parts(self.changed.inserts, start - after - updates, stop - after - updates),
        )

    def units_by_pairs(self, start: int, stop: int | None) -> Iterator[ChangeUnit]:
        """Yield the work units between two positions that count an update as one row change.

        Args:
            start: The first row change, from 0, where an update counts once.
            stop: One past the last; None for all.
        """
        deletes, updates = self._num_deletes_and_updates
        stop = self.changed.num_changes if stop is None else stop
        pairs = _slice_parts(self.changed.updates, start - deletes, stop - deletes)
        after = deletes + updates
        yield from self._build_units(
            _slice_parts(self.changed.deletes, start, stop),
            _sorted_addresses(pairs),
            pairs,
            _slice_parts(self.changed.inserts, start - after, stop - after),
        )

    @cached_property
    def _pre_image_addresses(self) -> U64s:
        """(num_updates,) u64, row addresses of the pre-images in the older version, ascending."""
        return _sorted_addresses(self.changed.updates)

    def _build_units(
        self,
        deletes: Iterable[RowsOfFragment],
        pre_images: U64s,
        post_images: Iterable[UpdatedRows],
        inserts: Iterable[RowsOfFragment],
    ) -> Iterator[ChangeUnit]:
        removed = [(DELETE, delete) for delete in deletes]
        if self._includes_pre_images:
            name = UPDATE_PREIMAGE if self.rules.compute_updates else DELETE
            removed += [(name, rows) for rows in self._rows_at(pre_images)]
        name = UPDATE_POSTIMAGE if self.rules.compute_updates else INSERT
        added = [
            (name, RowsOfFragment(post_image.fragment, post_image.offsets))
            for post_image in post_images
        ]
        added += [(INSERT, insert) for insert in inserts]
        if self.older is not None:
            yield from self._units_in(self.older, removed)
        yield from self._units_in(self.newer, added)

    def _rows_at(self, addresses: U64s) -> Iterator[RowsOfFragment]:
        """Yield the rows of the older version at ascending addresses, grouped by fragment."""
        if self.older is None or not len(addresses):
            return
        fragment_ids, offsets = unpack_addresses(addresses)
        fragments = self.older.manifest.fragments
        for fragment_id in np.unique(fragment_ids).tolist():
            low, high = np.searchsorted(fragment_ids, [fragment_id, fragment_id + 1])
            fragment = fragments[fragments.index_by_id[fragment_id]]
            yield RowsOfFragment(fragment, offsets[low:high].astype(np.uint32))

    def _units_in(
        self, table: TableVersion, rows: Iterable[tuple[str, RowsOfFragment]]
    ) -> Iterator[ChangeUnit]:
        factory = ChangeUnitFactory(self.columns, table, self.newer.version, self.timestamp)
        index_by_id = table.manifest.fragments.index_by_id
        for change_type, (fragment, offsets) in rows:
            yield factory.unit(index_by_id[fragment.id], change_type, offsets=offsets)


def walk(
    table: TableVersion, after: int, through: int, rules: FeedRules, columns: FeedColumns
) -> Iterator[VersionChanges]:
    """Yield the changes of each version of an interval; or its net changes, as one step.

    Args:
        table: Any version of the table; if it is version `through`, that is not read again.
        after: The version after which the interval begins; 0 is before the first.
        through: The last version of the interval.
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
        moment = commit_time(newer) if rules.is_net else newer.timestamp
        timestamp = max(timestamp, moment or timestamp)
        cache_commit_time(newer, timestamp)
        changed = differences.changes(older, newer, column_backfills=rules.column_backfills)
        yield VersionChanges(older, newer, changed, timestamp, columns, rules)
        older = newer


def check_has_feed(table: TableVersion) -> None:
    """Raise unless a table's rows can be followed across versions.

    Raises:
        UnsupportedFeatureError: The table has no stable row ids.
    """
    if not table.has_stable_row_ids:
        raise UnsupportedFeatureError(
            "the table has no stable row ids, so its rows cannot be followed across versions, and "
            "it has no change feed. lance_stream.migrate_to_stable_row_ids(uri) assigns row ids; "
            "the feed starts with the version after that"
        )


def _slice_parts(parts: Sequence[RowsT], start: int, stop: int) -> list[RowsT]:
    """Return the rows from `start` to `stop`, counted over all parts."""
    chosen: list[RowsT] = []
    for part in parts:
        num_rows = len(part.offsets)
        rows = slice(max(start, 0), max(min(stop, num_rows), 0))
        if rows.start == 0 and rows.stop == num_rows:
            chosen.append(part)
        elif rows.start < rows.stop:
            arrays: Any = part[1:]  # one value per row each
            chosen.append(type(part)(part.fragment, *(array[rows] for array in arrays)))
        start, stop = start - num_rows, stop - num_rows
    return chosen


def _sorted_addresses(updates: Sequence[UpdatedRows]) -> U64s:
    """Return the row addresses of pre-images, ascending."""
    return np.sort(
        np.concatenate([_NO_ADDRESSES, *(update.addresses_before for update in updates)])
    )
