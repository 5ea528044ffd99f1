"""All errors about micro-batches: the problem, the cause, and the remedy.

An error never suggests a new app id for a stream whose batch ids go back: with a new app id, the
rows would be written again. The remedy is to make the table forget the stream.
"""

import shlex
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from lance_stream.errors import (
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    OtherBatchError,
)
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.ledger.verdicts import Match, Standing, Verdict
from lance_stream.table.config.ledger_entries import LedgerEntry


def refusal(
    verdict: Verdict, match: Match, batch: MicroBatch, digest: RowsDigest | None, uri: str
) -> LanceStreamError:
    """Return the error for a batch that is neither new nor a replay.

    Args:
        verdict: The verdict on the batch.
        match: The match in the ledger.
        batch: The batch.
        digest: The digest of its rows.
        uri: The table's location.
    """
    return REFUSALS[verdict](_Case(match, batch, digest, uri))


class _Case(NamedTuple):
    match: Match
    batch: MicroBatch
    digest: RowsDigest | None
    uri: str


def _other_rows(case: _Case) -> LanceStreamError:
    match, batch, digest, uri = case
    entry = match.entry or match.newest
    rows = "other rows" if digest is None else f"{digest.num_rows} rows of digest {digest.text}"
    versions = sorted({later.version for later in match.since if later.version is not None})
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {uri}{_since(entry)} with "
        f"{entry.num_rows} rows of digest {entry.digest}, but {rows} have arrived under the same "
        f"batch id. Nothing was written. {_remedy_of_writes(batch)}"
        "(1) If the program writes several DataFrames into this table in one batch: give the sink "
        "that failed now its own app_id, leave the others as they are, and restart the query; "
        "rows that are in the table are not written again. (2) If a part of the checkpoint was "
        "lost, or an older copy was restored, so that Spark planned the batch again: restore the "
        "newest checkpoint. Without one, delete the rows that the stream has appended since, by "
        f'open_dataset({uri!r}).delete("_row_created_at_version IN '
        f'({", ".join(map(str, versions))})"), which is not needed for upserts and overwrites; '
        f"{_forget(uri, batch.app_id)}; and restart the query. (3) If the query was changed after "
        "it had committed this batch, so that it returns other rows: start it once as it was, "
        "until it has continued to the next batch. (4) If that is impossible, or its plan is not "
        "deterministic: set replays_may_differ=True, and the batch is skipped"
    )


def second_rows(uri: str, entry: LedgerEntry, batch: MicroBatch) -> OtherBatchError:
    """Return the error for a second DataFrame with the same app id in one run of a query."""
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {uri}{_since(entry)}, and in the "
        "same run of the query other rows have arrived under the same batch id: the program "
        "writes several DataFrames into this table in one batch. Nothing was written. Give the "
        "sink that failed now its own app_id, leave the others as they are, and restart the "
        "query; rows that are in the table are not written again. If it is one DataFrame that is "
        "written twice by mistake, and its plan is not deterministic, write it once"
    )


def _other_rules(case: _Case) -> LanceStreamError:
    batch, uri = case.batch, case.uri
    entry = case.match.entry or case.match.newest
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} is in {uri}{_since(entry)}, but "
        "under another sink's rules: its mode, on, sequence_by, delete_when or except_columns were "
        f"different. Nothing was written. {_remedy_of_writes(batch)}"
        "(1) If the program uses several sinks for this table in one batch: give the one that "
        "failed now its own app_id, leave the others as they are, and restart the query; "
        "batches that were applied are not applied again. (2) If the settings of the sink were "
        "changed: start the query with the old ones until this batch is done"
    )


def _other_query(case: _Case) -> LanceStreamError:
    return other_query(case.batch, case.match.newest, case.uri)


def other_query(batch: MicroBatch, newest: LedgerEntry, uri: str) -> InvalidInputError:
    """Return the error for a batch id of a stream whose newest batch came from another query."""
    version = "" if newest.version is None else f" in version {newest.version}"
    return InvalidInputError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} comes from the streaming query "
        f"{batch.query_id}, but the table already has batch {newest.batch_id} of this app id from "
        f"the query {newest.query_id}{version}. Either the checkpoint was deleted or replaced, so "
        "that batch ids started over at 0, or two queries use the same app id. Nothing was "
        "written. Continue from the old checkpoint; or, if the rows that this query reads are not "
        f"in the table yet, give it its own app id; or {_forget(uri, batch.app_id)}"
    )


def _unknown(case: _Case) -> LanceStreamError:
    batch, newest, uri = case.batch, case.match.newest, case.uri
    forget = _forget(uri, batch.app_id)
    return OtherBatchError(
        f"batch {batch.batch_id} of app id {batch.app_id!r} has arrived, but {uri} has "
        f"already committed batch {newest.batch_id}{_since(newest)}, and the contents of batch "
        f"{batch.batch_id} are no longer known, or were not recorded, so it is unknown whether "
        f"these rows are in the table. Nothing was written. {_remedy_of_writes(batch)}"
        "After a restart Spark replays the last batch, but no older one: the checkpoint is an "
        "older copy, or a new one. (1) Restore the "
        "newest checkpoint. (2) Without one, if these rows and those that follow are not in the "
        f"table: {forget}; and restart the query. (3) Without one, if some of them are in the "
        f"table and rows have a key: {forget}; and start the query with lance_sink({uri!r}, "
        "mode='upsert', on=[the key's columns], skip_unchanged=True) until it has caught up, then "
        "as it was. Existing rows stay as they are, and the others are inserted. (4) Without a "
        f"key: delete what the stream has written, open_dataset({uri!r}).delete(a condition; "
        f"'true' for all rows); {forget}; and start the query with a new checkpoint, so that it "
        "reads its source from the beginning"
    )


def _elsewhere(case: _Case) -> LanceStreamError:
    """Return the error for a batch id of an alias, which may be the same batch."""
    match, batch, _, uri = case
    entry = match.entry
    if entry is not None and not entry.digest:
        return _unrecorded_elsewhere(match, batch, uri)
    if entry is not None and match.standing is Standing.ALIAS_NEWEST:
        return _recomputed_elsewhere(match, entry, batch, uri)
    return _older_elsewhere(match, batch, uri)


def _unrecorded_elsewhere(match: Match, batch: MicroBatch, uri: str) -> InvalidInputError:
    return InvalidInputError(
        f"batch {batch.batch_id} of the streaming query {batch.query_id} is in {uri} under app id "
        f"{match.app_id!r}, written by an older version of lance-stream, which did not record its "
        "rows. Nothing was written. Start the query once as it was, until it has continued to the "
        f"next batch; then give it the app id {batch.app_id!r}"
    )


def _recomputed_elsewhere(
    match: Match, entry: LedgerEntry, batch: MicroBatch, uri: str
) -> OtherBatchError:
    return OtherBatchError(
        f"batch {batch.batch_id} of the streaming query {batch.query_id} is in "
        f"{uri}{_since(entry)} under app id {match.app_id!r}, with other rows than have now "
        f"arrived under app id {batch.app_id!r}. The query's plan is not deterministic, so it is "
        "unknown whether this is the same batch. Nothing was written. (1) If this sink had the "
        f"app id {match.app_id!r} before: start the query once as it was, until it has continued "
        "to the next batch; then change it. (2) If the program writes several DataFrames into "
        f"this table in one batch: let it call the sink with the app id {match.app_id!r} first, "
        "and restart the query; rows that are in the table are not written again"
    )


def _older_elsewhere(match: Match, batch: MicroBatch, uri: str) -> OtherBatchError:
    rows = "its rows are no longer known" if match.entry is None else "it had other rows"
    default = ", which is that of a sink without app_id" if match.app_id == batch.query_id else ""
    return OtherBatchError(
        f"batch {batch.batch_id} of the streaming query {batch.query_id} has arrived under app id "
        f"{batch.app_id!r}, which {uri} does not know. Under app id {match.app_id!r} the table has "
        f"this batch of the query, and later ones up to batch {match.newest.batch_id}"
        f"{_since(match.newest)}; {rows}, so the rows that arrived may be in the table. Nothing "
        "was written. The checkpoint is an older copy, and the app id is new. (1) If this sink had "
        f"the app id {match.app_id!r} before{default}: start the query once as it was. It "
        "continues, or reports what to do; change the app id afterwards. (2) If the program writes "
        "several DataFrames into this table in one batch: let it call the sink with the app id "
        f"{match.app_id!r} first, and restart the query"
    )


_Refusal: TypeAlias = Callable[[_Case], LanceStreamError]

REFUSALS: Final[Mapping[Verdict, _Refusal]] = MappingProxyType(
    {
        Verdict.OTHER_ROWS: _other_rows,
        Verdict.OTHER_RULES: _other_rules,
        Verdict.OTHER_QUERY: _other_query,
        Verdict.UNKNOWN: _unknown,
        Verdict.ELSEWHERE: _elsewhere,
    }
)
"""The error for every verdict except "new" and "replay"."""


def lost_history(uri: str, restored: int, gap: int) -> InvalidInputError:
    """Return the error for a restore by another program that may have removed a batch.

    Args:
        uri: The table's location.
        restored: The version that the restore created.
        gap: An earlier version that cannot be read.
    """
    return InvalidInputError(
        f"version {restored} of {uri} restored an older version, and with it an older ledger. "
        f"Whether the batch was committed before is unknown, because version {gap} has been "
        "cleaned up, or is too far back. Nothing was written. Check whether the table has the "
        "batch's rows; if not, start the stream with a new app id"
    )


def missing_table(uri: str, batch: MicroBatch) -> NotFoundError:
    """Return the error for a later batch of a query whose table does not exist."""
    return NotFoundError(
        f"there is no table at {uri} for batch {batch.batch_id} of the stream {batch.app_id}, "
        "although the first batch of a stream creates the table. A new one would lack the rows of "
        "all earlier batches, so nothing was written. If the table was moved or deleted, put it "
        "back; to read the source again, start the query with a new checkpoint; if the table is to "
        "begin with this batch, set create_options={'late_start': True}, or the format's option "
        "lateStart=true"
    )


def lost_table(uri: str, batch: MicroBatch, last_batch_id: int, version: int) -> NotFoundError:
    """Return the error for a table that has lost a version to which this process wrote.

    Args:
        uri: The table's location.
        batch: The batch.
        last_batch_id: The stream's last batch in the table.
        version: The version that committed it.
    """
    return NotFoundError(
        f"the table {uri} no longer exists, or was replaced by an older copy or another table: "
        f"batch {last_batch_id} of this stream was committed as its version {version}. The table "
        f"would lack the rows of that batch and of earlier ones, so batch {batch.batch_id} was not "
        "written. Restore the table, or start the query with a new checkpoint to read its source "
        "again"
    )


def forgotten_since(uri: str, batch: MicroBatch) -> InvalidInputError:
    """Return the error for an entry that was removed after a write was planned."""
    return InvalidInputError(
        f"the ledger of {uri} had batch {batch.batch_id} of app id {batch.app_id!r} when the write "
        "was planned, and no longer has it. Nothing was written; write it again"
    )


def unknown_stream(app_id_setting: str) -> InvalidInputError:
    """Return the error for a batch without an app id, from a query whose id is unknown.

    Args:
        app_id_setting: How the user sets an app id.
    """
    return InvalidInputError(
        "the stream that this batch belongs to is unknown: Spark did not report the id of a "
        "streaming query. It does so in the thread that runs foreachBatch, but not with Spark "
        "Connect, in other threads, or outside of a streaming query. Set an app id: "
        f"{app_id_setting}"
    )


def _forget(uri: str, app_id: str) -> str:
    """Return the phrase that tells how to make a table forget a stream."""
    return (
        "make the table forget the stream (lance-stream streams forget "
        f"{shlex.quote(uri)} {shlex.quote(app_id)})"
    )


def _remedy_of_writes(batch: MicroBatch) -> str:
    """Return the remedy for `txnAppId` and `txnVersion`, if the batch may be of no stream."""
    if batch.query_id:
        return ""
    return (
        "If this is not a stream but a write with txnVersion: set a larger one for new rows; a "
        "write that is repeated has to have the same rows and options. "
    )


def _since(entry: LedgerEntry) -> str:
    return "" if entry.version is None else f" since version {entry.version}"
