"""Micro-batches: which batch of which stream some rows are, and whether a table has it.

A batch is looked up in the table's ledger before anything is written, and again on every attempt
to commit; the ledger's new entry is part of the same version as the rows. So a batch is in the
table once, or not at all.
"""

from dataclasses import dataclass
from typing import Final

from lance_stream.commit.committer import ConfigEntries
from lance_stream.dataset.history import read_transaction
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError
from lance_stream.table import ledger
from lance_stream.table.operations import Operation, Restore, UpdateConfig
from lance_stream.table.paths import TRANSACTIONS_DIRECTORY, parse_transaction_file_name

APP_ID: Final = "lance_stream.app_id"
BATCH_ID: Final = "lance_stream.batch_id"
QUERY_ID: Final = "lance_stream.query_id"
"""Properties of the transaction that takes in a micro-batch."""

KEEPS_LEDGER: Final = "lance_stream.keeps_ledger"
"""Property of a restore's transaction that left the ledger as it was."""

MAX_SEARCHED_VERSIONS: Final = 1000
"""How far back a foreign restore is looked for."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which micro-batch of which stream some rows are.

    Attributes:
        app_id: The stream.
        batch_id: The batch's number, from 0.
        query_id: The streaming query's own id; empty if the batch comes from none.
    """

    app_id: str
    batch_id: int
    query_id: str = ""


def find_taken_in(table: TableVersion, micro_batch: MicroBatch) -> ledger.LedgerEntry | None:
    """Return what says that a version has taken in a micro-batch; None if nothing does.

    That is the ledger. After a restore by another program the ledger is as old as what was
    restored; then the transactions since are looked through for the batch's own. Where the ledger
    has nothing of the stream, the names of the transactions' files tell whether there is one.

    Raises:
        InvalidInputError: The number belongs to another query's batch.
    """
    app_id, batch_id = micro_batch.app_id, micro_batch.batch_id
    decision = ledger.decide(table.manifest.config, app_id, batch_id, micro_batch.query_id)
    if isinstance(decision, ledger.TakenIn):
        return decision.entry
    uuid = ledger.derive_uuid(app_id, batch_id)
    after: int | None = decision.search_after
    if decision.entry is None:
        after = _first_tried_on(table, uuid)
    if after is None:
        return None  # a stream that begins
    version = _find_before_restore(table, after, app_id, uuid)
    if version is None:
        return None
    return ledger.LedgerEntry(batch_id, micro_batch.query_id, version)


def properties_of(micro_batch: MicroBatch | None) -> dict[str, str]:
    """Return what the transaction that takes in a micro-batch notes."""
    if micro_batch is None:
        return {}
    noted = {APP_ID: micro_batch.app_id, BATCH_ID: str(micro_batch.batch_id)}
    return {**noted, QUERY_ID: micro_batch.query_id} if micro_batch.query_id else noted


def entries_of(micro_batch: MicroBatch | None) -> ConfigEntries | None:
    """Return what gives the ledger's entry for a version that takes in a micro-batch."""
    if micro_batch is None:
        return None
    return lambda _newest, version: ledger.config_entries(
        micro_batch.app_id,
        ledger.LedgerEntry(micro_batch.batch_id, micro_batch.query_id, version),
    )


def _first_tried_on(table: TableVersion, uuid: str) -> int | None:
    """Return on which version a transaction was planned first; None if there is no file of it."""
    names = map(parse_transaction_file_name, table.store.list_names(TRANSACTIONS_DIRECTORY))
    return min((each[0] for each in names if each and each[1].startswith(uuid)), default=None)


def _find_before_restore(table: TableVersion, after: int, app_id: str, uuid: str) -> int | None:
    """Return the version that a transaction made, if a foreign restore took its entry away.

    Raises:
        InvalidInputError: There was such a restore, and versions before it are gone, so that
            nobody can say whether the batch was taken in.
    """
    restored: int | None = None
    gap: int | None = None
    for version in range(table.version, max(after, table.version - MAX_SEARCHED_VERSIONS), -1):
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
        if _forgets(transaction.operation, app_id):
            break
        # Who made a version does not tell: other programs' restores bring that back, too.
        is_foreign = KEEPS_LEDGER not in transaction.properties
        if is_foreign and isinstance(transaction.operation, Restore):
            restored = restored or version
    if restored is not None and gap is not None:
        raise InvalidInputError(
            f"version {restored} restored an older version, and with it an older ledger; whether "
            f"the batch was taken in before cannot be known, for version {gap} has been cleaned "
            "up. Nothing was written. Look whether the table has the batch's rows; if not, start "
            "the stream with an app id of its own"
        )
    return None


def _forgets(operation: Operation, app_id: str) -> bool:
    """Say whether somebody took the stream's entry out of the config, so that it begins anew."""
    if not isinstance(operation, UpdateConfig):
        return False
    key = ledger.config_key(app_id)
    entries = operation.config.entries if operation.config else ()
    return key in operation.old_delete_keys or (key, None) in entries
