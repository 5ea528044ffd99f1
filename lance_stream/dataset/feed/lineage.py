"""What each version was made from: the version before, or the one that a restore brought back.

A field's id alone does not say which column it is: an overwrite gives ids anew, and so does what
is added after a restore. From one version to the one that was made from it

    the same id                             is the same column, whatever it is called
    the id is new, the name is not, and     is a column that was cast: the reference writes it
    the id of that name is gone             under another id
    the same name, after an overwrite       is the same column, whatever its id
    anything else                           is a column that came then
"""

from typing import NamedTuple, TypeAlias

from lance_stream.dataset.history import read_operation_kind, read_transaction
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import NotFoundError
from lance_stream.schema.fields import Field, Schema
from lance_stream.table.operations import Overwrite, Restore

Named: TypeAlias = dict[str, Field]
"""Columns of a version, by the names that they have in a version that was made from it."""


class Origin(NamedTuple):
    """The version that another one was made from.

    Attributes:
        version: Its number.
        before: Its columns.
        after: The columns of the version that was made from it.
        ids_hold: Whether an id stands for the same column in both.
    """

    version: int
    before: Schema
    after: Schema
    ids_hold: bool

    def back(self, columns: Named) -> Named:
        """Return what columns of the newer version were in this one; some are not there."""
        by_id = {each.id: each for each in self.before.fields} if self.ids_hold else {}
        left = by_id.keys() & {each.id for each in self.after.fields}
        by_name = {each.name: each for each in self.before.fields if each.id not in left}
        found = {
            name: by_id.get(each.id) or by_name.get(each.name) for name, each in columns.items()
        }
        return {name: each for name, each in found.items() if each is not None}


class Lineage:
    """Tells which version each version was made from; each is read once.

    Args:
        table: Any version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._table = table
        self._origins: dict[int, Origin | None] = {}

    def origin(self, version: int) -> Origin | None:
        """Return what a version was made from; None for the first one, or if it is gone."""
        if version not in self._origins:
            self._origins[version] = self._read(version)
        return self._origins[version]

    def _read(self, version: int) -> Origin | None:
        if version < 2:
            return None
        try:
            newer = self._at(version)
            kind = read_operation_kind(newer.store, newer.manifest)
            older = self._at(restored_version(newer) or version - 1)
        except NotFoundError:
            return None  # cleaned up
        ids_hold = kind is not None and kind is not Overwrite
        return Origin(older.version, older.schema, newer.schema, ids_hold)

    def _at(self, version: int) -> TableVersion:
        if version == self._table.version:
            return self._table
        return self._table.at(self._table.log.read(version))


def restored_version(table: TableVersion) -> int | None:
    """Return which version a restore made this one from; None if no restore did."""
    if read_operation_kind(table.store, table.manifest) is not Restore:
        return None
    transaction = read_transaction(table.store, table.manifest)
    operation = transaction.operation if transaction else None
    return operation.version if isinstance(operation, Restore) else None
