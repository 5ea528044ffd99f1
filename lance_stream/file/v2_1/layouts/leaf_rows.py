"""Rows of one leaf column: the result of every layout.

Rows are requested as a `range` (if they are adjacent) or as ascending positions. Without
lists a row is one entry of the level streams and one value; with lists it is a run of entries that
starts at the largest repetition level, and its values are those of its visible entries.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.v2_1.layouts.levels import Levels, join_levels

RowSelection: TypeAlias = range | Positions
"""Rows of a page: a range (of step 1), or ascending positions without duplicates."""


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """A leaf of a field, and its parents.

    Attributes:
        field_id: Its id.
        arrow_type: Of its values.
        is_list: For each layer from the leaf outwards, whether it is a list.
        entries_per_row: How many rows of its pages form one row of the file: more than one inside
            of fixed-size lists of structs.
    """

    field_id: int
    arrow_type: pa.DataType
    is_list: tuple[bool, ...]
    entries_per_row: int


@dataclass(frozen=True, slots=True)
class LeafRows:
    """Some rows of a leaf column.

    Attributes:
        levels: The nesting of the values.
        values: One for each visible entry, without nulls (except for items of fixed-size lists).
    """

    levels: Levels
    values: pa.Array


def first_of(rows: RowSelection) -> int:
    """Return the first of some rows; there must be one."""
    return rows.start if isinstance(rows, range) else int(rows[0])


def last_of(rows: RowSelection) -> int:
    """Return the last of some rows; there must be one."""
    return rows.stop - 1 if isinstance(rows, range) else int(rows[-1])


def within(rows: RowSelection, start: int, stop: int) -> RowSelection:
    """Return the rows in [start, stop), counted from `start`."""
    if isinstance(rows, range):
        return range(max(rows.start, start) - start, max(min(rows.stop, stop), start) - start)
    low, high = rows.searchsorted((start, stop))
    return as_range(rows[low:high] - start)


def as_range(positions: Positions) -> RowSelection:
    """Return ascending positions as a range, if there is no gap between them."""
    if len(positions) == 0:
        return range(0)
    first, last = int(positions[0]), int(positions[-1])
    return range(first, last + 1) if last - first + 1 == len(positions) else positions


def as_positions(rows: RowSelection) -> Positions:
    """Return rows as (num_rows,) i64 positions."""
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, dtype=np.int64)
    return rows


def runs_of(rows: RowSelection) -> tuple[Positions, Positions]:
    """Return the first row of each run of rows without a gap, and one past its last."""
    if isinstance(rows, range):
        return np.array([rows.start]), np.array([rows.stop])
    heads = np.flatnonzero(np.diff(rows, prepend=-2) > 1)
    return rows[heads], rows[np.append(heads[1:], len(rows)) - 1] + 1


def spread(starts: Positions, stops: Positions) -> Positions:
    """Return all positions of several ranges, one range after the other."""
    counts = stops - starts
    if len(counts) == 0:
        return np.zeros(0, np.int64)
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(int(ends[-1]), dtype=np.int64)


def pick_values(values: pa.Array, rows: RowSelection) -> pa.Array:
    """Return some of an array's values."""
    if isinstance(rows, range):
        return values.slice(rows.start, len(rows)) if len(rows) != len(values) else values
    return values.take(pa.array(rows))


def pick_levels(levels: Levels, rows: RowSelection) -> Levels:
    """Return some entries of levels."""
    if isinstance(rows, range):
        return levels.slice(rows.start, rows.stop) if len(rows) != levels.num_levels else levels
    return levels.take(rows)


def pick_rows(
    levels: Levels, rows: RowSelection, breaks: Positions | None = None
) -> tuple[RowSelection, RowSelection]:
    """Return the entries and the values of some rows.

    Args:
        levels: Levels of whole rows; entries before the first row start belong to none.
        rows: The rows, counted from the first row that starts among the levels.
        breaks: (num_breaks,) entries before which the levels of other rows were omitted: no row
            continues across them.

    Returns:
        The entries, and the values.

    Raises:
        CorruptDataError: There are fewer rows.
    """
    if levels.repetition is None:
        if len(rows) and last_of(rows) >= levels.num_levels:
            raise CorruptDataError(
                f"row {last_of(rows)} was not found among levels of {levels.num_levels} rows"
            )
        return rows, rows
    if isinstance(rows, range) and rows == range(levels.num_rows()) and levels.starts_with_row():
        return range(levels.num_levels), range(levels.num_visible())
    starts = levels.row_starts()
    if len(rows) and last_of(rows) >= len(starts):
        raise CorruptDataError(f"row {last_of(rows)} was not found among {len(starts)} rows")
    visible = levels.visible()
    if isinstance(rows, range):
        start, stop = _starts_at(starts, np.array([rows.start, rows.stop]), levels.num_levels)
        entries = range(int(start), int(stop))
        if visible is None:
            return entries, entries
        before = int(np.count_nonzero(visible[: entries.start]))
        inside = int(np.count_nonzero(visible[entries.start : entries.stop]))
        return entries, range(before, before + inside)
    firsts = starts[rows]
    stops = _starts_at(starts, rows + 1, levels.num_levels)
    if breaks is not None:
        next_breaks = np.append(breaks, levels.num_levels)
        stops = np.minimum(stops, next_breaks[np.searchsorted(breaks, firsts, side="right")])
    positions = spread(firsts, stops)
    if visible is None:
        return positions, positions
    hidden = np.flatnonzero(~visible)
    return positions, spread(
        firsts - np.searchsorted(hidden, firsts), stops - np.searchsorted(hidden, stops)
    )


def _starts_at(starts: Positions, rows: Positions, num_levels: int) -> Positions:
    """Return the first entry of each row; the number of entries for the one after the last."""
    if len(starts) == 0:
        return np.full(len(rows), num_levels)
    inside = starts[np.minimum(rows, len(starts) - 1)]
    return np.where(rows < len(starts), inside, num_levels)


def join_leaf_rows(parts: list[LeafRows]) -> LeafRows:
    """Return the rows of several pages, one after the other; at least one.

    Raises:
        InvalidInputError: The values do not fit into one Arrow array.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        values = pa.concat_arrays([part.values for part in parts])
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"the values of {len(parts)} pages do not fit into one Arrow array ({error}); read "
            "fewer rows at a time"
        ) from None
    return LeafRows(join_levels([part.levels for part in parts]), values)


def as_bytes(buffer: memoryview | bytes) -> npt.NDArray[np.uint8]:
    """Return a buffer as an array of bytes, without a copy."""
    return np.frombuffer(buffer, np.uint8)
