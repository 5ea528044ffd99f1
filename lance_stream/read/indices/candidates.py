"""Finds the rows that a filter may match by searching indices.

    in fragments that the index covers    the rows that the index finds, except deleted ones
    in all other fragments                every row

The filter is evaluated on all of these rows, so an index may have outdated entries: of deleted
rows, and of rows that were moved and changed. Such a row is now in a fragment that the index does
not cover, or the fragment of its entry no longer exists. But an index must have all rows of the
fragments that it covers. The manifest guarantees this: writers that change a column in place, or
move rows, remove the fragments from the coverage (`table.apply.index_coverage`).

Indices are used if they leave few rows (`MAX_READ_PART`, `MAX_MATCHED_PART`), so that searching
them takes no longer than the scan that it replaces. If an index is damaged or of an unknown kind,
all rows are scanned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Mask, Positions, RowAddresses
from lance_stream.errors import CorruptDataError
from lance_stream.expressions.predicates import Expression
from lance_stream.read.indices.column_conditions import (
    AnyOf,
    ColumnCondition,
    Condition,
    condition_of,
)
from lance_stream.read.indices.segments import (
    FAILURES,
    Plan,
    Segment,
    log_failure,
    plan_index,
    segments_by_column,
)
from lance_stream.read.row_lookup import find_rows
from lance_stream.read.skipping.row_ranges import Path
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.lineage.ascending import are_among, distinct
from lance_stream.table.lineage.row_addresses import unpack_addresses

MIN_COVERED_ROWS: Final = 1 << 15
"""The minimum number of covered rows; a scan of fewer takes about as long as an index search."""

MAX_READ_PART: Final = 1 / 4
"""The maximum number of index entries that are read, as a fraction of the covered rows."""

MAX_MATCHED_PART: Final = 1 / 32
"""The maximum number of rows that are read by address, as a fraction of the covered rows."""


@dataclass(frozen=True)
class Candidates:
    """The rows of a version for which a filter may be true.

    Attributes:
        covered: (num_fragments,) whether only the rows in `offsets` can match.
        offsets: Offsets of live rows, ascending and not empty, by the index of their fragment.
    """

    covered: Mask
    offsets: dict[int, Positions]

    def within(self, index: int, start: int, stop: int | None) -> Positions:
        """Return the offsets of candidate rows from `start` to `stop` of a covered fragment."""
        offsets = self.offsets.get(index, np.empty(0, np.int64))
        low, high = np.searchsorted(offsets, [start, _MAX_ROWS if stop is None else stop])
        return offsets[low:high]


@dataclass(frozen=True)
class _IndexPlan:
    """The searches of indices that serve a condition.

    Attributes:
        needed: The searches, all of which are needed: for each index, those of its segments.
        covered: (num_fragments,) whether the searches cover the fragment.
        cost: The approximate number of entries and rows to read.
    """

    needed: tuple[tuple[Plan, ...], ...]
    covered: Mask
    cost: int


_MAX_ROWS: Final = 1 << 32


def candidate_rows(table: TableVersion, predicate: Expression) -> Candidates | None:
    """Return the rows for which a filter may be true; None if indices cannot help.

    Args:
        table: The version.
        predicate: The filter, which has been checked.
    """
    try:
        by_column = segments_by_column(table)
        if not by_column:
            return None
        condition = condition_of(predicate.node, by_column)
        if condition is None:
            return None
        planned = _plan(table, condition, by_column)
        if planned is None:
            return None
        live = table.row_counts.live
        num_covered = int(live[planned.covered].sum())
        num_entries = sum(plan.num_rows for plan in chain.from_iterable(planned.needed))
        if num_covered < MIN_COVERED_ROWS or num_entries > MAX_READ_PART * num_covered:
            return None
        addresses = _search(table, planned, int(MAX_MATCHED_PART * num_covered))
        return None if addresses is None else _by_fragment(table, planned.covered, addresses)
    except FAILURES as error:
        log_failure(error, table)
        return None


def _plan(
    table: TableVersion, condition: Condition, by_column: Mapping[Path, list[list[Segment]]]
) -> _IndexPlan | None:
    if isinstance(condition, ColumnCondition):
        index_plans = [
            _plan_for_index(table, index, condition) for index in by_column[condition.path]
        ]
        return _cheapest(index_plans)
    parts = [_plan(table, part, by_column) for part in condition.parts]
    if isinstance(condition, AnyOf):
        return _cheapest(parts)
    all_plans = [part for part in parts if part is not None]
    if len(all_plans) < len(parts):
        return None
    covered = reduce(np.logical_and, (plan.covered for plan in all_plans))
    needed = tuple(plans for plan in all_plans for plans in plan.needed)
    return _IndexPlan(needed, covered, sum(plan.cost for plan in all_plans))


def _plan_for_index(
    table: TableVersion, segments: Sequence[Segment], condition: ColumnCondition
) -> _IndexPlan | None:
    try:
        plans = plan_index(table, segments, condition)
    except FAILURES as error:
        log_failure(error, table)
        return None
    if not plans:
        return None
    covered = reduce(np.logical_or, (plan.covered for plan in plans))
    num_scanned = int(table.row_counts.live[~covered].sum())
    return _IndexPlan((tuple(plans),), covered, num_scanned + sum(plan.num_rows for plan in plans))


def _cheapest(planned: Iterable[_IndexPlan | None]) -> _IndexPlan | None:
    return min((plan for plan in planned if plan is not None), key=_cost, default=None)


def _cost(planned: _IndexPlan) -> int:
    return planned.cost


def _search(table: TableVersion, planned: _IndexPlan, max_ids: int) -> RowAddresses | None:
    """Return the addresses of matching rows in covered fragments; None if more than `max_ids`."""
    matches: list[RowAddresses] = [np.empty(0, np.uint64)]
    fragments = _FragmentLookup(table.manifest.fragments.numbers.ids)
    num_matches = 0
    for plan in chain.from_iterable(planned.needed):
        ids = plan.search(max_ids - num_matches)
        if ids is None:
            return None
        num_matches += len(ids)
        ids = distinct(ids)
        if table.has_stable_row_ids and not plan.has_addresses:
            addresses, exists = find_rows(table, ids)
            ids = addresses[exists]
        # A row that was moved is now in a fragment that the segment does not cover.
        is_covered = fragments.select(unpack_addresses(ids)[0], plan.covered & planned.covered)
        matches.append(ids[is_covered])
    return distinct(np.concatenate(matches))


class _FragmentLookup:
    """Finds fragments by id.

    Args:
        ids: (num_fragments,) ids of the fragments.
    """

    def __init__(self, ids: npt.NDArray[np.uint64]) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]

    def select(self, ids: npt.NDArray[np.uint32], mask: Mask) -> Mask:
        """Return which ids belong to fragments for which `mask`, (num_fragments,), is true."""
        indices = np.searchsorted(self._ids, ids)
        indices[indices == len(self._ids)] = 0
        exists = self._ids[indices] == ids
        return np.asarray(exists & mask[self._order[indices]])


def _by_fragment(table: TableVersion, covered: Mask, addresses: RowAddresses) -> Candidates:
    """Group ascending row addresses by fragment, without deleted rows."""
    fragments, physical = table.manifest.fragments, table.row_counts.physical
    ids, offsets = unpack_addresses(addresses)
    starts = np.flatnonzero(np.diff(ids, prepend=np.uint32(0xFFFFFFFF)))
    parts = np.split(offsets.astype(np.int64), starts[1:])
    indices = [fragments.index_by_id[fragment_id] for fragment_id in ids[starts].tolist()]
    deleted_by_fragment = table.deleted_offsets_of([fragments[index] for index in indices])
    offsets_by_fragment: dict[int, Positions] = {}
    for index, part, deleted in zip(indices, parts, deleted_by_fragment, strict=False):
        if part[-1] >= physical[index]:
            raise CorruptDataError(
                f"an index contains row {part[-1]} of fragment {fragments[index].id}, which has "
                f"only {physical[index]} rows"
            )
        live = part[~are_among(part, deleted)] if len(deleted) else part
        if len(live):
            offsets_by_fragment[index] = live
    return Candidates(covered, offsets_by_fragment)
