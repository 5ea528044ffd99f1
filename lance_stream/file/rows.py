"""The requested rows of a column, or of one page of it.

Either a range, whose bytes are adjacent, or scattered offsets in ascending order. Codecs need no
other forms: items of a range of lists are a range, items of scattered lists are scattered.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_stream.errors import CorruptDataError

MAX_POSITION = 2**62
"""Larger than any count of values; sums and products of two smaller positions fit into int64."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows in ascending order, without duplicates.

    Attributes:
        start: The first of them.
        stop: One past the last.
        offsets: (num_rows,) int64, all of them; None for every row from `start` to `stop`.
    """

    start: int
    stop: int
    offsets: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, offsets: npt.NDArray[np.int64]) -> "Rows":
        """Return the rows at ascending offsets; a range if there is no gap between them."""
        if len(offsets) == 0:
            return cls(0, 0)
        start, stop = int(offsets[0]), int(offsets[-1]) + 1
        return cls(start, stop, None if stop - start == len(offsets) else offsets)

    def __len__(self) -> int:
        return self.stop - self.start if self.offsets is None else len(self.offsets)

    def within(self, start: int, stop: int) -> "Rows":
        """Return the rows from `start` to `stop`, counted from `start`."""
        if self.offsets is None:
            first = min(max(self.start, start), stop)
            return Rows(first - start, max(first, min(self.stop, stop)) - start)
        low, high = np.searchsorted(self.offsets, (start, stop))
        return Rows.of(self.offsets[low:high] - start)

    def items(self, items_per_row: int) -> "Rows":
        """Return the items of these rows, if each row has the same number of items.

        Raises:
            CorruptDataError: There would be more items than a file can contain.
        """
        if self.stop * items_per_row > MAX_POSITION:
            raise CorruptDataError(
                f"{self.stop} rows of {items_per_row} items are more than a file can contain"
            )
        if self.offsets is None:
            return Rows(self.start * items_per_row, self.stop * items_per_row)
        firsts = self.offsets * items_per_row
        return Rows.of((firsts[:, None] + np.arange(items_per_row)).reshape(-1))

    def with_predecessors(self) -> "Rows":
        """Return these rows and the row before each, if there is one."""
        if self.offsets is None:
            return Rows(max(self.start - 1, 0), self.stop) if len(self) else self
        before = self.offsets - 1
        return Rows.of(np.union1d(before[before >= 0], self.offsets))
