"""The origin of each version: the previous version, or the version that a restore brought back.

`schema.identity` determines which columns of a version and its origin are the same.

A restored version may have been cleaned up. The version that restored it has the same columns and
fragments and takes its place, so later versions still have an origin.

If any other origin has been cleaned up, the next older version takes its place. Columns are then
matched by field id if both versions share rows, which proves that no overwrite came in between (an
overwrite replaces all rows); otherwise they are matched by name.

Versions far apart are matched by their data files: the id of a dropped column is not reused while
the table references a file with values of that column. So an id means the same column in two
versions that both reference a file which contains it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from lance_stream.caches import IdentityCache
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
"""How many versions are cached."""

_MAX_CHECKED: Final = 32
"""How many fragments are checked from either end of a version's list."""


_UNCHANGED: Final[IdentityCache[Ids]] = IdentityCache(
    lambda schema: same_fields(schema.fields, schema.fields, ids_match=True)
)


class Origin(NamedTuple):
    """The version that another version derives from.

    Attributes:
        version: Its number.
        same: Maps field ids of the derived version to the ids of the same columns in this one.
    """

    version: int
    same: Ids


class Ancestry:
    """Finds the origin of each version, and caches it.

    Args:
        table: Any version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._first = self._table = table
        self._origins: dict[int, Origin | None] = {}
        self._recent: dict[int, TableVersion] = {}
        self._same: Ids = {}
        self._ids_with_files_of: dict[tuple[int, int], frozenset[int]] = {}
        self._restores: dict[int, TableVersion] = {}  # by restored version

    def cache_version(self, table: TableVersion) -> None:
        """Record a version that was read, to save reading it again."""
        self._table = table
        self._recent[table.version] = table
        while len(self._recent) > _MAX_RECENT:
            self._recent.pop(next(iter(self._recent)))

    def origin(self, version: int) -> Origin | None:
        """Return the origin of a version; None if it is unknown or no longer exists."""
        if version not in self._origins:
            origin = self._find_origin(version)
            if origin is not None:
                # Few versions change columns, so a long history shares a few mappings.
                self._same = self._same if self._same == origin.same else origin.same
                origin = origin._replace(same=self._same)
            self._origins[version] = origin
        return self._origins[version]

    def prefetch(self, versions: Sequence[int]) -> None:
        """Read the manifests of versions concurrently; some may have been removed."""
        self._table.log.prefetch(versions)

    def common_ids(self, older: int, newer: int) -> frozenset[int]:
        """Return field ids that provably mean the same columns in two versions far apart.

        Raises:
            NotFoundError: One of them no longer exists.
        """
        if (older, newer) not in self._ids_with_files_of:
            self._ids_with_files_of[older, newer] = _ids_with_files(self.at(older), self.at(newer))
        return self._ids_with_files_of[older, newer]

    def _find_origin(self, version: int) -> Origin | None:
        if version < 2:
            return None
        try:
            newer = self.at(version)
        except NotFoundError:
            return None  # cleaned up
        kind = read_operation_kind(newer.store, newer.manifest)
        restored = restored_version(newer) if kind is Restore else None
        if restored is not None and restored >= version:
            return self._find_origin_over_gap(version)  # a copy, see `version_restored_by`
        if restored is not None:
            self._restores.setdefault(restored, newer)
        try:
            older = self.at(restored or version - 1)
        except NotFoundError:
            return self._find_origin_over_gap(version)
        ids_match = kind is not None and kind is not Overwrite
        if ids_match and older.schema is newer.schema:
            same = _UNCHANGED.of(newer.schema)
        else:
            same = same_fields(older.schema.fields, newer.schema.fields, ids_match=ids_match)
        return Origin(restored or version - 1, same)

    def _find_origin_over_gap(self, version: int) -> Origin | None:
        existing = [*self._table.log.versions(), *self._restores]
        older = max((number for number in existing if number < version), default=None)
        try:
            return Origin(older, self.match_over_gap(older, version)) if older else None
        except NotFoundError:
            return None

    def match_over_gap(self, older: int, newer: int) -> Ids:
        """Match the columns of two versions when the versions between them are missing.

        Returns:
            A mapping from field ids of the newer version to ids of the older one.

        Raises:
            NotFoundError: One of the versions no longer exists.
        """
        before, after = self.at(older), self.at(newer)
        fields = before.schema.fields, after.schema.fields
        if not _share_rows(before, after):
            return same_fields(*fields, ids_match=False)
        # `same_fields` also matches columns by position, which is valid for a single step only.
        # Over many steps, the column at a position may be a new one: ids or names must agree.
        names = [
            {field.id: field.name for field in table.schema.walk()} for table in (before, after)
        ]
        return {
            there: here
            for there, here in same_fields(*fields, ids_match=True).items()
            if there == here or names[0][here] == names[1][there]
        }

    def at(self, version: int) -> TableVersion:
        """Return a version; if it was cleaned up, a version that restored it and was read.

        Raises:
            NotFoundError: Neither exists.
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
    """Return field ids that mean the same columns in two versions, as shared files prove.

    Only some of the shared fragments are checked.
    """
    before, after = _ancestors(older.schema.fields), _ancestors(newer.schema.fields)
    unchanged = {field_id for field_id, ids in after.items() if before.get(field_id) == ids}
    common = sorted(set(older.manifest.fragments.ids) & set(newer.manifest.fragments.ids))
    proven: set[int] = set()
    for fragment_id in dict.fromkeys((*common[:_MAX_CHECKED], *common[-_MAX_CHECKED:])):
        for _, field_id in _stored_fields(older, fragment_id) & _stored_fields(newer, fragment_id):
            # Fields do not move between structs, so the enclosing structs are the same as well.
            proven.update(after[field_id] if field_id in unchanged else ())
        if unchanged <= proven:
            break
    return frozenset(proven)


def _ancestors(fields: Sequence[Field], above: tuple[int, ...] = ()) -> dict[int, tuple[int, ...]]:
    """Return for each field the ids of its ancestors, from the root, followed by its own id."""
    ids_by_field: dict[int, tuple[int, ...]] = {}
    for field in fields:
        ids_by_field[field.id] = (*above, field.id)
        ids_by_field |= _ancestors(field.children, ids_by_field[field.id])
    return ids_by_field


def _stored_fields(table: TableVersion, fragment_id: int) -> set[tuple[str, int]]:
    """Return the (path, field id) pairs of a fragment's data files."""
    fragment = table.manifest.fragments.by_id(fragment_id)
    files = fragment.files if fragment else ()
    return {(file.path, field_id) for file in files for field_id in file.field_ids}


def _share_rows(older: TableVersion, newer: TableVersion) -> bool:
    """Return whether two versions share rows, so that no overwrite came in between.

    Row ids ascend, and an overwrite assigns new ones. Only some of the fragments are checked.
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
    """Recreate a version that was cleaned up from a restore, which has its columns and rows."""
    return restore.at(replace(restore.manifest, version=version))


def restored_version(table: TableVersion) -> int | None:
    """Return the version that this one restored; None if this one is not a restore."""
    transaction = read_transaction(table.store, table.manifest)
    operation = transaction.operation if transaction else None
    return operation.version if isinstance(operation, Restore) else None
