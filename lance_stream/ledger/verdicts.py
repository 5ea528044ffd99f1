"""The verdicts on a micro-batch: one table, by the standing of its batch id and by its rows.

Spark repeats a batch under its batch id. But other rows can arrive under an old batch id, too:
after an older copy of a checkpoint was restored, from a second DataFrame that a program writes to
the table in one batch, or from a second sink with the same app id. So the rows of a batch are
compared with those in the ledger's entry, by their digests. A batch id that no entry covers is new.

An *alias* is the other name under which a sink's batches may be in the ledger: the query's id, for
a sink that got an app id later; or that app id, for a sink from which it was removed. All sinks of
a query get a batch at about the same time, so other rows or rules under an alias usually belong to
another sink of the query.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.table.config.ledger_entries import LedgerEntry


class Verdict(Enum):
    """The verdict of a table's ledger on a micro-batch."""

    NEW = "new"
    """The table does not contain the batch."""
    REPLAY = "replay"
    """The table contains the batch: there is nothing to write."""
    OTHER_ROWS = "other rows"
    """The batch id was committed with other rows."""
    OTHER_RULES = "other rules"
    """The batch id was committed by a sink with other rules."""
    OTHER_QUERY = "other query"
    """The batch id is not newer than the stream's newest batch, which another query committed."""
    UNKNOWN = "unknown"
    """The batch id is old, and there is no record of its rows."""
    ELSEWHERE = "elsewhere"
    """An alias has the batch id, and it is unknown whether it is the same batch."""


class Standing(Enum):
    """The standing of a batch id in a ledger."""

    NEWEST = "the newest batch of the stream"
    EARLIER = "an earlier batch of the stream, whose entry is known"
    FORGOTTEN = "an earlier batch of the stream, whose entry is not known"
    OTHER_QUERY = "no later than the newest batch of the stream, which another query wrote"
    ALIAS_NEWEST = "the newest batch of an alias"
    ALIAS_EARLIER = "an earlier batch of an alias, whose entry is known"
    ALIAS_FORGOTTEN = "an earlier batch of an alias, whose entry is not known"


class Contents(Enum):
    """The comparison of a batch with an entry; the first one that applies."""

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
"""The verdict for every standing of a batch id and every comparison."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where a ledger has a batch id.

    Attributes:
        standing: The standing of the batch id.
        app_id: The stream: that of the batch, or an alias.
        newest: The newest entry of the stream.
        entry: The batch's entry; None if it is unknown.
        since: The known entries from the newest one back to the batch's entry.
    """

    standing: Standing
    app_id: str
    newest: LedgerEntry
    entry: LedgerEntry | None = None
    since: tuple[LedgerEntry, ...] = ()


def precedes(batch: MicroBatch, newest: LedgerEntry) -> bool:
    """Return whether a stream's newest entry covers a batch id."""
    return batch.batch_id <= newest.batch_id


def is_of_other_query(batch: MicroBatch, newest: LedgerEntry) -> bool:
    """Return whether an entry and a batch are of different queries; False if unknown."""
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
    """Compare a batch with the entry of its batch id.

    Args:
        match: The match in the ledger.
        batch: The batch.
        digest: The digest of its rows; None if they have not been read yet.
        may_differ: Whether the query's plan is not deterministic.
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
