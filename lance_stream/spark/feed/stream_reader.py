"""The change feed as a stream: Spark's API, implemented by `feed.following.follower`.

An offset is a position in the table's history (`offsets`). Spark requests the end of the next
batch, writes it to the checkpoint, and requests the tasks between two offsets; after a restart it
requests these tasks again, possibly in another process. Results never depend on the state of the
reader.

Without `readChangeFeed`, a stream returns the appended rows, without change columns, and fails at a
version that updates or deletes rows, which it could not express.

Spark requests the start of a new query twice, before and after writing its first offset, and again
if the query is restarted before the first batch has finished. The position "from now on" would be
different each time, and the changes in between would be lost. So in this case the first batch is
empty, and its end is the start of the stream.

A stream may wait for its table, or for the version at which it starts. Until then, the options
alone determine its position, and its batches are empty.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lance_stream.change_streams.progress import ConsumerProgress
from lance_stream.errors import InvalidInputError, LanceStreamError, NotFoundError
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.following.follower import TableFollower
from lance_stream.feed.following.offsets import parse_offset, to_offset
from lance_stream.feed.following.positions import NO_LIMITS, Limits, Position
from lance_stream.feed.intervals import check_is_past, first_version_since
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.option_values import LATEST
from lance_stream.spark.arguments.reader_options import ReaderOptions
from lance_stream.spark.feed.planning import (
    follower_rules,
    plan_stream,
    stream_columns,
)
from lance_stream.spark.feed.sent_rows import SendsRows
from lance_stream.spark.jobs.task_input import TaskReader
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.spark.versions import HAS_READ_LIMITS

if HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )


FindTable: TypeAlias = Callable[[], ReaderOptions | None]
"""Returns the stream's options, with column names as in the table, once the table and the stream's
first version exist; until then None. Raises InvalidInputError if the options do not fit the table.
"""


class _FeedStream(SendsRows, DataSourceStreamReader):
    """The common base of the readers for all versions of PySpark.

    Spark creates two readers per run of a query: one on the driver, for the whole run, and one for
    the workers, which only call `read`.

    Args:
        options: The user's options.
        carried: The schema of the batches that Spark expects.
        version: The version from which the schema was read; None if the user specified it.
        find_table: Looks for the table, if the stream waits for it; None if the table exists.
    """

    def __init__(
        self,
        options: ReaderOptions,
        carried: pa.Schema,
        version: int | None = None,
        find_table: FindTable | None = None,
    ) -> None:
        self.options = options
        self.carried = carried
        self.version = version
        self._find_table = find_table
        self._columns: FeedColumns | None = None
        self._cached_follower: TableFollower | None = None
        self._initial: Position | None = None
        self._starts_now = False
        self._progress = ConsumerProgress(options.consumer)

    def __reduce__(self) -> tuple[type[TaskReader], tuple[()]]:
        """Pickle as a `TaskReader`, since a worker gets everything else with a `TaskInput`."""
        return TaskReader, ()

    @property
    def follower(self) -> TableFollower:
        """The follower of the table; used on the driver only."""
        if self._cached_follower is None:
            options = self.options
            self._cached_follower = TableFollower(
                options.uri, options.storage_options, follower_rules(options)
            )
        return self._cached_follower

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query, which is constant during a run."""
        if self._initial is None and self._is_waiting():
            self._initial = _waiting_position(self.options)
        elif self._initial is None:
            self._initial = self._start()
            self._progress.record_position(self.follower.refs, self._initial)
        return to_offset(self._initial)

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch from its two offsets alone; the rows of a small batch are prefetched."""
        self.take_rows()
        first, last = parse_offset(start), parse_offset(end)
        if self._is_waiting_at(last):
            return []
        columns = self.columns(first if last.columns is None else last)
        if first == last:
            return []
        inputs = plan_stream(self.follower, first, last, columns, self.options, self.carried)
        if not self.options.only_by_tasks:
            self.prefetch_rows(inputs)
        return inputs

    @without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of one task."""
        return TaskReader().read(partition)

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        """Record that Spark has finished a batch."""
        position = parse_offset(end)
        if not self._is_waiting_at(position):
            self._progress.record_position(self.follower.refs, position)

    def _is_waiting(self) -> bool:
        """Return whether the table, or the version at which to start, is still missing."""
        if self._find_table is None:
            return False
        table = self._find_table()
        if table is None:
            return True
        self.options, self._find_table, self._cached_follower = table, None, None
        return False

    def _is_waiting_at(self, position: Position) -> bool:
        """Return whether the stream still waits at a position; other positions need the table."""
        return self._is_waiting() and position == _waiting_position(self.options)

    def advance(self, start: Position, limits: Limits, through: int | None = None) -> Position:
        """Return the end of the next batch."""
        if self._is_waiting_at(start):
            return start
        if self._starts_now and start == self._initial:
            self._starts_now = False
            return start
        end = self.follower.advance(start, limits, through)
        if end == start:
            return start
        self._progress.protect_versions(self.follower.refs, start, end)
        return self.with_columns(end, self.columns(start))

    def columns(self, position: Position) -> FeedColumns:
        """Return the columns of this run, determined from its first position."""
        if self._columns is None:
            resumed = None
            if position.columns is not None:
                with suppress(NotFoundError):  # cleaned up
                    resumed = self.follower.table(max(position.version, 1))
            version = self._version_of_schema()
            self._columns = stream_columns(
                version, self.options, self.carried, resumed, position.columns
            )
        return self._columns

    def with_columns(self, position: Position, columns: FeedColumns) -> Position:
        """Return a position with the ids of the columns in its version."""
        table = self.follower.table(max(position.version, 1))
        return replace(position, columns=columns.names_in(table))

    def _version_of_schema(self) -> TableVersion:
        """Return the version from which Spark determined the columns."""
        if self.version is not None:
            with suppress(NotFoundError):  # cleaned up
                return self.follower.table(self.version)
        return self.follower.table()

    @property
    def limits(self) -> Limits:
        """The user's limits; Spark's limits cannot be combined."""
        options = self.options
        return Limits(
            options.max_versions_per_trigger,
            options.max_rows_per_trigger,
            options.max_bytes_per_trigger,
        )

    def _start(self) -> Position:
        options = self.options
        if options.starting_timestamp is not None:
            return self._since(options.starting_timestamp)
        first = options.starting_version
        if first is None:
            finished = self._progress.read(self.follower.refs)
            if finished is None:
                return Position(0, is_snapshot=True)
            newest = self.follower.list_newest()
            if finished > newest:
                raise InvalidInputError(
                    f"the consumer {options.consumer!r} has read {options.uri} through version "
                    f"{finished}, but its newest version is {newest}: the table was restored from "
                    "a copy. Drop the consumer, or set startingVersion"
                )
            return self.follower.position_after(finished)
        newest = self.follower.list_newest()
        if first == LATEST:
            self._starts_now = True
            return self._position_of_now(newest)
        assert isinstance(first, int)
        if first > newest + 1:
            raise InvalidInputError(
                f"startingVersion is {first}, but the newest version of {options.uri} is "
                f"{newest}; the latest version at which a stream can start is {newest + 1}"
            )
        return self.follower.position_after(max(first - 1, 0))

    def _since(self, moment: datetime) -> Position:
        """Return the position before the first version that was committed at or after a time."""
        check_is_past(
            moment,
            "startingTimestamp",
            f"to read only new changes, set startingVersion to {LATEST!r}",
        )
        table = open_newest(self.options.uri, self.options.storage_options)
        first = first_version_since(table, moment)
        self._starts_now = first > table.version
        return (
            self._position_of_now(first - 1)
            if self._starts_now
            else self.follower.position_after(first - 1)
        )

    def _position_of_now(self, version: int) -> Position:
        """Return the position after a version, as the end of an empty first batch."""
        position = self.follower.position_after(version)
        return self.with_columns(position, self.columns(position))


if HAS_READ_LIMITS:

    class FeedStream(_FeedStream, SupportsTriggerAvailableNow):
        """The change feed for PySpark 4.2 and later, which passes the start of a batch."""

        def __init__(
            self,
            options: ReaderOptions,
            carried: pa.Schema,
            version: int | None = None,
            find_table: FindTable | None = None,
        ) -> None:
            super().__init__(options, carried, version, find_table)
            self._last_available: int | None = None
            self._position: Position | None = None
            self._report: tuple[tuple[Position, int], dict[str, Any]] | None = None

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return one of the limits; Spark passes it back, or "all available"."""
            limits = self.limits
            if limits.rows is not None:
                return ReadMaxRows(limits.rows)
            if limits.size_bytes is not None:
                return ReadMaxBytes(limits.size_bytes)
            return ReadAllAvailable() if limits.versions is None else ReadMaxFiles(limits.versions)

        @without_traceback
        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the version at which the run ends."""
            if self._is_waiting():
                self._find_table = _never  # for this run
            else:
                self._last_available = self.follower.list_newest()

        @without_traceback
        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """Return the end of the next batch. Spark has finished all batches before its start."""
            position = parse_offset(start)
            if position != self._initial and not self._is_waiting_at(position):
                # Spark calls `commit` one batch later, and not after the last batch of a run.
                self._progress.record_position(self.follower.refs, position)
            limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self.limits
            self._position = self.advance(position, limits, self._last_available)
            # The offset as stored, possibly by an older release: another text is a new batch.
            return start if self._position == position else to_offset(self._position)

        @without_traceback
        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Return the lag of the stream after this batch, for the progress report."""
            if self._position is None or self._is_waiting_at(self._position):
                return None
            key = self._position, self.follower.newest_seen
            if self._report is None or self._report[0] != key:
                lag = self.follower.lag(self._position)
                report = {
                    "version": lag.newest,
                    "versionsBehind": lag.versions,
                    "rowsBehind": lag.rows,
                }
                self._report = key, report
            return self._report[1]


class FeedStreamWithoutStart(_FeedStream):
    """The change feed before PySpark 4.2, which does not pass the start of a batch.

    The reader takes the position from other calls: in a resumed run, Spark first plans the last
    batch again, so only a new query has no position, and it starts at its initial offset.

    It does not pass the trigger either, and runs AvailableNow as one batch. So the first
    batch of a run reads all versions, whatever the limits; later batches respect them.
    """

    def __init__(
        self,
        options: ReaderOptions,
        carried: pa.Schema,
        version: int | None = None,
        find_table: FindTable | None = None,
    ) -> None:
        super().__init__(options, carried, version, find_table)
        self._stored: dict[str, Any] | None = None
        self._is_first = True

    @without_traceback
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # it passes nothing
        """Return the end of the next batch."""
        start = self._stored or self.initialOffset()
        position = parse_offset(start)
        limits = NO_LIMITS if self._is_first else self.limits
        self._is_first = False
        end = self.advance(position, limits)
        return start if end == position else to_offset(end)

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch, and store its end as the next start."""
        self._stored = end
        return super().partitions(start, end)


class FailedStream(DataSourceStreamReader):
    """The reader of a stream that cannot be read: every call raises an error.

    Args:
        error: The error.
    """

    def __init__(self, error: LanceStreamError) -> None:
        self._error = error

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    @without_traceback
    def latestOffset(self, *_start_and_limit: Any) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    @without_traceback
    def partitions(self, *_start_and_end: Any) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    @without_traceback
    def read(self, _partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


def make_stream_reader(
    options: ReaderOptions,
    carried: pa.Schema,
    version: int | None = None,
    find_table: FindTable | None = None,
) -> DataSourceStreamReader:
    """Return the reader for the running version of PySpark."""
    if HAS_READ_LIMITS:
        return FeedStream(options, carried, version, find_table)
    return FeedStreamWithoutStart(options, carried, version, find_table)


def _waiting_position(options: ReaderOptions) -> Position:
    """Return the position of a stream while its table does not exist."""
    first = options.starting_version
    if isinstance(first, int):
        return Position(max(first - 1, 0))
    return Position(0, is_snapshot=first is None and options.starting_timestamp is None)


def _never() -> None:
    """Find no table."""
