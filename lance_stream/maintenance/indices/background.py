"""Updates indices while a stream writes batches, in a thread and a child process.

    batch 0   batch 1   batch 2    batch 3            batch 4
    ───────   ───────   ─────────  ─────────────────  ───────
                      │                             ▲
                      └─ build, in a child ─ ─ ─ ─ ─ commit, between two batches

After each batch that committed a version, the thread checks the coverage of the indices and starts
a round if one lacks too many rows. Batches, index commits and compaction commits take turns, so a
batch waits for at most one commit. Indices are never built during a compaction of the same table.
After a round the thread pauses for three times its duration, so that rounds take at most a quarter
of the time. It also wakes when an index becomes due by its age.

A round never fails a stream: errors are logged and reported. A failing index does not delay the
others: the thread tries it again after 30 seconds, and doubles the delay after every failure, up to
an hour, or until someone rebuilds it. A killed process leaves unreferenced files.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import RetryableConflictError
from lance_stream.maintenance.compaction.background import (
    STOPPED_AT_EXIT,
    StoppedError,
    Turns,
    begin_work,
    end_work,
)
from lance_stream.maintenance.indices.backoff_list import BackoffList
from lance_stream.maintenance.indices.building import Built, delete_files
from lance_stream.maintenance.indices.child import (
    ChildDiedError,
    StoppedChildError,
    build_in_child,
)
from lance_stream.maintenance.indices.coverage import IndexCoverage, index_coverage
from lance_stream.maintenance.indices.missing_files import with_missing_files
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
from lance_stream.maintenance.indices.update_indices import commit_built, request_of
from lance_stream.retries import RetryPolicy
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import moment_at

_log = logging.getLogger("lance_stream.indices")

PAUSE: Final = 3.0
"""The length of the pause after a round, as a multiple of the duration of the round."""

_ATTEMPTS: Final = 3
_COMMIT_RETRIES: Final = RetryPolicy(
    max_attempts=3, first_delay_seconds=0.01, max_delay_seconds=0.1
)
_POLL_SECONDS: Final = 0.05
_MAX_WAIT_SECONDS: Final = 60.0


@dataclass(frozen=True)
class IndexRound:
    """The outcome of a round.

    Attributes:
        version: The committed version; None if there was nothing to do, or it failed.
        reasons: The indices that were due, with the reasons.
        problems: The indices that are still not up to date, with the causes.
        seconds: The duration of "build", and of "commit" including the wait for a turn.
        error: Why the round failed as a whole; None if it did not.
    """

    version: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome by index: "fresh", or why it is not up to date."""
        if self.error is not None:
            return {name: f"{type(self.error).__name__}: {self.error}" for name in self.reasons}
        return {name: self.problems.get(name, FRESH) for name in self.reasons}


FRESH: Final = "fresh"


class BackgroundIndexing:
    """Keeps indices up to date while batches are written. A pickled copy starts without state.

    Args:
        policy: When an index is due.
        turns: The turns of other background work of the same stream; None for its own.
        environment: The clock.

    Attributes:
        last_round: The outcome of the last round; None before the first has ended.
    """

    def __init__(
        self,
        policy: RefreshPolicy,
        turns: Turns | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.policy = policy
        self.last_round: IndexRound | None = None
        self._turns = Turns() if turns is None else turns
        self._environment = environment
        self._lock = threading.Lock()
        self._outcomes: dict[str, str] = {}
        self._uri = "an unknown table"
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._backoff_list = BackoffList(time.monotonic)
        self._not_before = 0.0
        self._news = threading.Event()
        self._stop = threading.Event()
        self._skip_pauses = threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.policy,)

    def batch(self) -> AbstractContextManager[None]:
        """Block commits of indices while a batch is written and committed."""
        return self._turns.of_batch()

    def after_batch(self, open_newest: Callable[[], TableVersion]) -> None:
        """Have the thread check the indices.

        Args:
            open_newest: Returns the table. The batch committed a version.
        """
        with self._lock:
            self._news.set()
            if self._is_running:
                return
            self._is_running = True
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=_run,
                args=([self], open_newest, self._stop, self._news),
                name="lance-stream-indices",
                daemon=True,
            )
            STOPPED_AT_EXIT.add(self)
            try:
                self._thread.start()
            except RuntimeError:  # the batch is committed, and must not fail
                self._thread, self._is_running = None, False
                _log.warning("cannot start the thread that updates indices; the stream continues")

    def take_outcomes(self) -> dict[str, str]:
        """Return the outcomes by index since the last call; see `IndexRound.outcomes`."""
        with self._lock:
            outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until nothing is due, without pauses between rounds; return whether nothing is.

        Further batches may create new work at any time. It does not wait for indices that become
        due by their age later, or whose next attempt is delayed after a failure.
        """
        thread = self._thread
        if thread is None:
            return True
        self._skip_pauses.set()
        self._news.set()
        try:
            thread.join(timeout_seconds)
        finally:
            self._skip_pauses.clear()
        return not thread.is_alive()

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Stop the current round; return whether it has ended.

        A round that has begun to commit runs to its end; another one leaves at most unreferenced
        files.
        """
        self._stop.set()
        self._turns.wake()
        return self.wait(timeout_seconds)

    def _has_ended(self, stop: threading.Event, seconds: float | None) -> bool:
        """Return whether the thread has nothing to do, neither now nor after some seconds."""
        with self._lock:
            is_idle = seconds is None or self._skip_pauses.is_set()
            if stop.is_set() or (is_idle and not self._news.is_set()):
                self._is_running = False
            return not self._is_running

    def _run_if_due(
        self, open_newest: Callable[[], TableVersion], stop: threading.Event
    ) -> float | None:
        """Run a round if one is due; return when to check again without news."""
        start = time.monotonic()
        reasons: dict[str, str] = {}
        try:
            table = open_newest()
            self._uri = table.uri
            indices = index_coverage(table)
            reasons = self._reasons(indices)
            if not reasons:
                return self._seconds_until_due(indices)
            self._pause(stop)
            start = time.monotonic()
            outcome = self._round(open_newest, stop)
        except (StoppedError, StoppedChildError):
            _log.info("the update of indices was stopped")
            return None
        except Exception as error:
            if stop.is_set() or not threading.main_thread().is_alive():
                _log.info("the update of indices was stopped")
                return None
            _log.warning(
                "%s: indices were not updated; the stream continues",
                self._uri,
                exc_info=True,
            )
            self._not_before = time.monotonic() + self._backoff_list.seconds_after_error()
            outcome = IndexRound(reasons=reasons, error=error)
        else:
            self._backoff_list.forget_error()
        now = time.monotonic()
        self._not_before = max(self._not_before, now + PAUSE * (now - start))
        self._report(outcome)
        return self._not_before - now

    def _report(self, outcome: IndexRound) -> None:
        if outcome.reasons:
            self.last_round = outcome
            with self._lock:
                self._outcomes |= outcome.outcomes
        for name, problem in outcome.problems.items():
            _log.warning(
                "%s: the index %s was not updated; the stream continues: %s. If the index is "
                "damaged, create it again with pylance (replace=True)",
                self._uri,
                name,
                problem,
            )
        if outcome.error is None:
            _log.info("%s: %s", self._uri, outcome)

    def _seconds_until_due(self, indices: Sequence[IndexCoverage]) -> float | None:
        now = moment_at(self._environment.now_nanos() // 1000)
        free = [index for index in indices if not self._backoff_list.contains(index)]
        by_age = self.policy.seconds_until_due(free, now)
        backoff_seconds = self._backoff_list.seconds_remaining(
            [index for index in indices if index not in free]
        )
        return min(
            (seconds for seconds in (by_age, backoff_seconds) if seconds is not None), default=None
        )

    def _reasons(self, indices: Sequence[IndexCoverage]) -> dict[str, str]:
        now = moment_at(self._environment.now_nanos() // 1000)
        return self.policy.due(
            [index for index in indices if not self._backoff_list.contains(index)], now
        )

    def _pause(self, stop: threading.Event) -> None:
        while time.monotonic() < self._not_before and not self._skip_pauses.is_set():
            if stop.wait(_POLL_SECONDS):
                raise StoppedError

    def _round(self, open_newest: Callable[[], TableVersion], stop: threading.Event) -> IndexRound:
        uri = open_newest().store.uri
        # A compaction moves rows, which makes a concurrent build useless.
        while not begin_work(uri):
            if stop.wait(_POLL_SECONDS):
                raise StoppedError
        try:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._attempt(open_newest(), stop)
                except RetryableConflictError as error:
                    _log.info("updating indices again: %s", error)
            return self._attempt(open_newest(), stop)
        finally:
            end_work(uri)

    def _attempt(self, table: TableVersion, stop: threading.Event) -> IndexRound:
        clock = time.perf_counter
        start = clock()
        before = index_coverage(table)
        reasons = self._reasons(before)
        if not reasons:
            return IndexRound()
        built = self._build(table, tuple(reasons), stop)
        problems = with_missing_files(built.problems, table)
        seconds = {"build": clock() - start}
        version: TableVersion | None = None
        if built.transaction is not None:
            try:
                with self._turns.of_commit(stop):
                    version = commit_built(table, built, _COMMIT_RETRIES, self._environment)
            except StoppedError:
                delete_files(built, table.store)
                raise
            seconds["commit"] = clock() - start - seconds["build"]
            problems |= self._without_effect(before, built, table, version)
        self._backoff_list.record_round(
            reasons, problems, before if version is None else index_coverage(version)
        )
        return IndexRound(None if version is None else version.version, reasons, problems, seconds)

    def _build(self, table: TableVersion, names: tuple[str, ...], stop: threading.Event) -> Built:
        """Build indices in a child process, or in one child per index if the first one dies."""
        request = request_of(table, names)
        try:
            return build_in_child(request, table.store.uri, table.storage_options, stop)
        except ChildDiedError as error:
            if len(names) == 1:
                return Built(problems={names[0]: str(error)})
            built = Built()
            try:
                for name in names:
                    built = built.merged_with(self._build(table, (name,), stop))
            except BaseException:
                delete_files(built, table.store)
                raise
            return built

    def _without_effect(
        self,
        before: Sequence[IndexCoverage],
        built: Built,
        table: TableVersion,
        version: TableVersion,
    ) -> dict[str, str]:
        """Return the indices that were committed but lack as many rows as before."""
        if version.version != table.version + 1:  # rows of other versions are missing, too
            return {}
        rows_before = {coverage.name: coverage.rows_unindexed for coverage in before}
        return {
            coverage.name: f"it still lacks {coverage.rows_unindexed} rows"
            for coverage in index_coverage(version)
            if coverage.name in built.names
            and coverage.rows_unindexed
            and coverage.rows_unindexed >= (rows_before.get(coverage.name) or 0)
        }


def _run(
    tasks: list[BackgroundIndexing],
    open_newest: Callable[[], TableVersion],
    stop: threading.Event,
    news: threading.Event,
) -> None:
    """Work until there is nothing to do. The thread ends with its sink."""
    indexing: BackgroundIndexing | None = tasks.pop()
    seconds: float | None = None
    while indexing is not None and not indexing._has_ended(stop, seconds):
        if seconds is not None:
            reference = weakref.ref(indexing)
            del indexing
            is_over = news.wait(min(seconds, _MAX_WAIT_SECONDS)) or seconds <= _MAX_WAIT_SECONDS
            seconds -= _MAX_WAIT_SECONDS
            indexing = reference()
            if indexing is None or not is_over:
                continue
        news.clear()
        if not stop.is_set():
            seconds = indexing._run_if_due(open_newest, stop)
