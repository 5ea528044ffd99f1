"""Micro-batches: which batch of which stream rows belong to, and whether a table has it.

A batch is looked up in the table's ledger before anything is written, and again on every commit
attempt; the ledger's new entry is part of the same version as the rows. So a batch is in the table
exactly once or not at all. This needs only the newest manifest.

One thing is not in the newest manifest: that a restore by another program removed a batch, with its
rows and its entry. A removed batch is not applied again when Spark replays it, just as if its batch
id were in the ledger. So the versions since the ledger's entry are searched for such a restore,
within bounds:

    since the entry, or the last search       searched
    ------------------------------------      ----------------------------------------------------
    up to `LOOKED_AT` versions                those versions
    more, or there is no entry                one listing shows whether a transaction of this batch
                                              was ever written; if not, nothing
    more, and there was one                   the versions since that one was planned, but at most
                                                the last `MAX_SEARCHED_VERSIONS`

This process remembers what it searched, so that the next attempt, and the next batch, search only
later versions.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Final

from lance_stream.caches import Cache
from lance_stream.commit.committer import ConfigEntries
from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError
from lance_stream.ledger.replay_check import MicroBatch, find_under_another_name, settle
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table import ledger_entries
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations import Operation, Restore, UpdateConfig
from lance_stream.table.paths import TRANSACTIONS_DIRECTORY, parse_transaction_file_name
from lance_stream.table.version_marks import mark_of

__all__ = ["MicroBatch", "entries_of", "find_committed", "properties_of"]

APP_ID: Final = "lance_stream.app_id"
BATCH_ID: Final = "lance_stream.batch_id"
QUERY_ID: Final = "lance_stream.query_id"
"""Properties of the transaction that commits a micro-batch."""

KEEPS_LEDGER: Final = "lance_stream.keeps_ledger"
"""Property of a restore's transaction that left the ledger as it was."""

LOOKED_AT: Final = 8
"""How many versions are searched without first checking that the batch was ever tried."""

MAX_SEARCHED_VERSIONS: Final = 1000
"""How many versions at most are searched for a foreign restore."""

MAX_STREAMS: Final = 256
"""For how many streams the search progress is remembered."""


def find_committed(
    table: TableVersion, micro_batch: MicroBatch
) -> ledger_entries.LedgerEntry | None:
    """Return the entry of the version that committed a micro-batch; None if there is none.

    It comes from the ledger. After a restore by another program the ledger is as old as the
    restored version; then the later transactions are searched for the batch's own. If the ledger
    has no entry of the stream, the names of transaction files tell whether there is one.

    If the batch's digest is unknown, its batch id decides; the entry may then be for other rows
    (see `replay_check`).

    Raises:
        InvalidInputError: The batch id belongs to another query's batch, or to other rows.
    """
    app_id, batch_id = micro_batch.app_id, micro_batch.batch_id
    decision = ledger_entries.decide(table.manifest.config, app_id, batch_id, micro_batch.query_id)
    if isinstance(decision, ledger_entries.AlreadyCommitted):
        return settle(table, decision.entry, micro_batch)
    if decision.entry is None:
        found = find_under_another_name(table, micro_batch)
        if found is not None:
            return found
    uuid = ledger_entries.derive_uuid(app_id, batch_id)
    searched = _SEARCHED.through(table, micro_batch)
    after = max(decision.search_after, searched or 0, micro_batch.planned_on)
    is_unknown = decision.entry is None and searched is None and not micro_batch.planned_on
    if is_unknown or table.version - after > LOOKED_AT:
        tried_on = _first_tried_on(table, uuid)
        after = table.version if tried_on is None else max(after, tried_on)
    version = _find_before_restore(table, after, app_id, uuid)
    if version is None:
        _SEARCHED.note(table, micro_batch)
        return None
    return settle(table, _entry_at(table, version, micro_batch), micro_batch)


def check_may_create(uri: str, micro_batch: MicroBatch, *, late_start: bool) -> None:
    """Raise if a batch of a streaming query would create a table without the batches before it.

    The first batch of a query creates its table, even without rows. So if there is no table at a
    later batch, it was deleted, or moved, or the query wrote elsewhere before. Batch ids that are
    not Spark's, without a query id, may begin anywhere.

    Args:
        uri: Where there is no table.
        micro_batch: The batch.
        late_start: Whether the user allows a later batch to create the table.

    Raises:
        NotFoundError: It would.
    """
    if late_start or not micro_batch.query_id or not micro_batch.batch_id:
        return
    raise NotFoundError(
        f"there is no table at {uri} for batch {micro_batch.batch_id} of the stream "
        f"{micro_batch.app_id}, although the first batch of a stream creates the table. A new one "
        "would lack the rows of all earlier batches, so nothing was written. If the table was "
        "moved or deleted, put it back; to read the source again, start the query with a new "
        "checkpoint; if the table is to begin with this batch, set "
        "create_options={'late_start': True}, or the format's option lateStart=true"
    )


def _entry_at(
    table: TableVersion, version: int, micro_batch: MicroBatch
) -> ledger_entries.LedgerEntry:
    """Return the entry of a batch that a version committed; without its rows if it is gone."""
    with suppress(NotFoundError, BadDataError):
        entry = ledger_entries.read_entry(table.log.read(version).config, micro_batch.app_id)
        if entry is not None and entry.batch_id == micro_batch.batch_id:
            return entry
    return ledger_entries.LedgerEntry(micro_batch.batch_id, micro_batch.query_id, version)


def properties_of(micro_batch: MicroBatch | None) -> dict[str, str]:
    """Return the properties of the transaction that commits a micro-batch."""
    if micro_batch is None:
        return {}
    noted = {APP_ID: micro_batch.app_id, BATCH_ID: str(micro_batch.batch_id)}
    return {**noted, QUERY_ID: micro_batch.query_id} if micro_batch.query_id else noted


def entries_of(micro_batch: MicroBatch | None) -> ConfigEntries | None:
    """Return the function that gives the ledger's entry for a version that commits a micro-batch.

    Entries of long inactive streams are shortened at the same time.
    """
    if micro_batch is None:
        return None
    digest = micro_batch.digest
    entry = ledger_entries.LedgerEntry(
        micro_batch.batch_id,
        micro_batch.query_id,
        num_rows=None if digest is None else digest.num_rows,
        digest="" if digest is None else digest.text,
        rules=micro_batch.rules,
        quarantined=micro_batch.quarantined,
    )

    def entries(newest: Manifest | None, version: int) -> dict[str, str]:
        last = (
            None if newest is None else ledger_entries.read_entry(newest.config, micro_batch.app_id)
        )
        is_new_stream = last is None or last.batch_id >= entry.batch_id
        before = None if is_new_stream else last
        recent = () if before is None else before.before()
        named = None if before is None else before.newest_quarantined
        silent = {} if newest is None else ledger_entries.silent_entries(newest.config, version)
        own = replace(entry, version=version, recent=recent, last_quarantined=named)
        return silent | ledger_entries.config_entries(micro_batch.app_id, own)

    return entries


class _Searched:
    """Through which version this process has searched a table for the batches of a stream."""

    def __init__(self) -> None:
        self._known: Cache[tuple[str, str], tuple[int, int, str]] = Cache(MAX_STREAMS)

    def through(self, table: TableVersion, micro_batch: MicroBatch) -> int | None:
        """Return through which version nothing was found; None if unknown.

        A search for one batch also covers later batches, which cannot have been committed earlier.
        """
        known = self._known.get((table.store.uri, micro_batch.app_id))
        if known is None:
            return None
        version, batch_id, mark = known
        is_same = version < table.version or (version, mark) == (
            table.version,
            mark_of(table.manifest),
        )
        return version if is_same and batch_id <= micro_batch.batch_id else None

    def note(self, table: TableVersion, micro_batch: MicroBatch) -> None:
        """Record that nothing was found through a version."""
        key = table.store.uri, micro_batch.app_id
        self._known.put(key, (table.version, micro_batch.batch_id, mark_of(table.manifest)))


_SEARCHED: Final = _Searched()


def _first_tried_on(table: TableVersion, uuid: str) -> int | None:
    """Return the version that a transaction was first planned on; None if it has no file."""
    names = map(parse_transaction_file_name, table.store.list_names(TRANSACTIONS_DIRECTORY))
    return min((name[0] for name in names if name and name[1].startswith(uuid)), default=None)


def _find_before_restore(table: TableVersion, after: int, app_id: str, uuid: str) -> int | None:
    """Return the version that a transaction committed, if a foreign restore removed its entry.

    Raises:
        InvalidInputError: There was such a restore, and versions before it are gone, so it is
            unknown whether the batch was committed.
    """
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
        if _forgets(transaction.operation, app_id):
            break
        # A version's author proves nothing: other programs' restores bring that back, too.
        is_foreign = KEEPS_LEDGER not in transaction.properties
        if is_foreign and isinstance(transaction.operation, Restore):
            restored = restored or version
    if restored is not None and gap is not None:
        raise InvalidInputError(
            f"version {restored} restored an older version, and with it an older ledger; whether "
            f"the batch was committed before is unknown, because version {gap} has been cleaned "
            "up, or is too far back. Nothing was written. Check whether the table has the batch's "
            "rows; if not, start the stream with its own app id"
        )
    return None


def _forgets(operation: Operation, app_id: str) -> bool:
    """Return whether the stream's entry was removed from the config, so that it starts over."""
    if not isinstance(operation, UpdateConfig):
        return False
    key = ledger_entries.config_key(app_id)
    entries = operation.config.entries if operation.config else ()
    return key in operation.old_delete_keys or (key, None) in entries
