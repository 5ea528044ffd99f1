"""Looks up a batch id in the ledger of one version.

An entry has the newest batch of a stream and the few before it. Earlier ones are in older
manifests, while these exist. Spark replays only the last batch, which is in the newest entry: then
only the newest manifest is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.ledger.foreign_restores import find_removed_entry
from lance_stream.ledger.messages import other_query
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.verdicts import Match, Standing, is_of_other_query, precedes
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import LedgerEntry, read_entries_of_query, read_entry
from lance_stream.table.version_marks import mark_of

MAX_READ_MANIFESTS: Final = 200
"""The maximum number of manifests to read to find the entry of an older batch."""


@dataclass
class Lookup:
    """Looks up a batch id in one version of a table, and caches what it reads.

    Args:
        table: The version.
        batch: The batch.
        absent_through: No version through this one has the batch; 0 if unknown.

    Attributes:
        newest: The newest entry of the batch's stream; None for a new stream.
    """

    table: TableVersion
    batch: MicroBatch
    absent_through: int = 0
    newest: LedgerEntry | None = field(init=False)
    _matches: tuple[Match, ...] | None = field(default=None, init=False, repr=False)
    _removed: tuple[Match, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.newest = read_entry(self.table.manifest.config, self.batch.app_id)

    def is_of(self, table: TableVersion) -> bool:
        """Return whether this lookup is for a version."""
        if self.table.manifest is table.manifest:
            return True
        has_same_uri = self.table.store.uri == table.store.uri
        return has_same_uri and mark_of(self.table.manifest) == mark_of(table.manifest)

    def matches(self) -> Iterator[Match]:
        """Yield the matches of the batch id; the first one whose verdict is not "new" counts."""
        newest = self.newest
        if self._matches is None:
            self._matches = self._of_aliases() if newest is None else self._of_stream(newest)
        yield from self._matches
        if newest is not None and precedes(self.batch, newest):
            return
        if self._removed is None:
            self._removed = self._before_restore(newest)
        yield from self._removed

    @property
    def searched_through(self) -> int:
        """The version through which certainly none has the batch."""
        return self.table.version if self._removed == () else self.absent_through

    def _of_stream(self, newest: LedgerEntry) -> tuple[Match, ...]:
        """Return the matches in the batch's stream."""
        if not precedes(self.batch, newest):
            return ()
        if is_of_other_query(self.batch, newest):
            return (Match(Standing.OTHER_QUERY, self.batch.app_id, newest),)
        return (self._match(self.batch.app_id, newest),)

    def _of_aliases(self) -> tuple[Match, ...]:
        """Return the matches in aliases of a stream without an entry."""
        batch = self.batch
        if not batch.query_id:
            return ()
        entries = read_entries_of_query(self.table.manifest.config, batch.query_id)
        if batch.app_id != batch.query_id:
            entries = {name: entries[name] for name in [batch.query_id] if name in entries}
        return tuple(
            self._match(name, newest) for name, newest in entries.items() if precedes(batch, newest)
        )

    def _before_restore(self, newest: LedgerEntry | None) -> tuple[Match, ...]:
        """Return the match if a restore by another program has removed the entry."""
        entry = find_removed_entry(self.table, self.batch, newest, self.absent_through)
        if entry is None:
            return ()
        return (Match(Standing.NEWEST, self.batch.app_id, entry, entry, (entry,)),)

    def _match(self, app_id: str, newest: LedgerEntry) -> Match:
        since: list[LedgerEntry] = []
        for entry in _entries(self.table, newest, app_id):
            if entry.batch_id < self.batch.batch_id:
                break
            since.append(entry)
            if entry.batch_id == self.batch.batch_id:
                break
        # The newest entry covers the batch id, so there is at least this one.
        batch_entry = since[-1] if since[-1].batch_id == self.batch.batch_id else None
        is_alias = app_id != self.batch.app_id
        if batch_entry is None:
            standing = Standing.ALIAS_FORGOTTEN if is_alias else Standing.FORGOTTEN
        elif batch_entry is newest:
            standing = Standing.ALIAS_NEWEST if is_alias else Standing.NEWEST
        else:
            standing = Standing.ALIAS_EARLIER if is_alias else Standing.EARLIER
        return Match(standing, app_id, newest, batch_entry, tuple(since))


def has_batch_id(config: Mapping[str, str], batch: MicroBatch, uri: str) -> bool:
    """Return whether the ledger in the config of the table at `uri` covers a batch id.

    The batch's rows are not compared.

    Raises:
        InvalidInputError: It does, but another query committed the stream's newest batch.
        CorruptDataError: An entry is invalid.
    """
    newest = read_entry(config, batch.app_id)
    if newest is None or not precedes(batch, newest):
        return False
    if is_of_other_query(batch, newest):
        raise other_query(batch, newest, uri)
    return True


def _entries(table: TableVersion, newest: LedgerEntry, app_id: str) -> Iterator[LedgerEntry]:
    """Yield the entries of a stream's batches, the newest first; reads manifests lazily."""
    entry = newest
    for _ in range(MAX_READ_MANIFESTS):
        yield entry
        yield from entry.recent
        oldest = entry.recent[-1] if entry.recent else entry
        if not oldest.version or oldest.version < 2:
            return
        try:
            before = read_entry(table.log.read(oldest.version - 1).config, app_id)
        except (NotFoundError, BadDataError):
            return
        if before is None or before.batch_id >= oldest.batch_id:
            return
        entry = before
