"""A stream of a table's changes in one process: batches of Arrow rows, each with a position.

    position ── advance, within the limits ──> position ── advance ──> position ...
                          │
              units, read by threads: the next batch, while the caller processes the current one

With the same limits, batches end where those of Spark's stream end (`feed.following`), so a
position has the same meaning in both, and any batch can be read again from its start position.

    exactly once     the caller stores `batch.position` together with its output, and passes it as
                     `after` when it restarts
    at least once    with a consumer: the table stores the position of a batch when the caller
                     requests the next one
"""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Event
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from lance_stream.arguments import as_flag, as_number
from lance_stream.change_streams.progress import ConsumerProgress, parse_position, position_text
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.expected_columns import check_columns
from lance_stream.feed.following.follower import FollowerRules, Lag, TableFollower
from lance_stream.feed.following.positions import Limits, Position
from lance_stream.feed.following.resumed_columns import resumed_columns
from lance_stream.feed.intervals import (
    IntervalEnd,
    check_can_follow,
    check_is_past,
    version_before,
)
from lance_stream.feed.rules import FeedRules
from lance_stream.feed.selection import FeedSelection
from lance_stream.feed.steps import check_has_feed
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.detached import check_is_attached
from lance_stream.table.version_marks import mark_of
from lance_stream.threads import check_is_not_forked

BATCH_ROWS: Final = 1 << 18
BATCH_BYTES: Final = 128 << 20
"""The default maximum size of a batch."""

DEFAULT_LIMITS: Final = Limits(rows=BATCH_ROWS, size_bytes=BATCH_BYTES)

_MAX_POLL_SECONDS: Final = 86400
_SLEEP_SECONDS: Final = 0.1

T = TypeVar("T")

_REMEDY: Final = (
    "Follow the newest version from the position of the last batch: from there on, its columns "
    "are read"
)


@dataclass(frozen=True)
class FollowRules:
    """The settings of a change stream.

    Attributes:
        feed: The settings of the feed.
        columns: Names or paths; None for all columns of the version that is followed.
        filter: A condition in SQL on the table's columns and the change columns; None for all rows.
        limits: The maximum size of a batch.
        consumer: The name under which the table stores the position; None to store none.
        after: A position; or the end of what has been processed, see `intervals.version_before`;
            None for the consumer's position, or the beginning if there is none.
        snapshot: Whether the stream begins with the rows of the followed version; otherwise it
            begins with the changes after that version.
        wait: Whether to wait for new versions when all have been read; otherwise the stream ends.
        poll_seconds: The interval at which to look for a new version.
        fail_on_data_loss: Whether missing versions are an error.
    """

    feed: FeedRules = field(default_factory=FeedRules)
    columns: Sequence[str] | None = None
    filter: str | None = None
    limits: Limits = DEFAULT_LIMITS
    consumer: str | None = None
    after: IntervalEnd | None = None
    snapshot: bool = True
    wait: bool = True
    poll_seconds: float = 1.0
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        """Validate the settings.

        Raises:
            InvalidInputError: A setting is out of range, or has the wrong type.
        """
        limits = Limits(
            rows=_as_limit("max_rows", self.limits.rows),
            size_bytes=_as_limit("max_bytes", self.limits.size_bytes),
            versions=_as_limit("max_versions", self.limits.versions),
        )
        object.__setattr__(self, "limits", limits)
        for name in ("snapshot", "wait", "fail_on_data_loss"):
            as_flag(name, getattr(self, name))
        is_number = isinstance(self.poll_seconds, int | float)
        if not is_number or not 0 < self.poll_seconds <= _MAX_POLL_SECONDS:
            raise InvalidInputError(
                f"poll_seconds must be greater than 0 and at most {_MAX_POLL_SECONDS}, not "
                f"{self.poll_seconds!r}"
            )
        if not isinstance(self.consumer, str | None):
            raise InvalidInputError(f"consumer must be a name, not {self.consumer!r:.200}")


def _as_limit(name: str, limit: object) -> int | None:
    number = as_number(limit)
    if limit is not None and (number is None or number < 1):
        raise InvalidInputError(f"{name} must be a whole number greater than 0, not {limit!r}")
    return number


@dataclass(frozen=True)
class ChangeBatch:
    """Rows of the feed, and the position after them.

    Attributes:
        rows: At least one row, with the table's columns, then `_change_type`, `_commit_version`,
            `_commit_timestamp`, `_rowid`, `_row_created_at_version` and
            `_row_last_updated_at_version`.
        position: A string for `Dataset.follow(after=...)`, of at most a few hundred characters
            unless columns were renamed.
    """

    rows: pa.Table
    position: str

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.rows.num_rows)


_Read: TypeAlias = tuple[Position, pa.Table]
"""The end of a batch, and its rows."""


async def _wait_for(future: "Future[Any]") -> None:
    """Wait until a future has finished; canceling the wait does not cancel the future."""
    waiting = asyncio.wrap_future(future)
    await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # the caller raises it, so asyncio must not report it as lost


class ChangeStream:
    """An iterator, and an asynchronous iterator, over a table's rows and changes.

    Only one thread at a time may use it. While the caller processes a batch, the next one is read.

    Args:
        table: The version whose columns, and possibly rows, are followed.
        rules: The settings.

    Raises:
        InvalidInputError: A column name, the condition or the position is invalid.
        NotFoundError: A column does not exist.
        UnsupportedFeatureError: The table has no stable row ids, or the version is detached.
    """

    def __init__(self, table: TableVersion, rules: FollowRules) -> None:
        check_is_attached(table.version)
        check_has_feed(table)  # before the consumer protects versions that it cannot read
        self._rules = rules
        self._selection = FeedSelection(table, rules.columns, rules.filter)
        self._follower = TableFollower(
            table.uri,
            table.storage_options,
            FollowerRules(
                rules.feed,
                fail_on_data_loss=rules.fail_on_data_loss,
                is_consumer=rules.consumer is not None,
            ),
        )
        self._refs = self._follower.refs
        self._progress = ConsumerProgress(rules.consumer, keeps_positions=True)
        self._returned: Position | None = None  # the position of the last batch with rows
        start = self._start_position(table)
        self._columns = self._columns_from(table, start)
        with suppress(NotFoundError):  # cleaned up: the first batch reports the loss
            start = self._with_columns(start)
        self._position = start
        # The position up to which the caller has processed the stream; at first, its beginning.
        self._unrecorded: Position | None = self._position
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="lance-stream-follow")
        self._process = os.getpid()
        self._next: Future[_Read | None] | None = None
        self._closed = Event()

    # --- iterating

    def __iter__(self) -> "ChangeStream":
        """Return the stream."""
        return self

    def __next__(self) -> ChangeBatch:
        """Record the previous batch as processed, and return the next one; may wait for it."""
        while not self._closed.is_set():
            was_ahead = self._next is not None
            try:
                self._submit(self._record).result()
                batch = self._accept(self._request())
            except CancelledError:
                break  # closed by another thread
            if batch is not None:
                return batch
            if was_ahead or self._next is not None:
                continue  # the batch was read earlier, or no row meets the condition
            if not self._rules.wait:
                break
            self._closed.wait(self._rules.poll_seconds)
        raise StopIteration

    def __aiter__(self) -> "ChangeStream":
        """Return the stream."""
        return self

    async def __anext__(self) -> ChangeBatch:
        """Do the same as `__next__` without blocking other coroutines.

        If the call is canceled, the next call returns its batch. Concurrent calls return different
        batches; each records all batches before it as processed.
        """
        while not self._closed.is_set():
            was_ahead = self._next is not None
            try:
                recording = self._submit(self._record)
                await _wait_for(recording)
                recording.result()
                request = self._request()
                await _wait_for(request)
                batch = self._accept(request)
            except CancelledError:
                break
            if batch is not None:
                return batch
            if was_ahead or self._next is not None:
                continue
            if not self._rules.wait:
                break
            await self._wait_for_poll()
        raise StopAsyncIteration

    async def _wait_for_poll(self) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + self._rules.poll_seconds
        while not self._closed.is_set() and clock() < end:
            await asyncio.sleep(min(_SLEEP_SECONDS, self._rules.poll_seconds))

    def __enter__(self) -> "ChangeStream":
        """Return the stream."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream; the current batch is not recorded as processed."""
        self.close()

    def close(self) -> None:
        """Stop reading, and end the iteration of a caller that waits for a batch. Idempotent."""
        self._closed.set()
        self._reader.shutdown(wait=False, cancel_futures=True)

    # --- positions

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        return self._selection.rows.schema

    @property
    def position(self) -> str:
        """The position after the last returned batch; at first, the beginning of the stream."""
        return position_text(self._position)

    def lag(self) -> Lag:
        """Return the distance of `position` from the newest version."""
        return self._run(self._lag)

    def _lag(self) -> Lag:
        self._follower.list_newest()
        return self._follower.lag(self._position)

    def commit(self) -> None:
        """Record the returned batches as processed now, rather than with the next request.

        Raises:
            InvalidInputError: The stream has no consumer.
        """
        if self._rules.consumer is None:
            raise InvalidInputError(
                "the stream has no consumer whose progress could be recorded: pass consumer='name' "
                "to follow, or store the batch's position with your output and pass it as after=..."
            )
        self._run(self._record)

    def _record(self) -> None:
        position = self._unrecorded
        if position is not None:
            returned = self._returned
            has_skipped = returned is not None and returned != position
            skipped_from = self._skipped_from(returned) if returned and has_skipped else None
            self._progress.record_position(self._refs, position, skipped_from)
            if self._unrecorded is position:
                self._unrecorded = None

    def _submit(self, function: Callable[..., T], *arguments: object) -> "Future[T]":
        """Call a function on the reader's thread, so that reads and records are in order.

        Raises:
            CancelledError: The stream has been closed.
            InvalidInputError: The process was forked since the stream was opened.
        """
        check_is_not_forked(self._process)
        try:
            return self._reader.submit(function, *arguments)
        except RuntimeError:
            raise CancelledError from None

    def _run(self, function: Callable[[], T]) -> T:
        """Call a function on the reader's thread, or directly if the stream is closed."""
        try:
            return self._submit(function).result()
        except CancelledError:
            return function()

    def _start_position(self, table: TableVersion) -> Position:
        rules, after = self._rules, self._rules.after
        if isinstance(after, str) and after.startswith("{"):  # which no tag does
            self._returned = parse_position(after)
            return self._resume(self._returned)
        if after is None:
            stored = self._progress.read_position(self._refs)
            if stored is not None:
                return stored
            after = self._progress.read(self._refs)
        else:
            if isinstance(after, datetime):
                check_is_past(
                    after, "after", "to read only new changes, pass snapshot=False instead"
                )
            after = version_before(table, after)
        if after is None and rules.snapshot:
            mark = mark_of(table.manifest)
            return Position(table.version, is_snapshot=True, mark=mark)
        if after is None:
            after = table.version
        check_can_follow(table.uri, after, self._follower.list_newest())
        return self._follower.position_after(after)

    def _resume(self, position: Position) -> Position:
        """Return where to resume after a position that the caller has stored.

        The consumer's position may be later, because batches without rows are not returned. If the
        caller's version has been cleaned up meanwhile, the stream resumes at the consumer's.
        """
        if position.is_snapshot:
            return position
        try:
            for version in {position.version, position.last_version} - {0}:
                self._follower.table(version)
        except NotFoundError:
            skipped_from = self._skipped_from(position)
            return self._progress.position_after_skipped(self._refs, skipped_from) or position
        return position

    def _skipped_from(self, position: Position) -> str:
        """Return a position, and the settings that decide which changes have no rows."""
        rules = self._rules
        settings = (rules.filter, rules.feed.pre_images, rules.feed.column_backfills)
        return json.dumps([position.version, position.num_delivered, position.mark, *settings])

    def _columns_from(self, table: TableVersion, position: Position) -> FeedColumns:
        """Return the columns of the stream; a resumed stream keeps those of its position."""
        columns = self._selection.columns
        if position.columns is None:
            return columns
        try:
            resumed = self._follower.table(max(position.version, 1))
        except NotFoundError:  # cleaned up
            return columns
        return resumed_columns(table, self._selection.needed, resumed, position.columns)

    # --- reading

    def _request(self) -> Future[_Read | None]:
        """Return the read of the next batch, starting it if necessary."""
        if self._next is None:
            self._next = self._submit(self._read_after, self._position)
        return self._next

    def _accept(self, request: Future[_Read | None]) -> ChangeBatch | None:
        """Return the batch of a read; None if it has no rows, or a concurrent call returned it."""
        if request is not self._next:
            return None
        self._next = None
        batch = request.result()
        if batch is None:
            return None
        self._position, rows = batch
        self._unrecorded = self._position
        if rows.num_rows:
            self._returned = self._position
        with suppress(CancelledError):
            self._request()
        return ChangeBatch(rows, position_text(self._position)) if rows.num_rows else None

    def _read_after(self, start: Position) -> _Read | None:
        """Return the end of the batch after a position, and its rows; None if nothing is new."""
        end = self._follower.advance(start, self._rules.limits)
        if end == start:
            return None
        self._progress.protect_versions(self._refs, start, end)
        units = self._follower.units(start, end, self._columns_of)
        batches = list(self._selection.rows.read(units))
        rows = pa.Table.from_batches(batches, self.schema)
        return self._with_columns(end), rows

    def _columns_of(self, last: TableVersion) -> FeedColumns:
        check_columns(self._columns, last, _REMEDY)
        return self._columns

    def _with_columns(self, position: Position) -> Position:
        table = self._follower.table(max(position.version, 1))
        return replace(position, columns=self._columns.names_in(table))
