"""Indices are brought up to date alongside a stream of batches, by a thread and a child process.

    batch 0   batch 1   batch 2    batch 3            batch 4
    ───────   ───────   ─────────  ─────────────────  ───────
                      │                             ▲
                      └─ build, in a child ─ ─ ─ ─ ─ commit, between two batches

After each batch that committed a version, the thread looks at what the indices cover; if one misses
too much, a round begins. A batch waits for at most one commit, as with compactions, which share the
turns and never run at the same time on a table. After a round the thread pauses for three times as
long as it took, so that indices take at most a quarter of the time, however large they are.

A round never fails a stream: errors are logged, and a later round tries again. A killed process
leaves files that no version names.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from lance_stream.backoff import Backoff
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import RetryableConflictError
from lance_stream.maintenance.compaction.background import (
    STOPPED_AT_EXIT,
    StoppedError,
    Turns,
    begin_work,
    end_work,
)
from lance_stream.maintenance.indices.child import StoppedChildError, build_in_child
from lance_stream.maintenance.indices.coverage import index_coverage
from lance_stream.maintenance.indices.freshen import commit_built, request_of, staged_files
from lance_stream.maintenance.indices.policy import FreshIndices
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import moment_at

_log = logging.getLogger("lance_stream.indices")

PAUSE: Final = 3.0
"""How many times as long as a round took no other one begins."""

SECONDS_AFTER_ERROR: Final = 30.0
"""How long at least, after one that failed."""

_ATTEMPTS: Final = 3
_COMMIT: Final = Backoff(max_attempts=3, first_delay_seconds=0.01, max_delay_seconds=0.1)
_SECONDS_BETWEEN_LOOKS: Final = 0.05


@dataclass(frozen=True)
class IndexRound:
    """The outcome of a round.

    Attributes:
        version: The committed version; None if there was nothing to do, or it failed.
        reasons: The indices that were to be brought up to date, each with the reason.
        seconds: How long it took: "build", and "commit" with the waiting for a turn.
        error: The error; None if there was none.
    """

    version: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: Exception | None = None


class BackgroundIndexing:
    """Keeps indices up to date while batches are written. Pickles as if it were new.

    Args:
        policy: From when on an index is brought up to date.
        turns: Those of other work beside the same batches; None for its own.
        environment: The clock.

    Attributes:
        last_round: The outcome of the last round; None before the first has ended.
    """

    def __init__(
        self,
        policy: FreshIndices,
        turns: Turns | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.policy = policy
        self.last_round: IndexRound | None = None
        self._turns = Turns() if turns is None else turns
        self._environment = environment
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._has_news = False
        self._not_before = 0.0
        self._stop = threading.Event()
        self._hurry = threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.policy,)

    def batch(self) -> AbstractContextManager[None]:
        """Hold off commits of indices while a batch is written and committed."""
        return self._turns.of_batch()

    def after_batch(self, open_newest: Callable[[], TableVersion]) -> None:
        """Look at the indices, in the thread.

        Args:
            open_newest: Returns the table. The batch committed a version.
        """
        with self._lock:
            self._has_news = True
            if self._is_running:
                return
            self._is_running = True
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run,
                args=(open_newest, self._stop),
                name="lance-stream-indices",
                daemon=True,
            )
            STOPPED_AT_EXIT.add(self)
            self._thread.start()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until nothing is to be done, without pauses between rounds; return whether it is so.

        Batches that go on may make new work all the time.
        """
        thread = self._thread
        if thread is None:
            return True
        self._hurry.set()
        try:
            thread.join(timeout_seconds)
        finally:
            self._hurry.clear()
        return not thread.is_alive()

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Stop the round under way; return whether it has ended.

        A round that has not begun to commit leaves nothing that a version names; one that has runs
        to its end.
        """
        self._stop.set()
        self._turns.wake()
        return self.wait(timeout_seconds)

    def _run(self, open_newest: Callable[[], TableVersion], stop: threading.Event) -> None:
        while True:
            with self._lock:
                if stop.is_set() or not self._has_news:
                    self._is_running = False
                    return
                self._has_news = False
            self._look(open_newest, stop)

    def _look(self, open_newest: Callable[[], TableVersion], stop: threading.Event) -> None:
        start = time.monotonic()
        reasons: dict[str, str] = {}
        try:
            reasons = self._reasons(open_newest())
            if not reasons:
                return
            self._pause(stop)
            start = time.monotonic()
            self.last_round = self._round(open_newest, stop)
            _log.info("%s", self.last_round)
        except (StoppedError, StoppedChildError):
            _log.info("bringing indices up to date was stopped before its end")
        except Exception as error:
            self.last_round = IndexRound(reasons=reasons, error=error)
            self._not_before = time.monotonic() + SECONDS_AFTER_ERROR
            if stop.is_set() or not threading.main_thread().is_alive():
                _log.info("bringing indices up to date was stopped before its end")
            else:
                _log.warning(
                    "indices are not brought up to date; the stream goes on", exc_info=True
                )
        now = time.monotonic()
        self._not_before = max(self._not_before, now + PAUSE * (now - start))

    def _reasons(self, table: TableVersion) -> dict[str, str]:
        now = moment_at(self._environment.now_nanos() // 1000)
        return self.policy.due(index_coverage(table), now)

    def _pause(self, stop: threading.Event) -> None:
        while time.monotonic() < self._not_before and not self._hurry.is_set():
            if stop.wait(_SECONDS_BETWEEN_LOOKS):
                raise StoppedError

    def _round(self, open_newest: Callable[[], TableVersion], stop: threading.Event) -> IndexRound:
        uri = open_newest().store.uri
        while not begin_work(uri):  # a compaction moves rows, and the index would be in vain
            if stop.wait(_SECONDS_BETWEEN_LOOKS):
                raise StoppedError
        try:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._attempt(open_newest(), stop)
                except RetryableConflictError as error:
                    _log.info("indices are brought up to date again: %s", error)
            return self._attempt(open_newest(), stop)
        finally:
            end_work(uri)

    def _attempt(self, table: TableVersion, stop: threading.Event) -> IndexRound:
        clock = time.perf_counter
        start = clock()
        reasons = self._reasons(table)
        if not reasons:
            return IndexRound()
        request = request_of(table, tuple(reasons))
        built = build_in_child(request, table.store.uri, table.storage_options, stop)
        done = clock()
        if built is None:
            return IndexRound(reasons=reasons, seconds={"build": done - start})
        try:
            with self._turns.of_commit(stop):
                made = commit_built(table, built, _COMMIT, self._environment)
        except StoppedError:
            staged_files(built).delete(table.store)
            raise
        seconds = {"build": done - start, "commit": clock() - done}
        return IndexRound(made.version, reasons, seconds)
