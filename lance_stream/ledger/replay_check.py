"""Decides whether a batch with a known batch id is the one that the table has.

The ledger's entry records which rows a batch had, and under which rules they were applied. Compared
with it, an incoming batch has

    the same rows, the same rules        a replay: nothing to do
    the same rows, other rules           another sink, or a sink with changed settings
    other rows                           another DataFrame, or a batch that Spark planned again
    no rows                              nothing to lose
    unknown rows: there is no entry      an error: it may or may not be in the table

Entries record the last few batches. Earlier ones are looked up in older manifests, as far as these
exist. Spark itself replays only the last batch, which the newest entry covers.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lance_stream.commit.commit_groups import Member
from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError, OtherBatchError
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table import ledger_entries
from lance_stream.table.ledger_entries import LedgerEntry

MAX_READ_MANIFESTS: Final = 200
"""How many older manifests are read to find the entry of an older batch."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The micro-batch of a stream that rows belong to.

    Attributes:
        app_id: The stream.
        batch_id: The batch id, from 0.
        query_id: The streaming query's own id; empty if the batch is not from a query.
        rules: A fingerprint of the rules under which rows are applied; empty if unknown.
        digest: The digest of the rows; None if unknown.
        may_differ: Whether computing the batch again may give other rows, because the query's
            plan is not deterministic.
        claimed: Versions with rows of the same batch that other sinks of the query committed.
        quarantined: The digest of its bad rows that were set aside; empty if there are none.
        planned_on: A version that was there before the batch: no earlier one has it; 0 if unknown.
        member: Publishes its version together with those of other tables; None for it alone.
    """

    app_id: str
    batch_id: int
    query_id: str = ""
    rules: str = ""
    digest: RowsDigest | None = None
    may_differ: bool = False
    claimed: frozenset[int] = frozenset()
    quarantined: str = ""
    planned_on: int = 0
    member: Member | None = field(default=None, compare=False, repr=False)


def fingerprint(rules: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that identify rules, given as names and plain values.

    A rule that is None, False or empty counts as absent.
    """
    given = {name: value for name, value in rules.items() if value}
    text = json.dumps(given, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def has_other_rows(entry: LedgerEntry, batch: MicroBatch) -> bool:
    """Return whether a batch's rows differ from an entry's; False if either is unknown."""
    digest = batch.digest
    if digest is None or not entry.digest:
        return False
    return (entry.num_rows, entry.digest) != (digest.num_rows, digest.text)


def has_other_rules(entry: LedgerEntry, batch: MicroBatch) -> bool:
    """Return whether a batch's rules differ from an entry's."""
    return bool(entry.rules and batch.rules and entry.rules != batch.rules)


def settle(table: TableVersion, newest: LedgerEntry, batch: MicroBatch) -> LedgerEntry:
    """Return the entry of a batch whose batch id is not newer than the ledger's newest.

    Args:
        table: The version whose ledger it is.
        newest: The stream's entry in it.
        batch: The batch. If its digest is unknown, its batch id decides.

    Raises:
        OtherBatchError: Its rows or rules differ from those of the committed batch with its
            batch id, or nothing records what that batch was.
    """
    since = _since(table, newest, batch)
    entry = since[-1] if since and since[-1].batch_id == batch.batch_id else None
    digest = batch.digest
    if digest is None or not digest.num_rows:
        return entry or newest
    if entry is None or (not entry.digest and entry.batch_id < newest.batch_id):
        raise _unknown(table, newest, batch)
    if has_other_rules(entry, batch):
        raise _other_rules(table, entry, batch)
    if has_other_rows(entry, batch) and not batch.may_differ:
        raise _other_rows(table, entry, batch, digest, since)
    return entry


def find_under_another_name(table: TableVersion, batch: MicroBatch) -> LedgerEntry | None:
    """Return the entry of a batch that was committed under its query's previous app id.

    That is the query's own id, for a sink that has been given an app id since; or that app id,
    for a sink from which it was removed. Other rows, or other rules, belong to another sink: all
    sinks of a query get a batch at about the same time. If the other app id has later batches, the
    checkpoint is an older copy, and Spark may have planned the batch again.

    Raises:
        InvalidInputError: An entry of an older version of this library has the batch id, but does
            not record which rows it had.
        OtherBatchError: It has other rows, and recomputing the batch may change them, so it is
            unknown whether it is this sink's; or the other app id has later batches, but not
            this one with these rows.
    """
    if not batch.query_id:
        return None
    entries = ledger_entries.read_entries_of_query(table.manifest.config, batch.query_id)
    if batch.app_id != batch.query_id:
        entries = {each: entries[each] for each in [batch.query_id] if each in entries}
    for name, newest in entries.items():
        if newest.batch_id >= batch.batch_id:
            entry = _settle_under(table, name, newest, batch)
            if entry is not None:
                return entry
    return None


def _settle_under(
    table: TableVersion, name: str, newest: LedgerEntry, batch: MicroBatch
) -> LedgerEntry | None:
    """Return the entry of a batch under another app id; None if it is another sink's.

    Args:
        table: The version whose ledger it is.
        name: The other app id.
        newest: Its newest entry, for this batch id or a later one.
        batch: The batch. If its digest is unknown, its batch id decides.

    Raises:
        LanceStreamError: See `find_under_another_name`.
    """
    known = _since(table, newest, batch, name)
    entry = known[-1] if known and known[-1].batch_id == batch.batch_id else None
    if entry is not None and entry.version in batch.claimed:
        return None
    if batch.digest is None:
        return entry or newest
    if not batch.digest.num_rows:
        return None
    if entry is not None and not entry.digest:
        raise InvalidInputError(
            f"batch {batch.batch_id} of the streaming query {batch.query_id} is in "
            f"{table.uri} under app id {name!r}, written by an older version of "
            "lance-stream, which did not record which rows it had. Nothing was written. Start "
            "the query once as it was, until it has continued to the next batch; then give it "
            f"the app id {batch.app_id!r}"
        )
    if has_other_rules(entry or newest, batch):
        return None
    if entry is not None and not has_other_rows(entry, batch):
        return entry
    if newest.batch_id > batch.batch_id:
        raise _older_under(table, entry, newest, batch, name)
    if entry is not None and batch.may_differ:
        raise _nobodys(table, entry, batch, name)
    return None


def _since(
    table: TableVersion, newest: LedgerEntry, batch: MicroBatch, name: str | None = None
) -> list[LedgerEntry]:
    """Return the entries of a batch and those after it, newest first, as far as known."""
    found: list[LedgerEntry] = []
    for entry in _entries(table, newest, name or batch.app_id):
        if entry.batch_id < batch.batch_id:
            break
        found.append(entry)
        if entry.batch_id == batch.batch_id:
            break
    return found


def _entries(table: TableVersion, newest: LedgerEntry, app_id: str) -> Iterator[LedgerEntry]:
    """Yield the known entries of a stream's batches, newest first; reads manifests lazily."""
    entry = newest
    for _ in range(MAX_READ_MANIFESTS):
        yield entry
        yield from entry.recent
        oldest = entry.recent[-1] if entry.recent else entry
        if not oldest.version or oldest.version < 2:
            return
        try:
            config = table.log.read(oldest.version - 1).config
            before = ledger_entries.read_entry(config, app_id)
        except (NotFoundError, BadDataError):
            return
        if before is None or before.batch_id >= oldest.batch_id:
            return
        entry = before


def _other_rows(
    table: TableVersion,
    entry: LedgerEntry,
    batch: MicroBatch,
    digest: RowsDigest,
    since: list[LedgerEntry],
) -> OtherBatchError:
    versions = sorted({each.version for each in since if each.version is not None})
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {table.uri}{_at(entry)} with "
        f"{entry.num_rows} rows of digest {entry.digest}, but {digest.num_rows} rows of digest "
        f"{digest.text} have arrived under the same batch id. Nothing was written. "
        "(1) If the program writes several DataFrames into this table in one batch: give the sink "
        "that failed now its own app_id, leave the others as they are, and restart the query; "
        "rows that are in the table are not written again. (2) If a part of the checkpoint was "
        "lost, or an older copy was restored, so that Spark planned the batch again: restore the "
        "newest checkpoint. Without one, delete the rows that the stream has appended since, by "
        f'open_dataset({table.uri!r}).delete("_row_created_at_version IN '
        f'({", ".join(map(str, versions))})"), which is not needed for upserts and overwrites; '
        f"{_forget(table, batch.app_id)}; and restart the query. (3) If the query may compute "
        "other rows each time: set replays_may_differ=True, and the batch is skipped"
    )


def second_rows(table: TableVersion, entry: LedgerEntry, batch: MicroBatch) -> OtherBatchError:
    """Return the error for a second DataFrame under the same app id, in one run of a query."""
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {table.uri}{_at(entry)}, and in "
        "the same run of the query other rows have arrived under the same batch id: the program "
        "writes several DataFrames into this table in one batch. Nothing was written. Give the "
        "sink that failed now its own app_id, leave the others as they are, and restart the query; "
        "rows that are in the table are not written again. If it is one DataFrame that is written "
        "twice by mistake, and its plan gives other rows each time, write it once"
    )


def _nobodys(
    table: TableVersion, entry: LedgerEntry, batch: MicroBatch, name: str
) -> OtherBatchError:
    return OtherBatchError(
        f"batch {batch.batch_id} of the streaming query {batch.query_id} is in {table.uri}"
        f"{_at(entry)} under app id {name!r}, with other rows than have now arrived under app id "
        f"{batch.app_id!r}. The query's plan does not guarantee the same rows each time, so it is "
        "unknown whether this is the same batch. Nothing was written. (1) If this sink had the "
        f"app id {name!r} before: start the query once as it was, until it has continued to the "
        f"next batch; then change it. (2) If the program writes several DataFrames into this table "
        f"in one batch: let it call the sink with the app id {name!r} first, and restart the "
        "query; rows that are in the table are not written again"
    )


def _other_rules(table: TableVersion, entry: LedgerEntry, batch: MicroBatch) -> OtherBatchError:
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {table.uri}{_at(entry)}, but "
        "under another sink's rules: its mode, on, sequence_by, delete_when or except_columns were "
        "different. Nothing was written. (1) If the program uses several sinks for this table in "
        "one batch: give the one that failed now its own app_id, leave the others as they are, and "
        "restart the query; applied batches are not applied again. (2) If the settings of the sink "
        "were changed: start the query with the old ones until this batch is done"
    )


def _older_under(
    table: TableVersion,
    entry: LedgerEntry | None,
    newest: LedgerEntry,
    batch: MicroBatch,
    name: str,
) -> OtherBatchError:
    what = "what it had is no longer known" if entry is None else "it had other rows"
    return OtherBatchError(
        f"batch {batch.batch_id} of the streaming query {batch.query_id} has arrived under app id "
        f"{batch.app_id!r}, which {table.uri} does not know. Under app id {name!r} it has "
        f"committed this batch of the query, and others up to batch {newest.batch_id}"
        f"{_at(newest)}; {what}, "
        "so its rows may be in the table. Nothing was written. The checkpoint is an older copy, "
        f"and the app id is new. (1) If this sink had the app id {name!r} before"
        f"{', which is that of a sink without app_id' if name == batch.query_id else ''}: start "
        "the query once as it was. It continues, or reports what to do; change the app id "
        "afterwards. (2) If the program writes several DataFrames into this table in one batch: "
        f"let it call the sink with the app id {name!r} first, and restart the query"
    )


def _unknown(table: TableVersion, newest: LedgerEntry, batch: MicroBatch) -> OtherBatchError:
    forget = _forget(table, batch.app_id)
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} has arrived, but {table.uri} has "
        f"already committed batch {newest.batch_id}{_at(newest)}, and the contents of batch "
        f"{batch.batch_id} are no longer known, or were not recorded, so it is unknown whether "
        "these rows are in the table. Nothing was written. After a restart Spark replays the last "
        "batch, but no older one: the checkpoint is an older copy, or a new one. (1) Restore the "
        "newest checkpoint. (2) Without one, if these rows and those that follow are not in the "
        f"table: {forget}; and restart the query. (3) Without one, if some of them are in the "
        f"table and rows have a key: {forget}; and start the query with lance_sink({table.uri!r}, "
        "mode='upsert', on=[the key's columns], skip_unchanged=True) until it has caught up, then "
        "as it was. Existing rows stay as they are, and the others are inserted. (4) Without a "
        f"key: delete what the stream has written, open_dataset({table.uri!r}).delete(a condition; "
        f"'true' for all rows); {forget}; and start the query with a new checkpoint, so that it "
        "reads its source from the beginning"
    )


def _forget(table: TableVersion, app_id: str) -> str:
    """Return a phrase for error messages: how to make a table forget a stream's batches."""
    key = ledger_entries.config_key(app_id)
    return (
        f"make the table forget the stream, open_dataset({table.uri!r}).update_config("
        f"{{{key!r}: None}})"
    )


def _at(entry: LedgerEntry) -> str:
    return "" if entry.version is None else f" since version {entry.version}"
