"""Checks a micro-batch that is being written against the ledger, once per version.

The sink checks before anything is written, and every attempt of the commit checks again the version
on which it is based. If it is the same version, nothing is looked up again; if it is a later one,
only what has changed. The ledger's new entry is part of the same version as the rows, so a batch is
committed at most once.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from lance_stream.ledger.lookup import Lookup
from lance_stream.ledger.messages import missing_table, refusal
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.ledger.verdicts import VERDICTS, Contents, Match, Verdict, compare
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import (
    LedgerEntry,
    config_entries,
    read_entry,
    silent_entries,
)
from lance_stream.table.manifest import Manifest


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """The result of a check of a batch.

    Attributes:
        verdict: The verdict.
        match: The match of the batch id; None for a new batch.
        rows_differ: Whether an entry with the batch id has other rows: the verdict may depend on
            whether the query's plan is deterministic.
    """

    verdict: Verdict
    match: Match | None = None
    rows_differ: bool = False


@dataclass
class PendingBatch:
    """A micro-batch that is being written, with the digest of its rows.

    Attributes:
        batch: The identity of the batch.
        digest: The digest of its rows; None if they have not been read yet.
        quarantined: The name of the file with its bad rows; empty if there are none.
        may_differ: Whether the batch may have other rows when it is computed again, because the
            query's plan is not deterministic.
        claimed: Versions with rows of the same batch that other sinks of the query committed.
        absent_through: No version through this one has the batch; 0 if unknown.
    """

    batch: MicroBatch
    digest: RowsDigest | None = None
    quarantined: str = ""
    may_differ: bool = False
    claimed: frozenset[int] = frozenset()
    absent_through: int = 0
    _lookup: Lookup | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, app_id: str, batch_id: int, query_id: str = "", rules: str = "", **others: Any
    ) -> "PendingBatch":
        """Create a pending batch from its identity and other attributes."""
        return cls(MicroBatch(app_id, batch_id, query_id, rules), **others)

    def with_rows(self, digest: RowsDigest, quarantined: str = "") -> "PendingBatch":
        """Return the batch with the digest of its rows, and the file of those in quarantine."""
        return replace(self, digest=digest, quarantined=quarantined)

    def find_in(self, table: TableVersion) -> LedgerEntry | None:
        """Return the entry of the batch in the ledger of a version; None if the batch is new.

        If the digest of its rows is unknown, only batch ids are compared.

        Raises:
            OtherBatchError: The batch id was committed with other rows or rules, or the committed
                rows are unknown.
            InvalidInputError: The batch id belongs to another query's batch; or an older version
                of this library wrote it, and did not record its rows.
        """
        answer = self.check(table)
        if answer.match is None:
            return None
        if answer.verdict is Verdict.REPLAY:
            return answer.match.entry or answer.match.newest
        raise refusal(answer.verdict, answer.match, self.batch, self.digest, table.uri)

    def check(self, table: TableVersion) -> LedgerAnswer:
        """Check the batch against the ledger of a version.

        Raises:
            InvalidInputError: A restore by another program removed entries, and it is unknown
                whether the batch was among them because versions were removed.
        """
        rows_differ = False
        for match in self.lookup_in(table).matches():
            if match.app_id != self.batch.app_id and _version_of(match) in self.claimed:
                continue  # another sink of this run committed it
            contents = compare(match, self.batch, self.digest, may_differ=self.may_differ)
            verdict = VERDICTS[match.standing][contents]
            rows_differ |= contents is Contents.DIFFERENT
            if verdict is not Verdict.NEW:
                return LedgerAnswer(verdict, match, rows_differ)
        return LedgerAnswer(Verdict.NEW, None, rows_differ)

    def lookup_in(self, table: TableVersion) -> Lookup:
        """Return the lookup of the batch id in a version, which is cached.

        Raises:
            CorruptDataError: An entry is invalid.
        """
        if self._lookup is None or not self._lookup.is_of(table):
            self._lookup = Lookup(table, self.batch, self._searched_before(table.version))
        return self._lookup

    def check_may_create(self, uri: str, *, late_start: bool) -> None:
        """Raise if a batch of a streaming query would create a table without the batches before it.

        The first batch of a query creates its table, even without rows. So if there is no table for
        a later batch, the table was deleted or moved, or the query wrote elsewhere before. Batch
        ids that do not come from Spark, without a query id, may begin with any number.

        Args:
            uri: The location without a table.
            late_start: Whether a later batch may create the table, too.

        Raises:
            NotFoundError: The batch must not create the table.
        """
        if not late_start and self.batch.query_id and self.batch.batch_id:
            raise missing_table(uri, self.batch)

    def ledger_entries(self, newest: Manifest | None, version: int) -> dict[str, str]:
        """Return the ledger's config entries for the version that commits the batch.

        They are the entry of its stream, and shorter ones of streams without a batch for a long
        time.

        Args:
            newest: The version before; None if the batch creates the table.
            version: The number of the version.
        """
        batch, digest = self.batch, self.digest
        config = {} if newest is None else newest.config
        last = read_entry(config, batch.app_id)
        if last is not None and last.batch_id >= batch.batch_id:  # the stream starts over
            last = None
        entry = LedgerEntry(
            batch.batch_id,
            batch.query_id,
            version,
            num_rows=None if digest is None else digest.num_rows,
            digest="" if digest is None else digest.text,
            rules=batch.rules,
            recent=() if last is None else last.before(),
            quarantined=self.quarantined or ("" if last is None else last.quarantined),
        )
        return silent_entries(config, version) | config_entries(batch.app_id, entry)

    @property
    def searched_through(self) -> int:
        """The version through which certainly none has the batch; 0 if unknown."""
        return self.absent_through if self._lookup is None else self._lookup.searched_through

    def _searched_before(self, version: int) -> int:
        """Return the version through which no search is needed; 0 for none."""
        searched = self.searched_through
        # A second lookup of the same version number means that the table was replaced.
        newest = version if self._lookup is None else version - 1
        return searched if searched <= newest else 0


def _version_of(match: Match) -> int | None:
    return None if match.entry is None else match.entry.version
