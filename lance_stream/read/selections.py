"""Selections of a fragment's rows, and their division into batches."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Positions

TAKE_BELOW: Final = 1 / 8
"""Rows are taken by offset if less than this fraction of a range is requested."""


@dataclass(frozen=True)
class Selection:
    """Rows of a fragment that form one batch.

    Attributes:
        start: First row offset.
        stop: One past the last.
        offsets: (n,) row offsets in this range, ascending; None for all of them.
    """

    start: int
    stop: int
    offsets: Positions | None = None

    @property
    def num_rows(self) -> int:
        """The number of selected rows."""
        return self.stop - self.start if self.offsets is None else len(self.offsets)

    @property
    def is_sparse(self) -> bool:
        """Whether so few rows of the range are selected that reading them singly is faster."""
        return self.num_rows < TAKE_BELOW * (self.stop - self.start)

    def where(self, mask: npt.NDArray[np.bool_]) -> "Selection":
        """Return the part of the selection for which a mask, (num_rows,), is true."""
        if bool(mask.all()):
            return self
        chosen = np.flatnonzero(mask)
        offsets = chosen + self.start if self.offsets is None else self.offsets[chosen]
        return selection_of(offsets)


def selection_of(offsets: Positions) -> Selection:
    """Return the selection of rows at ascending offsets."""
    if not len(offsets):
        return Selection(0, 0)
    start, stop = int(offsets[0]), int(offsets[-1]) + 1
    return Selection(start, stop, None if stop - start == len(offsets) else offsets)


def batch_bounds(
    start: int, stop: int, page_starts: npt.NDArray[np.int64], batch_size: int
) -> list[int]:
    """Return the bounds of the batches of a range of rows.

    A batch ends with the first page that brings it to at least a quarter of `batch_size` rows. If
    it would then be larger than `batch_size`, it is split into even parts.

    Args:
        start: First row.
        stop: One past the last.
        page_starts: Row offsets at which pages start.
        batch_size: The maximum number of rows in a batch.

    Returns:
        Ascending row offsets from `start` to `stop`.
    """
    bounds = [start]
    inside = np.unique(page_starts[(page_starts > start) & (page_starts < stop)])
    for end in (*inside.tolist(), stop):
        num_rows = end - bounds[-1]
        if num_rows > batch_size:
            num_parts = -(-num_rows // batch_size)
            bounds += cuts(bounds[-1], end, -(-num_rows // num_parts))[1:]
        elif end == stop or num_rows >= batch_size // 4:
            bounds.append(end)
    return bounds


def cuts(start: int, stop: int, size: int) -> list[int]:
    """Return the bounds of parts of `size` rows of a range; the last part may be shorter."""
    return [*range(start, stop, size), stop]
