"""Rows of a fragment as ranges, and the leaf columns of a filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Mask
from lance_stream.expressions.predicates import Expression
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import STRUCT

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowRanges:
    """Rows of a fragment as ranges.

    Attributes:
        ranges: (start, stop) row offsets; ascending, not empty, not adjacent.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def all_of(cls, num_rows: int) -> "RowRanges":
        """Return all rows of a fragment."""
        return cls(((0, num_rows),) if num_rows else ())

    @classmethod
    def of_pages(cls, starts: npt.NDArray[np.int64], chosen: Mask) -> "RowRanges":
        """Return the rows of pages.

        Args:
            starts: (num_pages + 1,) i64, first row of each page, and one past the last row.
            chosen: (num_pages,) which pages.
        """
        # Adjacent pages form one range: it starts and ends where `chosen` changes.
        edges = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(np.int8), [0]))))
        ranges = starts[edges].reshape(-1, 2).tolist()
        return cls(tuple((start, stop) for start, stop in ranges if stop > start))

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of the ranges from `start` to `stop`."""
        cut = [(max(first, start), min(last, stop)) for first, last in self.ranges]
        return [(first, last) for first, last in cut if first < last]

    def intersection(self, other: "RowRanges") -> "RowRanges":
        """Return the rows that both contain."""
        return RowRanges(tuple(part for span in self.ranges for part in other.within(*span)))

    def choose(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the ascending row offsets that are in the ranges."""
        edges = np.array(self.ranges, np.int64).reshape(-1)
        # An offset is in a range if an odd number of starts and stops are at or before it.
        inside: Mask = np.searchsorted(edges, offsets, side="right") % 2 == 1
        return np.asarray(offsets[inside])


def bounded_leaves(predicate: Expression | None, fields: Sequence[Field]) -> dict[Path, Field]:
    """Return the leaf fields that a filter names, by path: columns, and fields of structs."""
    leaves: dict[Path, Field] = {}
    for path in predicate.paths if predicate is not None else ():
        below: Sequence[Field] = fields
        leaf: Field | None = None
        for name in path:
            leaf = next((field for field in below if field.name == name), None)
            below = leaf.children if leaf is not None and leaf.logical_type == STRUCT else ()
        if leaf is not None and not leaf.children:
            leaves[path] = leaf
    return leaves
