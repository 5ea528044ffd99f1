"""What each version derives from: the previous version, or the one that a restore brought back.

`schema.identity` determines which columns of two such versions are the same.

A restored version may have been cleaned up. The restore has its columns and its fragments, and
stands in for it, so the versions that came after it are still derived from it.

If another version that one derives from has been cleaned up, the next older one, which a restore
may stand in for, replaces it.
Field ids still decide if the newer one has rows that were there before the gap, since an overwrite
replaces all rows; otherwise names do.

Data files settle it for two versions far apart: the id of a dropped column is not reused while a
file with values under it is in the table. So an id means the same column in two versions that both
reference a file with it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from lance_stream.errors import NotFoundError
from lance_stream.schema.fields import Field
from lance_stream.schema.identity import Ids, same_fields
from lance_stream.snapshot.history import read_operation_kind, read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.operations.rows import Overwrite
from lance_stream.table.operations.versions import Restore

_MAX_RECENT: Final = 4
_MAX_CHECKED: Final = 32


class Origin(NamedTuple):
    """The version that a version derives from.

    Attributes:
        version: Its number.
        same: Maps ids of the derived version to the ids of the same columns in this one.
    """

    version: int
    same: Ids


class Ancestry:
    """Finds the version that each version derives from; each is read once.

    Args:
        table: Any version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._first = self._table = table
        self._origins: dict[int, Origin | None] = {}
        self._recent: dict[int, TableVersion] = {}
        self._same: Ids = {}
        self._ids_with_files_of: dict[tuple[int, int], frozenset[int]] = {}
        self._restores: dict[int, TableVersion] = {}  # of each version that a restore brought back

    def cache_version(self, table: TableVersion) -> None:
        """Record a version that was read, to save reading it again."""
        self._table = table
        self._recent[table.version] = table
        while len(self._recent) > _MAX_RECENT:
            self._recent.pop(next(iter(self._recent)))

    def origin(self, version: int) -> Origin | None:
        """Return the version that a version derives from; None if it is missing or unknown."""
        if version not in self._origins:
            origin = self._read(version)
            if origin is not None:
                # Few versions change columns, so a long history shares a few mappings.
                self._same = self._same if self._same == origin.same else origin.same
                origin = origin._replace(same=self._same)
            self._origins[version] = origin
        return self._origins[version]

    def read_ahead(self, versions: Sequence[int]) -> None:
        """Read versions that will be needed side by side; some may have been removed."""
        self._table.log.prefetch(versions)

    def common_ids(self, older: int, newer: int) -> frozenset[int]:
        """Return ids that are known to mean the same columns in two versions far apart.

        Raises:
            NotFoundError: One of them no longer exists.
        """
        if (older, newer) not in self._ids_with_files_of:
            self._ids_with_files_of[older, newer] = _ids_with_files(self.at(older), self.at(newer))
        return self._ids_with_files_of[older, newer]

    def _read(self, version: int) -> Origin | None:
        if version < 2:
            return None
        try:
            newer = self.at(version)
        except NotFoundError:
            return None  # cleaned up
        kind = read_operation_kind(newer.store, newer.manifest)
        restored = _restored_by(newer) if kind is Restore else None
        if restored is not None and restored >= version:
            return self._read_over_gap(version)  # a copy, see `version_restored_by`
        if restored is not None:
            self._restores.setdefault(restored, newer)
        try:
            older = self.at(restored or version - 1)
        except NotFoundError:
            return self._read_over_gap(version)
        ids_hold = kind is not None and kind is not Overwrite
        same = same_fields(older.schema.fields, newer.schema.fields, ids_hold=ids_hold)
        return Origin(restored or version - 1, same)

    def _read_over_gap(self, version: int) -> Origin | None:
        existing = [*self._table.log.versions(), *self._restores]
        older = max((number for number in existing if number < version), default=None)
        try:
            return Origin(older, self.same_over_gap(older, version)) if older else None
        except NotFoundError:
            return None

    def same_over_gap(self, older: int, newer: int) -> Ids:
        """Return the older version's ids of columns that it has in common with a newer one.

        Raises:
            NotFoundError: One of them no longer exists.
        """
        before, after = self.at(older), self.at(newer)
        fields = before.schema.fields, after.schema.fields
        if not _share_rows(before, after):
            return same_fields(*fields, ids_hold=False)
        # a new column in the place of a dropped one is not the same one: there may be many steps
        names = [
            {field.id: field.name for field in table.schema.walk()} for table in (before, after)
        ]
        return {
            there: here
            for there, here in same_fields(*fields, ids_hold=True).items()
            if there == here or names[0][here] == names[1][there]
        }

    def at(self, version: int) -> TableVersion:
        """Return a version; for one that was cleaned up, a restore of it that has been seen.

        Raises:
            NotFoundError: It no longer exists.
        """
        if version == self._first.version:
            return self._first
        if version not in self._recent:
            try:
                self.cache_version(self._table.read_at(version))
            except NotFoundError:
                if version not in self._restores:
                    raise
                self.cache_version(version_restored_by(self._restores[version], version))
        return self._recent[version]


def _ids_with_files(older: TableVersion, newer: TableVersion) -> frozenset[int]:
    """Return ids that mean the same columns in two versions, proven by files of both.

    Some of the fragments that both have are checked.
    """
    before, after = _ancestors(older.schema.fields), _ancestors(newer.schema.fields)
    unchanged = {
        field_id for field_id, location in after.items() if before.get(field_id) == location
    }
    common = sorted(set(older.manifest.fragments.ids) & set(newer.manifest.fragments.ids))
    ancestors: set[int] = set()
    for fragment_id in dict.fromkeys((*common[:_MAX_CHECKED], *common[-_MAX_CHECKED:])):
        for _, file in _stored_fields(older, fragment_id) & _stored_fields(newer, fragment_id):
            # the enclosing struct is the same one, too: parts do not move between structs
            ancestors.update(after[file] if file in unchanged else ())
        if unchanged <= ancestors:
            break
    return frozenset(ancestors)


def _ancestors(fields: Sequence[Field], above: tuple[int, ...] = ()) -> dict[int, tuple[int, ...]]:
    """Return the ids of each field's ancestors, and its own."""
    ids_by_field: dict[int, tuple[int, ...]] = {}
    for field in fields:
        ids_by_field[field.id] = (*above, field.id)
        ids_by_field |= _ancestors(field.children, ids_by_field[field.id])
    return ids_by_field


def _stored_fields(table: TableVersion, fragment_id: int) -> set[tuple[str, int]]:
    """Return the pairs of file and field of a fragment's files."""
    fragment = table.manifest.fragments.by_id(fragment_id)
    files = fragment.files if fragment else ()
    return {(file.path, field_id) for file in files for field_id in file.field_ids}


def restored_version(table: TableVersion) -> int | None:
    """Return which version a restore created this one from; None without a restore."""
    if read_operation_kind(table.store, table.manifest) is not Restore:
        return None
    return _restored_by(table)


def _share_rows(older: TableVersion, newer: TableVersion) -> bool:
    """Return whether some rows of one version are in a later one: no overwrite came in between.

    Row ids ascend, and an overwrite gives new ones. Some of the fragments are checked.
    """
    fragments = [_first_and_last(table.manifest.fragments) for table in (older, newer)]
    if not all(fragments):
        return False
    if not (older.has_stable_row_ids and newer.has_stable_row_ids):
        files = [{file.path for fragment in some for file in fragment.files} for some in fragments]
        return not files[0].isdisjoint(files[1])
    largest = max(older.row_ids(fragment).largest for fragment in fragments[0])
    return any(
        bool((newer.row_ids(fragment).to_array() <= largest).any()) for fragment in fragments[1]
    )


def _first_and_last(fragments: FragmentList) -> list[Fragment]:
    return [*fragments[:_MAX_CHECKED], *fragments[_MAX_CHECKED:][-_MAX_CHECKED:]]


def version_restored_by(restore: TableVersion, version: int) -> TableVersion:
    """Return a version that was cleaned up: a restore of it has its columns and its fragments."""
    return restore.at(replace(restore.manifest, version=version))


def _restored_by(table: TableVersion) -> int | None:
    transaction = read_transaction(table.store, table.manifest)
    operation = transaction.operation if transaction else None
    return operation.version if isinstance(operation, Restore) else None
