"""Finds the rows that may have to be computed, from manifests only.

A pending range selects rows by their last-updated-at versions and row ids (`progress`). Most rows
that changed since the last round need no check: if a fragment still has the same files for
inputs, outputs and state as in the previous version, none of its inputs changed. This is so after
in-place changes of other columns. A compaction changes no row versions, so its rows are not in the
range at all.

A writer that does not maintain row versions shows in files only: if a version that is no compaction
puts the inputs, outputs or states of rows into other files, or creates their fragment, but sets
none of its row versions, all rows of the fragment are checked, wherever a compaction has moved them
since. If one of these versions no longer exists, all rows of the fragments that may be affected are
checked. Old releases of pylance even drop all row versions of a table: then the rows that each
earlier version changed are checked, and earlier pending ranges no longer select by row versions.
Rows whose row version is old, but differs from the one in the previous version, were restored, and
are checked as well; so are rows without row versions that were in another fragment.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import RowIds, RowVersions
from lance_stream.derived.progress import PendingRange
from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.expressions.predicates import parse_expression
from lance_stream.read.row_lookup import find_rows
from lance_stream.read.skipping.lineage_skipping import fragments_that_may_match
from lance_stream.row_updates.changed_rows import by_fragment
from lance_stream.schema.system_columns import ROW_ID, ROW_LAST_UPDATED_AT_VERSION
from lance_stream.snapshot.history import read_operation_kind
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import SupportedOperation
from lance_stream.table.operations.versions import Restore
from lance_stream.threads import map_ahead

_NO_LIMIT = (1 << 64) - 1


class CandidateRows(NamedTuple):
    """Live rows of one fragment.

    Attributes:
        fragment_index: The fragment's index in the manifest.
        offsets: (n,) u32 row offsets, ascending.
        row_ids: (n,) u64 row ids.
    """

    fragment_index: int
    offsets: npt.NDArray[np.uint32]
    row_ids: RowIds


@dataclass(frozen=True)
class VersionDiff:
    """The rows that may have changed since an earlier version.

    Attributes:
        pending_range: Selects the changed rows; it does not apply to `decided` fragments.
        decided: Ids of fragments of which no row changed, or all rows are among the `others`.
        others: Changed rows outside of the pending range.
        loses_row_versions: Whether rows may have lower row versions than before.
    """

    pending_range: PendingRange
    decided: Collection[int] = ()
    others: tuple[CandidateRows, ...] = ()
    loses_row_versions: bool = False

    def still_pending(self, pending: tuple[PendingRange, ...]) -> tuple[PendingRange, ...]:
        """Return ranges that select all rows that earlier ranges have selected before."""
        if not self.loses_row_versions:
            return pending
        return tuple(PendingRange(0, pending_range.below) for pending_range in pending)


@dataclass(frozen=True)
class PendingRows:
    """The rows that one commit checks.

    Attributes:
        rows: The rows, by fragment.
        remaining: The pending ranges that remain after the commit.
    """

    rows: list[CandidateRows] = field(default_factory=list)
    remaining: tuple[PendingRange, ...] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(len(row.offsets) for row in self.rows)


def changed_since(
    table: TableVersion,
    after: int,
    inputs: Collection[int],
    outputs: Collection[int],
    derived_versions: tuple[int, ...],
) -> VersionDiff:
    """Return the rows that may have changed after a version.

    Args:
        table: The newest version.
        after: The version through which all rows are current or pending.
        inputs: The ids of the columns that the values are computed from.
        outputs: The ids of the computed columns, if they are in the same table. A restore of it
            then also restores the progress.
        derived_versions: Later versions in which only the derivation updated rows.
    """
    skip = tuple(version for version in derived_versions if after < version <= table.version)
    pending_range = PendingRange(after, skip=skip)
    fragments = table.manifest.fragments
    if after == table.version:
        return VersionDiff(pending_range, frozenset(fragments.ids))
    try:
        older = table.read_at(after)
    except NotFoundError:
        return VersionDiff(PendingRange(0))
    older_fragments = older.manifest.fragments
    columns = {*inputs, *outputs}
    decided: list[int] = []
    others: list[CandidateRows] = []
    doubtful: dict[int, int] = {}
    loses_row_versions = False
    for index, fragment_id in enumerate(fragments.ids):
        older_index = older_fragments.index_by_id.get(fragment_id)
        if older_index is not None and older_fragments.raw(older_index) == fragments.raw(index):
            decided.append(fragment_id)
            continue
        fragment, old = fragments[index], older_fragments.by_id(fragment_id)
        loses_row_versions |= old is not None and _has_lower_stamps(table, fragment, older, old)
        if old is None or files_of(fragment, columns) != files_of(old, columns):
            if not pending_range.selects(_stamps(table, fragment)).all():
                doubtful[fragment_id] = index
        elif outputs:
            decided.append(fragment_id)
        if not outputs:
            others.append(_restored(table, older, index, after))
    if doubtful:
        row_ids, loses = _changed_since_then(table, older, columns, skip)
        loses_row_versions |= loses
        if row_ids is not None:
            others += _rows_of_ids(table, row_ids, pending_range)
        else:
            others += [_rows(table, index, PendingRange(0), 0, None) for index in doubtful.values()]
            decided += doubtful
    return VersionDiff(
        pending_range, frozenset(decided), tuple(_join_by_fragment(others)), loses_row_versions
    )


def _changed_since_then(
    table: TableVersion, older: TableVersion, columns: Collection[int], skip: Collection[int]
) -> tuple[RowIds | None, bool]:
    """Return rows that may have changed later, although their row versions may not show it.

    Args:
        table: The newest version.
        older: An older version.
        columns: The ids of the columns of interest.
        skip: Versions that changed no such row.

    Returns:
        Row ids, ascending; None if not all versions between the two exist. And whether a version
        may have dropped row versions.
    """
    changes: list[RowIds] = []
    stamped: list[RowIds] = []
    loses_row_versions = False
    try:
        for newer in _later_versions(table, older.version):
            is_compaction: bool | None = None
            for index, old in _differing(newer, older) if newer.version not in skip else ():
                fragment = newer.manifest.fragments[index]
                loses_row_versions |= fragment.last_updated_at_versions is None
                if old is not None and files_of(old, columns) == files_of(fragment, columns):
                    continue
                rows = _rows(newer, index, PendingRange(newer.version - 1), 0, None)
                if len(rows.offsets):
                    stamped.append(rows.row_ids)
                    continue
                if is_compaction is None:
                    is_compaction = _operation_kind(newer) is Rewrite
                if not is_compaction:
                    changes.append(_rows(newer, index, PendingRange(0), 0, None).row_ids)
            older = newer
    except NotFoundError:  # cleaned up
        return None, True
    if loses_row_versions:
        changes += stamped
    return np.unique(np.concatenate([np.empty(0, np.uint64), *changes])), loses_row_versions


def _differing(newer: TableVersion, older: TableVersion) -> Iterator[tuple[int, Fragment | None]]:
    """Yield the index of each fragment that is new or differs, and the older fragment."""
    before, after = older.manifest.fragments, newer.manifest.fragments
    for index, fragment_id in enumerate(after.ids):
        old_index = before.index_by_id.get(fragment_id)
        if old_index is None:
            yield index, None
        elif before.raw(old_index) != after.raw(index):
            yield index, before[old_index]


def _has_lower_stamps(
    table: TableVersion, fragment: Fragment, older: TableVersion, old: Fragment
) -> bool:
    """Return whether rows of a fragment have lower row versions than before."""
    if fragment.last_updated_at_versions == old.last_updated_at_versions:
        return False
    stamps, before = _stamps(table, fragment), _stamps(older, old)
    return len(stamps) == len(before) and bool((stamps < before).any())


def _later_versions(table: TableVersion, after: int) -> Iterator[TableVersion]:
    """Yield the versions after one, in their order; threads read the next ones ahead.

    Raises:
        NotFoundError: One of them no longer exists.
    """
    numbers = range(after + 1, table.version + 1)
    yield from map_ahead(table.read_at, numbers, table.store.num_readers)


def restores_rows(table: TableVersion, after: int) -> bool:
    """Return whether a restore may have committed one of the versions after an older one.

    Args:
        table: The newest version.
        after: The older version.
    """
    try:
        return any(
            _operation_kind(version) in (None, Restore) for version in _later_versions(table, after)
        )
    except NotFoundError:  # cleaned up
        return True


def _operation_kind(table: TableVersion) -> type[SupportedOperation] | None:
    """Return the kind of operation that committed a version; None if it is unknown."""
    with suppress(BadDataError):
        return read_operation_kind(table.store, table.manifest)
    return None


def _rows_of_ids(
    table: TableVersion, row_ids: RowIds, selected: PendingRange
) -> Iterator[CandidateRows]:
    """Yield the rows with some row ids that are still there, without those that a range selects."""
    addresses, exists = find_rows(table, row_ids)
    for fragment_id, offsets in by_fragment(np.sort(addresses[exists])):
        index = table.manifest.fragments.index_by_id[fragment_id]
        offsets = np.setdiff1d(offsets, _rows(table, index, selected, 0, None).offsets)
        ids = table.row_ids(table.manifest.fragments[index]).to_array()[offsets]
        yield CandidateRows(index, offsets.astype(np.uint32), ids)


def _restored(table: TableVersion, older: TableVersion, index: int, after: int) -> CandidateRows:
    """Return the restored rows of a fragment: their row versions are old, but have changed.

    Rows that have, or had, no row version count as restored if they came from another fragment.
    """
    restored = table.manifest.fragments[index]
    existed = restored.id in older.manifest.fragments.index_by_id
    rows = _rows(table, index, PendingRange(0), 0, None)
    stamps = _stamps(table, restored)[rows.offsets]
    is_old = stamps <= np.uint64(after)
    rows, stamps = CandidateRows(index, rows.offsets[is_old], rows.row_ids[is_old]), stamps[is_old]
    # Row versions in the older version, 0 for rows that it does not have; read per fragment, in
    # the order of addresses.
    addresses, exists = find_rows(older, rows.row_ids)
    older_stamps = np.zeros(len(stamps), np.uint64)
    order = np.argsort(addresses)
    order = order[exists[order]]
    start = 0
    for fragment_id, offsets in by_fragment(addresses[order]):
        fragment = older.manifest.fragments.by_id(fragment_id)
        assert fragment is not None  # it has the row
        lacks = None in (fragment.last_updated_at_versions, restored.last_updated_at_versions)
        if not (lacks and existed and fragment_id != restored.id):
            older_stamps[order[start : start + len(offsets)]] = older.row_versions_at(
                fragment, fragment.last_updated_at_versions, offsets
            )
        start += len(offsets)
    differs = older_stamps != stamps
    return CandidateRows(index, rows.offsets[differs], rows.row_ids[differs])


def files_of(fragment: Fragment, fields: Collection[int]) -> set[tuple[int, str, int]]:
    """Return (field id, path, base id) of the files that contain columns of a fragment."""
    return {
        (field_id, file.path, _base_of(file))
        for file in fragment.files
        for field_id in file.field_ids
        if field_id in fields
    }


def _base_of(file: DataFile) -> int:
    return -1 if file.base_id is None else file.base_id


def _stamps(table: TableVersion, fragment: Fragment) -> RowVersions:
    """Return the last-updated-at versions of a fragment, (num_rows,)."""
    return table.row_versions(fragment, fragment.last_updated_at_versions).to_array()


def next_rows(
    table: TableVersion,
    pending: tuple[PendingRange, ...],
    max_rows: int,
    changed: VersionDiff | None = None,
) -> PendingRows:
    """Return the next rows to check, the newest changes first.

    Args:
        table: The newest version.
        pending: The pending ranges, the newest last.
        max_rows: The maximum number of rows.
        changed: The rows that changed after these ranges; None if there are none.
    """
    rows: list[CandidateRows] = []
    remaining = list(pending)
    num_remaining = max_rows
    if changed is not None:
        candidates, has_all = _highest(_sources(table, changed), num_remaining)
        rows += candidates
        num_remaining -= sum(len(rows.offsets) for rows in candidates)
        if not has_all:
            after = 0 if changed.others else changed.pending_range.after
            skip = () if changed.others else changed.pending_range.skip
            below = min(int(rows.row_ids.min()) for rows in candidates)
            return PendingRows(
                _join_by_fragment(rows), (*remaining, PendingRange(after, below, skip))
            )
    while remaining and num_remaining > 0:
        pending_range = remaining[-1]
        candidates, has_all = _highest(_sources(table, VersionDiff(pending_range)), num_remaining)
        rows += _excluding(candidates, rows)
        num_remaining -= sum(len(rows.offsets) for rows in candidates)
        remaining.pop()
        if not has_all:
            below = min(int(rows.row_ids.min()) for rows in candidates)
            remaining.append(PendingRange(pending_range.after, below, pending_range.skip))
    return PendingRows(_join_by_fragment(rows), tuple(remaining))


def count(table: TableVersion, pending_range: PendingRange) -> int:
    """Return the number of live rows in a pending range."""
    return count_changed(table, VersionDiff(pending_range))


def count_changed(table: TableVersion, changed: VersionDiff) -> int:
    """Return the number of rows to check."""
    return sum(len(read().offsets) for _, read in _sources(table, changed))


_Source: TypeAlias = tuple[int, Callable[[], CandidateRows]]
"""The largest row id that the rows of a fragment can have, and a function that reads the rows."""


def _sources(table: TableVersion, changed: VersionDiff) -> Iterator[_Source]:
    """Yield a source for each fragment that may have rows to check."""
    fragments = table.manifest.fragments
    pending_range = changed.pending_range
    lineage = fragments.lineage
    for rows in changed.others:
        yield _NO_LIMIT, partial(_same, rows)
    text = f"{ROW_LAST_UPDATED_AT_VERSION} > {pending_range.after}"
    if pending_range.below is not None:
        text += f" AND {ROW_ID} < {pending_range.below}"
    for index, start, stop in fragments_that_may_match(
        parse_expression(text), fragments, has_stable_row_ids=True
    ):
        if fragments.ids[index] in changed.decided:
            continue
        max_row_id = _NO_LIMIT
        if lineage.first_row_ids.is_constant[index]:
            first, num_rows = lineage.first_row_ids.values[index], lineage.physical_rows[index]
            max_row_id = int(first) + max(int(num_rows), 1) - 1
        if pending_range.below is not None:
            max_row_id = min(max_row_id, pending_range.below - 1)
        yield max_row_id, partial(_rows, table, index, pending_range, start, stop)


def _same(rows: CandidateRows) -> CandidateRows:
    return rows


def _rows(
    table: TableVersion, index: int, pending_range: PendingRange, start: int, stop: int | None
) -> CandidateRows:
    """Return the live rows of a fragment that belong to a pending range."""
    fragment = table.manifest.fragments[index]
    num_rows = table.physical_rows(fragment)
    stop = num_rows if stop is None else stop
    stamps = _stamps(table, fragment)[start:stop]
    ids = table.row_ids(fragment).to_array()[start:stop]
    mask = pending_range.selects(stamps)
    if pending_range.below is not None:
        mask &= ids < np.uint64(pending_range.below)
    deleted = table.deleted_offsets(fragment).astype(np.int64) - start
    mask[deleted[(deleted >= 0) & (deleted < len(mask))]] = False
    rows = np.flatnonzero(mask)
    return CandidateRows(index, (rows + start).astype(np.uint32), ids[rows])


def _highest(sources: Iterator[_Source], max_rows: int) -> tuple[list[CandidateRows], bool]:
    """Return the rows with the highest row ids, and whether these are all rows.

    Sources are read in descending order of their largest possible row id, until no other source can
    contain one of the highest row ids.
    """
    ordered = sorted(sources, key=lambda source: -source[0])
    candidates: list[CandidateRows] = []
    limit = 0
    for max_row_id, read in ordered:
        if max_row_id < limit:
            return _from_row_id(candidates, limit), False
        rows = read()
        if len(rows.offsets):
            candidates.append(rows)
        limit = _lowest_of_highest(candidates, max_rows)
    total = sum(len(rows.offsets) for rows in candidates)
    if total <= max_rows:
        return candidates, True
    return _from_row_id(candidates, limit), False


def _lowest_of_highest(candidates: list[CandidateRows], max_rows: int) -> int:
    """Return the `max_rows`-th highest row id; 0 if there are at most `max_rows` rows."""
    if sum(len(rows.offsets) for rows in candidates) <= max_rows:
        return 0
    ids = np.concatenate([rows.row_ids for rows in candidates])
    return int(np.partition(ids, len(ids) - max_rows)[len(ids) - max_rows])


def _from_row_id(candidates: list[CandidateRows], limit: int) -> list[CandidateRows]:
    """Return the rows whose row ids are at least a limit."""
    results: list[CandidateRows] = []
    for rows in candidates:
        mask = rows.row_ids >= np.uint64(limit)
        if mask.any():
            results.append(
                CandidateRows(rows.fragment_index, rows.offsets[mask], rows.row_ids[mask])
            )
    return results


def _excluding(
    candidates: list[CandidateRows], excluded: list[CandidateRows]
) -> list[CandidateRows]:
    """Return rows without those that another pending range has already selected."""
    excluded_offsets: dict[int, list[npt.NDArray[np.uint32]]] = {}
    for rows in excluded:
        excluded_offsets.setdefault(rows.fragment_index, []).append(rows.offsets)
    results: list[CandidateRows] = []
    for rows in candidates:
        if rows.fragment_index in excluded_offsets:
            is_new = ~np.isin(rows.offsets, np.concatenate(excluded_offsets[rows.fragment_index]))
            rows = CandidateRows(rows.fragment_index, rows.offsets[is_new], rows.row_ids[is_new])
        if len(rows.offsets):
            results.append(rows)
    return results


def _join_by_fragment(parts: list[CandidateRows]) -> list[CandidateRows]:
    """Join the rows of each fragment, in the order of fragments."""
    by_index: dict[int, list[CandidateRows]] = {}
    for part in parts:
        by_index.setdefault(part.fragment_index, []).append(part)
    results: list[CandidateRows] = []
    for index in sorted(by_index):
        offsets = np.concatenate([part.offsets for part in by_index[index]])
        ids = np.concatenate([part.row_ids for part in by_index[index]])
        offsets, first = np.unique(offsets, return_index=True)
        results.append(CandidateRows(index, offsets, ids[first]))
    return results
