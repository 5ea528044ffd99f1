"""Locates rows in new fragments that were deleted while a compaction rewrote them.

A rewrite drops the rows that were deleted when it was planned, and writes the live ones in the same
or in a new order. Before it is committed, other writers may delete more of them in the old
fragments. These rows have been written, so they must also be deleted in the new fragments:

    old fragment          row offsets      0 1 2 3 4 5
    deleted when planned                     1
    new fragment          row offsets      0   1 2 3 4
    deleted since                                3
    deleted in the new fragment                  2

The caller reads and writes the deletion files.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import RowOffsets


class RewrittenRows(NamedTuple):
    """One old fragment of a rewrite.

    Attributes:
        physical_rows: The number of rows of the fragment.
        deleted: (n,) u32, ascending: the offsets of the rows deleted when the rewrite was planned.
    """

    physical_rows: int
    deleted: RowOffsets

    @property
    def num_written(self) -> int:
        """The number of its rows that were rewritten."""
        return self.physical_rows - len(self.deleted)


def deleted_since(rows: RewrittenRows, deleted_now: RowOffsets) -> npt.NDArray[np.int64] | None:
    """Return which of a fragment's rewritten rows were deleted since the rewrite was planned.

    Args:
        rows: The fragment as it was when the rewrite was planned.
        deleted_now: (n,) u32, ascending: its deleted rows in the newest version.

    Returns:
        (n,) i64, ascending: their positions among the rewritten rows; None if a row that was
        deleted, and so was not rewritten, is live again.
    """
    if len(np.setdiff1d(rows.deleted, deleted_now, assume_unique=True)):
        return None
    offsets = np.setdiff1d(deleted_now, rows.deleted, assume_unique=True).astype(np.int64)
    # An offset minus the number of rows before it that were not rewritten.
    return offsets - np.searchsorted(rows.deleted, offsets)


def by_new_fragment(
    positions: Sequence[npt.NDArray[np.int64]],
    num_written: Sequence[int],
    new_rows: Sequence[int],
    order: npt.NDArray[np.int64] | None = None,
) -> list[RowOffsets]:
    """Distribute deleted rows to the new fragments.

    Args:
        positions: The deleted rows among each old fragment's rewritten rows; see `deleted_since`.
        num_written: How many rows of each old fragment were rewritten.
        new_rows: How many rows each new fragment has; their sum is the number of rewritten rows.
        order: (n,) for each row that was written, its position among all rewritten rows; None if
            they were written in their old order.

    Returns:
        For each new fragment (n,) u32 row offsets, ascending.
    """
    # The positions of the deleted rows among all rewritten rows.
    firsts = np.concatenate([[0], np.cumsum(num_written)])[:-1]
    deleted = np.concatenate(
        [
            np.empty(0, np.int64),
            *(position + first for position, first in zip(positions, firsts, strict=True)),
        ]
    )
    if order is not None:
        is_deleted = np.zeros(len(order), np.bool_)
        is_deleted[deleted] = True
        deleted = np.flatnonzero(is_deleted[order])
    # Cut them at the first row of each new fragment, and count from there.
    stops = np.cumsum(new_rows)
    cuts = np.searchsorted(deleted, np.concatenate([[0], stops]))
    return [
        (deleted[start:stop] - first).astype(np.uint32)
        for start, stop, first in zip(
            cuts[:-1], cuts[1:], np.concatenate([[0], stops[:-1]]), strict=True
        )
    ]
