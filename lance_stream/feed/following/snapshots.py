"""The rows of one version as inserts, in slices that can be read separately.

A slice is a range of the version's live rows in scan order, so the progress of a reader is one
number. A version never changes: as long as it exists, any reader can read a slice again.

The manifest contains the number of live rows of each fragment. If a slice starts or ends within a
fragment that has deleted rows, that fragment's deletion file is read.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lance_stream.feed.change_units import INSERT, ChangeUnit
from lance_stream.feed.columns_of_versions import ChangeUnitFactory, FeedColumns
from lance_stream.read.units import stored_bytes
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import LONG_AGO


class Snapshot:
    """The live rows of a version.

    Args:
        table: The version.
        columns: Columns of the feed; None for all columns of the version.
    """

    def __init__(self, table: TableVersion, columns: FeedColumns | None = None) -> None:
        self._table = table
        self._columns = columns

    @property
    def num_rows(self) -> int:
        """The number of live rows."""
        return int(self._starts[-1])

    def stop_within(
        self, start: int, rows: int | None = None, size_bytes: int | None = None
    ) -> int:
        """Return the end of the largest slice within limits.

        Args:
            start: The first row of the slice.
            rows: The maximum number of rows.
            size_bytes: The approximate maximum in bytes, as the rows' share of their data files.

        Returns:
            One past the last row of the slice, which has at least one row if any are left.
        """
        stop = self.num_rows if rows is None else min(start + rows, self.num_rows)
        if size_bytes is not None:
            stop = min(stop, self._stop_by_size(start, stop, size_bytes))
        return min(max(stop, start + 1), self.num_rows)

    def units(self, start: int = 0, stop: int | None = None) -> Iterator[ChangeUnit]:
        """Yield the work units that read a range of the rows, in scan order.

        Args:
            start: The first row, from 0.
            stop: One past the last; None for all.
        """
        table, starts = self._table, self._starts
        stop = self.num_rows if stop is None else min(stop, self.num_rows)
        columns = self._columns or FeedColumns(table, None)
        factory = ChangeUnitFactory(columns, table, table.version, table.timestamp or LONG_AGO)
        first = int(np.searchsorted(starts, start, side="right")) - 1
        for index in range(first, len(table.manifest.fragments)):
            low, high = int(starts[index]), int(starts[index + 1])
            if low >= stop:
                return
            if low == high:
                continue
            inside = range(max(start, low) - low, min(stop, high) - low)
            begin, end = self._row_offsets(index, inside, high - low)
            yield factory.unit(index, INSERT, start=begin, stop=end)

    def _row_offsets(self, index: int, rows: range, num_live: int) -> tuple[int, int | None]:
        """Return the range of row offsets that contains a range of a fragment's live rows.

        Args:
            index: The fragment's index in the manifest.
            rows: The range, counted among the fragment's live rows.
            num_live: The number of live rows of the fragment.
        """
        if rows.start == 0 and rows.stop == num_live:
            return 0, None
        deleted = self._table.deleted_offsets(self._table.manifest.fragments[index]).astype(
            np.int64
        )
        live_before = deleted - np.arange(len(deleted))  # live rows before each deleted row

        def offset_of(row: int) -> int:
            # A live row's offset is its number plus the number of deleted rows before it.
            return row + int(np.searchsorted(live_before, row, side="right"))

        stop = None if rows.stop == num_live else offset_of(rows.stop)
        return offset_of(rows.start), stop

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """(num_fragments + 1,) number of live rows before each fragment, then their total."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self._table.row_counts.live)])

    def _stop_by_size(self, start: int, stop: int, size_bytes: int) -> int:
        """Return the end of the largest slice within a number of bytes."""
        starts, bytes_remaining = self._starts, size_bytes
        first = int(np.searchsorted(starts, start, side="right")) - 1
        for index in range(first, len(self._table.manifest.fragments)):
            low, high = int(starts[index]), int(starts[index + 1])
            if low >= stop:
                return stop
            if low == high:
                continue
            stored = max(stored_bytes(self._table.manifest.fragments[index]), 1)
            begin = max(start, low)
            share = stored * (min(stop, high) - begin) // (high - low)
            if share > bytes_remaining:
                return begin + (high - low) * bytes_remaining // stored
            bytes_remaining -= share
        return stop
