"""Whether a batch that comes under an old number is the one that the table has.

The ledger's entry says which rows a batch had, and by which rules they were taken in. Held against
it, a batch that comes is

    the same rows, by the same rules     a replay: there is nothing to do
    the same rows, by other rules        another sink, or a sink whose settings were changed
    other rows                           another DataFrame, or a batch that Spark planned anew
    no rows                              nothing to lose
    unknown, for no entry says           an error: it may be in or not

Entries know the last few batches. Those before are looked for in older manifests, as far as they
are there. Spark itself gives only the last batch again, which the newest entry knows.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError, OtherBatchError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table import ledger
from lance_stream.table.ledger import LedgerEntry
from lance_stream.write.row_digests import RowsDigest

MAX_READ_MANIFESTS: Final = 200
"""So many older manifests are read for the entry of an older batch."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which micro-batch of which stream some rows are.

    Attributes:
        app_id: The stream.
        batch_id: The batch's number, from 0.
        query_id: The streaming query's own id; empty if the batch comes from none.
        rules: A fingerprint of the rules by which the rows are taken in; empty if not known.
        digest: The digest of the rows; None if not known.
        may_differ: Whether the rows of a batch that is computed again may be others, because the
            query's plan is not deterministic.
        claimed: Versions that have rows of the same batch which other sinks of the query put in.
    """

    app_id: str
    batch_id: int
    query_id: str = ""
    rules: str = ""
    digest: RowsDigest | None = None
    may_differ: bool = False
    claimed: frozenset[int] = frozenset()


def fingerprint(rules: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that stand for rules, as names and plain values.

    A rule that is None, False or empty is as good as none.
    """
    given = {name: value for name, value in rules.items() if value}
    text = json.dumps(given, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def has_other_rows(entry: LedgerEntry, batch: MicroBatch) -> bool:
    """Say whether a batch has other rows than an entry says; False where one does not say."""
    digest = batch.digest
    if digest is None or not entry.digest:
        return False
    return (entry.num_rows, entry.digest) != (digest.num_rows, digest.text)


def has_other_rules(entry: LedgerEntry, batch: MicroBatch) -> bool:
    """Say whether a batch comes by other rules than an entry says."""
    return bool(entry.rules and batch.rules and entry.rules != batch.rules)


def settle(table: TableVersion, newest: LedgerEntry, batch: MicroBatch) -> LedgerEntry:
    """Return the entry of a batch whose number is not newer than the ledger's newest one.

    Args:
        table: The version whose ledger it is.
        newest: The stream's entry in it.
        batch: The batch. Where its digest is not known its number decides.

    Raises:
        OtherBatchError: It has other rows than the batch of its number that is in, or comes by
            other rules, or nothing says what that batch was.
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
    """Return what says that a batch was taken in under the name that its query had before.

    That is the query's own id, for a sink that has been given an app id since; or that app id,
    for a sink from which it has been taken. Other rows, or other rules, are another sink's: all
    sinks of a query get a batch at about the same time. Where the other name has later batches
    already, the checkpoint is an older copy, and Spark may have planned the batch anew.

    Raises:
        InvalidInputError: An entry of an older version of this library has the batch's number,
            and does not say which rows it had.
        OtherBatchError: It has other rows, and those of a batch that is computed again may differ,
            so that nothing says whether it is this sink's; or the other name has later batches,
            and not this one with these rows.
    """
    if not batch.query_id:
        return None
    entries = ledger.read_entries_of_query(table.manifest.config, batch.query_id)
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
    """Return what says that a batch is in under another name; None if it is another sink's.

    Args:
        table: The version whose ledger it is.
        name: The other name.
        newest: Its newest entry, of this batch's number or a later one.
        batch: The batch. Where its digest is not known its number decides.

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
            "lance-stream, which did not say which rows it had. Nothing was written. Start "
            "the query once as it was, until it has gone on to the next batch; then give it "
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
    """Return the entries of a batch and those after it, newest first, as far as they are known."""
    found: list[LedgerEntry] = []
    for entry in _entries(table, newest, name or batch.app_id):
        if entry.batch_id < batch.batch_id:
            break
        found.append(entry)
        if entry.batch_id == batch.batch_id:
            break
    return found


def _entries(table: TableVersion, newest: LedgerEntry, app_id: str) -> Iterator[LedgerEntry]:
    """Yield what is known of a stream's batches, newest first; reads manifests as it goes on."""
    entry = newest
    for _ in range(MAX_READ_MANIFESTS):
        yield entry
        yield from entry.recent
        oldest = entry.recent[-1] if entry.recent else entry
        if not oldest.version or oldest.version < 2:
            return
        try:
            config = table.log.read(oldest.version - 1).config
            before = ledger.read_entry(config, app_id)
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
        f"{digest.text} have come under the same number. Nothing was written. "
        "(1) If the program writes several DataFrames into this table in one batch: give the sink "
        "that failed now an app_id of its own, leave the others as they are, and start the query "
        "again; rows that are in are not written again. (2) If a part of the checkpoint was "
        "lost, or an older copy was put back, so that Spark planned the batch anew: put the newest "
        "checkpoint back. Without one, take out the rows that the stream has appended since, by "
        f'open_dataset({table.uri!r}).delete("_row_created_at_version IN '
        f'({", ".join(map(str, versions))})"), which is not needed for upserts and overwrites; '
        f"{_forget(table, batch.app_id)}; and start the query again. (3) If the query may compute "
        "other rows each time: set replays_may_differ=True, and the batch is skipped"
    )


def second_rows(table: TableVersion, entry: LedgerEntry, batch: MicroBatch) -> OtherBatchError:
    """Return the error of a second DataFrame by the same name, in one run of a query."""
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {table.uri}{_at(entry)}, and in "
        "the same run of the query other rows have come under the same number: the program writes "
        "several DataFrames into this table in one batch. Nothing was written. Give the sink that "
        "failed now an app_id of its own, leave the others as they are, and start the query "
        "again; rows that are in are not written again. If it is one DataFrame that is written "
        "twice by mistake, and its plan gives other rows each time, write it once"
    )


def _nobodys(
    table: TableVersion, entry: LedgerEntry, batch: MicroBatch, name: str
) -> OtherBatchError:
    return OtherBatchError(
        f"batch {batch.batch_id} of the streaming query {batch.query_id} is in {table.uri}"
        f"{_at(entry)} under app id {name!r}, with other rows than have come now under app id "
        f"{batch.app_id!r}. The query's plan does not promise the same rows each time, so nobody "
        "can say whether this is the same batch. Nothing was written. (1) If this sink had the "
        f"app id {name!r} before: start the query once as it was, until it has gone on to the next "
        f"batch; then change it. (2) If the program writes several DataFrames into this table in "
        f"one batch: let it call the sink with the app id {name!r} first, and start the query "
        "again; rows that are in are not written again"
    )


def _other_rules(table: TableVersion, entry: LedgerEntry, batch: MicroBatch) -> OtherBatchError:
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {table.uri}{_at(entry)}, but "
        "by another sink's rules: its mode, on, sequence_by, delete_when or except_columns were "
        "others. Nothing was written. (1) If the program uses several sinks for this table in one "
        "batch: give the one that failed now an app_id of its own, leave the others as they are, "
        "and start the query again; what is in is not done again. (2) If the settings of the "
        "sink were changed: start the query with the old ones until this batch is done"
    )


def _older_under(
    table: TableVersion,
    entry: LedgerEntry | None,
    newest: LedgerEntry,
    batch: MicroBatch,
    name: str,
) -> OtherBatchError:
    what = "what it was is no longer known" if entry is None else "it had other rows"
    return OtherBatchError(
        f"batch {batch.batch_id} of the streaming query {batch.query_id} has come under app id "
        f"{batch.app_id!r}, which {table.uri} does not know. Under app id {name!r} it has taken in "
        f"this batch of the query, and others up to batch {newest.batch_id}{_at(newest)}; {what}, "
        "so rows may be in. Nothing was written. The checkpoint is an older copy, and the app id "
        f"is new. (1) If this sink had the app id {name!r} before"
        f"{', which is that of a sink without app_id' if name == batch.query_id else ''}: start "
        "the query once as it was. It goes on, or says what to do; change the app id afterwards. "
        "(2) If the program writes several DataFrames into this table in one batch: let it call "
        f"the sink with the app id {name!r} first, and start the query again"
    )


def _unknown(table: TableVersion, newest: LedgerEntry, batch: MicroBatch) -> OtherBatchError:
    forget = _forget(table, batch.app_id)
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} has come, but {table.uri} has taken in "
        f"batch {newest.batch_id}{_at(newest)}, and what batch {batch.batch_id} was is no longer "
        "known, or was not noted, so nobody can say whether these rows are in. Nothing was "
        "written. After a restart Spark gives the last batch again, but no older one: the "
        "checkpoint is an older copy, or a new one. (1) Put the newest checkpoint back. (2) "
        f"Without one, if these rows and those that follow are not in the table: {forget}; and "
        "start the query again. (3) Without one, if some of them are in and rows have a key: "
        f"{forget}; and start the query with lance_sink({table.uri!r}, mode='upsert', on=[the "
        "key's columns], skip_unchanged=True) until it has caught up, then as it was. Rows that "
        "are in stay as they are, and the others are inserted. (4) Without a key: delete what "
        f"the stream has put in, open_dataset({table.uri!r}).delete(a condition; 'true' for all "
        f"rows); {forget}; and start the query with a new checkpoint, so that it reads its source "
        "from the beginning"
    )


def _forget(table: TableVersion, app_id: str) -> str:
    """Return what lets a table forget a stream's batches, for a sentence of a way out."""
    key = ledger.config_key(app_id)
    return (
        f"let the table forget the stream, open_dataset({table.uri!r}).update_config("
        f"{{{key!r}: None}})"
    )


def _at(entry: LedgerEntry) -> str:
    return "" if entry.version is None else f" since version {entry.version}"
