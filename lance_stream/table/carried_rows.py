"""Rows that died while they were being rewritten: where they are in the new fragments.

A rewrite leaves behind the rows that were dead when it was planned, and puts the live ones one
after the other. Until it is committed, others may kill more of them in the old fragments. These
have been written, so they have to be dead in the new fragments, too:

    old fragment        row offsets      0 1 2 3 4 5
    dead when planned                      1
    new fragment        row offsets      0   1 2 3 4
    killed since                               3
    dead in the new                            2

Reading and writing the deletion files is the caller's.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Offsets: TypeAlias = npt.NDArray[np.uint32]


class RewrittenRows(NamedTuple):
    """One old fragment of a rewrite.

    Attributes:
        physical_rows: How many rows it has.
        dead: (n,) u32, ascending: the offsets of the rows that were dead when it was planned.
    """

    physical_rows: int
    dead: Offsets

    @property
    def num_written(self) -> int:
        """How many of its rows were written anew."""
        return self.physical_rows - len(self.dead)


def killed_since(rows: RewrittenRows, dead_now: Offsets | None) -> npt.NDArray[np.int64] | None:
    """Return which of a fragment's rewritten rows have died since the rewrite was planned.

    Args:
        rows: The fragment as it was.
        dead_now: (n,) u32, ascending: its dead rows now; None where all are to count as dead.

    Returns:
        (n,) i64, ascending: their places among the rows that were written; None if a row lives
        now that was dead, and so was not written.
    """
    if dead_now is None:
        return np.arange(rows.num_written, dtype=np.int64)
    if len(np.setdiff1d(rows.dead, dead_now, assume_unique=True)):
        return None
    killed = np.setdiff1d(dead_now, rows.dead, assume_unique=True).astype(np.int64)
    return killed - np.searchsorted(rows.dead, killed)


def by_new_fragment(
    places: Sequence[npt.NDArray[np.int64]], num_written: Sequence[int], new_rows: Sequence[int]
) -> list[Offsets]:
    """Return the dead rows of each new fragment.

    Args:
        places: For each old fragment the dead ones among its written rows; see `killed_since`.
        num_written: For each old fragment how many of its rows were written.
        new_rows: For each new fragment how many rows it has; in all, as many as were written.

    Returns:
        For each new fragment (n,) u32 row offsets, ascending.
    """
    firsts = np.concatenate([[0], np.cumsum(num_written)])[:-1]
    dead = np.concatenate(
        [np.empty(0, np.int64), *(each + first for each, first in zip(places, firsts, strict=True))]
    )
    stops = np.cumsum(new_rows)
    cuts = np.searchsorted(dead, np.concatenate([[0], stops]))
    return [
        (dead[start:stop] - first).astype(np.uint32)
        for start, stop, first in zip(
            cuts[:-1], cuts[1:], np.concatenate([[0], stops[:-1]]), strict=True
        )
    ]
