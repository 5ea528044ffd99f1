"""The requested rows, as runs of adjacent rows within batches.

Plain values of any type and the items of lists are located in the same way: a run of rows of a
batch is a run of bytes of that batch's page.
"""

from dataclasses import dataclass

import numpy as np

from lance_stream.arrays import Positions


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of rows (or of items), ascending.

    Attributes:
        batch: (num_runs,) the batch of each run.
        start: (num_runs,) its first row, counted within the batch.
        stop: (num_runs,) one past its last.
    """

    batch: Positions
    start: Positions
    stop: Positions

    def __len__(self) -> int:
        return int((self.stop - self.start).sum())

    @property
    def lengths(self) -> Positions:
        """(num_runs,) the number of rows of each run."""
        return self.stop - self.start

    def times(self, values_per_row: int) -> "Runs":
        """Return the runs of values, if each row has the same number of them."""
        return Runs(self.batch, self.start * values_per_row, self.stop * values_per_row)


def runs_of_range(batch_offsets: Positions, start: int, stop: int) -> Runs:
    """Return the rows of a file from `start` up to but not including `stop`."""
    batches = np.arange(
        np.searchsorted(batch_offsets, start, side="right") - 1,
        np.searchsorted(batch_offsets, stop, side="left"),
    )
    if start >= stop:
        batches = batches[:0]
    firsts, lasts = batch_offsets[:-1][batches], batch_offsets[1:][batches]
    return _without_empty(
        batches, np.maximum(firsts, start) - firsts, np.minimum(lasts, stop) - firsts
    )


def runs_of_offsets(batch_offsets: Positions, offsets: Positions) -> Runs:
    """Return the rows of a file at ascending offsets without duplicates."""
    batches = np.searchsorted(batch_offsets, offsets, side="right") - 1
    begins = np.ones(len(offsets), np.bool_)
    begins[1:] = (offsets[1:] != offsets[:-1] + 1) | (batches[1:] != batches[:-1])
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(offsets)) - 1 if len(firsts) else firsts
    batch = batches[firsts]
    base = batch_offsets[batch]
    return Runs(batch, offsets[firsts] - base, offsets[lasts] + 1 - base)


def ranges_from(starts: Positions, lengths: Positions) -> Positions:
    """Return `start, start + 1, ...` for each run, one run after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    shifts = starts - (ends - lengths)
    positions: Positions = np.arange(total) + np.repeat(shifts, lengths)
    return positions


def _without_empty(batch: Positions, start: Positions, stop: Positions) -> Runs:
    is_filled = stop > start
    return Runs(batch[is_filled], start[is_filled], stop[is_filled])
