"""The history of a table: the commit time, operation and row changes of each version."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import timestamp_of
from lance_stream.storage.store import Store
from lance_stream.table.changes.row_counts import ChangedRowCounts, count_changed_rows
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.operation import Operation, SupportedOperation, operation_name
from lance_stream.table.operations.rows import Overwrite
from lance_stream.table.operations.transaction import (
    Transaction,
    decode_transaction,
    operation_kind,
)
from lance_stream.table.paths import transaction_path
from lance_stream.threads import map_ahead

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A summary of one version.

    Attributes:
        version: Its number.
        timestamp: When it was committed, in UTC; None if its writer did not record it.
        operation: The operation, for example "Append", or "Create" for the overwrite that created
            the table; None if its transaction no longer exists.
        num_rows: The number of live rows; None if the manifest does not state it, as with old
            writers (`Dataset.count_rows` reads the files instead).
        properties: The properties that the writer stored in its transaction.
        rows_inserted: The number of inserted rows; None if the manifests do not determine it, as
            after a restore, or if the previous version no longer exists.
        rows_updated: The number of updated rows; None in the same cases.
        rows_deleted: The number of deleted rows; None in the same cases.
    """

    version: int
    timestamp: datetime | None
    operation: str | None
    num_rows: int | None
    properties: Mapping[str, str] = field(default_factory=dict)
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None

    @property
    def row_counts(self) -> ChangedRowCounts | None:
        """The numbers of changed rows; None if they are unknown."""
        inserted, updated, deleted = self.rows_inserted, self.rows_updated, self.rows_deleted
        if inserted is None or updated is None or deleted is None:
            return None
        return ChangedRowCounts(inserted, updated, deleted)

    def with_row_counts(self, counts: ChangedRowCounts) -> "VersionInfo":
        """Return a copy with the numbers of changed rows."""
        return replace(
            self,
            rows_inserted=counts.inserted,
            rows_updated=counts.updated,
            rows_deleted=counts.deleted,
        )


def list_versions(table: TableVersion, limit: int | None = None) -> list[VersionInfo]:
    """Return the existing versions of a table, the newest last.

    Each manifest is read once, and compared with the previous one to count changed rows.

    Args:
        table: Any version.
        limit: How many of the newest versions to return, at least 1; None for all.
    """
    return list(walk_versions(table, limit, lambda _table, info: info))


def walk_versions(
    table: TableVersion, limit: int | None, describe: Callable[[TableVersion, VersionInfo], T]
) -> Iterator[T]:
    """Yield the result of a function for each existing version, the newest last.

    Each manifest is read once.

    Args:
        table: Any version.
        limit: How many of the newest versions to include, at least 1; None for all.
        describe: Returns the result for a version and its summary.
    """
    previous, versions = None, table.log.versions()
    while versions != previous:
        is_empty = True
        for result in _walk(table, versions, limit, describe):
            is_empty = False
            yield result
        if not is_empty:
            break
        # All of them have been cleaned up since they were listed.
        previous, versions = versions, table.log.versions()


def _walk(
    table: TableVersion,
    versions: Sequence[int],
    limit: int | None,
    describe: Callable[[TableVersion, VersionInfo], T],
) -> Iterator[T]:
    live_rows: dict[bytes, int | None] = {}
    first = versions[0 if limit is None else max(len(versions) - limit, 0)] if versions else 0
    # One more version is read, to count the rows that the first one changed.
    manifests = map_ahead(
        lambda version: _read(table.log, version),
        [version for version in versions if version >= first - 1],
        table.store.num_readers,
    )
    older: Manifest | None = None
    for manifest in manifests:
        if manifest is not None and manifest.version >= first:
            newer = table.at(manifest)
            yield describe(newer, _summarize(newer, older, live_rows))
        older = manifest


def _read(log: VersionLog, version: int) -> Manifest | None:
    """Return the manifest of a listed version; None if it has been cleaned up since."""
    with suppress(NotFoundError):
        return log.read(version)
    return None


def _summarize(
    table: TableVersion, older: Manifest | None, live_rows: dict[bytes, int | None]
) -> VersionInfo:
    """Return the summary of one version, without reading data files or deletion files.

    Args:
        table: The version.
        older: The previous existing version; None if there is none.
        live_rows: A cache of the number of live rows by the bytes of a fragment, because most
            fragments are part of many versions; None for fragments that do not state it. Filled
            here.
    """
    transaction = read_transaction(table.store, table.manifest)
    fragments = table.manifest.fragments
    new = FragmentList(raw for raw in fragments.raws if raw not in live_rows)
    live_rows.update(zip(new.raws, new.live_rows, strict=True))
    rows = [live_rows[raw] for raw in fragments.raws]
    summary = VersionInfo(
        version=table.version,
        timestamp=timestamp_of(table.manifest),
        operation=_name(table.version, transaction.operation) if transaction else None,
        num_rows=None if None in rows else sum(filter(None, rows)),
        properties=dict(transaction.properties) if transaction else {},
    )
    if table.version != (older.version + 1 if older else 1):
        return summary  # the previous version no longer exists
    operation = transaction.operation if transaction else None
    counts = count_changed_rows(older, table.manifest, operation)
    return summary if counts is None else summary.with_row_counts(counts)


def _name(version: int, operation: Operation) -> str:
    """Return the name of a version's operation; an overwrite that creates a table is a "Create"."""
    if version == 1 and isinstance(operation, Overwrite):
        return "Create"
    return operation_name(operation)


def read_transaction(store: Store, manifest: Manifest) -> Transaction | None:
    """Return the transaction that committed a version; None if it no longer exists.

    Raises:
        BadDataError: The transaction is damaged.
    """
    return _decode_transaction_bytes(store, manifest, decode_transaction)


def read_operation_kind(store: Store, manifest: Manifest) -> type[SupportedOperation] | None:
    """Return the kind of operation that committed a version; None if it is unknown.

    Raises:
        BadDataError: The transaction is damaged.
    """
    return _decode_transaction_bytes(store, manifest, operation_kind)


def _decode_transaction_bytes(
    store: Store, manifest: Manifest, decode: Callable[[bytes], T]
) -> T | None:
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
