"""In which order a compaction writes rows, so that their lineage takes few bytes.

A manifest holds three sequences of every fragment: the row ids, and the versions that created and
last updated each row. They are short where neighbors are alike. Our upserts write each batch's rows
in the order of their ids; other writers write them in the order in which they were found, which
leaves neighbors that are not.

    as they stand    (version of the last update, row id)
    8 2   9 1   5    2 8   1 9   5                           row id
    3 3   4 4   5    3 3   4 4   5                           last updated at

Versions of the last update ascend in most tables as they stand, because an upsert writes the rows
that it changes into new fragments at the end. So the new order moves rows only among those that
one version changed, and a table of appends stays as it is. Sorted by row ids alone the ids would
be one range, but the versions one run for each row, which takes eight times the bytes of an id.

Rows are only moved if the sequences get less than half as many parts, and if this can be done in a
stream: in memory are the rows that are read and not yet written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.int64]

LEAST_GAIN: Final = 2.0
"""How many times fewer parts the sequences must have for rows to be moved."""

MAX_BYTES_WAITING: Final = 256 << 20
"""Rows keep their order if more than this would be in memory."""


@dataclass(frozen=True, eq=False)
class Lineage:
    """The lineage of rows, in some order.

    Attributes:
        row_ids: (n,) stable row ids.
        created: (n,) created-at versions.
        updated: (n,) last-updated-at versions.
    """

    row_ids: Numbers
    created: Numbers
    updated: Numbers

    def take(self, places: Places) -> "Lineage":
        """Return the lineage of the rows at some places, in their order."""
        return Lineage(self.row_ids[places], self.created[places], self.updated[places])

    @property
    def num_parts(self) -> int:
        """About how many parts the sequences have: ids that ascend, and runs of one version."""
        descents = np.count_nonzero(self.row_ids[1:] <= self.row_ids[:-1])
        runs = [np.count_nonzero(each[1:] != each[:-1]) for each in (self.created, self.updated)]
        return int(descents + sum(runs)) + 3


def best_order(lineage: Lineage, bytes_per_row: int) -> Places | None:
    """Return the order in which rows are written; None as they stand.

    Args:
        lineage: Of the rows as they stand.
        bytes_per_row: About how many bytes of memory a row takes.

    Returns:
        (n,) the place of each row that is written, among the rows as they stand.
    """
    order: Places = np.lexsort((lineage.row_ids, lineage.updated))
    if LEAST_GAIN * lineage.take(order).num_parts > lineage.num_parts:
        return None
    if most_waiting(order) * bytes_per_row > MAX_BYTES_WAITING:
        return None
    return order


def most_waiting(order: Places) -> int:
    """Return how many rows are read and not yet written at most, if read one by one."""
    if not len(order):
        return 0
    first_left = np.minimum.accumulate(order[::-1])[::-1]
    return int((np.maximum.accumulate(order) - first_left).max()) + 1


def reordered(batches: Iterable[pa.RecordBatch], order: Places) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in another order, each as early as possible.

    Args:
        batches: Rows, as many as the order has places.
        order: See `best_order`.
    """
    last_needed = np.maximum.accumulate(order)
    first_left = np.minimum.accumulate(order[::-1])[::-1]
    waiting: list[pa.RecordBatch] = []
    first = num_read = num_written = 0
    for batch in batches:
        waiting.append(batch)
        num_read += batch.num_rows
        stop = int(np.searchsorted(last_needed, num_read))
        if stop == num_written:
            continue
        rows = pa.Table.from_batches(waiting)
        chosen = pa.array(order[num_written:stop] - first)
        yield from rows.take(chosen).combine_chunks().to_batches()
        num_written = stop
        gone = (int(first_left[stop]) if stop < len(order) else num_read) - first
        first += gone
        waiting = rows.slice(gone).to_batches()
