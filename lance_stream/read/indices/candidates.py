"""The rows that a filter may match, according to indices.

    fragments that the index covers          the rows that it finds, less the deleted ones
    all other fragments                      every row

The filter is evaluated on all of them, so an index may list rows that have other values by now: of
deleted rows, and of rows that were moved and changed. Such a row is in a fragment that the index
does not cover, or its entry is of no fragment. What it must not do is to lack a row of a fragment
that it covers, and the manifest's coverage says that it does not: whoever changes a column in
place, or moves rows, takes the fragments out of it (`table.apply.index_coverage`).

Indices are used if they leave few rows (`MOST_READ`, `MAX_MATCHED_PART`); reading one of them takes
no longer than what it saves. If an index is damaged or of an unknown kind, all rows are scanned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
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
    plan_index,
    report,
    segments_by_column,
)
from lance_stream.read.row_lookup import find_rows
from lance_stream.read.skipping.row_ranges import Path
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.lineage.ascending import are_among, distinct
from lance_stream.table.lineage.row_addresses import unpack_addresses

LEAST_ROWS: Final = 1 << 15
"""Fewer covered rows are scanned: that takes about as long as asking an index."""

MOST_READ: Final = 1 / 4
"""The share of the covered rows whose entries are read at most."""

MAX_MATCHED_PART: Final = 1 / 32
"""The maximum share of the covered rows that are read by address."""


@dataclass(frozen=True)
class Candidates:
    """The rows of a version for which a filter may be true.

    Attributes:
        covered: (num_fragments,) in which fragments only some rows can match.
        offsets: Which rows, by the fragment's position; live, ascending, at least one.
    """

    covered: Mask
    offsets: dict[int, Positions]

    def within(self, index: int, start: int, stop: int | None) -> Positions:
        """Return those in a covered fragment that are in a range of its rows."""
        offsets = self.offsets.get(index, np.empty(0, np.int64))
        low, high = np.searchsorted(offsets, [start, _MOST_ROWS if stop is None else stop])
        return offsets[low:high]


@dataclass(frozen=True)
class _IndexPlan:
    """How indices serve a condition.

    Attributes:
        needed: What is needed together; the plans of one index each.
        covered: (num_fragments,) the fragments for which they serve.
        cost: How many entries and rows have to be read, about.
    """

    needed: tuple[tuple[Plan, ...], ...]
    covered: Mask
    cost: int


_MOST_ROWS: Final = 1 << 32


def candidate_rows(table: TableVersion, predicate: Expression) -> Candidates | None:
    """Return the rows for which a filter may be true; None if indices do not help.

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
        planned = _planned(table, condition, by_column)
        if planned is None:
            return None
        live = table.row_counts.live
        num_covered = int(live[planned.covered].sum())
        num_entries = sum(plan.num_rows for plans in planned.needed for plan in plans)
        if num_covered < LEAST_ROWS or num_entries > MOST_READ * num_covered:
            return None
        addresses = _search(table, planned, int(MAX_MATCHED_PART * num_covered))
        return None if addresses is None else _by_fragment(table, planned.covered, addresses)
    except FAILURES as error:
        report(error, table)
        return None


def _planned(
    table: TableVersion, condition: Condition, by_column: Mapping[Path, list[list[Segment]]]
) -> _IndexPlan | None:
    if isinstance(condition, ColumnCondition):
        index_plans = [
            _planned_index(table, index, condition) for index in by_column[condition.path]
        ]
        return _cheapest(index_plans)
    parts = [_planned(table, part, by_column) for part in condition.parts]
    if isinstance(condition, AnyOf):
        return _cheapest(parts)
    there = [part for part in parts if part is not None]
    if len(there) < len(parts):
        return None
    covered = reduce(np.logical_and, (plan.covered for plan in there))
    needed = tuple(plans for plan in there for plans in plan.needed)
    return _IndexPlan(needed, covered, sum(plan.cost for plan in there))


def _planned_index(
    table: TableVersion, segments: Sequence[Segment], condition: ColumnCondition
) -> _IndexPlan | None:
    try:
        plans = plan_index(table, segments, condition)
    except FAILURES as error:
        report(error, table)
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


def _search(table: TableVersion, planned: _IndexPlan, most: int) -> RowAddresses | None:
    """Return the addresses of rows in the fragments covered; None if they are more than `most`."""
    matches: list[RowAddresses] = [np.empty(0, np.uint64)]
    positions = _IndexOf(table.manifest.fragments.numbers.ids)
    num_matches = 0
    for plan in (plan_needed for plans in planned.needed for plan_needed in plans):
        ids = plan.search(most - num_matches)
        if ids is None:
            return None
        num_matches += len(ids)
        ids = distinct(ids)
        if table.has_stable_row_ids and not plan.has_addresses:
            addresses, is_there = find_rows(table, ids)
            ids = addresses[is_there]
        # An entry of a row that moved since is of a fragment that the segment does not cover.
        matches.append(
            ids[positions.among(unpack_addresses(ids)[0], plan.covered & planned.covered)]
        )
    return distinct(np.concatenate(matches))


class _IndexOf:
    """Finds fragments by id.

    Args:
        ids: (num_fragments,) their ids.
    """

    def __init__(self, ids: npt.NDArray[np.uint64]) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]

    def among(self, ids: npt.NDArray[np.uint32], chosen: Mask) -> Mask:
        """Return which ids are those of chosen fragments."""
        positions = np.searchsorted(self._ids, ids)
        positions[positions == len(self._ids)] = 0
        is_there = self._ids[positions] == ids
        return np.asarray(is_there & chosen[self._order[positions]])


def _by_fragment(table: TableVersion, covered: Mask, addresses: RowAddresses) -> Candidates:
    fragments, physical = table.manifest.fragments, table.row_counts.physical
    ids, offsets = unpack_addresses(addresses)
    starts = np.flatnonzero(np.diff(ids, prepend=np.uint32(0xFFFFFFFF)))
    parts = np.split(offsets.astype(np.int64), starts[1:])
    positions = [fragments.index_by_id[fragment_id] for fragment_id in ids[starts].tolist()]
    deleted_by_fragment = table.deleted_offsets_of([fragments[index] for index in positions])
    offsets_by_fragment: dict[int, Positions] = {}
    for index, part, deleted in zip(positions, parts, deleted_by_fragment, strict=False):
        if part[-1] >= physical[index]:
            raise CorruptDataError(
                f"an index has the row {part[-1]} of fragment {fragments[index].id}, which has "
                f"{physical[index]} rows"
            )
        alive = part[~are_among(part, deleted)] if len(deleted) else part
        if len(alive):
            offsets_by_fragment[index] = alive
    return Candidates(covered, offsets_by_fragment)
