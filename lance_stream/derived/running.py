"""A thread that keeps derived columns up to date, and its handle."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from lance_stream.derived.reports import DerivedCommit
from lance_stream.errors import LanceStreamError, StoreUnavailableError

_log = logging.getLogger("lance_stream.derived")

_MAX_FAILURES: Final = 5
"""The number of consecutive failures of the store after which the query ends."""


class DerivedQuery:
    """A running derivation; created by `Derivation.start`.

    Args:
        follow: Takes the last processed version, and runs a round if the source has a newer one.
            Returns the report of the round, None without one; and the version that is now
            processed, -1 if rows are still pending.
        name: The name of the derivation, for messages.
        interval_seconds: The interval at which to look for a new version.

    Attributes:
        last_commit: The report of the last round; None before the first.
        exception: The error that ended the query; None if there was none.
    """

    def __init__(
        self,
        follow: Callable[[int | None], tuple[DerivedCommit | None, int]],
        name: str,
        interval_seconds: float,
    ) -> None:
        self.last_commit: DerivedCommit | None = None
        self.exception: BaseException | None = None
        self._follow = follow
        self._name = name
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lance-stream-derive", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the query is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop the query after the current round, and wait until it has ended."""
        self._stop.set()
        self._thread.join()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the query has ended; return whether it has.

        Raises:
            Exception: The error that ended the query.
        """
        self._thread.join(timeout_seconds)
        if self.exception is not None:
            raise self.exception
        return not self._thread.is_alive()

    def wait_until_idle(self, timeout_seconds: float | None = None) -> bool:
        """Wait until a check of the source finds nothing to do; return whether it did.

        If the query has ended, or ends meanwhile, it returns False at once.

        Raises:
            Exception: The error that ended the query.
        """
        self._idle.clear()
        if not self._has_ended.is_set():
            self._idle.wait(timeout_seconds)
        if self.exception is not None:
            raise self.exception
        return self._idle.is_set() and not self._has_ended.is_set()

    def _run(self) -> None:
        version: int | None = None
        num_failures = 0
        try:
            while not self._stop.is_set():
                try:
                    report, version = self._follow(version)
                    num_failures = 0
                except StoreUnavailableError:
                    num_failures += 1
                    if num_failures >= _MAX_FAILURES:
                        raise
                    _log.warning("%s waits for its store", self._name, exc_info=True)
                    report = None
                if report is not None:
                    self.last_commit = report
                    if version == -1:
                        continue  # more rows are pending
                else:
                    self._idle.set()
                self._stop.wait(self._interval_seconds)
        except LanceStreamError as error:
            self.exception = error
            _log.error("%s has ended: %s", self._name, error)
        except BaseException as error:
            self.exception = error
            _log.exception("%s has ended", self._name)
        finally:
            self._has_ended.set()  # before it wakes: a later wait finds it
            self._idle.set()
