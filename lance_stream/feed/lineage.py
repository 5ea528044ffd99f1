"""What each version derives from: the previous version, or the one that a restore brought back.

`schema.identity` determines which columns of two such versions are the same. If the version that
one derives from has been cleaned up, the next older one stands in for it, and names decide.

Data files settle it for two versions far apart: the id of a dropped column is not reused while a
file with values under it is in the table. So an id means the same column in two versions that both
reference a file with it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from lance_stream.errors import NotFoundError
from lance_stream.feed.versions_left import read_ahead
from lance_stream.schema.fields import Field
from lance_stream.schema.identity import Ids, same_fields
from lance_stream.snapshot.history import read_operation_kind, read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.operations import Overwrite, Restore

_MAX_RECENT: Final = 4
_MAX_LOOKED_AT: Final = 32


class Origin(NamedTuple):
    """The version that another one derives from.

    Attributes:
        version: Its number.
        same: Maps ids of the derived version to the ids of the same columns in this one.
    """

    version: int
    same: Ids


class Lineage:
    """Finds the version that each version derives from; each is read once.

    Args:
        table: Any version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._first = self._table = table
        self._origins: dict[int, Origin | None] = {}
        self._recent: dict[int, TableVersion] = {}
        self._same: Ids = {}
        self._held: dict[tuple[int, int], frozenset[int]] = {}

    def see(self, table: TableVersion) -> None:
        """Record a version that was read, to save reading it again."""
        self._table = table
        self._recent[table.version] = table
        while len(self._recent) > _MAX_RECENT:
            self._recent.pop(next(iter(self._recent)))

    def origin(self, version: int) -> Origin | None:
        """Return what a version derives from; None for the oldest one, or if it is gone."""
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
        read_ahead(self._table, versions)

    def ids_held(self, older: int, newer: int) -> frozenset[int]:
        """Return ids that are known to mean the same columns in two versions far apart.

        Raises:
            NotFoundError: One of them no longer exists.
        """
        if (older, newer) not in self._held:
            self._held[older, newer] = _ids_with_files(self.at(older), self.at(newer))
        return self._held[older, newer]

    def _read(self, version: int) -> Origin | None:
        if version < 2:
            return None
        try:
            newer = self.at(version)
        except NotFoundError:
            return None  # cleaned up
        kind = read_operation_kind(newer.store, newer.manifest)
        restored = _restored_by(newer) if kind is Restore else None
        try:
            older = self.at(restored or version - 1)
        except NotFoundError:
            return self._read_over_gap(newer)
        ids_hold = kind is not None and kind is not Overwrite
        return _origin(older, newer, ids_hold=ids_hold)

    def _read_over_gap(self, newer: TableVersion) -> Origin | None:
        older = [each for each in newer.log.versions() if each < newer.version]
        try:
            return _origin(self.at(max(older)), newer, ids_hold=False) if older else None
        except NotFoundError:
            return None

    def at(self, version: int) -> TableVersion:
        """Return a version.

        Raises:
            NotFoundError: It no longer exists.
        """
        if version == self._first.version:
            return self._first
        if version not in self._recent:
            self.see(self._table.read_at(version))
        return self._recent[version]


def _ids_with_files(older: TableVersion, newer: TableVersion) -> frozenset[int]:
    """Return ids that mean the same columns in two versions, proven by files of both.

    Some of the fragments that both have are checked.
    """
    before, after = _places(older.schema.fields), _places(newer.schema.fields)
    wanted = {each for each, place in after.items() if before.get(each) == place}
    common = sorted(set(older.manifest.fragments.ids) & set(newer.manifest.fragments.ids))
    known: set[int] = set()
    for fragment_id in dict.fromkeys((*common[:_MAX_LOOKED_AT], *common[-_MAX_LOOKED_AT:])):
        for _, each in _held_by(older, fragment_id) & _held_by(newer, fragment_id):
            # the enclosing struct is the same one, too: parts do not move between structs
            known.update(after[each] if each in wanted else ())
        if wanted <= known:
            break
    return frozenset(known)


def _places(fields: Sequence[Field], above: tuple[int, ...] = ()) -> dict[int, tuple[int, ...]]:
    """Return the ids of each field's ancestors, and its own."""
    found: dict[int, tuple[int, ...]] = {}
    for each in fields:
        found[each.id] = (*above, each.id)
        found |= _places(each.children, found[each.id])
    return found


def _held_by(table: TableVersion, fragment_id: int) -> set[tuple[str, int]]:
    """Return the pairs of file and field of a fragment's files."""
    fragment = table.manifest.fragments.by_id(fragment_id)
    files = fragment.files if fragment else ()
    return {(file.path, each) for file in files for each in file.field_ids}


def restored_version(table: TableVersion) -> int | None:
    """Return which version a restore created this one from; None without a restore."""
    if read_operation_kind(table.store, table.manifest) is not Restore:
        return None
    return _restored_by(table)


def _origin(older: TableVersion, newer: TableVersion, *, ids_hold: bool) -> Origin:
    same = same_fields(older.schema.fields, newer.schema.fields, ids_hold=ids_hold)
    return Origin(older.version, same)


def _restored_by(table: TableVersion) -> int | None:
    transaction = read_transaction(table.store, table.manifest)
    operation = transaction.operation if transaction else None
    return operation.version if isinstance(operation, Restore) else None
