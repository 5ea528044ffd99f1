"""The current measures of a table: size, compaction backlog, index coverage, consumers' lag.

They are read on request, never by a batch. The measures of a version are cached: without a new
version, a request only checks for one and reads the consumers' tags.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import BadDataError, NotFoundError, TableReplacedError
from lance_stream.feed.row_differences import RowDifferences
from lance_stream.maintenance.compaction.plan import plan
from lance_stream.maintenance.consumers import list_consumers
from lance_stream.maintenance.indices.coverage import index_coverage
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.opening import newest_version_of, open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.changes.row_counts import ChangedRowCounts, count_changed_rows
from lance_stream.table.version_marks import mark_of

COUNTED_PER_CALL: Final = 64
"""The number of versions whose changed rows one call counts; later calls continue."""

MAX_COUNTED: Final = 10_000
"""The number of newest versions whose rows are counted; with a larger lag, `rows` is None."""


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """The lag of a consumer behind the newest version.

    Attributes:
        name: The consumer's name.
        versions: The number of versions that it has yet to read.
        rows: The number of rows that these inserted, updated and deleted; None until all are
            counted.
        seconds: The age of the oldest of them; 0 without a lag, None if it has no timestamp.
    """

    name: str
    versions: int
    rows: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class IndexMeasure:
    """The coverage of an index.

    Attributes:
        name: The index's name.
        unindexed_rows: The number of live rows that it does not cover.
        coverage: The fraction of the live rows that it covers, 0 to 1.
    """

    name: str
    unindexed_rows: int
    coverage: float


@dataclass(frozen=True, slots=True)
class TableMeasures:
    """The measures of a table at one moment.

    Attributes:
        version: The newest version.
        rows: The number of its live rows.
        deleted_rows: The number of its deleted rows that are still in data files.
        fragments: The number of its fragments.
        small_fragments: The number of fragments that `compact()` would rewrite.
        data_bytes: The size of its data files; None if a writer did not record it.
        committed_at: The time of its commit, in seconds since 1970; None if not recorded.
        age_seconds: The time since then.
        consumers: The consumers of the change feed.
        indices: The indices, except those whose writers did not state their coverage.
    """

    version: int
    rows: int
    deleted_rows: int
    fragments: int
    small_fragments: int
    data_bytes: int | None
    committed_at: float | None
    age_seconds: float | None
    consumers: tuple[ConsumerLag, ...]
    indices: tuple[IndexMeasure, ...]


@dataclass(frozen=True, slots=True)
class _Size:
    rows: int
    deleted_rows: int
    small_fragments: int
    data_bytes: int | None
    indices: tuple[IndexMeasure, ...]


@dataclass(frozen=True, slots=True)
class _CountedRows:
    committed_at: float | None
    rows: int | None


class TableWatch:
    """Measures one table repeatedly. Threads can share it.

    Args:
        uri: The table's location.
        storage_options: Settings of its store.
        environment: The clock.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, Any] | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.uri = uri
        self._options = storage_options
        self._environment = environment
        self._table: TableVersion | None = None
        self._size: tuple[str, _Size] | None = None
        self._counted: dict[int, _CountedRows] = {}
        self._lock = threading.Lock()

    def measure(self) -> TableMeasures:
        """Return the table's current measures.

        Raises:
            NotFoundError: There is no table yet.
            LanceStreamError, OSError: The table cannot be read.
        """
        with self._lock:
            last_table, self._table = self._table, None
            table = None
            if last_table is not None:
                with suppress(TableReplacedError):
                    table = newest_version_of(last_table)
            if table is None:  # the first call, one after a failure, or the table was replaced
                self._size = None
                self._counted.clear()
                table = open_newest(self.uri, self._options)
            measures = self._measures_of(table)
            self._table = table
            return measures

    def _measures_of(self, table: TableVersion) -> TableMeasures:
        now = self._environment.now_nanos() / 1e9
        committed_at = _seconds(table)
        mark = f"{table.version} {mark_of(table.manifest)}"
        if self._size is None or self._size[0] != mark:
            self._size = mark, _size_of(table)
        size = self._size[1]
        return TableMeasures(
            version=table.version,
            rows=size.rows,
            deleted_rows=size.deleted_rows,
            fragments=len(table.manifest.fragments),
            small_fragments=size.small_fragments,
            data_bytes=size.data_bytes,
            committed_at=committed_at,
            age_seconds=None if committed_at is None else max(now - committed_at, 0.0),
            consumers=self._lags(table, now),
            indices=size.indices,
        )

    def _lags(self, table: TableVersion, now: float) -> tuple[ConsumerLag, ...]:
        finished: dict[str, int] = {}
        for consumer in list_consumers(table.refs):  # can have a tag of each kind
            version = consumer.version - 1 if consumer.is_beginning else consumer.version
            finished[consumer.name] = max(version, finished.get(consumer.name, 0))
        if not finished:
            self._counted.clear()
            return ()
        existing = table.log.versions()
        first = min(finished.values())
        self._count(table, [version for version in existing if first < version <= table.version])
        return tuple(
            self._lag(
                name, [number for number in existing if version < number <= table.version], now
            )
            for name, version in sorted(finished.items())
        )

    def _lag(self, name: str, unread: list[int], now: float) -> ConsumerLag:
        if not unread:
            return ConsumerLag(name, 0, 0, 0.0)
        first = self._counted.get(unread[0])
        at = first.committed_at if first else None
        counts = [self._counted[version].rows for version in unread if version in self._counted]
        is_complete = len(counts) == len(unread) and None not in counts
        return ConsumerLag(
            name,
            len(unread),
            sum(count or 0 for count in counts) if is_complete else None,
            None if at is None else max(now - at, 0.0),
        )

    def _count(self, table: TableVersion, versions: list[int]) -> None:
        """Count the rows of versions that have not been counted yet, and forget older versions."""
        targets = versions[-MAX_COUNTED:]
        for version in self._counted.keys() - set(targets):
            del self._counted[version]
        uncounted = [version for version in targets if version not in self._counted]
        differences = RowDifferences(table)
        for version in uncounted[:COUNTED_PER_CALL]:
            with suppress(NotFoundError):  # cleaned up after the listing
                self._counted[version] = _count_rows(table, version, differences)


def _size_of(table: TableVersion) -> _Size:
    physical, live = (int(row_count.sum()) for row_count in table.row_counts)
    return _Size(
        rows=live,
        deleted_rows=physical - live,
        small_fragments=sum(map(len, plan(table))),
        data_bytes=table.manifest.fragments.file_sizes.total,
        indices=_indices(table),
    )


def _indices(table: TableVersion) -> tuple[IndexMeasure, ...]:
    with suppress(BadDataError):  # `verify` reports it; the other measures are correct
        return tuple(
            IndexMeasure(coverage.name, coverage.rows_unindexed, coverage.fraction)
            for coverage in index_coverage(table)
            if coverage.rows_unindexed is not None and coverage.fraction is not None
        )
    return ()


def _count_rows(table: TableVersion, version: int, differences: RowDifferences) -> _CountedRows:
    newer = table if version == table.version else table.read_at(version)
    counts = None
    with suppress(NotFoundError, BadDataError):  # no previous version, or no row ids
        older = table.read_at(version - 1) if version > 1 else None
        transaction = read_transaction(newer.store, newer.manifest)
        operation = transaction.operation if transaction else None
        counts = count_changed_rows(older.manifest if older else None, newer.manifest, operation)
        if counts is None:
            counts = ChangedRowCounts.of(differences.changes(older, newer))
    return _CountedRows(_seconds(newer), counts.total if counts else None)


def _seconds(table: TableVersion) -> float | None:
    at = table.timestamp
    return None if at is None else at.timestamp()
