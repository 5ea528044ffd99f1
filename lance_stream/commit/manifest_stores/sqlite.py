"""SQLite as a manifest store: one file, for writers on one machine.

    CREATE TABLE lance_manifests (
        base_uri TEXT NOT NULL, version INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER,
        PRIMARY KEY (base_uri, version)
    )

The file and the table are made on first use. The file must lie on a disk of this machine: over a
network file system SQLite's locks do not hold.

Each call opens the file and closes it: nothing is left that a fork could break.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from lance_stream.commit.manifest_stores import asking
from lance_stream.commit.manifest_stores.protocol import ManifestItem
from lance_stream.errors import StoreRefusedError
from lance_stream.storage.object_requests import TryAgainError

T = TypeVar("T")

DEFAULT_TABLE: Final = "lance_manifests"

_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


@dataclass(frozen=True)
class SqliteManifests:
    """The items in a table of a SQLite file.

    Args:
        file: An absolute path.
        table: Letters, digits and "_".
    """

    file: str
    table: str = DEFAULT_TABLE

    @property
    def kind(self) -> str:
        """What kind of store it is."""
        return "sqlite"

    @property
    def where(self) -> str:
        """Return in words who is asked."""
        return f"the table {self.table!r} of the SQLite file {self.file}"

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item, unless there is one; see `ManifestStore.put_if_not_exists`."""
        return self._ask(
            f"putting version {item.version}",
            lambda database: (
                database.execute(
                    f"INSERT INTO {self.table} (base_uri, version, path, size) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT DO NOTHING",
                    (base_uri, *item),
                ).rowcount
                == 1
            ),
        )

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item in the place of its version's; see `ManifestStore.put_if_exists`."""
        return self._ask(
            f"putting the final path of version {item.version}",
            lambda database: (
                database.execute(
                    f"UPDATE {self.table} SET path = ?, size = ? "
                    "WHERE base_uri = ? AND version = ?",
                    (item.path, item.size_bytes, base_uri, item.version),
                ).rowcount
                == 1
            ),
        )

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        """Return the item of a version; see `ManifestStore.get`."""
        found = self._select(
            f"the item of version {version}", "AND version = ?", (base_uri, version)
        )
        return found[0] if found else None

    def latest(self, base_uri: str) -> ManifestItem | None:
        """Return the item of the newest version; see `ManifestStore.latest`."""
        found = self._select("the newest item", "ORDER BY version DESC LIMIT 1", (base_uri,))
        return found[0] if found else None

    def items(self, base_uri: str) -> list[ManifestItem]:
        """Return all items of a table, ascending."""
        return self._select("all items", "ORDER BY version", (base_uri,))

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        """Delete the items of versions; see `ManifestStore.delete`."""
        self._ask(
            f"the deletion of {len(versions)} items",
            lambda database: database.executemany(
                f"DELETE FROM {self.table} WHERE base_uri = ? AND version = ?",
                [(base_uri, version) for version in versions],
            ),
        )

    def _select(self, what: str, rest: str, values: tuple[object, ...]) -> list[ManifestItem]:
        return self._ask(
            what,
            lambda database: [
                ManifestItem(*row)
                for row in database.execute(
                    f"SELECT version, path, size FROM {self.table} WHERE base_uri = ? {rest}",
                    values,
                )
            ],
        )

    def _ask(self, what: str, question: Callable[[sqlite3.Connection], T]) -> T:
        def once() -> T:
            try:
                with self._database() as database:
                    return question(database)
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY:
                    raise TryAgainError(f"{error}: another process is writing") from error
                raise StoreRefusedError(
                    f"{what} was refused by {self.where}: {error}. The folder has to be there, and "
                    "this user must be allowed to write to it and to the file"
                ) from error

        return asking.ask_patiently(once, what, self.where)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        if not Path(self.file).parent.is_dir():
            raise StoreRefusedError(f"{self.where} cannot be opened: there is no such folder")
        database = sqlite3.connect(self.file, timeout=asking.PATIENCE.request_seconds)
        try:
            with database:
                # each transaction is on the disk before it is answered
                database.execute("PRAGMA synchronous = FULL")
                if not self._is_there(database):
                    database.execute(
                        f"CREATE TABLE IF NOT EXISTS {self.table} (base_uri TEXT NOT NULL, "
                        "version INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER, "
                        "PRIMARY KEY (base_uri, version))"
                    )
                yield database
        finally:
            database.close()

    def _is_there(self, database: sqlite3.Connection) -> bool:
        found = database.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (self.table,)
        )
        return found.fetchone() is not None
