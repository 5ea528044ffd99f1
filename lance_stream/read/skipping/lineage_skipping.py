"""Finds which rows a filter may match, from what the manifest itself contains.

Row ids, row addresses and row versions (created and last updated) are stored in a fragment's
message, mostly as a few runs. So a filter over these columns is first evaluated on the runs:
fragments without a matching run are not read at all, and of the others only the rows of such runs.
The specification's queries for rows inserted and updated between two versions are such filters:

    _row_created_at_version > b AND _row_created_at_version <= e
    _row_created_at_version <= b AND _row_last_updated_at_version > b
        AND _row_last_updated_at_version <= e

Fragments with one value for all rows, such as most appended ones, need not be decoded for this
(`table.lineage.constant_lineage`). Matching works as for pages of old files (`page_skipping`): a
run is a page with known bounds.

    created, updated      one piece per run of a version
    row id                one per range of ids, and one per 1024 ids that are stored singly
    row address           one per fragment

The reader of a fragment cuts ranges of ids and addresses into pieces of 4096 rows.

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
    """Gives the sequences of a fragment; None if that would require reading a file."""

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

_IDS_IN_A_PIECE: Final = 1024
_ROWS_IN_A_PIECE: Final = 4096


class Pieces(NamedTuple):
    """The bounds of one column's values, piece by piece.

    Attributes:
        ends: (num_pieces,) i64, ascending: one past the last row of each.
        least: (num_pieces,) u64.
        most: (num_pieces,) u64.
    """

    ends: Positions
    least: U64s
    most: U64s

    def cut(self, num_rows: int) -> "Pieces":
        """Return smaller pieces where the values of a piece are known to grow by one per row.

        Args:
            num_rows: Of how many rows a smaller piece is; more than `_IDS_IN_A_PIECE`, for ids that
                are listed may come in any order.
        """
        lengths = np.diff(self.ends, prepend=0)
        is_range = self.most - self.least == (lengths - 1).astype(np.uint64)
        is_range &= lengths > num_rows
        if not is_range.any():
            return self
        edges = np.arange(0, int(self.ends[-1]), num_rows, dtype=np.int64)
        ends = distinct(np.concatenate([edges[1:], self.ends]))
        starts = np.concatenate(([0], ends[:-1]))
        which = np.searchsorted(self.ends, starts, side="right")
        behind = (starts - (self.ends - lengths)[which]).astype(np.uint64)
        before = (self.ends[which] - ends).astype(np.uint64)
        moves = is_range[which]
        return Pieces(
            ends,
            np.where(moves, self.least[which] + behind, self.least[which]),
            np.where(moves, self.most[which] - before, self.most[which]),
        )

    def at(self, starts: Positions) -> tuple[U64s, U64s]:
        """Return the bounds of the pieces that contain some rows."""
        which = np.searchsorted(self.ends, starts, side="right")
        return self.least[which], self.most[which]


def lineage_columns_of(predicate: Expression | None) -> tuple[str, ...]:
    """Return the columns of a filter that the manifest contains."""
    named = {path[0] for path in (predicate.paths if predicate is not None else ())}
    return tuple(name for name in LINEAGE_COLUMNS if name in named)


def _may_match(
    predicate: Expression, bounds: Mapping[str, tuple[U64s, U64s]], num_pieces: int
) -> npt.NDArray[np.bool_]:
    """Return the pieces in which a filter may be true; reading without one imports no parser."""
    from lance_stream.read.skipping.page_skipping import may_match

    return may_match(predicate, bounds, num_pieces)


def rows_that_may_match(
    predicate: Expression,
    fragment: Fragment,
    num_rows: int,
    read: ReadSequences,
    *,
    has_stable_row_ids: bool,
) -> RowRanges:
    """Return the rows of a fragment that a filter may match, as far as its lineage tells.

    Args:
        predicate: The filter.
        fragment: The fragment.
        num_rows: Its physical rows.
        read: Reads its sequences.
        has_stable_row_ids: Whether its row ids are not its row addresses.

    Raises:
        BadDataError: A sequence is damaged.
    """
    names = lineage_columns_of(predicate)
    pieces = _pieces_of(fragment, num_rows, names, read, has_stable_row_ids=has_stable_row_ids)
    if not pieces or not num_rows:
        return RowRanges.all_of(num_rows)
    edges, bounds = _aligned(
        {
            name: piece.cut(_ROWS_IN_A_PIECE) if name in (ROW_ID, ROW_ADDRESS) else piece
            for name, piece in pieces.items()
        }
    )
    return RowRanges.of_pages(edges, _may_match(predicate, bounds, len(edges) - 1))


def fragments_that_may_match(
    predicate: Expression, fragments: FragmentList, *, has_stable_row_ids: bool
) -> list[tuple[int, int, int | None]]:
    """Return the fragments with rows that a filter may match, as far as their manifest tells.

    No file is read. A fragment is included as a whole if its message is damaged, which its reader
    will report, or refers to a file.

    Returns:
        The index of each in `fragments`; the first row that may match, and one past the last,
        None for its end.
    """
    names = lineage_columns_of(predicate)
    is_candidate, matches = _uniform_that_may_match(
        predicate, names, fragments, has_stable_row_ids=has_stable_row_ids
    )
    undecided: list[tuple[int, Positions, dict[str, tuple[U64s, U64s]]]] = []
    for index in np.flatnonzero(is_candidate).tolist():
        try:
            fragment = fragments[index]
            pieces = _pieces_of(
                fragment,
                fragment.physical_rows,
                names,
                _Inline(),
                has_stable_row_ids=has_stable_row_ids,
            )
        except BadDataError:
            pieces = {}
        if len(pieces) < len(names) or not fragment.physical_rows:
            matches.append((index, 0, None))
        else:
            undecided.append((index, *_aligned(pieces)))
    if undecided:
        matches += _chosen(predicate, names, undecided)
    return sorted(matches, key=lambda match: match[0])


def _uniform_that_may_match(
    predicate: Expression,
    names: Sequence[str],
    fragments: FragmentList,
    *,
    has_stable_row_ids: bool,
) -> tuple[npt.NDArray[np.bool_], list[tuple[int, int, int | None]]]:
    """Check the fragments with one value for all rows, without decoding them.

    Returns:
        (num_fragments,) which are not of this kind; and the matches among those that are.
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


def _chosen(
    predicate: Expression,
    names: Sequence[str],
    undecided: Sequence[tuple[int, Positions, dict[str, tuple[U64s, U64s]]]],
) -> Iterator[tuple[int, int, int | None]]:
    """Check the pieces of several fragments at once."""
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
        chosen = np.flatnonzero(mask[stop - len(edges) + 1 : stop])
        if len(chosen):
            first, last = int(edges[chosen[0]]), int(edges[chosen[-1] + 1])
            yield index, first, None if last == edges[-1] else last


class _Inline:
    """Decodes the sequences that are in the manifest."""

    def row_ids(self, stored: StoredSequence, num_rows: int) -> RowIdSequence | None:
        return decode_row_ids(stored, num_rows) if isinstance(stored, bytes) else None

    def row_versions(self, stored: StoredSequence, num_rows: int) -> RowVersionSequence | None:
        return decode_row_versions(stored, num_rows) if isinstance(stored, bytes) else None


def _aligned(
    pieces: dict[str, Pieces],
) -> tuple[Positions, dict[str, tuple[U64s, U64s]]]:
    """Return pieces within which no column's bounds change; their edges, and the bounds."""
    if len(pieces) == 1:
        ((name, (ends, least, most)),) = pieces.items()
        return np.concatenate(([0], ends)), {name: (least, most)}
    edges = distinct(
        np.concatenate([np.zeros(1, np.int64), *(piece.ends for piece in pieces.values())])
    )
    return edges, {name: piece.at(edges[:-1]) for name, piece in pieces.items()}


def _pieces_of(
    fragment: Fragment,
    num_rows: int,
    names: Iterable[str],
    read: ReadSequences,
    *,
    has_stable_row_ids: bool,
) -> dict[str, Pieces]:
    """Return the bounds of columns that the fragment's message contains."""
    pieces: dict[str, Pieces] = {}
    for name in names:
        if name == ROW_ADDRESS or (name == ROW_ID and not has_stable_row_ids):
            outermost = pack_addresses(fragment.id, np.array([0, max(num_rows - 1, 0)]))
            pieces[name] = Pieces(np.array([num_rows], np.int64), outermost[:1], outermost[1:])
        elif name == ROW_ID:
            stored = fragment.row_ids
            ids = None if stored is None else read.row_ids(stored, num_rows)
            if ids is not None:
                pieces[name] = _pieces_of_ids(ids)
        else:
            stored = (
                fragment.created_at_versions
                if name == ROW_CREATED_AT_VERSION
                else fragment.last_updated_at_versions
            )
            sequence = None if stored is None else read.row_versions(stored, num_rows)
            if stored is None:
                first = np.full(1, FIRST_VERSION, np.uint64)
                pieces[name] = Pieces(np.array([num_rows], np.int64), first, first)
            elif sequence is not None:
                ends = np.cumsum(sequence.lengths)
                pieces[name] = Pieces(ends, sequence.versions, sequence.versions)
    return pieces


def _pieces_of_ids(sequence: RowIdSequence) -> Pieces:
    parts: list[Pieces] = []
    done = 0
    for segment in sequence.segments:
        if isinstance(segment, Ranges):
            some = segment.stops > segment.starts
            ends, least = segment.ends[some], segment.starts[some]
            most = segment.stops[some] - np.uint64(1)
        elif isinstance(segment, Values):
            starts = np.arange(0, len(segment), _IDS_IN_A_PIECE, dtype=np.int64)
            ends = np.minimum(starts + _IDS_IN_A_PIECE, len(segment))
            least = np.minimum.reduceat(segment.values, starts)
            most = np.maximum.reduceat(segment.values, starts)
        else:
            ends = np.array([len(segment)], np.int64)
            least = np.array([segment.start], np.uint64)
            most = np.array([segment.stop - 1], np.uint64)
        parts.append(Pieces(ends + done, least, most))
        done += len(segment)
    return Pieces(*(np.concatenate([part[column] for part in parts]) for column in range(3)))
