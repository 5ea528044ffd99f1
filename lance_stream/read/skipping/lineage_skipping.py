"""Excludes rows that a filter cannot match, by the lineage of rows in the manifest.

A fragment's message contains its row ids and row versions (created and last updated), mostly as a
few runs, and determines its row addresses. So a filter over these columns is first evaluated on the
runs: fragments without a matching run are not read, and of the others only the rows of matching
runs. The specification's queries for rows inserted or updated between two versions are such
filters:

    _row_created_at_version > b AND _row_created_at_version <= e
    _row_created_at_version <= b AND _row_last_updated_at_version > b
        AND _row_last_updated_at_version <= e

Fragments with one value for all rows, such as most appended ones, are not decoded
(`table.lineage.constant_lineage`). The others are divided into zones, for which the bounds of each
column are known, as for pages of old files (`page_skipping`):

    created, updated      one zone per run of a version
    row id                one zone per range of ids, and one per 1024 ids that are stored singly
    row address           one zone per fragment

The reader of a fragment splits ranges of ids and addresses into zones of 4096 rows.

Source:  row ids and lineage, "Row Version Tracking", "Change Data Feed".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Positions, U64s
from lance_stream.errors import BadDataError
from lance_stream.expressions.predicates import Expression
from lance_stream.read.skipping.row_ranges import RowRanges
from lance_stream.schema.system_columns import (
    ROW_ADDRESS,
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.table.fragments.fragment import Fragment, StoredSequence
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.lineage.ascending import distinct
from lance_stream.table.lineage.row_addresses import pack_addresses
from lance_stream.table.lineage.row_ids import Ranges, RowIdSequence, Values, decode_row_ids
from lance_stream.table.lineage.row_versions import (
    FIRST_VERSION,
    RowVersionSequence,
    decode_row_versions,
)


class ReadSequences(Protocol):
    """Provides the sequences of a fragment; None if that would require reading a file."""

    def row_ids(self, stored: StoredSequence, num_rows: int) -> RowIdSequence | None:
        """Return row ids, one for each row."""
        ...

    def row_versions(self, stored: StoredSequence, num_rows: int) -> RowVersionSequence | None:
        """Return row versions, one for each row."""
        ...


LINEAGE_COLUMNS: Final = (
    ROW_ID,
    ROW_ADDRESS,
    ROW_CREATED_AT_VERSION,
    ROW_LAST_UPDATED_AT_VERSION,
)

_IDS_PER_ZONE: Final = 1024
_ROWS_PER_ZONE: Final = 4096


class Zones(NamedTuple):
    """The bounds of one column's values in each zone of a fragment.

    Attributes:
        ends: (num_zones,) i64, one past the last row of each zone, ascending.
        minima: (num_zones,) u64, smallest value of each zone.
        maxima: (num_zones,) u64, largest value of each zone.
    """

    ends: Positions
    minima: U64s
    maxima: U64s

    def split(self, num_rows: int) -> "Zones":
        """Split the zones whose values increase by one with each row.

        Args:
            num_rows: The number of rows in a smaller zone; more than `_IDS_PER_ZONE`, because ids
                that are stored singly may be in any order.
        """
        lengths = np.diff(self.ends, prepend=0)
        is_range = self.maxima - self.minima == (lengths - 1).astype(np.uint64)
        is_range &= lengths > num_rows
        if not is_range.any():
            return self
        # All zones are split at multiples of `num_rows`; those that are not ranges keep their
        # bounds in each part.
        edges = np.arange(0, int(self.ends[-1]), num_rows, dtype=np.int64)
        ends = distinct(np.concatenate([edges[1:], self.ends]))
        starts = np.concatenate(([0], ends[:-1]))
        zones = np.searchsorted(self.ends, starts, side="right")
        rows_before = (starts - (self.ends - lengths)[zones]).astype(np.uint64)
        rows_after = (self.ends[zones] - ends).astype(np.uint64)
        minima, maxima = self.minima[zones], self.maxima[zones]
        return Zones(
            ends,
            np.where(is_range[zones], minima + rows_before, minima),
            np.where(is_range[zones], maxima - rows_after, maxima),
        )

    def bounds_at(self, rows: Positions) -> tuple[U64s, U64s]:
        """Return the bounds of the zones that contain rows."""
        zones = np.searchsorted(self.ends, rows, side="right")
        return self.minima[zones], self.maxima[zones]


def lineage_columns_of(predicate: Expression | None) -> tuple[str, ...]:
    """Return the lineage columns that a filter names."""
    named = {path[0] for path in (predicate.paths if predicate is not None else ())}
    return tuple(name for name in LINEAGE_COLUMNS if name in named)


def _may_match(
    predicate: Expression, bounds: Mapping[str, tuple[U64s, U64s]], num_zones: int
) -> npt.NDArray[np.bool_]:
    """Return the zones in which a filter may be true; imports the parser only when needed."""
    from lance_stream.read.skipping.page_skipping import may_match

    return may_match(predicate, bounds, num_zones)


def rows_that_may_match(
    predicate: Expression,
    fragment: Fragment,
    num_rows: int,
    read: ReadSequences,
    *,
    has_stable_row_ids: bool,
) -> RowRanges:
    """Return the rows of a fragment that a filter may match according to their lineage.

    Args:
        predicate: The filter.
        fragment: The fragment.
        num_rows: The number of its physical rows.
        read: Reads its sequences.
        has_stable_row_ids: Whether row ids are stable ids; otherwise they are row addresses.

    Raises:
        BadDataError: A sequence is damaged.
    """
    names = lineage_columns_of(predicate)
    zones_by_name = _zones_of(
        fragment, num_rows, names, read, has_stable_row_ids=has_stable_row_ids
    )
    if not zones_by_name or not num_rows:
        return RowRanges.all_of(num_rows)
    edges, bounds = _align(
        {
            name: zones.split(_ROWS_PER_ZONE) if name in (ROW_ID, ROW_ADDRESS) else zones
            for name, zones in zones_by_name.items()
        }
    )
    return RowRanges.of_pages(edges, _may_match(predicate, bounds, len(edges) - 1))


def fragments_that_may_match(
    predicate: Expression, fragments: FragmentList, *, has_stable_row_ids: bool
) -> list[tuple[int, int, int | None]]:
    """Return the fragments with rows that a filter may match according to the manifest.

    No file is read. A fragment is included as a whole if its message refers to a file, or if it is
    damaged, which its reader will report.

    Returns:
        The fragment's index in `fragments`; the first row that may match; and one past the last,
        None for the fragment's end.
    """
    names = lineage_columns_of(predicate)
    is_varied, matches = _match_constant_lineage(
        predicate, names, fragments, has_stable_row_ids=has_stable_row_ids
    )
    undecided: list[tuple[int, Positions, dict[str, tuple[U64s, U64s]]]] = []
    for index in np.flatnonzero(is_varied).tolist():
        try:
            fragment = fragments[index]
            zones_by_name = _zones_of(
                fragment,
                fragment.physical_rows,
                names,
                _Inline(),
                has_stable_row_ids=has_stable_row_ids,
            )
        except BadDataError:
            zones_by_name = {}
        if len(zones_by_name) < len(names) or not fragment.physical_rows:
            matches.append((index, 0, None))
        else:
            undecided.append((index, *_align(zones_by_name)))
    if undecided:
        matches += _match_zones(predicate, names, undecided)
    return sorted(matches, key=lambda match: match[0])


def _match_constant_lineage(
    predicate: Expression,
    names: Sequence[str],
    fragments: FragmentList,
    *,
    has_stable_row_ids: bool,
) -> tuple[npt.NDArray[np.bool_], list[tuple[int, int, int | None]]]:
    """Match the fragments with one value for all rows, without decoding them.

    Returns:
        (num_fragments,) which fragments have several values; and the matches among the others, as
        in `fragments_that_may_match`.
    """
    lineage = fragments.lineage
    is_constant = lineage.is_plain.copy()
    bounds: dict[str, tuple[U64s, U64s]] = {}
    for name in names:
        if name == ROW_ADDRESS or (name == ROW_ID and not has_stable_row_ids):
            first = lineage.ids << np.uint64(32)
            bounds[name] = first, first + lineage.physical_rows - np.uint64(1)
        elif name == ROW_ID:
            first = lineage.first_row_ids.values
            bounds[name] = first, first + lineage.physical_rows - np.uint64(1)
            is_constant &= lineage.first_row_ids.is_constant
        else:
            stamps = lineage.created if name == ROW_CREATED_AT_VERSION else lineage.last_updated
            bounds[name] = stamps.values, stamps.values
            is_constant &= stamps.is_constant
    mask = _may_match(predicate, bounds, len(fragments))
    return ~is_constant, [(index, 0, None) for index in np.flatnonzero(is_constant & mask).tolist()]


def _match_zones(
    predicate: Expression,
    names: Sequence[str],
    undecided: Sequence[tuple[int, Positions, dict[str, tuple[U64s, U64s]]]],
) -> Iterator[tuple[int, int, int | None]]:
    """Match the zones of several fragments at once; see `fragments_that_may_match`."""
    bounds_by_name = {
        name: (
            np.concatenate([bounds[name][0] for _, _, bounds in undecided]),
            np.concatenate([bounds[name][1] for _, _, bounds in undecided]),
        )
        for name in names
    }
    stops = np.cumsum([len(edges) - 1 for _, edges, _ in undecided])
    mask = _may_match(predicate, bounds_by_name, int(stops[-1]))
    for (index, edges, _), stop in zip(undecided, stops.tolist(), strict=True):
        zones = np.flatnonzero(mask[stop - len(edges) + 1 : stop])
        if len(zones):
            first, last = int(edges[zones[0]]), int(edges[zones[-1] + 1])
            yield index, first, None if last == edges[-1] else last


class _Inline:
    """Decodes the sequences that the manifest contains."""

    def row_ids(self, stored: StoredSequence, num_rows: int) -> RowIdSequence | None:
        return decode_row_ids(stored, num_rows) if isinstance(stored, bytes) else None

    def row_versions(self, stored: StoredSequence, num_rows: int) -> RowVersionSequence | None:
        return decode_row_versions(stored, num_rows) if isinstance(stored, bytes) else None


def _align(
    zones_by_name: dict[str, Zones],
) -> tuple[Positions, dict[str, tuple[U64s, U64s]]]:
    """Split the zones of several columns at the same rows.

    Returns:
        (num_zones + 1,) i64, the edges of the zones; and their bounds by column.
    """
    if len(zones_by_name) == 1:
        ((name, (ends, minima, maxima)),) = zones_by_name.items()
        return np.concatenate(([0], ends)), {name: (minima, maxima)}
    edges = distinct(
        np.concatenate([np.zeros(1, np.int64), *(zones.ends for zones in zones_by_name.values())])
    )
    return edges, {name: zones.bounds_at(edges[:-1]) for name, zones in zones_by_name.items()}


def _zones_of(
    fragment: Fragment,
    num_rows: int,
    names: Iterable[str],
    read: ReadSequences,
    *,
    has_stable_row_ids: bool,
) -> dict[str, Zones]:
    """Return the zones of the columns whose values the fragment's message contains."""
    zones_by_name: dict[str, Zones] = {}
    for name in names:
        if name == ROW_ADDRESS or (name == ROW_ID and not has_stable_row_ids):
            outermost = pack_addresses(fragment.id, np.array([0, max(num_rows - 1, 0)]))
            zones_by_name[name] = Zones(
                np.array([num_rows], np.int64), outermost[:1], outermost[1:]
            )
        elif name == ROW_ID:
            stored = fragment.row_ids
            ids = None if stored is None else read.row_ids(stored, num_rows)
            if ids is not None:
                zones_by_name[name] = _zones_of_ids(ids)
        else:
            stored = (
                fragment.created_at_versions
                if name == ROW_CREATED_AT_VERSION
                else fragment.last_updated_at_versions
            )
            sequence = None if stored is None else read.row_versions(stored, num_rows)
            if stored is None:
                first = np.full(1, FIRST_VERSION, np.uint64)
                zones_by_name[name] = Zones(np.array([num_rows], np.int64), first, first)
            elif sequence is not None:
                ends = np.cumsum(sequence.lengths)
                zones_by_name[name] = Zones(ends, sequence.versions, sequence.versions)
    return zones_by_name


def _zones_of_ids(sequence: RowIdSequence) -> Zones:
    no_ids = np.empty(0, np.uint64)
    zones_of_segments = [Zones(np.empty(0, np.int64), no_ids, no_ids)]  # for no segments
    num_rows = 0
    for segment in sequence.segments:
        if isinstance(segment, Ranges):
            not_empty = segment.stops > segment.starts
            ends, minima = segment.ends[not_empty], segment.starts[not_empty]
            maxima = segment.stops[not_empty] - np.uint64(1)
        elif isinstance(segment, Values):
            starts = np.arange(0, len(segment), _IDS_PER_ZONE, dtype=np.int64)
            ends = np.minimum(starts + _IDS_PER_ZONE, len(segment))
            minima = np.minimum.reduceat(segment.values, starts)
            maxima = np.maximum.reduceat(segment.values, starts)
        else:
            ends = np.array([len(segment)], np.int64)
            minima = np.array([segment.start], np.uint64)
            maxima = np.array([segment.stop - 1], np.uint64)
        zones_of_segments.append(Zones(ends + num_rows, minima, maxima))
        num_rows += len(segment)
    return Zones(
        *(np.concatenate([zones[column] for zones in zones_of_segments]) for column in range(3))
    )
