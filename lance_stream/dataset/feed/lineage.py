"""What each version was made from: the version before, or the one that a restore brought back.

Which columns of two such versions are the same says `schema.identity`. Where the version that one
was made from has been cleaned up, the next older one that is left stands for it, and names decide.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from lance_stream.dataset.feed.versions_left import read_ahead
from lance_stream.dataset.history import read_operation_kind, read_transaction
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import NotFoundError
from lance_stream.schema.identity import Ids, same_fields
from lance_stream.table.operations import Overwrite, Restore

_MAX_RECENT: Final = 4


class Origin(NamedTuple):
    """The version that another one was made from.

    Attributes:
        version: Its number.
        same: For the ids of the version that was made from it those of the same columns in it.
    """

    version: int
    same: Ids


class Lineage:
    """Tells which version each version was made from; each is read once.

    Args:
        table: Any version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._first = self._table = table
        self._origins: dict[int, Origin | None] = {}
        self._recent: dict[int, TableVersion] = {}
        self._same: Ids = {}

    def see(self, table: TableVersion) -> None:
        """Take note of a version that was read, to be spared reading it."""
        self._table = table
        self._recent[table.version] = table
        while len(self._recent) > _MAX_RECENT:
            self._recent.pop(next(iter(self._recent)))

    def origin(self, version: int) -> Origin | None:
        """Return what a version was made from; None for the oldest one, or if it is gone."""
        if version not in self._origins:
            origin = self._read(version)
            if origin is not None:
                # Few versions change columns, so that all of a long history share a few mappings.
                self._same = self._same if self._same == origin.same else origin.same
                origin = origin._replace(same=self._same)
            self._origins[version] = origin
        return self._origins[version]

    def read_ahead(self, versions: Sequence[int]) -> None:
        """Read versions that will be asked for side by side; some may have gone."""
        read_ahead(self._table, versions)

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
            NotFoundError: It is gone.
        """
        if version == self._first.version:
            return self._first
        if version not in self._recent:
            self.see(self._table.read_at(version))
        return self._recent[version]


def restored_version(table: TableVersion) -> int | None:
    """Return which version a restore made this one from; None if no restore did."""
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
