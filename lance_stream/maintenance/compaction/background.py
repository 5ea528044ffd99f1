"""Compaction alongside a stream of batches, in its own thread.

    batch 0   batch 1   batch 2    batch 3            batch 4
    ───────   ───────   ─────────  ─────────────────  ───────
                      │                             ▲
                      └─ plan, write new files ─ ─ ─ commit, between two batches

Every few batches, a round starts: it is planned on the version that the batch committed, and writes
new files while batches continue. The commit takes a turn like a batch, so it never happens during a
batch, which would then have to be re-planned. A batch waits for at most one commit attempt, never
for the writing; the thread never waits while it has the turn.

A failed round does not fail the stream: the error is logged, files that no version can reference
are deleted, and a later round tries again. A killed process leaves unreferenced files. A process
that exits stops its rounds, and waits a short time for them.
"""

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.compaction.automatic import AUTO, CompactionTrigger
from lance_stream.maintenance.compaction.compact import commit_prepared
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import (
    RewriteTask,
    WriteTasks,
    prepare,
    write_task,
)
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment

_log = logging.getLogger("lance_stream.compaction")

ROUND: Final = CompactionRules(
    max_deleted_fraction=0.25, by_steps=True, max_rows=8 << 20, max_bytes=1 << 30
)
"""The rules of one round: its size is limited, so that small fragments are merged steadily while
rows arrive.

Each batch of updates deletes a share of the rows of every fragment. If a fragment is rewritten once
a quarter of its rows is deleted, three live rows are rewritten per deleted row; at a tenth, nine.
"""

SECONDS_AT_EXIT: Final = 10.0
"""The time for which an exiting process waits for rounds to clean up."""


class StoppedError(Exception):
    """A round was stopped; it leaves no files behind."""


class Turns:
    """Mutual exclusion of batches and commits of the compaction.

    A commit waits until no batch is in progress. A new batch lets a waiting commit go first, so
    that a dense sequence of batches does not starve it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_batches = 0
        self._num_waiting = 0
        self._committing = False

    @contextmanager
    def of_batch(self) -> Iterator[None]:
        """Take a turn as a batch; waits for at most one commit attempt."""
        with self._changed:
            self._changed.wait_for(self._has_room_for_batch)
            self._num_batches += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_batches -= 1
                self._changed.notify_all()

    @contextmanager
    def of_commit(self, stop: threading.Event) -> Iterator[None]:
        """Take a turn as one commit attempt; waits for the batches in progress.

        Raises:
            StoppedError: The event was set before the turn began (see `wake`).
        """
        with self._changed:
            self._num_waiting += 1
            self._changed.wait_for(lambda: stop.is_set() or self._has_room_for_commit())
            self._num_waiting -= 1
            self._changed.notify_all()
            if stop.is_set():
                raise StoppedError
            self._committing = True
        try:
            yield
        finally:
            with self._changed:
                self._committing = False
                self._changed.notify_all()

    def wake(self) -> None:
        """Make waiting threads check again whether they are stopped."""
        with self._changed:
            self._changed.notify_all()

    def _has_room_for_commit(self) -> bool:
        return not self._num_batches and not self._committing

    def _has_room_for_batch(self) -> bool:
        # While a batch is in progress, a second one does not wait for a commit that waits for the
        # first.
        return not self._committing and (not self._num_waiting or self._num_batches > 0)


@dataclass(frozen=True)
class Round:
    """The outcome of a round.

    Attributes:
        version: The committed version; None if there was nothing to compact, or the round failed.
        num_removed: The number of removed fragments.
        num_added: The number of added fragments.
        num_abandoned: The number of groups of fragments that were rewritten but not committed.
        seconds: The duration by phase: "write", and "commit", which includes the wait for a turn.
        error: The error that ended the round; None if it succeeded.
        reason: Why the round began, with `AUTO`; otherwise empty.
    """

    version: int | None = None
    num_removed: int = 0
    num_added: int = 0
    num_abandoned: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: Exception | None = None
    reason: str = ""


def check_every(every: int | str) -> None:
    """Raise unless `every` is a valid number of batches between rounds, or `AUTO`.

    Raises:
        InvalidInputError: It is neither `AUTO` nor an integer of at least 1.
    """
    if every == AUTO:
        return
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InvalidInputError(
            f'compact must be "auto" or a number of batches of at least 1, not {every!r:.200}; '
            "omit it to disable compaction"
        )


class BackgroundCompaction:
    """Compacts a table while batches are written to it. A pickled copy starts without state.

    Args:
        every: A round starts after this many batches that committed a version; `AUTO` to start one
            when it is worthwhile (see `automatic`).
        rules: What a round does.
        turns: The turns that are shared with other background work of the same stream; None for new
            ones.

    Attributes:
        last_round: The outcome of the last round; None before the first one has ended.

    Raises:
        InvalidInputError: `every` is neither `AUTO` nor an integer of at least 1.
    """

    def __init__(
        self, every: int | str, rules: CompactionRules = ROUND, turns: Turns | None = None
    ) -> None:
        check_every(every)
        self.every = every
        self.rules = rules
        self.last_round: Round | None = None
        self._turns = Turns() if turns is None else turns
        self._trigger = CompactionTrigger(rules) if every == AUTO else None
        self._num_batches = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.every, self.rules)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Block commits of the compaction while a batch is written and committed."""
        with self._turns.of_batch():
            yield

    def after_batch(
        self,
        batch_id: int,
        open_newest: Callable[[], TableVersion],
        write: WriteTasks | None = None,
        lookup_seconds: float | None = None,
    ) -> bool:
        """Start a round if one is due: after `every` batches, or if `every` divides the id + 1.

        The batch ids let rounds start even if a stream runs for only a few batches at a time. With
        `AUTO`, the round's thread checks the table first.

        Args:
            batch_id: The id of the batch, which committed a version.
            open_newest: Returns the newest version; called if a round is due.
            write: Writes the new files; by default in the thread.
            lookup_seconds: The duration of the batch's key lookups; None without any.

        Returns:
            Whether a round was started; with `AUTO`, whether the table is being checked. No round
            starts while another one is in progress on this table in this process.
        """
        if isinstance(self.every, str):
            return self._start_if_due(open_newest, write, lookup_seconds)
        self._num_batches += 1
        if self._num_batches < self.every and (batch_id + 1) % self.every:
            return False
        try:
            table = open_newest()
        except Exception:  # the batch is committed
            _log.warning("a compaction cannot start; the stream continues", exc_info=True)
            return False
        if not begin_work(table.store.uri):
            return False
        self._num_batches = 0
        self._start(lambda stop: self._run(table, self.rules, write, stop))
        return True

    def _start_if_due(
        self,
        open_newest: Callable[[], TableVersion],
        write: WriteTasks | None,
        lookup_seconds: float | None,
    ) -> bool:
        """Record a batch; after every few batches, check the table in a thread."""
        assert self._trigger is not None
        is_due = self._trigger.after_batch(lookup_seconds)
        if not is_due or not self.wait(0.0):
            return False
        self._start(partial(self._run_if_worthwhile, self._trigger, open_newest, write))
        return True

    def _start(self, run: Callable[[threading.Event], object]) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=run, args=(self._stop,), name="lance-stream-compaction", daemon=True
        )
        STOPPED_AT_EXIT.add(self)
        self._thread.start()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the current round; return whether it has ended."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Stop the current round; return whether it has ended.

        A round that is already committing finishes; one that is stopped deletes its files.
        """
        self._stop.set()
        self._turns.wake()
        return self.wait(timeout_seconds)

    def _run_if_worthwhile(
        self,
        trigger: CompactionTrigger,
        open_newest: Callable[[], TableVersion],
        write: WriteTasks | None,
        stop: threading.Event,
    ) -> None:
        try:
            table = open_newest()
            reason = trigger.reason(table)
            if reason is None or stop.is_set() or not begin_work(table.store.uri):
                return
            result = self._run(table, reason.rules, write, stop, reason.text)
            seconds = result.seconds["write"] if result.num_removed else None
            trigger.record_round(open_newest(), seconds)
        except Exception:
            _log.warning("a compaction cannot start; the stream continues", exc_info=True)

    def _run(
        self,
        table: TableVersion,
        rules: CompactionRules,
        write: WriteTasks | None,
        stop: threading.Event,
        reason: str = "",
    ) -> Round:
        clock = time.perf_counter
        start = clock()
        try:
            write_all = partial(_until_stopped, stop, write or partial(_write_locally, stop))
            prepared = prepare(table, rules, write_all)
            written = clock()
            result = commit_prepared(prepared, partial(self._turns.of_commit, stop))
            outcome = Round(
                result.table.version if result.num_removed else None,
                result.num_removed,
                result.num_added,
                result.num_abandoned,
                {"write": written - start, "commit": clock() - written},
                reason=reason,
            )
            if prepared.groups:
                _log.info("%s: %s", table.uri, outcome)
        except Exception as error:
            outcome = Round(error=error, reason=reason)
            if stop.is_set() or not threading.main_thread().is_alive():
                _log.info("%s: a compaction was stopped", table.uri)
            else:
                _log.warning(
                    "%s: a compaction failed; the stream continues", table.uri, exc_info=True
                )
        finally:
            end_work(table.store.uri)
        self.last_round = outcome
        return outcome


def _write_locally(stop: threading.Event, tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
    for task in tasks:
        yield write_task(task, before_batch=partial(_check, stop))


def _until_stopped(
    stop: threading.Event, write: WriteTasks, tasks: Sequence[RewriteTask]
) -> Iterator[Sequence[Fragment]]:
    for fragments in write(tasks):
        yield fragments  # the caller deletes them after an error
        _check(stop)


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError


class Stoppable(Protocol):
    """Background work in a thread."""

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Stop the work; return whether it has ended."""
        ...

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the work; return whether it has ended."""
        ...


STOPPED_AT_EXIT: Final[weakref.WeakSet[Stoppable]] = weakref.WeakSet()
"""The background work that an exiting process stops."""

_TABLES: Final[set[str]] = set()
"""The locations of the tables with background work in this process, of any sink."""

_TABLES_LOCK: Final = threading.Lock()


def begin_work(uri: str) -> bool:
    """Register work on a table; return False if the process already has work on it.

    Args:
        uri: The table's location.
    """
    with _TABLES_LOCK:
        if uri in _TABLES:
            return False
        _TABLES.add(uri)
        return True


def end_work(uri: str) -> None:
    """Unregister the work on a table."""
    with _TABLES_LOCK:
        _TABLES.discard(uri)


@atexit.register
def _stop_all() -> None:
    """Stop all background work, and wait until it has cleaned up, for a limited time."""
    deadline = time.monotonic() + SECONDS_AT_EXIT
    rounds = list(STOPPED_AT_EXIT)
    for round_ in rounds:
        round_.stop(0.0)
    for round_ in rounds:
        round_.wait(max(0.0, deadline - time.monotonic()))
