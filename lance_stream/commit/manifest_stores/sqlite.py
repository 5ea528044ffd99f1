"""SQLite as a manifest store: one file, for writers on one machine.

    CREATE TABLE lance_manifests (
        base_uri TEXT NOT NULL, version INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER,
        PRIMARY KEY (base_uri, version)
    )

The file and the table are created on first use. The file must be on a disk of this machine:
SQLite's locks do not work on a network file system.

Every call opens and closes the file, so forks need no handling.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lance_stream.commit.manifest_stores import retrying
from lance_stream.commit.manifest_stores.sql import DEFAULT_TABLE, Answer, SqlManifests
from lance_stream.errors import StoreRefusedError
from lance_stream.storage.objects.object_requests import TryAgainError

_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_PERMISSIONS: Final = (
    "Check that the folder exists, and that this user may write to it and to the file"
)
_DAMAGED: Final = (
    "Check the path. If the file is damaged, restore it from a copy; if there is none, see "
    "lance_stream.claim_versions()"
)
_REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "Free some space on its disk",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_IOERR: "The disk failed: see the system's log",
}
"""Remedies by SQLite's primary result code."""


@dataclass(frozen=True)
class SqliteManifests(SqlManifests):
    """The items in a table of a SQLite file.

    Args:
        file: An absolute path.
        table: Letters, digits and "_".
    """

    file: str
    table: str = DEFAULT_TABLE

    @property
    def kind(self) -> str:
        """The kind of store."""
        return "sqlite"

    @property
    def where(self) -> str:
        """The store's name in errors."""
        return f"the table {self.table!r} of the SQLite file {self.file}"

    def execute(
        self,
        what: str,
        statement: str,
        values: Sequence[Sequence[Any]],
        *,
        all_or_none: bool = False,
    ) -> Answer:
        """Run a statement in one transaction; see `SqlManifests.execute`."""

        def once() -> Answer:
            rows: list[Any] = []
            row_counts: list[int] = []
            try:
                with self._database() as database:
                    for value in values:
                        cursor = database.execute(statement.format(table=self.table), value)
                        rows = cursor.fetchall()
                        row_counts.append(cursor.rowcount)
                    if all_or_none and not all(row_counts):
                        database.rollback()
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code in _BUSY:
                    raise TryAgainError(f"{error}: another process is writing") from error
                remedy = _REMEDIES.get(code, _PERMISSIONS)
                raise StoreRefusedError(
                    f"{self.where} refused {what}: {error}. {remedy}"
                ) from error
            return Answer(rows, tuple(row_counts))

        return retrying.with_retries(once, what, self.where)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        if not Path(self.file).parent.is_dir():
            raise StoreRefusedError(
                f"{self.where} cannot be opened: its folder does not exist. Create it"
            )
        database = sqlite3.connect(self.file, timeout=retrying.POLICY.request_seconds)
        try:
            with database:
                # A transaction is on disk before it is answered.
                database.execute("PRAGMA synchronous = FULL")
                if not self._exists(database):
                    database.execute(
                        f"CREATE TABLE IF NOT EXISTS {self.table} (base_uri TEXT NOT NULL, "
                        "version INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER, "
                        "PRIMARY KEY (base_uri, version))"
                    )
                yield database
        finally:
            database.close()

    def _exists(self, database: sqlite3.Connection) -> bool:
        tables = database.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (self.table,)
        )
        return tables.fetchone() is not None
