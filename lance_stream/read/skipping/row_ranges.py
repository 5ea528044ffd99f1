"""Rows of a fragment as ranges; the parts of a filter that could exclude some of them."""

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
        ranges: (start, stop), ascending, not empty, not adjacent.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def all_of(cls, num_rows: int) -> "RowRanges":
        """Return all rows of a fragment."""
        return cls(((0, num_rows),) if num_rows else ())

    @classmethod
    def of_pages(cls, starts: npt.NDArray[np.int64], chosen: Mask) -> "RowRanges":
        """Return the rows of chosen pages; `starts` has one past the last row, too."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(np.int8), [0]))))
        positions = starts[edges].reshape(-1, 2).tolist()
        return cls(tuple((start, stop) for start, stop in positions if stop > start))

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges within `start` to `stop`, cut there."""
        cut = [(max(first, start), min(last, stop)) for first, last in self.ranges]
        return [(first, last) for first, last in cut if first < last]

    def intersection(self, other: "RowRanges") -> "RowRanges":
        """Return the rows that are in both."""
        return RowRanges(tuple(part for span in self.ranges for part in other.within(*span)))

    def choose(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ascending row offsets that are within the ranges."""
        edges = np.array(self.ranges, np.int64).reshape(-1)
        inside: Mask = np.searchsorted(edges, offsets, side="right") % 2 == 1
        return np.asarray(offsets[inside])


def bounded_leaves(predicate: Expression | None, fields: Sequence[Field]) -> dict[Path, Field]:
    """Return the leaves that a filter names, by path: columns, and parts of structs."""
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
