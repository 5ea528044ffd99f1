"""Finds batches whose ledger entries a restore by another program removed.

Such a restore also restores the older version's config, and with it an older ledger. The later
batches are removed, both their rows and their entries. If Spark replays one of them, it is not
applied again, as if its batch id were still in the ledger. So the versions since the ledger's entry
are searched for such a restore, within limits:

    since the entry, or the last search       searched
    ------------------------------------      ----------------------------------------------------
    up to `MAX_UNCHECKED_VERSIONS` versions     those versions
    more, or there is no entry                none if a listing shows that no transaction of this
                                              batch was ever written; otherwise the versions since
                                              it was planned, but at most the last
                                              `MAX_SEARCHED_VERSIONS`

The uuid of a batch's transaction is derived from the batch (`micro_batch.derive_uuid`), so the
version that committed it is recognized.
"""

from contextlib import suppress
from typing import Final

from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.ledger.messages import lost_history
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import LedgerEntry, config_key, read_entry
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.versions import Restore
from lance_stream.table.paths import TRANSACTIONS_DIRECTORY, parse_transaction_file_name

KEEPS_LEDGER: Final = "lance_stream.keeps_ledger"
"""A property of the transaction of a restore that keeps the ledger."""

MAX_UNCHECKED_VERSIONS: Final = 8
"""The maximum number of versions to search without checking first that the batch was attempted."""

MAX_SEARCHED_VERSIONS: Final = 1000
"""The maximum number of versions to search."""


def find_removed_entry(
    table: TableVersion, batch: MicroBatch, newest: LedgerEntry | None, absent_through: int
) -> LedgerEntry | None:
    """Return the entry of a batch that a restore has removed; None if there was no such restore.

    Args:
        table: The newest version, whose ledger does not cover the batch id.
        batch: The batch.
        newest: The stream's newest entry, that of an earlier batch; None without one.
        absent_through: No version through this one has the batch; 0 if unknown.

    Raises:
        InvalidInputError: There was such a restore, and versions before it were removed, so it is
            unknown whether the batch was committed.
    """
    after = max(absent_through, 0 if newest is None else newest.version or 0)
    is_unknown = newest is None and not absent_through
    if is_unknown or table.version - after > MAX_UNCHECKED_VERSIONS:
        planned_on = _first_planned_on(table, batch)
        after = table.version if planned_on is None else max(after, planned_on)
    version = _find_before_restore(table, batch, after)
    return None if version is None else entry_at(table, batch, version)


def entry_at(table: TableVersion, batch: MicroBatch, version: int) -> LedgerEntry:
    """Return a batch's entry in a version; without a digest if the version was removed."""
    with suppress(NotFoundError, BadDataError):
        entry = read_entry(table.log.read(version).config, batch.app_id)
        if entry is not None and entry.batch_id == batch.batch_id:
            return entry
    return LedgerEntry(batch.batch_id, batch.query_id, version)


def _first_planned_on(table: TableVersion, batch: MicroBatch) -> int | None:
    """Return the version on which a batch was first planned; None if it never was."""
    uuid = batch.uuid
    names = table.store.list_names(TRANSACTIONS_DIRECTORY)
    parsed = (name for name in map(parse_transaction_file_name, names) if name is not None)
    return min((planned_on for planned_on, rest in parsed if rest.startswith(uuid)), default=None)


def _find_before_restore(table: TableVersion, batch: MicroBatch, after: int) -> int | None:
    """Return the version after `after` that committed a batch, if a restore removed it.

    Raises:
        InvalidInputError: See `find_removed_entry`.
    """
    uuid = batch.uuid
    restored: int | None = None
    oldest = max(after, table.version - MAX_SEARCHED_VERSIONS)
    gap: int | None = oldest if oldest > after else None
    for version in range(table.version, oldest, -1):
        try:
            manifest = table.manifest if version == table.version else table.log.read(version)
            transaction = read_transaction(table.store, manifest)
        except NotFoundError:
            gap = version
            continue
        except BadDataError:
            continue
        if transaction is None:
            continue
        if restored is not None and transaction.uuid == uuid:
            return version
        if removes_entry(transaction.operation, batch.app_id):
            break
        # The version's writer is no proof: restores by other programs bring that back, too.
        is_foreign = KEEPS_LEDGER not in transaction.properties
        if is_foreign and isinstance(transaction.operation, Restore):
            restored = restored or version
    if restored is not None and gap is not None:
        raise lost_history(table.uri, restored, gap)
    return None


def removes_entry(operation: Operation, app_id: str) -> bool:
    """Return whether an operation removed a stream's entry, after which the stream starts over."""
    if not isinstance(operation, UpdateConfig):
        return False
    key = config_key(app_id)
    entries = operation.config.entries if operation.config else ()
    return key in operation.old_delete_keys or (key, None) in entries
