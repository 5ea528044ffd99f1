"""The versions of a table: when each was committed, by which operation, and its number of rows."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import timestamp_of
from lance_stream.storage.store import Store
from lance_stream.table.fragment_list import FragmentList
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations import KnownOperation, operation_name
from lance_stream.table.paths import transaction_path
from lance_stream.table.transaction import Transaction, decode_transaction, operation_kind
from lance_stream.threads import map_ahead

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A summary of one version.

    Attributes:
        version: Its number.
        timestamp: When it was committed, in UTC; None if its writer did not record it.
        operation: The operation, for example "Append"; None if its transaction is gone.
        num_rows: How many live rows it has; None if its manifest does not state it, as with old
            writers: `Dataset.count_rows` reads the files.
        properties: The properties that the writer stored in its transaction.
    """

    version: int
    timestamp: datetime | None
    operation: str | None
    num_rows: int | None
    properties: Mapping[str, str] = field(default_factory=dict)


def list_versions(table: TableVersion, limit: int | None = None) -> list[VersionInfo]:
    """Return the existing versions of a table, the newest last.

    Args:
        table: Any version.
        limit: How many of the newest, at least 1; None for all.
    """
    live_rows: dict[bytes, int | None] = {}
    versions = table.log.versions()
    manifests = map_ahead(
        lambda version: _read(table.log, version),
        versions if limit is None else versions[-limit:],
        table.store.num_readers,
    )
    return [_describe(table.at(each), live_rows) for each in manifests if each is not None]


def _read(log: VersionLog, version: int) -> Manifest | None:
    """Return the manifest of a version that was listed; None if it has been cleaned up since."""
    with suppress(NotFoundError):
        return log.read(version)
    return None


def _describe(table: TableVersion, live_rows: dict[bytes, int | None]) -> VersionInfo:
    """Return the summary of one version; no data file and no deletion file is read.

    Args:
        table: The version.
        live_rows: Cache of live row counts by the fragment's bytes: most fragments are part of
            many versions. None if a fragment does not state it.
    """
    transaction = read_transaction(table.store, table.manifest)
    fragments = table.manifest.fragments
    new = FragmentList(raw for raw in fragments.raws if raw not in live_rows)
    live_rows.update(zip(new.raws, new.live_rows, strict=True))
    rows = [live_rows[raw] for raw in fragments.raws]
    return VersionInfo(
        version=table.version,
        timestamp=timestamp_of(table.manifest),
        operation=operation_name(transaction.operation) if transaction else None,
        num_rows=None if None in rows else sum(each or 0 for each in rows),
        properties=dict(transaction.properties) if transaction else {},
    )


def read_transaction(store: Store, manifest: Manifest) -> Transaction | None:
    """Return the transaction that committed a version; None if it is gone.

    Raises:
        BadDataError: Its bytes are damaged.
    """
    return _decoded(store, manifest, decode_transaction)


def read_operation_kind(store: Store, manifest: Manifest) -> type[KnownOperation] | None:
    """Return the kind of operation that committed a version; None if it is unknown.

    Raises:
        BadDataError: Its transaction's bytes are damaged.
    """
    return _decoded(store, manifest, operation_kind)


def _decoded(store: Store, manifest: Manifest, decode: Callable[[bytes], T]) -> T | None:
    if manifest.inline_transaction is not None:
        return decode(manifest.inline_transaction)
    if not manifest.transaction_file:
        return None
    path = transaction_path(manifest.transaction_file)
    try:
        return decode(store.read(path))
    except NotFoundError:
        return None
    except BadDataError as error:
        error.add_note(f"transaction file {path!r}")
        raise
