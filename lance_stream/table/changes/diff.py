"""Finds the rows in which two adjacent versions differ: the core of the change feed.

A row is identified by its stable row id. There are four cases ("updated" is its last-updated-at
version):

    live in the newer version only          insert
    live in the older version only          delete
    live in both, updated differs           update; a restore can also decrease "updated"
    live in both, updated is the same       no change: if its address differs, it was only moved

A fragment with the same bytes in both manifests is never decoded: its rows are the same, at the
same addresses. If a fragment kept its id and its row ids, and only has other deleted rows, only
those rows are examined. So the cost is proportional to the changes.

Two kinds of change do not set row versions. Some writers replace a column's data file in place
without setting them: if a field of the newer schema is in another file than before, and no live row
of the fragment has another row version, all of its rows count as updated. And a restore can bring
back a dropped column: rows that have it in their files count as updated, too.

And some writers drop the row versions of every fragment of the table. Where they are missing, rows
read as version 1, which does not show whether they changed. So a row whose fragment has none now
counts as updated if it is in another file than before. The same holds if its fragment had none
before, and the row version that it has now is not newer than the older version: a restore has
brought it back, or a compaction wrote version 1.

This is exact for adjacent versions, except for a compaction that drops row versions. If versions
are further apart, or a restore is between them, a row with the same row version at another address
may have been moved or changed. Then `is_ambiguous` is set, and `diff` is called again with a
`History`.

This is pure: `plan_diff` returns which deletion files and external sequences the caller has to read
and pass to `diff`.

Source:  row ids and lineage, "Change Data Feed"; measured on the reference.
Differs: The reference derives changes only from the row versions in one version, so it misses the
         changes of a restore, or of a writer that does not set them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import ne
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Mask, RowOffsets, RowVersions, U64s
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.table.feature_flags import has_stable_row_ids
from lance_stream.table.fragments.fragment import (
    DeletionFile,
    ExternalFile,
    Fragment,
    LineageColumn,
    StoredSequence,
)
from lance_stream.table.lineage.ascending import difference
from lance_stream.table.lineage.row_addresses import pack_addresses
from lance_stream.table.lineage.row_ids import RowIdSequence, decode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, decode_row_versions
from lance_stream.table.manifest import Manifest

DeletedRows: TypeAlias = Mapping[tuple[int, DeletionFile], RowOffsets]


class Hidden(Protocol):
    """The values of a hidden column; implemented by `snapshot.files.hidden_columns`."""

    @property
    def num_ids(self) -> int:
        """The number of values."""
        ...

    def to_array(self) -> U64s:
        """Return all values."""
        ...

    def take(self, offsets: RowOffsets) -> U64s:
        """Return the values of the rows at some offsets, ascending."""
        ...


Sequences: TypeAlias = Mapping[ExternalFile | LineageColumn, bytes | Hidden]


class RowsOfFragment(NamedTuple):
    """Some rows of one fragment.

    Attributes:
        fragment: The fragment in the version in which to read the rows: the newer one for inserts,
            the older one for deletes.
        offsets: (n,) u32, ascending.
    """

    fragment: Fragment
    offsets: RowOffsets


class UpdatedRows(NamedTuple):
    """Some updated rows of one fragment, and their addresses before.

    Attributes:
        fragment: The fragment in the newer version.
        offsets: (n,) u32, ascending: the rows in the newer version.
        addresses_before: (n,) u64, row addresses of the same rows in the older version.
    """

    fragment: Fragment
    offsets: RowOffsets
    addresses_before: U64s


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The rows in which two versions differ; each tuple in the scan order of its version.

    Attributes:
        version: The newer version.
        deletes: Rows to read in the older version.
        updates: Rows to read in the newer version; their pre-images are in the older one.
        inserts: Rows to read in the newer version.
        unstamped: (n,) u64, ids of the updated rows whose row versions were not set.
        is_ambiguous: Whether rows with unchanged or missing row versions have other addresses or
            files than before.
        drops_row_versions: Whether rows that had row versions have none now.
    """

    version: int
    deletes: tuple[RowsOfFragment, ...] = ()
    updates: tuple[UpdatedRows, ...] = ()
    inserts: tuple[RowsOfFragment, ...] = ()
    unstamped: U64s = field(default_factory=lambda: np.empty(0, np.uint64), compare=False)
    is_ambiguous: bool = field(default=False, compare=False)
    drops_row_versions: bool = field(default=False, compare=False)

    @property
    def num_changes(self) -> int:
        """How many rows differ."""
        offsets = (
            *(delete.offsets for delete in self.deletes),
            *(update.offsets for update in self.updates),
            *(insert.offsets for insert in self.inserts),
        )
        return sum(map(len, offsets))


@dataclass(frozen=True, eq=False, slots=True)
class History:
    """Changes in the versions between two others that a comparison of these two does not show.

    Attributes:
        unstamped: (n,) u64, ids of rows that may have changed although their row versions were not
            set.
        touched: (n,) u64, ids of rows inserted, deleted, or changed by more than values in a new
            column; None if such values count as changes.
        has_old_columns: Whether a restore between them brought back dropped columns with values.
        is_complete: Whether all versions between them are known. If not, rows without row versions
            may have changed.
    """

    unstamped: U64s
    touched: U64s | None = None
    has_old_columns: bool = False
    is_complete: bool = True


NOTHING_HIDDEN: Final = History(np.empty(0, np.uint64))
"""The history of a compaction: rows whose row versions do not show a change have only moved."""


@dataclass(frozen=True, slots=True)
class DiffPlan:
    """What two versions' manifests show, and the files to read to find the rest.

    Attributes:
        older: The older version; 0 for the state before the first one.
        version: The newer version.
        common: Pairs of the fragments that kept their id and their row ids, before and after.
        removed: The other fragments that differ, in the older version.
        added: The other fragments that differ, in the newer version.
        field_ids: The fields of the newer schema.
        new_field_ids: The fields of the newer schema that the older one does not have.
        is_cast: Whether a column has another id than the column of its name had before.
        deletion_files_of: The fragments whose deletion files must be read.
        sequences: The parts of files, or hidden columns, that must be read.
    """

    older: int
    version: int
    common: tuple[tuple[Fragment, Fragment], ...]
    removed: tuple[Fragment, ...]
    added: tuple[Fragment, ...]
    field_ids: frozenset[int]
    new_field_ids: frozenset[int]
    is_cast: bool
    deletion_files_of: tuple[Fragment, ...]
    sequences: tuple[ExternalFile | LineageColumn, ...]


def plan_diff(
    older: Manifest | None, newer: Manifest, new_field_ids: Set[int] | None = None
) -> DiffPlan:
    """Plan what to read to find the rows in which two versions differ.

    Args:
        older: The older version; None for the state before the first one.
        newer: The newer version.
        new_field_ids: The fields of the newer schema that the older one does not have; None to
            determine them by their ids.

    Raises:
        UnsupportedFeatureError: The rows have no stable row ids.
        InvalidInputError: The versions are in the wrong order.
        CorruptDataError: A fragment that differs is damaged.
    """
    if not has_stable_row_ids(newer):
        raise _without_row_ids(newer)
    if older is not None and older.version >= newer.version:
        raise InvalidInputError(
            f"changes were requested from version {older.version} to version {newer.version}"
        )
    if older is not None and not has_stable_row_ids(older):
        if not _are_same_rows(older, newer):
            raise _without_row_ids(older)
        older = newer
    before, after = _only_in_one(older, newer)
    common = {
        fragment.id: (before[fragment.id], fragment)
        for fragment in after.values()
        if fragment.id in before and before[fragment.id].row_ids == fragment.row_ids
    }
    fields_before = fields_after = {part.id: part for part in newer.schema.walk()}
    if older is None or older.schema is not newer.schema:
        fields_before = {} if older is None else {part.id: part for part in older.schema.walk()}
    if older is None:
        new_field_ids = set()
    elif new_field_ids is None:
        new_field_ids = fields_after.keys() - fields_before.keys()
    if older is not None and new_field_ids:
        common |= {
            fragment.id: (fragment, fragment) for fragment in _holding(new_field_ids, older, newer)
        }
    removed = tuple(fragment for fragment in before.values() if fragment.id not in common)
    added = tuple(fragment for fragment in after.values() if fragment.id not in common)
    fragments = [*removed, *added, *(fragment for pair in common.values() for fragment in pair)]
    return DiffPlan(
        older=0 if older is None else older.version,
        version=newer.version,
        common=tuple(common.values()),
        removed=removed,
        added=added,
        field_ids=frozenset(fields_after),
        new_field_ids=frozenset(new_field_ids),
        is_cast=not {fields_after[field_id].name for field_id in new_field_ids}.isdisjoint(
            fields_before[field_id].name for field_id in fields_before.keys() - fields_after.keys()
        ),
        deletion_files_of=tuple(
            {
                (fragment.id, fragment.deletion_file): fragment
                for fragment in fragments
                if fragment.deletion_file is not None
            }.values()
        ),
        sequences=tuple(
            dict.fromkeys(
                stored
                for fragment in fragments
                for stored in (fragment.row_ids, fragment.last_updated_at_versions)
                if isinstance(stored, ExternalFile | LineageColumn)
            )
        ),
    )


def diff(
    plan: DiffPlan,
    deleted_rows: DeletedRows | None = None,
    sequences: Sequences | None = None,
    history: History | None = None,
    *,
    column_backfills: bool = True,
) -> TableChanges:
    """Return the rows in which two versions differ.

    Args:
        plan: The plan for the two versions.
        deleted_rows: For each fragment of `plan.deletion_files_of`, the offsets in its deletion
            file, ascending; by the fragment's id and file.
        sequences: The bytes of each of `plan.sequences`, or the hidden column.
        history: The changes between them; None for adjacent versions, and if unknown.
        column_backfills: Whether a row counts as updated if only new columns have values in it.

    Raises:
        CorruptDataError: Two live rows of a version have one row id, or a sequence is damaged.
    """
    read = _Reader(deleted_rows or {}, sequences or {})
    rules = _UpdateRules(plan, history, column_backfills=column_backfills)
    removed = [_Rows(fragment, read.live(fragment)) for fragment in plan.removed]
    added = [_Rows(fragment, read.live(fragment)) for fragment in plan.added]
    updated: dict[int, list[UpdatedRows]] = {}
    for before, after in plan.common:
        deleted, restored, changed = _compare(before, after, rules, read)
        removed.append(_Rows(before, deleted))
        added.append(_Rows(after, restored))
        if len(changed):
            addresses = pack_addresses(before.id, changed)
            updated.setdefault(after.id, []).append(UpdatedRows(after, changed, addresses))
    deletes, updates, inserts = _match(removed, added, rules, read)
    for update in updates:
        updated.setdefault(update.fragment.id, []).append(update)
    return TableChanges(
        version=plan.version,
        deletes=tuple(sorted(deletes, key=lambda rows: rows.fragment.id)),
        updates=tuple(_joined(updated[fragment_id]) for fragment_id in sorted(updated)),
        inserts=tuple(sorted(inserts, key=lambda rows: rows.fragment.id)),
        unstamped=np.concatenate([np.empty(0, np.uint64), *rules.unstamped]),
        is_ambiguous=rules.is_ambiguous,
        drops_row_versions=rules.drops_row_versions,
    )


def changed_row_ids(changed: TableChanges, sequences: Sequences | None = None) -> U64s:
    """Return the ids of all rows in which two versions differ.

    Args:
        changed: The changes.
        sequences: As passed to `diff`.
    """
    read = _Reader({}, sequences or {})
    parts = [_Rows(*part[:2]) for part in (*changed.deletes, *changed.inserts)]
    parts += [_Rows(*update[:2]) for update in changed.updates]
    return _row_ids_of(parts, read)


def _checked(hidden: Hidden, fragment: Fragment) -> Hidden:
    if fragment.physical_rows not in (0, hidden.num_ids):
        raise CorruptDataError(
            f"fragment {fragment.id} has {fragment.physical_rows} rows, but a hidden column of its "
            f"lineage has {hidden.num_ids} values"
        )
    return hidden


def _without_row_ids(manifest: Manifest) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"version {manifest.version} has no stable row ids, without which rows cannot be "
        "identified in other versions. Create the table with stable row ids, or migrate it with "
        "lance_stream.migrate_to_stable_row_ids(uri), and read changes from the first version "
        "after that"
    )


def _are_same_rows(older: Manifest, newer: Manifest) -> bool:
    """Return whether the only difference is that the newer version has row ids."""

    def unnamed(manifest: Manifest) -> list[Fragment]:
        return [
            replace(fragment, row_ids=None, last_updated_at_versions=None, created_at_versions=None)
            for fragment in manifest.fragments
        ]

    return older.schema == newer.schema and unnamed(older) == unnamed(newer)


def _holding(field_ids: Set[int], older: Manifest, newer: Manifest) -> Iterator[Fragment]:
    """Yield the fragments that both versions have and that contain values of some fields."""
    raws = frozenset(older.fragments.raws)
    for index, raw in enumerate(newer.fragments.raws):
        if raw in raws:
            fragment = newer.fragments[index]
            if any(not field_ids.isdisjoint(file.field_ids) for file in fragment.files):
                yield fragment


class _Rows(NamedTuple):
    fragment: Fragment
    offsets: RowOffsets


class _Evidence(NamedTuple):
    """What row versions show about rows that are live in both versions; masks over n rows.

    Attributes:
        stamped: Whether the row version shows a change.
        unstamped: Whether it is the same as before.
        unknown: Whether it shows nothing, because a fragment has no row versions.
    """

    stamped: Mask
    unstamped: Mask
    unknown: Mask


class _Reader:
    """Looks up the inputs of `diff` by fragment."""

    def __init__(self, deleted_rows: DeletedRows, sequences: Sequences) -> None:
        self._deleted_rows = deleted_rows
        self._sequences = sequences
        self._row_ids: dict[int, tuple[StoredSequence | None, RowIdSequence | Hidden]] = {}

    def row_ids(self, fragment: Fragment) -> RowIdSequence | Hidden:
        stored, sequence = self._row_ids.get(fragment.id, (None, None))
        if sequence is None or stored != fragment.row_ids:
            data = self._stored(fragment.row_ids)
            if data is None:
                raise CorruptDataError(
                    f"fragment {fragment.id} has no row ids, but its table has stable ones"
                )
            if isinstance(data, bytes):
                sequence = decode_row_ids(data, fragment.physical_rows or None)
            else:
                sequence = _checked(data, fragment)
            self._row_ids[fragment.id] = fragment.row_ids, sequence
        return sequence

    def stamps(self, fragment: Fragment) -> RowVersionSequence | Hidden:
        data = self._stored(fragment.last_updated_at_versions)
        if data is None or isinstance(data, bytes):
            return decode_row_versions(data, self.row_ids(fragment).num_ids)
        return _checked(data, fragment)

    def deleted_offsets(self, fragment: Fragment) -> RowOffsets:
        if fragment.deletion_file is None:
            return np.empty(0, np.uint32)
        deleted = self._deleted_rows[fragment.id, fragment.deletion_file]
        if len(deleted) and int(deleted.max()) >= self.row_ids(fragment).num_ids:
            raise CorruptDataError(
                f"row {int(deleted.max())} of fragment {fragment.id} is marked as deleted, but it "
                f"has only {self.row_ids(fragment).num_ids} rows"
            )
        return deleted

    def live(self, fragment: Fragment) -> RowOffsets:
        return np.flatnonzero(self.is_live(fragment)).astype(np.uint32)

    def is_live(self, fragment: Fragment) -> Mask:
        mask = np.ones(self.row_ids(fragment).num_ids, np.bool_)
        mask[self.deleted_offsets(fragment)] = False
        return mask

    def _stored(self, stored: StoredSequence | None) -> bytes | Hidden | None:
        if isinstance(stored, ExternalFile | LineageColumn):
            return self._sequences[stored]
        return stored


def _only_in_one(
    older: Manifest | None, newer: Manifest
) -> tuple[dict[int, Fragment], dict[int, Fragment]]:
    """Return the fragments of each version that the other does not have with the same bytes.

    Most fragments are in both, at the same index: these are not even hashed.
    """
    if older is None:
        return {}, {fragment.id: fragment for fragment in newer.fragments}
    before, after = older.fragments.raws, newer.fragments.raws
    num_common = min(len(before), len(after))
    # Compare the fragments at the same index.
    differing = [*compress(range(num_common), map(ne, before, after))]
    indices_before = [*differing, *range(num_common, len(before))]
    indices_after = [*differing, *range(num_common, len(after))]
    # Match those that moved in the list by their first bytes, then by all bytes.
    by_start = {after[index][:_START_BYTES]: index for index in indices_after}
    moved = {
        old_index: other
        for old_index in indices_before
        if (other := by_start.get(before[old_index][:_START_BYTES])) is not None
        and before[old_index] == after[other]
    }
    moved_to = set(moved.values())
    return (
        _fragments_at(older, [index for index in indices_before if index not in moved]),
        _fragments_at(newer, [index for index in indices_after if index not in moved_to]),
    )


_START_BYTES: Final = 128
"""How many bytes of a fragment's message to hash: its id and the first file's name, which is
random. Hashing all bytes would take longer than comparing the messages that begin with the same
ones.
"""


def _fragments_at(manifest: Manifest, positions: Sequence[int]) -> dict[int, Fragment]:
    return {
        fragment.id: fragment
        for position in positions
        for fragment in (manifest.fragments[position],)
    }


class _UpdateRules:
    """Decides which rows that are live in both versions were updated.

    Args:
        plan: The plan for the two versions.
        history: The changes between them, if known.
        column_backfills: Whether values in a new column count as updates.
    """

    def __init__(self, plan: DiffPlan, history: History | None, *, column_backfills: bool) -> None:
        self._plan = plan
        self._is_step = plan.version == plan.older + 1
        has_old_columns = history is not None and history.has_old_columns
        self._counts_new_fields = column_backfills and (self._is_step or has_old_columns)
        self._history = history
        self._column_backfills = column_backfills
        self._knows_touched = history is not None and history.touched is not None
        self.unstamped: list[U64s] = []
        self.is_ambiguous = False
        self.drops_row_versions = False

    def replaced(self, before: Fragment, after: Fragment) -> set[int]:
        """Return the fields whose values are in another file or column than before."""
        if before.files == after.files and self._plan.new_field_ids.isdisjoint(
            field_id for file in after.files for field_id in file.field_ids
        ):
            return set()
        sources_before, sources_after = _sources(before), _sources(after)
        for field_id in self._plan.new_field_ids:
            sources_before.pop(field_id, None)
        return {
            field_id
            for field_id in self._plan.field_ids
            if sources_before.get(field_id) != sources_after.get(field_id)
        }

    def evidence(
        self,
        in_both: Mask,
        stamps_before: RowVersions,
        stamps_after: RowVersions,
        lacked: Mask | bool,
        lacks: Mask | bool,
    ) -> _Evidence:
        """Return what row versions show about some rows.

        Args:
            in_both: (n,) Whether a row is live in both versions.
            stamps_before: (n,) u64, the row versions in the older version.
            stamps_after: (n,) u64, the row versions in the newer version.
            lacked: (n,) Whether the row's fragment had no row versions.
            lacks: (n,) Whether it has none now.
        """
        differs = in_both & (stamps_before != stamps_after)
        unknown = in_both & lacks
        self.drops_row_versions |= bool((unknown & np.logical_not(lacked)).any())
        # A single step that writes row versions sets those of all rows that it changes.
        may_hide = differs if self._is_step else in_both
        unknown |= may_hide & lacked & (stamps_after <= np.uint64(self._plan.older))
        return _Evidence(differs & ~unknown, in_both & ~differs & ~unknown, unknown)

    def updated_in_place(
        self, replaced: Set[int], rows: _Evidence, row_ids: Callable[[], U64s]
    ) -> Mask:
        """Return which rows of a fragment that kept its id and its rows were updated.

        Args:
            replaced: The fields whose values are in another file or column than before.
            rows: The evidence for all n rows of the fragment.
            row_ids: Returns their ids.
        """
        is_backfill = replaced <= self._plan.new_field_ids and not self._plan.is_cast
        changed = np.zeros(len(rows.stamped), np.bool_)
        if is_backfill and not (self._column_backfills or self._knows_touched):
            return changed
        if replaced and (rows.unstamped | rows.unknown).any():
            self.is_ambiguous = True
            if self._counts_new_fields and not replaced.isdisjoint(self._plan.new_field_ids):
                changed = rows.unstamped | rows.unknown
            else:
                changed = self._hidden(rows, row_ids)
                if self._history is None and not rows.stamped.any():
                    changed |= rows.unstamped
        return self._updated(changed, rows.stamped, row_ids)

    def moved(self, added: Sequence[_Rows], rows: _Evidence, row_ids: U64s) -> Mask:
        """Return which rows that are now in another fragment were updated.

        Args:
            added: The fragments and offsets at which the rows are now, n rows in total.
            rows: The evidence for the n rows.
            row_ids: (n,) u64, the ids of the rows.
        """
        changed, unclear = np.zeros(len(row_ids), np.bool_), rows.unstamped | rows.unknown
        if unclear.any():
            self.is_ambiguous = True
            changed = self._hidden(rows, lambda: row_ids)
            if self._counts_new_fields and self._plan.new_field_ids:
                changed |= unclear & np.repeat(
                    [self._has_new_fields(part.fragment) for part in added],
                    [len(part.offsets) for part in added],
                )
        return self._updated(changed, rows.stamped, lambda: row_ids)

    def _hidden(self, rows: _Evidence, row_ids: Callable[[], U64s]) -> Mask:
        """Return which rows changed that are elsewhere, and whose row versions do not show it."""
        if self._history is None:
            return rows.unknown.copy()
        changed = (rows.unstamped | rows.unknown) & np.isin(row_ids(), self._history.unstamped)
        return changed if self._history.is_complete else changed | rows.unknown

    def _has_new_fields(self, fragment: Fragment) -> bool:
        return not self._plan.new_field_ids.isdisjoint(_sources(fragment))

    def _updated(self, unstamped: Mask, stamped: Mask, row_ids: Callable[[], U64s]) -> Mask:
        if self._history is None and unstamped.any():
            self.unstamped.append(row_ids()[unstamped])
        changed = unstamped | stamped
        if self._history is not None and self._history.touched is not None and changed.any():
            changed &= np.isin(row_ids(), self._history.touched)
        return changed


def _compare(
    before: Fragment, after: Fragment, rules: _UpdateRules, read: _Reader
) -> tuple[RowOffsets, RowOffsets, RowOffsets]:
    """Return the offsets of rows that were deleted, restored, and changed in place."""
    none = np.empty(0, np.uint32)
    deleted = restored = none
    if before.deletion_file != after.deletion_file:
        deleted_before, deleted_after = read.deleted_offsets(before), read.deleted_offsets(after)
        deleted = difference(deleted_after, deleted_before).astype(np.uint32, copy=False)
        restored = difference(deleted_before, deleted_after).astype(np.uint32, copy=False)
    same_stamps = before.last_updated_at_versions == after.last_updated_at_versions
    replaced = rules.replaced(before, after)
    if not replaced and (same_stamps or _lacks_stamps(after)):
        rules.drops_row_versions |= not same_stamps
        return deleted, restored, none
    in_both = read.is_live(before) & read.is_live(after)
    stamps_after = read.stamps(after).to_array()
    stamps_before = stamps_after if same_stamps else read.stamps(before).to_array()
    evidence = rules.evidence(
        in_both, stamps_before, stamps_after, _lacks_stamps(before), _lacks_stamps(after)
    )
    changed = rules.updated_in_place(replaced, evidence, lambda: read.row_ids(after).to_array())
    return deleted, restored, np.flatnonzero(changed).astype(np.uint32)


def _sources(fragment: Fragment) -> dict[int, tuple[str, int]]:
    """Return the file and column of each field. Files of version 0.1 have no columns."""
    return {
        field_id: (file.path, file.column_indices[at] if file.column_indices else -1)
        for file in fragment.files
        for at, field_id in enumerate(file.field_ids)
    }


def _match(
    removed: Sequence[_Rows], added: Sequence[_Rows], rules: _UpdateRules, read: _Reader
) -> tuple[list[RowsOfFragment], list[UpdatedRows], list[RowsOfFragment]]:
    """Match removed and added rows by their ids: a match was moved or updated."""
    removed = [rows for rows in removed if len(rows.offsets)]
    added = [rows for rows in added if len(rows.offsets)]
    removed_ids, added_ids = _row_ids_of(removed, read), _row_ids_of(added, read)
    positions, is_match = _find(removed_ids, added_ids)
    is_moved = np.zeros(len(removed_ids), np.bool_)
    is_moved[positions[is_match]] = True
    deletes = [
        RowsOfFragment(rows.fragment, rows.offsets[part])
        for rows, part in zip(removed, _cut(~is_moved, removed), strict=True)
        if part.any()
    ]
    inserts = [
        RowsOfFragment(rows.fragment, rows.offsets[part])
        for rows, part in zip(added, _cut(~is_match, added), strict=True)
        if part.any()
    ]
    if not is_match.any():
        return deletes, [], inserts
    stamps_before = np.zeros(len(added_ids), np.uint64)
    stamps_before[is_match] = _stamps_of(removed, read)[positions[is_match]]
    lacked = np.zeros(len(added_ids), np.bool_)
    lacked[is_match] = _lack_stamps(removed)[positions[is_match]]
    stamps_after = _stamps_of(added, read)
    evidence = rules.evidence(is_match, stamps_before, stamps_after, lacked, _lack_stamps(added))
    is_updated = rules.moved(added, evidence, added_ids)
    addresses = np.zeros(len(added_ids), np.uint64)
    addresses[is_match] = _addresses_of(removed)[positions[is_match]]
    updates = [
        UpdatedRows(rows.fragment, rows.offsets[part], before[part])
        for rows, part, before in zip(
            added, _cut(is_updated, added), _cut(addresses, added), strict=True
        )
        if part.any()
    ]
    return deletes, updates, inserts


def _find(row_ids: U64s, targets: U64s) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return the position of each target among the row ids, and whether it is there."""
    order, sorted_ids = _sorted(row_ids)
    if np.array_equal(row_ids, targets):  # a compaction leaves all rows in their order
        return np.arange(len(row_ids)), np.ones(len(row_ids), np.bool_)
    _sorted(targets)
    positions = np.searchsorted(sorted_ids, targets)
    if not len(row_ids):
        return positions, np.zeros(len(targets), np.bool_)
    positions[positions == len(row_ids)] = 0
    is_match = sorted_ids[positions] == targets
    return (positions if order is None else order[positions]), is_match


def _sorted(row_ids: U64s) -> tuple[npt.NDArray[np.int64] | None, U64s]:
    """Return the ids ascending, and the order that makes them so if they were not.

    Raises:
        CorruptDataError: An id occurs twice.
    """
    order = None
    if not bool((row_ids[1:] > row_ids[:-1]).all()):
        order = np.argsort(row_ids, kind="stable")
        row_ids = row_ids[order]
        twins = np.flatnonzero(row_ids[1:] == row_ids[:-1])
        if len(twins):
            raise CorruptDataError(
                f"row id {int(row_ids[twins[0]])} belongs to two live rows of one version"
            )
    return order, row_ids


def _row_ids_of(parts: Iterable[_Rows], read: _Reader) -> U64s:
    return np.concatenate(
        [
            np.empty(0, np.uint64),
            *(read.row_ids(part.fragment).take(part.offsets) for part in parts),
        ]
    )


def _stamps_of(parts: Iterable[_Rows], read: _Reader) -> U64s:
    return np.concatenate(
        [
            np.empty(0, np.uint64),
            *(read.stamps(part.fragment).take(part.offsets) for part in parts),
        ]
    )


def _lacks_stamps(fragment: Fragment) -> bool:
    return fragment.last_updated_at_versions is None


def _lack_stamps(parts: Sequence[_Rows]) -> Mask:
    """Return for each row whether its fragment has no row versions."""
    return np.repeat(
        np.array([_lacks_stamps(part.fragment) for part in parts], np.bool_),
        [len(part.offsets) for part in parts],
    )


def _addresses_of(parts: Iterable[_Rows]) -> U64s:
    return np.concatenate(
        [
            np.empty(0, np.uint64),
            *(pack_addresses(part.fragment.id, part.offsets) for part in parts),
        ]
    )


def _cut(values: npt.NDArray[np.generic], parts: Sequence[_Rows]) -> list[npt.NDArray[np.generic]]:
    """Return the piece of an array over all parts' rows that belongs to each part."""
    ends = np.cumsum([len(part.offsets) for part in parts], dtype=np.int64)
    return np.split(values, ends[:-1]) if parts else []


def _joined(pieces: Sequence[UpdatedRows]) -> UpdatedRows:
    if len(pieces) == 1:
        return pieces[0]
    offsets = np.concatenate([piece.offsets for piece in pieces])
    order = np.argsort(offsets, kind="stable")
    before = np.concatenate([piece.addresses_before for piece in pieces])
    return UpdatedRows(pieces[0].fragment, offsets[order], before[order])
