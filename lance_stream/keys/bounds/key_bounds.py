"""Key bounds: the smallest and largest key of each data file, and which files they exclude.

An upsert looks up its keys in the table. If keys are roughly ordered by time, the keys of most
fragments are smaller than those of the batch, and the fragments need not be opened:

    files     [0 ... 99]  [100 ... 199]  [200 ... 299]  [150 ... 160]
    keys                                  205, 207, 310
    look in                              [200 ... 299]

Bounds belong to a column of a data file. Data files are immutable, so bounds stay valid whatever
other writers commit: after a delete, the remaining rows are within the same bounds. Bounds cover
all rows of the file, including deleted ones, because a restore can bring those back. They are
collected from the rows that an upsert writes and from the key columns that it reads; files without
known bounds are searched. Bounds are kept in memory, and occasionally saved to an optional file of
the table (`cached_key_bounds`).

Only files with random names have cached bounds, because such a name is never reused for another
file. The name and the file's column identify the bounds, not the field id, which belongs to the
manifest.
"""

import threading
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Mask, Positions
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.bounds.ordered_values import (
    OrderedWords,
    as_words,
    bounds_of,
    extremes_of,
    in_order,
    ordered_words,
    width_of,
)
from lance_stream.keys.file_columns import FileColumn, file_column, file_columns
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import FragmentList

ANYWHERE: Final = 0
"""The row of bounds that contain every key."""

UNKNOWN: Final = -1
"""Marks bounds that are not known yet."""

_FORGET_FROM: Final = 1 << 12
# The approximate number of rows that can be read in the time it takes to open a file.
_ROWS_FOR_A_FILE: Final = 1 << 14
# The approximate number of keys that are tried before all keys are.
_SAMPLE_KEYS: Final = 512
# The maximum number of pairs of a key and a box that are compared at a time, and in total.
_PAIRS_AT_ONCE: Final = 1 << 20
_MAX_PAIRS: Final = 1 << 25


class FileBounds(NamedTuple):
    """The bounds of a column of a data file, as a worker reports them to the driver.

    Attributes:
        field_id: The table's field for that column.
        location: The column of the file.
        bounds: Bytes for the smallest and largest value (`ordered_values`); None if
            all values are null.
        num_seen: The number of rows that the bounds were collected from.
        num_rows: The number of rows of the file, including deleted ones.
    """

    field_id: int
    location: FileColumn
    bounds: tuple[bytes, bytes] | None
    num_seen: int
    num_rows: int

    @property
    def is_complete(self) -> bool:
        """Whether every row of the file was seen."""
        return 0 < self.num_rows <= self.num_seen


def joined_bounds(parts: Iterable[FileBounds]) -> list[FileBounds]:
    """Return the bounds of workers that read different rows of the same files, combined."""
    of_file: dict[tuple[int, FileColumn], FileBounds] = {}
    for part in parts:
        joined = of_file.setdefault((part.field_id, part.location), part)
        if joined is not part:
            ranges = [some.bounds for some in (joined, part) if some.bounds is not None]
            of_file[part.field_id, part.location] = part._replace(
                bounds=_around(ranges), num_seen=joined.num_seen + part.num_seen
            )
    return list(of_file.values())


class BoundsLearner:
    """Collects bounds from rows of one fragment, batch by batch.

    Args:
        fragment: The fragment, with its written files.
        fields: The key columns.
    """

    def __init__(self, fragment: Fragment, fields: Sequence[Field]) -> None:
        self._num_rows = fragment.physical_rows
        self._num_seen = 0
        self._fields = fields
        self._key_indices = [
            file_column(fragment, field.id) if width_of(field_to_arrow(field).type) else None
            for field in fields
        ]
        self._extremes: list[list[tuple[bytes, bytes]]] = [[] for _ in fields]

    def add_keys(self, keys: Sequence[pa.Array]) -> None:
        """Add some rows. Bounds are complete after all rows of the fragment, deleted ones included.

        Args:
            keys: (n,) values of each key column.
        """
        self._num_seen += len(keys[0])
        for location, values, extremes in zip(self._key_indices, keys, self._extremes, strict=True):
            if location is not None and (bounds := bounds_of(values)) is not None:
                extremes.append(bounds)

    def file_bounds(self) -> list[FileBounds]:
        """Return the bounds of the rows added so far."""
        return [
            FileBounds(field.id, location, _around(extremes), self._num_seen, self._num_rows)
            for field, location, extremes in zip(
                self._fields, self._key_indices, self._extremes, strict=True
            )
            if location is not None
        ]


def bounds_of_written(
    fragments: Iterable[Fragment], fields: Sequence[Field], keys: Sequence[pa.Array]
) -> list[FileBounds]:
    """Return bounds of files that some rows were written to.

    Args:
        fragments: The written fragments; they contain no other rows.
        fields: The key columns.
        keys: (n,) values of each key column in all written rows.
    """
    bounds: list[FileBounds] = []
    for fragment in fragments:
        learner = BoundsLearner(fragment, fields)
        learner.add_keys(keys)
        bounds += [one._replace(num_seen=fragment.physical_rows) for one in learner.file_bounds()]
    return bounds


def _around(bounds: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    if not bounds:
        return None
    return min(low for low, _ in bounds), max(high for _, high in bounds)


class ColumnBounds:
    """The known bounds of one key column of a table. Thread-safe.

    Args:
        field: The column; its type has a width.

    Attributes:
        saved_work: The approximate number of rows to read to collect the saved bounds again.
        unsaved_work: The same for the bounds that are not saved.
    """

    def __init__(self, field: Field) -> None:
        self.field = field
        self.arrow_type = field_to_arrow(field).type
        self.unsaved_work = self.saved_work = 0
        self._lock = threading.Lock()
        self._forget_all()

    def _forget_all(self) -> None:
        highest = b"\xff" * (width_of(self.arrow_type) or 0)
        self._lows = as_words([b""], self.arrow_type)
        self._highs = as_words([highest], self.arrow_type)
        self._nothing = highest, b""
        self._row_of_file: dict[FileColumn, int] = {}
        self._row_of_fragment: dict[bytes, int] = {}

    def _append(self, bounds: Sequence[Sequence[bytes]]) -> None:
        lows = as_words([low for low, _ in bounds], self.arrow_type)
        highs = as_words([high for _, high in bounds], self.arrow_type)
        self._lows = np.concatenate([self._lows, lows])
        self._highs = np.concatenate([self._highs, highs])

    @property
    def num_files(self) -> int:
        """The number of files with known bounds."""
        return len(self._row_of_file)

    def add(self, file_bounds: Iterable[FileBounds]) -> None:
        """Add complete bounds of files that have none yet."""
        with self._lock:
            new = {
                file_bound.location: file_bound
                for file_bound in file_bounds
                if file_bound.field_id == self.field.id
                and file_bound.is_complete
                and file_bound.location not in self._row_of_file
            }
            pairs = [
                self._nothing if file_bounds.bounds is None else file_bounds.bounds
                for file_bounds in new.values()
            ]
            self._row_of_file.update(
                {location: row for row, location in enumerate(new, len(self._lows))}
            )
            self._append(pairs)
            self.unsaved_work += sum(
                file_bounds.num_rows + _ROWS_FOR_A_FILE for file_bounds in new.values()
            )

    def inherit(self, old: Iterable[Fragment], new: Iterable[Fragment]) -> None:
        """Derive bounds of new files whose rows all come from old ones.

        Args:
            old: The fragments with the old files; if bounds of one are unknown, nothing is derived.
            new: Fragments with the new files.
        """
        positions = [file_column(fragment, self.field.id) for fragment in old]
        with self._lock:
            rows = [
                self._row_of_file.get(position, UNKNOWN) if position else UNKNOWN
                for position in positions
            ]
            lows, highs = _as_bytes(self._lows[rows]), _as_bytes(self._highs[rows])
        if not rows or UNKNOWN in rows:
            return
        low, high = min(lows), max(highs)
        self.add(
            FileBounds(
                self.field.id,
                location,
                (low, high) if low <= high else None,
                fragment.physical_rows,
                fragment.physical_rows,
            )
            for fragment in new
            if (location := file_column(fragment, self.field.id)) is not None
        )

    def note_saved(self) -> None:
        """Record that all known bounds are saved."""
        with self._lock:
            self.saved_work += self.unsaved_work
            self.unsaved_work = 0

    def rows_of(self, fragments: FragmentList) -> Positions:
        """Return the row of bounds of each fragment.

        Fragments whose bytes were seen before are found by them; of the others, few are decoded.

        Returns:
            (num_fragments,) i64; `ANYWHERE` if the fragment cannot have bounds, `UNKNOWN` if its
            bounds are not known yet.
        """
        with self._lock:
            raws = fragments.raws
            cached_rows = map(self._row_of_fragment.get, raws, repeat(UNKNOWN))
            rows = np.fromiter(cached_rows, np.int64, len(raws))
            positions = np.flatnonzero(rows == UNKNOWN)
            columns = file_columns(fragments, positions, self.field.id)
            for index, column in zip(positions.tolist(), columns, strict=True):
                row = ANYWHERE if column is None else self._row_of_file.get(column, UNKNOWN)
                if row != UNKNOWN:
                    self._row_of_fragment[raws[index]] = rows[index] = row
            if len(self._row_of_fragment) > 2 * len(raws) + _FORGET_FROM:
                used = self._row_of_fragment
                self._row_of_fragment = {raw: used[raw] for raw in raws if raw in used}
            return rows

    def between(self, rows: Positions) -> "_Bounds":
        """Return bounds.

        Args:
            rows: (n,) rows of bounds; `UNKNOWN` counts as `ANYWHERE`.
        """
        rows = np.where(rows == UNKNOWN, ANYWHERE, rows)
        with self._lock:
            return _Bounds(self._lows[rows], self._highs[rows])

    def files_of(self, fragments: FragmentList) -> list[tuple[FileColumn, bytes, bytes]]:
        """Return the known files of some fragments, and their bounds as bytes."""
        rows = set(self.rows_of(fragments).tolist())
        with self._lock:
            lows, highs = _as_bytes(self._lows), _as_bytes(self._highs)
            return [
                (location, lows[row], highs[row])
                for location, row in self._row_of_file.items()
                if row in rows
            ]

    def forget_others(self, fragments: FragmentList) -> None:
        """Drop the bounds of files outside of some fragments, if there are many."""
        if self.num_files <= 2 * len(fragments) + _FORGET_FROM:
            return
        survivors = self.files_of(fragments)
        with self._lock:
            self._forget_all()
            self._row_of_file = {location: row for row, (location, _, _) in enumerate(survivors, 1)}
            self._append([bounds for _, *bounds in survivors])


def _as_bytes(words: OrderedWords) -> list[bytes]:
    if words.dtype.kind == "u":
        strings = words.astype(">u8").tobytes()
        return [strings[at : at + 8] for at in range(0, len(strings), 8)]
    values: list[bytes] = words.tolist()
    return values


class KeyBounds:
    """The known bounds of a table's key columns.

    Args:
        columns: The bounds of each; None for a column whose type has no bounds.
    """

    def __init__(self, columns: Sequence[ColumnBounds | None]) -> None:
        self.columns = [column for column in columns if column is not None]
        self._key_indices = [index for index, column in enumerate(columns) if column is not None]

    def add_bounds(self, file_bounds: Iterable[FileBounds]) -> None:
        """Add bounds of files."""
        joined = joined_bounds(file_bounds)
        for column in self.columns:
            column.add(joined)

    def are_unknown(self, fragments: FragmentList) -> Mask:
        """Return (num_fragments,) whether the bounds of a fragment are not known yet."""
        unknown = np.zeros(len(fragments), np.bool_)
        for column in self.columns:
            unknown |= column.rows_of(fragments) == UNKNOWN
        return unknown

    def may_hold(self, fragments: FragmentList, lookup: KeyLookup) -> Mask:
        """Return which fragments may hold a key of a batch."""
        may = np.full(len(fragments), lookup.num_keys > 0)
        rows = [column.rows_of(fragments) for column in self.columns]
        bounded = [
            at for at, rows_of_column in enumerate(rows) if bool((rows_of_column > ANYWHERE).any())
        ]
        if not bounded:
            return may
        keys = [lookup.key_columns[self._key_indices[at]] for at in bounded]
        bounds = [self.columns[at].between(rows[at]) for at in bounded]
        for bound, values in zip(bounds, keys, strict=True):
            minimum, maximum = ordered_words(extremes_of(values))
            may &= (bound.lows <= maximum) & (bound.highs >= minimum)
        # Try a sample of the keys first; sorting all keys is rarely needed. If the keys are spread
        # over the table, a few of them hit every fragment; if they are close together, most
        # fragments are already excluded.
        undecided = np.flatnonzero(may)
        sample = pa.array(np.arange(0, lookup.num_keys, max(lookup.num_keys // _SAMPLE_KEYS, 1)))
        for some in ([key.take(sample) for key in keys], keys):
            undecided = undecided[~_hold_a_key([bound.at(undecided) for bound in bounds], some)]
        may[undecided] = False
        return may


class _Bounds(NamedTuple):
    """Bounds of fragments.

    Attributes:
        lows: (n,) the encoded smallest value of each fragment.
        highs: (n,) the encoded largest value of each fragment.
    """

    lows: OrderedWords
    highs: OrderedWords

    def at(self, positions: Positions) -> "_Bounds":
        return _Bounds(self.lows[positions], self.highs[positions])


def _hold_a_key(bounds: Sequence[_Bounds], keys: Sequence[pa.Array]) -> Mask:
    """Return (n,) whether the bounds of a fragment contain a key.

    Args:
        bounds: (n,) bounds for each key column.
        keys: (num_keys,) values of each key column.
    """
    may = np.ones(len(bounds[0].lows), np.bool_)
    if not len(may):
        return may
    sides: list[_Side] = []
    for bounds_of_column, values in zip(bounds, keys, strict=True):
        order, words = in_order(values)
        # The sorted keys from `firsts` up to `stops` are within the bounds of this column.
        firsts = np.searchsorted(words, bounds_of_column.lows, "left")
        stops = np.searchsorted(words, bounds_of_column.highs, "right")
        may &= firsts < stops
        sides.append(_Side(firsts, stops, order))
    if len(sides) > 1:
        positions = np.flatnonzero(may)
        may[positions] = _hold_a_key_in_all(sides, positions)
    return may


class _Side(NamedTuple):
    """One side of the boxes: the bounds of one key column for all fragments.

    Attributes:
        firsts: (num_fragments,) index of the first key within the bounds, in the column's order.
        stops: (num_fragments,) one past the index of the last such key.
        order: (num_keys,) the numbers of the keys in the order of this column.
    """

    firsts: Positions
    stops: Positions
    order: Positions


def _hold_a_key_in_all(sides: Sequence[_Side], positions: Positions) -> Mask:
    """Return which boxes contain a key, that is, a key within the bounds of every column.

    Checks the keys within the narrowest side of each box. Boxes that are left when the budget of
    pairs is exhausted count as containing a key.
    """
    sizes = np.stack([(side.stops - side.firsts)[positions] for side in sides])
    narrowest = np.argmin(sizes, axis=0)
    may = np.ones(len(positions), np.bool_)
    ranks = [_ranks(side.order) for side in sides]
    pairs_remaining = _MAX_PAIRS
    for at, side in enumerate(sides):
        # The boxes whose narrowest side is this column, in groups of limited size.
        boxes_of_side = np.flatnonzero(narrowest == at)
        ends = np.cumsum(sizes[at][boxes_of_side])
        start = 0
        while start < len(boxes_of_side):
            pairs_before = int(ends[start - 1]) if start else 0
            stop = max(
                int(np.searchsorted(ends, pairs_before + _PAIRS_AT_ONCE, "right")), start + 1
            )
            num_pairs = int(ends[stop - 1]) - pairs_before
            pairs_remaining -= num_pairs
            if pairs_remaining < 0:
                return may
            part = boxes_of_side[start:stop]
            counts = sizes[at][part]
            # All pairs of a box and a key within its narrowest side.
            box = np.repeat(np.arange(len(part)), counts)
            within = np.arange(num_pairs) - np.repeat(np.cumsum(counts) - counts, counts)
            keys = side.order[side.firsts[positions[part]][box] + within]
            # A key is in the box if its rank in every other column is within the bounds, too.
            inside = np.ones(num_pairs, np.bool_)
            for other, rank in zip(sides, ranks, strict=True):
                if other is not side:
                    of_key = rank[keys]
                    inside &= of_key >= other.firsts[positions[part]][box]
                    inside &= of_key < other.stops[positions[part]][box]
            may[part] = np.bincount(box[inside], minlength=len(part)) > 0
            start = stop
    return may


def _ranks(order: Positions) -> Positions:
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks
