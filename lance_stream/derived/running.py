"""A thread that keeps derived columns up to date, and what its user holds of it."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from lance_stream.derived.reports import DerivedPiece
from lance_stream.errors import LanceStreamError, StoreUnavailableError

_log = logging.getLogger("lance_stream.derived")

_MOST_FAILURES: Final = 5
"""How many times in a row the store may be unavailable before the query ends."""


class DerivedQuery:
    """Derived columns that are kept up to date; made by `Derivation.start`.

    Args:
        follow: Does a piece if the source is at another version than the one given, and returns its
            outcome and the version that needs no further look; -1 if there is more to do.
        name: For messages.
        interval_seconds: How often it looks.

    Attributes:
        last_piece: The outcome of the last piece; None before the first.
        exception: The error that has ended it; None if there is none.
    """

    def __init__(
        self,
        follow: Callable[[int | None], tuple[DerivedPiece | None, int]],
        name: str,
        interval_seconds: float,
    ) -> None:
        self.last_piece: DerivedPiece | None = None
        self.exception: BaseException | None = None
        self._follow = follow
        self._name = name
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lance-stream-derive", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it after the piece that is being worked off, and wait for that."""
        self._stop.set()
        self._thread.join()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it has ended; return whether it has.

        Raises:
            Exception: The error that has ended it.
        """
        self._thread.join(timeout_seconds)
        if self.exception is not None:
            raise self.exception
        return not self._thread.is_alive()

    def wait_until_idle(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it has looked at the source and found nothing to do; return whether it has.

        Raises:
            Exception: The error that has ended it.
        """
        self._idle.clear()
        done = self._idle.wait(timeout_seconds)
        if self.exception is not None:
            raise self.exception
        return done

    def _run(self) -> None:
        seen: int | None = None
        failures = 0
        try:
            while not self._stop.is_set():
                try:
                    done, seen = self._follow(seen)
                    failures = 0
                except StoreUnavailableError:
                    failures += 1
                    if failures >= _MOST_FAILURES:
                        raise
                    _log.warning("%s waits for its store", self._name, exc_info=True)
                    done = None
                if done is not None:
                    self.last_piece = done
                    if seen == -1:
                        continue
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
            self._idle.set()
