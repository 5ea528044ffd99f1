"""The rows that each version appended, as whole fragments; does not need stable row ids.

Any table can provide a stream of appended rows. `table.changes.appended` determines whether a
version is an append, and if not, why. This module turns its new fragments into work units, with the
same interface as the steps of the change feed (`steps`): each row is one row change, in scan order,
counted and split before data is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np

from lance_stream.commit.committer import read_transaction
from lance_stream.feed.change_units import INSERT, ChangeUnit
from lance_stream.feed.columns_of_versions import ChangeUnitFactory, FeedColumns
from lance_stream.feed.intervals import version_of_interval
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import LONG_AGO
from lance_stream.table.changes.appended import AppendedFragments, appended_fragments
from lance_stream.table.fragments.fragment import Fragment


@dataclass(frozen=True)
class AppendedRows:
    """The rows that one version appended to the previous one.

    Attributes:
        newer: The version.
        appended: Its new fragments, or the reason why it is not an append.
        timestamp: The commit timestamp of the rows, in UTC.
        columns: The stream's columns.
    """

    newer: TableVersion
    appended: AppendedFragments
    timestamp: datetime
    columns: FeedColumns

    @property
    def changes_rows(self) -> str | None:
        """Return why the version is not an append, to complete "it ..."; None if it is an append.

        A version that is not an append has no row changes here, because inserts cannot be
        distinguished from updates.
        """
        return self.appended.changes

    @cached_property
    def num_row_changes(self) -> int:
        """The number of appended rows."""
        return sum(map(self.newer.num_live_rows, self.appended.fragments))

    def num_rows(self, start: int = 0, stop: int | None = None) -> int:
        """Return the number of rows of a range of row changes: one for each."""
        num_row_changes = self.num_row_changes
        return max((num_row_changes if stop is None else min(stop, num_row_changes)) - start, 0)

    def units(self, start: int = 0, stop: int | None = None) -> Iterator[ChangeUnit]:
        """Yield the work units that read a range of the rows, in scan order.

        Args:
            start: The first row, from 0.
            stop: One past the last; None for all.
        """
        stop = self.num_row_changes if stop is None else stop
        factory = ChangeUnitFactory(self.columns, self.newer, self.newer.version, self.timestamp)
        index_by_id = self.newer.manifest.fragments.index_by_id
        for fragment in self.appended.fragments:
            num_rows = self.newer.num_live_rows(fragment)
            first, last = max(start, 0), min(stop, num_rows)
            start, stop = start - num_rows, stop - num_rows
            if first < last:
                rows = self._rows(fragment, first, last)
                yield factory.unit(index_by_id[fragment.id], INSERT, **rows)

    def units_by_pairs(self, start: int, stop: int | None) -> Iterator[ChangeUnit]:
        """Yield the same: without updates, there are no pairs of images."""
        return self.units(start, stop)

    def _rows(self, fragment: Fragment, first: int, last: int) -> dict[str, Any]:
        """Return the `WorkUnit` attributes that select live rows `first` to `last`."""
        if fragment.deletion_file is None:
            return {"start": first, "stop": last}
        is_live = np.ones(self.newer.physical_rows(fragment), np.bool_)
        is_live[self.newer.deleted_offsets(fragment)] = False
        live = np.flatnonzero(is_live).astype(np.uint32)
        return {"offsets": live[first:last]}


def walk_appended(
    table: TableVersion,
    after: int,
    through: int,
    columns: FeedColumns,
    *,
    column_backfills: bool = True,
) -> Iterator[AppendedRows]:
    """Yield the rows that each version of an interval appended.

    Args:
        table: Any version of the table; if it is version `through`, that is not read again.
        after: The version after which the interval begins; 0 is before the first.
        through: The last version of the interval.
        columns: The stream's columns.
        column_backfills: Whether adding a column with values counts as a change of existing rows.

    Raises:
        NotFoundError: A version of the interval no longer exists.
        CorruptDataError: A fragment that differs is damaged.
    """
    if after == through:
        return
    older = version_of_interval(table, after, after, through) if after else None
    timestamp = LONG_AGO
    for version in range(after + 1, through + 1):
        newer = version_of_interval(table, version, after, through)
        timestamp = max(timestamp, newer.timestamp or timestamp)
        appended = _appended(older, newer, column_backfills=column_backfills)
        yield AppendedRows(newer, appended, timestamp, columns)
        older = newer


def _appended(
    older: TableVersion | None, newer: TableVersion, *, column_backfills: bool
) -> AppendedFragments:
    if older is not None and older.manifest.fragments == newer.manifest.fragments:
        return AppendedFragments(newer.version)
    transaction = read_transaction(newer.log, newer.manifest)
    operation = None if transaction is None else transaction.operation
    return appended_fragments(
        older.manifest if older else None,
        newer.manifest,
        operation,
        column_backfills=column_backfills,
    )
