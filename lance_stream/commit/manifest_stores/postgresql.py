"""PostgreSQL as a manifest store: one table for the versions of many Lance tables.

    CREATE TABLE lance_manifests (
        base_uri text NOT NULL,
        version  bigint NOT NULL,
        path     text NOT NULL,
        size     bigint,
        PRIMARY KEY (base_uri, version)
    )

The table is created on first use if the user may create tables; otherwise an administrator must
create it and grant SELECT, INSERT, UPDATE and DELETE. Versions are published by INSERT ... ON
CONFLICT DO NOTHING.

A conninfo has the syntax of libpq, whose environment variables (PGPASSWORD, PGSERVICE, ...) and
password file work, too. By default, the server must accept writes, connecting takes at most ten
seconds, and a dead connection is detected within half a minute.

A process keeps one connection for each of the few most recently used conninfos, which threads
share. It is not used in forked processes, and replaced when it breaks.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from lance_stream.commit.manifest_stores import retrying
from lance_stream.commit.manifest_stores.connection_cache import ConnectionCache
from lance_stream.commit.manifest_stores.sql import DEFAULT_TABLE, Answer, SqlManifests
from lance_stream.errors import InvalidInputError, StoreRefusedError
from lance_stream.storage.extras import requires_extra
from lance_stream.storage.objects.object_requests import TryAgainError

_DEFAULTS: Final = {
    "application_name": "lance-stream",
    "connect_timeout": str(int(retrying.POLICY.connect_seconds)),
    "keepalives_count": "3",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "target_session_attrs": "read-write",
    "tcp_user_timeout": str(int(retrying.POLICY.request_seconds * 1000)),
}
# If two clients create the table at the same time, one may fail because its name or type exists.
_TABLE_EXISTS: Final = {"23505", "42P07", "42710"}
_RETRYABLE: Final = ("08", "40", "53", "57", "58")
"""Classes of SQLSTATE: connection, rollback (serialization, deadlock), resources, shutdown, I/O."""


@dataclass(frozen=True)
class PostgresManifests(SqlManifests):
    """The items in a table of a PostgreSQL database.

    Args:
        conninfo: The parameters of libpq; may contain a password.
        table: The table's name; "schema.name" if it is not in the first schema.
        server: The server and the database for errors, without a password.
    """

    conninfo: str = field(repr=False)
    table: str = DEFAULT_TABLE
    server: str = field(default="", compare=False)

    @property
    def kind(self) -> str:
        """The kind of store."""
        return "postgresql"

    @property
    def where(self) -> str:
        """The store's name in errors."""
        return f"the table {self.table!r} of PostgreSQL{self.server}"

    def execute(
        self,
        what: str,
        statement: str,
        values: Sequence[Sequence[Any]],
        *,
        all_or_none: bool = False,
    ) -> Answer:
        """Run a statement in one transaction; see `SqlManifests.execute`."""
        psycopg = _import_psycopg(self)
        from psycopg import sql

        table = sql.Identifier(*self.table.split("."))
        query = sql.SQL(statement.replace("?", "%s")).format(table=table)

        def once() -> Answer:
            rows: Sequence[Any] = ()
            row_counts: list[int] = []
            with _exclusive_connection(self) as connection:
                try:
                    with connection.transaction() if len(values) > 1 else nullcontext():
                        for value in values:
                            cursor = connection.execute(query, value)
                            rows = cursor.fetchall() if cursor.description else ()
                            row_counts.append(cursor.rowcount)
                        if all_or_none and len(values) > 1 and not all(row_counts):
                            raise psycopg.Rollback
                except psycopg.errors.UndefinedTable:
                    self._create_table(connection, table)
                    raise TryAgainError("the table was just created") from None
            return Answer(rows, tuple(row_counts))

        def request() -> Answer:
            try:
                return once()
            except psycopg.Error as error:
                state = error.sqlstate or ""
                if not _may_succeed_later(error, state):
                    raise StoreRefusedError(
                        f"{self.where} refused {what}: {state} {_text(error)}"
                    ) from None
                raise TryAgainError(f"{state} {_text(error)}".strip()) from None

        return retrying.with_retries(request, what, self.where)

    def _create_table(self, connection: Any, table: Any) -> None:
        psycopg = _import_psycopg(self)
        from psycopg import sql

        try:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (base_uri text NOT NULL, version bigint NOT "
                    "NULL, path text NOT NULL, size bigint, PRIMARY KEY (base_uri, version))"
                ).format(table)
            )
        except psycopg.Error as error:
            if error.sqlstate in _TABLE_EXISTS:
                return
            raise StoreRefusedError(
                f"{self.where} does not exist, and this user cannot create it: {_text(error)}. Ask "
                f"an administrator to run CREATE TABLE {self.table} (base_uri text NOT NULL, "
                "version bigint NOT NULL, path text NOT NULL, size bigint, PRIMARY KEY (base_uri, "
                "version))"
            ) from None


def postgres_manifests(conninfo: str, table: str = DEFAULT_TABLE) -> PostgresManifests:
    """Return the manifest store that a conninfo names, without connecting to it.

    Args:
        conninfo: "postgresql://user@host/db?sslmode=require", or "host=... dbname=...".
        table: The name of the table.

    Raises:
        InvalidInputError: psycopg is not installed, or the conninfo is invalid.
    """
    psycopg = _import_psycopg(None)
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parameters = conninfo_to_dict(conninfo)
        defaults: Any = {key: value for key, value in _DEFAULTS.items() if key not in parameters}
        full_conninfo = make_conninfo(conninfo, **defaults)
    except psycopg.Error:
        # The error's message may contain the password.
        raise InvalidInputError(
            "the storage option manifest_store names PostgreSQL, but libpq cannot parse it: "
            "expected 'postgresql://user@host:port/database?sslmode=...&table=...', with special "
            "characters percent-encoded"
        ) from None
    host = parameters.get("host") or parameters.get("hostaddr")
    server = f" at {host}:{parameters['port']}" if host and "port" in parameters else f" at {host}"
    database = parameters.get("dbname")
    location = (server if host else "") + (f", database {database!r}" if database else "")
    return PostgresManifests(full_conninfo, table, location)


def _import_psycopg(manifests: PostgresManifests | None) -> Any:
    with requires_extra("postgresql", manifests.where if manifests else "PostgreSQL"):
        import psycopg
    return psycopg


def _text(error: Exception) -> str:
    return " ".join(str(error).split())


def _may_succeed_later(error: Exception, state: str) -> bool:
    """Return whether the same request may succeed later."""
    if state:
        return state.startswith(_RETRYABLE)
    # For a refused connection, libpq returns only a message.
    text = str(error)
    return any(phrase in text for phrase in _RETRYABLE_PHRASES) or not any(
        phrase in text for phrase in _FATAL_PHRASES
    )


_FATAL_PHRASES: Final = ("FATAL", "password", "authentication", "SSL", "certificate", "GSSAPI")
_RETRYABLE_PHRASES: Final = (
    "starting up",
    "shutting down",
    "too many",
    "connection slots",
    "recovery",
)


@contextmanager
def _exclusive_connection(manifests: PostgresManifests) -> Iterator[Any]:
    """Yield the process's connection to one caller at a time; connect if necessary."""
    with _lock:
        entry = _connections.setdefault(manifests.conninfo, _Connection(threading.Lock()))
    with entry.lock:
        if entry.connection is None or entry.connection.closed:
            entry.connection = _import_psycopg(manifests).connect(
                manifests.conninfo,
                autocommit=True,
                prepare_threshold=None,  # poolers may use another connection per statement
            )
        try:
            yield entry.connection
            if entry.is_dropped:
                _close(entry)
        except BaseException:
            # Its pending answer could be mistaken for that of the next request.
            broken, entry.connection = entry.connection, None
            with suppress(Exception):
                broken.close()
            raise


@dataclass
class _Connection:
    lock: threading.Lock
    connection: Any = None
    is_dropped: bool = False


def _drop(entry: _Connection) -> None:
    """Close an evicted connection; if it is in use, its user closes it afterwards."""
    entry.is_dropped = True
    if entry.lock.acquire(blocking=False):
        try:
            _close(entry)
        finally:
            entry.lock.release()


def _close(entry: _Connection) -> None:
    connection, entry.connection = entry.connection, None
    if connection is not None:
        with suppress(Exception):
            connection.close()


_connections: ConnectionCache[str, _Connection] = ConnectionCache(_drop)
_lock = threading.Lock()
_inherited: list[Any] = []


def _reset_after_fork() -> None:
    global _connections, _lock  # the parent may have held the lock when it forked
    _inherited.append(_connections)  # not closed here: the parent still uses them
    _connections, _lock = ConnectionCache(_drop), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
