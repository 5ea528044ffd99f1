"""Splits rows of a fragment, or a range of rows, into batches."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Positions

TAKE_BELOW: Final = 1 / 8
"""Rows are taken by offset if fewer than this fraction of a range is wanted."""


@dataclass(frozen=True)
class Selection:
    """Rows of a fragment that form one batch.

    Attributes:
        start: First row offset.
        stop: One past the last.
        offsets: (n,) row offsets within, ascending; None for all of them.
    """

    start: int
    stop: int
    offsets: Positions | None = None

    @property
    def num_rows(self) -> int:
        """How many rows are selected."""
        return self.stop - self.start if self.offsets is None else len(self.offsets)

    @property
    def is_sparse(self) -> bool:
        """Whether so few rows of the range are selected that each is better read by itself."""
        return self.num_rows < TAKE_BELOW * (self.stop - self.start)

    def where(self, mask: npt.NDArray[np.bool_]) -> "Selection":
        """Return the rows selected by a mask over `num_rows`."""
        if bool(mask.all()):
            return self
        chosen = np.flatnonzero(mask)
        offsets = chosen + self.start if self.offsets is None else self.offsets[chosen]
        return selection_of(offsets)


def selection_of(offsets: Positions) -> Selection:
    """Return the rows at ascending offsets."""
    if not len(offsets):
        return Selection(0, 0)
    start, stop = int(offsets[0]), int(offsets[-1]) + 1
    return Selection(start, stop, None if stop - start == len(offsets) else offsets)


def batch_bounds(
    start: int, stop: int, page_starts: npt.NDArray[np.int64], batch_size: int
) -> list[int]:
    """Return where to cut the rows from `start` to `stop` into batches.

    A batch ends at the first end of a page that gives it a quarter of `batch_size` rows; where
    that would make it larger than `batch_size`, it is cut into even parts.

    Args:
        start: First row.
        stop: One past the last.
        page_starts: Ascending row offsets at which pages begin.
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
    """Return the bounds of parts of `size` rows; the last part may be shorter."""
    return [*range(start, stop, size), stop]
