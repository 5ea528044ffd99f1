"""The verdict on a micro-batch: one table, by where its batch id is and by its rows.

Spark repeats a batch under its batch id. Other rows can arrive under an old batch id, too: from an
older copy of a checkpoint, from a second DataFrame that a program writes into the table in one
batch, from a second sink under the same app id. So the rows of a batch are compared with what the
ledger's entry recorded of them. A batch id that no entry covers is new.

An *alias* is the other name under which a sink's batches may be in the ledger: the query's own id,
for a sink that was given an app id later; or that app id, for a sink from which it was removed. All
sinks of a query get a batch at about the same time, so other rows or rules under an alias usually
belong to another sink of the query.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.table.config.ledger_entries import LedgerEntry


class Verdict(Enum):
    """What a table's ledger says about a micro-batch."""

    NEW = "new"
    """The table does not contain it."""
    REPLAY = "replay"
    """The table contains it: there is nothing to write."""
    OTHER_ROWS = "other rows"
    """Its batch id was committed with other rows."""
    OTHER_RULES = "other rules"
    """Its batch id was committed by a sink with other rules."""
    OTHER_QUERY = "other query"
    """Its batch id is not newer than the stream's, which another query wrote."""
    UNKNOWN = "unknown"
    """Its batch id is old, and nothing records the rows of that batch."""
    ELSEWHERE = "elsewhere"
    """An alias has its batch id, and whether that is the same batch is unknown."""


class Standing(Enum):
    """Where a ledger has a batch id."""

    NEWEST = "the newest batch of the stream"
    EARLIER = "an earlier batch of the stream, whose entry is known"
    FORGOTTEN = "an earlier batch of the stream, whose entry is not known"
    OTHER_QUERY = "no later than the newest batch of the stream, which another query wrote"
    ALIAS_NEWEST = "the newest batch of an alias"
    ALIAS_EARLIER = "an earlier batch of an alias, whose entry is known"
    ALIAS_FORGOTTEN = "an earlier batch of an alias, whose entry is not known"


class Contents(Enum):
    """How the rows of a batch compare with an entry; the first that applies."""

    UNREAD = "the digest of its rows is not known yet"
    EMPTY = "it has no rows"
    OTHER_RULES = "its rules differ from the recorded ones"
    UNRECORDED = "the digest of the committed rows is not recorded"
    SAME = "its rows are the committed ones"
    DIFFERENT = "its rows differ from the committed ones"
    RECOMPUTED = "its rows differ, and its plan may give other rows each time"


def _table() -> Mapping[Standing, Mapping[Contents, Verdict]]:
    new, replay, rows, rules = Verdict.NEW, Verdict.REPLAY, Verdict.OTHER_ROWS, Verdict.OTHER_RULES
    query, unknown, other = Verdict.OTHER_QUERY, Verdict.UNKNOWN, Verdict.ELSEWHERE
    lines: dict[Standing, tuple[Verdict, ...]] = {
        # standing ↓   contents →  unread  empty   rules   unrecorded  same   different  recomputed
        Standing.NEWEST:          (replay, replay, rules,   replay,  replay,  rows,      replay),
        Standing.EARLIER:         (replay, replay, rules,   unknown, replay,  rows,      replay),
        Standing.FORGOTTEN:       (replay, replay, unknown, unknown, unknown, unknown,   unknown),
        Standing.OTHER_QUERY:     (query,  query,  query,   query,   query,   query,     query),
        Standing.ALIAS_NEWEST:    (replay, new,    new,     other,   replay,  new,       other),
        Standing.ALIAS_EARLIER:   (replay, new,    new,     other,   replay,  other,     other),
        Standing.ALIAS_FORGOTTEN: (replay, new,    new,     other,   other,   other,     other),
    }  # fmt: skip
    return {key: dict(zip(Contents, line, strict=True)) for key, line in lines.items()}


VERDICTS: Final = _table()
"""The verdict for each standing of a batch id and each comparison of the rows."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where a ledger has a batch id.

    Attributes:
        standing: Where.
        app_id: The stream: the batch's own, or an alias.
        newest: The newest entry of the stream.
        entry: The batch's own entry; None if it is not known.
        since: The entries from the newest one back to the batch's own, as far as known.
    """

    standing: Standing
    app_id: str
    newest: LedgerEntry
    entry: LedgerEntry | None = None
    since: tuple[LedgerEntry, ...] = ()


def precedes(batch: MicroBatch, newest: LedgerEntry | None) -> bool:
    """Return whether a stream's newest entry covers a batch id."""
    return newest is not None and batch.batch_id <= newest.batch_id


def is_of_other_query(batch: MicroBatch, newest: LedgerEntry) -> bool:
    """Return whether an entry was written by another query than the batch's; False if unknown."""
    return bool(batch.query_id and newest.query_id and batch.query_id != newest.query_id)


def has_other_rules(entry: LedgerEntry, batch: MicroBatch) -> bool:
    """Return whether a batch's rules differ from an entry's; False if either is unknown."""
    return bool(entry.rules and batch.rules and entry.rules != batch.rules)


def has_other_rows(entry: LedgerEntry, digest: RowsDigest | None) -> bool:
    """Return whether rows differ from an entry's; False if either is unknown."""
    if digest is None or not entry.digest:
        return False
    return (entry.num_rows, entry.digest) != (digest.num_rows, digest.text)


def compare(
    match: Match, batch: MicroBatch, digest: RowsDigest | None, *, may_differ: bool = False
) -> Contents:
    """Return how a batch compares with the entry that has its batch id.

    Args:
        match: Where a ledger has the batch id.
        batch: The batch.
        digest: The digest of its rows; None if they have not been computed.
        may_differ: Whether the query's plan may give other rows each time.
    """
    entry = match.entry
    if digest is None:
        return Contents.UNREAD
    if not digest.num_rows:
        return Contents.EMPTY
    if has_other_rules(entry or match.newest, batch):
        return Contents.OTHER_RULES
    if entry is None or not entry.digest:
        return Contents.UNRECORDED
    if not has_other_rows(entry, digest):
        return Contents.SAME
    return Contents.RECOMPUTED if may_differ else Contents.DIFFERENT
