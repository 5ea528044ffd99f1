"""Which rows may have to be computed: from manifests alone, without reading a data file.

A pending range selects rows by their last-updated-at versions and row ids (`progress`). Most rows
that changed since the last round need no check: if a fragment still has the files that held the
inputs, outputs and state in the previous version, none of its inputs changed. In-place changes of
other columns and compactions leave fragments in this state.

If a fragment's files changed but none of its rows has a later row version, a writer that does not
maintain row versions changed it, and all its rows are checked. Rows whose row version is old, but
differs from the one in the previous version, were restored, and are checked as well.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.derived.progress import PendingRange
from lance_stream.errors import NotFoundError
from lance_stream.expressions.predicates import parse_expression
from lance_stream.read.changed_rows import by_fragment
from lance_stream.read.lineage_skipping import fragments_that_may_match
from lance_stream.read.row_lookup import find_rows
from lance_stream.schema.system_columns import ROW_ID, ROW_LAST_UPDATED_AT_VERSION
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments import DataFile, Fragment

Ids: TypeAlias = npt.NDArray[np.uint64]

_NO_LIMIT = (1 << 64) - 1


class Rows(NamedTuple):
    """Some live rows of a fragment.

    Attributes:
        place: The fragment's index in the manifest.
        offsets: (n,) u32, ascending.
        row_ids: (n,) u64.
    """

    place: int
    offsets: npt.NDArray[np.uint32]
    row_ids: Ids


@dataclass(frozen=True)
class Changed:
    """What a version changed, compared with an earlier one.

    Attributes:
        pending_range: Selects the changed rows, and others that need no check.
        untouched: Ids of fragments that still have their files: none of their rows changed.
        others: Changed rows outside of the pending range.
    """

    pending_range: PendingRange
    untouched: Collection[int] = ()
    others: tuple[Rows, ...] = ()


@dataclass(frozen=True)
class PendingRows:
    """The rows that one commit checks.

    Attributes:
        rows: The rows.
        left: The remaining pending ranges.
    """

    rows: list[Rows] = field(default_factory=list)
    left: tuple[PendingRange, ...] = ()

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return sum(len(row.offsets) for row in self.rows)


def changed_since(
    table: TableVersion,
    after: int,
    fields: Collection[int],
    own: tuple[int, ...],
    *,
    is_restored_with: bool,
) -> Changed:
    """Return which rows may have changed after a version.

    Args:
        table: The newest version.
        after: The version through which all is known.
        fields: The ids of the columns that matter.
        own: Later versions whose row versions are of our own changes.
        is_restored_with: Whether the version is known from the table itself, so that a restore has
            restored what is known, too.
    """
    skip = tuple(each for each in own if after < each <= table.version)
    pending_range = PendingRange(after, skip=skip)
    if after == table.version:
        return Changed(pending_range, frozenset(table.manifest.fragments.ids))
    try:
        older = table.read_at(after)
    except NotFoundError:
        return Changed(pending_range if is_restored_with else PendingRange(0))
    wanted = set(fields)
    before = {
        each: older.manifest.fragments.raw(place)
        for place, each in enumerate(older.manifest.fragments.ids)
    }
    places = older.manifest.fragments.place_of
    untouched: list[int] = []
    others: list[Rows] = []
    for place, fragment_id in enumerate(table.manifest.fragments.ids):
        if before.get(fragment_id) == table.manifest.fragments.raw(place):
            untouched.append(fragment_id)
            continue
        fragment = table.manifest.fragments[place]
        if fragment_id in before:
            then = older.manifest.fragments[places[fragment_id]]
            if is_restored_with and files_of(then, wanted) == files_of(fragment, wanted):
                untouched.append(fragment_id)
                continue
            if not (_stamps(table, fragment) > np.uint64(after)).any():
                others.append(_rows(table, place, PendingRange(0), 0, None))
                continue
        if not is_restored_with:
            others.append(_restored(table, older, place, after))
    found = tuple(other for other in others if len(other.offsets))
    return Changed(pending_range, frozenset(untouched), found)


def _restored(table: TableVersion, older: TableVersion, place: int, after: int) -> Rows:
    """Return the rows of a fragment that an older version had otherwise, though none is later."""
    rows = _rows(table, place, PendingRange(0), 0, None)
    stamps = _stamps(table, table.manifest.fragments[place])[rows.offsets]
    early = stamps <= np.uint64(after)
    rows, stamps = Rows(place, rows.offsets[early], rows.row_ids[early]), stamps[early]
    addresses, is_there = find_rows(older, rows.row_ids)
    before = np.zeros(len(stamps), np.uint64)
    order = np.argsort(addresses)
    order = order[is_there[order]]
    done = 0
    for fragment_id, offsets in by_fragment(addresses[order]):
        then = older.manifest.fragments.by_id(fragment_id)
        assert then is not None  # it has the row
        own = older.row_versions_at(then, then.last_updated_at_versions, offsets)
        before[order[done : done + len(offsets)]] = own
        done += len(offsets)
    other = before != stamps
    return Rows(place, rows.offsets[other], rows.row_ids[other])


def files_of(fragment: Fragment, fields: Collection[int]) -> set[tuple[int, str, int]]:
    """Return which files of a fragment have the values of some columns."""
    return {
        (field_id, file.path, _base_of(file))
        for file in fragment.files
        for field_id in file.field_ids
        if field_id in fields
    }


def _base_of(file: DataFile) -> int:
    return -1 if file.base_id is None else file.base_id


def _stamps(table: TableVersion, fragment: Fragment) -> Ids:
    return table.row_versions(fragment, fragment.last_updated_at_versions).to_array()


def next_rows(
    table: TableVersion,
    pending: tuple[PendingRange, ...],
    max_rows: int,
    changed: Changed | None = None,
) -> PendingRows:
    """Return the next rows to check, the newest changes first.

    Args:
        table: The newest version.
        pending: The pending ranges with rows to check, the newest last.
        max_rows: How many rows at most.
        changed: What changed after the last of them: a pending range that is not yet in the list.
    """
    rows: list[Rows] = []
    left = list(pending)
    num_left = max_rows
    if changed is not None:
        found, has_all = _highest(_sources(table, changed), num_left)
        rows += found
        num_left -= sum(len(each.offsets) for each in found)
        if not has_all:
            after = 0 if changed.others else changed.pending_range.after
            skip = () if changed.others else changed.pending_range.skip
            below = min(int(each.row_ids.min()) for each in found)
            return PendingRows(_joined(rows), (*left, PendingRange(after, below, skip)))
    while left and num_left > 0:
        pending_range = left[-1]
        found, has_all = _highest(_sources(table, Changed(pending_range)), num_left)
        rows += _without_known(found, rows)
        num_left -= sum(len(each.offsets) for each in found)
        left.pop()
        if not has_all:
            below = min(int(each.row_ids.min()) for each in found)
            left.append(PendingRange(pending_range.after, below, pending_range.skip))
    return PendingRows(_joined(rows), tuple(left))


def count(table: TableVersion, pending_range: PendingRange) -> int:
    """Return how many live rows a pending range has."""
    return count_changed(table, Changed(pending_range))


def count_changed(table: TableVersion, changed: Changed) -> int:
    """Return how many rows are to be looked at."""
    return sum(len(read().offsets) for _, read in _sources(table, changed))


_Source: TypeAlias = tuple[int, Callable[[], Rows]]
"""The largest row id that some rows can have, and what returns them."""


def _sources(table: TableVersion, changed: Changed) -> Iterator[_Source]:
    """Yield what has the rows of a fragment, for each fragment that may have some."""
    fragments = table.manifest.fragments
    pending_range = changed.pending_range
    known = fragments.lineage
    for rows in changed.others:
        yield _NO_LIMIT, partial(_same, rows)
    text = f"{ROW_LAST_UPDATED_AT_VERSION} > {pending_range.after}"
    if pending_range.below is not None:
        text += f" AND {ROW_ID} < {pending_range.below}"
    for place, start, stop in fragments_that_may_match(
        parse_expression(text), fragments, has_stable_row_ids=True
    ):
        if fragments.ids[place] in changed.untouched:
            continue
        most = _NO_LIMIT
        if known.first_row_ids.is_known[place]:
            first, num_rows = known.first_row_ids.values[place], known.physical_rows[place]
            most = int(first) + max(int(num_rows), 1) - 1
        if pending_range.below is not None:
            most = min(most, pending_range.below - 1)
        yield most, partial(_rows, table, place, pending_range, start, stop)


def _same(rows: Rows) -> Rows:
    return rows


def _rows(
    table: TableVersion, place: int, pending_range: PendingRange, start: int, stop: int | None
) -> Rows:
    """Return the live rows of a fragment that belong to a pending range."""
    fragment = table.manifest.fragments[place]
    num_rows = table.physical_rows(fragment)
    stop = num_rows if stop is None else stop
    stamps = _stamps(table, fragment)[start:stop]
    ids = table.row_ids(fragment).to_array()[start:stop]
    mask = stamps > np.uint64(pending_range.after)
    if pending_range.below is not None:
        mask &= ids < np.uint64(pending_range.below)
    if pending_range.skip:
        mask &= ~np.isin(stamps, np.array(pending_range.skip, np.uint64))
    dead = table.dead_offsets(fragment).astype(np.int64) - start
    mask[dead[(dead >= 0) & (dead < len(mask))]] = False
    chosen = np.flatnonzero(mask)
    return Rows(place, (chosen + start).astype(np.uint32), ids[chosen])


def _highest(sources: Iterator[_Source], max_rows: int) -> tuple[list[Rows], bool]:
    """Return the rows with the highest row ids, and whether these are all."""
    ordered = sorted(sources, key=lambda each: -each[0])
    found: list[Rows] = []
    limit = 0
    for most, read in ordered:
        if limit and most < limit:
            return _cut(found, limit), False
        rows = read()
        if len(rows.offsets):
            found.append(rows)
        limit = _least_of_highest(found, max_rows)
    total = sum(len(each.offsets) for each in found)
    if total <= max_rows:
        return found, True
    return _cut(found, limit), False


def _least_of_highest(found: list[Rows], max_rows: int) -> int:
    """Return the row id above which so many rows are; 0 if there are not as many."""
    if sum(len(each.offsets) for each in found) <= max_rows:
        return 0
    ids = np.concatenate([each.row_ids for each in found])
    return int(np.partition(ids, len(ids) - max_rows)[len(ids) - max_rows])


def _cut(found: list[Rows], limit: int) -> list[Rows]:
    cut: list[Rows] = []
    for each in found:
        chosen = each.row_ids >= np.uint64(limit)
        if chosen.any():
            cut.append(Rows(each.place, each.offsets[chosen], each.row_ids[chosen]))
    return cut


def _without_known(found: list[Rows], known: list[Rows]) -> list[Rows]:
    """Return rows without those that another pending range has already returned."""
    places: dict[int, list[npt.NDArray[np.uint32]]] = {}
    for each in known:
        places.setdefault(each.place, []).append(each.offsets)
    made: list[Rows] = []
    for each in found:
        if each.place in places:
            is_new = ~np.isin(each.offsets, np.concatenate(places[each.place]))
            each = Rows(each.place, each.offsets[is_new], each.row_ids[is_new])
        if len(each.offsets):
            made.append(each)
    return made


def _joined(rows: list[Rows]) -> list[Rows]:
    """Return the rows of each fragment together, fragments in order."""
    by_place: dict[int, list[Rows]] = {}
    for row in rows:
        by_place.setdefault(row.place, []).append(row)
    made: list[Rows] = []
    for place in sorted(by_place):
        offsets = np.concatenate([each.offsets for each in by_place[place]])
        ids = np.concatenate([each.row_ids for each in by_place[place]])
        order = np.argsort(offsets)
        made.append(Rows(place, offsets[order], ids[order]))
    return made
