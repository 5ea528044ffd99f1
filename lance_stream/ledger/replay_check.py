"""Asks the ledger about a micro-batch that is being written: once for each version.

The sink asks before anything is written, and each attempt of the commit asks again about the
version that it builds on. If that is the same version, nothing is looked up again; if it is a later
one, only what came since. The ledger's new entry is part of the same version as the rows
(`recording`), so a batch is in the table exactly once or not at all.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from lance_stream.ledger.lookup import Lookup
from lance_stream.ledger.messages import refusal
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.ledger.verdicts import VERDICTS, Contents, Match, Verdict, compare
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import LedgerEntry


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """What the ledger of a version says about a batch.

    Attributes:
        verdict: The verdict.
        match: Where it has the batch id; None for a new batch.
        rows_differ: Whether an entry with the batch id records other rows: the verdict may depend
            on whether the query's plan gives the same rows each time.
    """

    verdict: Verdict
    match: Match | None = None
    rows_differ: bool = False


@dataclass
class PendingBatch:
    """A micro-batch that is being written, with what identifies its rows.

    Attributes:
        batch: Its identity.
        digest: The digest of its rows; None if they have not been computed.
        quarantined: The name of the file with its bad rows; empty if there are none.
        may_differ: Whether computing the batch again may give other rows, because the query's
            plan is not deterministic.
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
        """Return a pending batch, given its identity and other attributes."""
        return cls(MicroBatch(app_id, batch_id, query_id, rules), **others)

    def with_rows(self, digest: RowsDigest, quarantined: str = "") -> "PendingBatch":
        """Return the batch with the digest of its rows, and the file of those in quarantine."""
        return replace(self, digest=digest, quarantined=quarantined)

    def find_in(self, table: TableVersion) -> LedgerEntry | None:
        """Return the entry of the batch in the ledger of a version; None if the batch is new.

        If the digest of its rows is not known, the batch id decides.

        Raises:
            OtherBatchError: The batch id was committed with other rows or rules, or what was
                committed is not known.
            InvalidInputError: The batch id belongs to another query's batch; or an older version
                of this library wrote it, and did not record its rows.
        """
        answer = self.ask(table)
        if answer.match is None:
            return None
        if answer.verdict is Verdict.REPLAY:
            return answer.match.entry or answer.match.newest
        raise refusal(answer.verdict, answer.match, self.batch, self.digest, table.uri)

    def ask(self, table: TableVersion) -> LedgerAnswer:
        """Return what the ledger of a version says about the batch.

        Raises:
            InvalidInputError: A restore by another program removed entries, and the versions that
                would tell whether the batch was among them are gone.
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
        """Return where a version has the batch id; a version is looked up once.

        Raises:
            CorruptDataError: The ledger has an entry that is not one.
        """
        if self._lookup is None or not self._lookup.is_of(table):
            self._lookup = Lookup(table, self.batch, self._searched_before(table.version))
        return self._lookup

    @property
    def searched_through(self) -> int:
        """The version through which it is known that none has the batch; 0 if unknown."""
        return self.absent_through if self._lookup is None else self._lookup.searched_through

    def _searched_before(self, version: int) -> int:
        """Return the version through which the search of a version may be left out; 0 for none."""
        searched = self.searched_through
        # A second look at the same version number is a look at another table.
        newest = version if self._lookup is None else version - 1
        return searched if searched <= newest else 0


def _version_of(match: Match) -> int | None:
    return None if match.entry is None else match.entry.version
