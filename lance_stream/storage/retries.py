"""Asking an object service again: how often, how soon, for how long at most.

A request that got no answer, or "later", is sent again after a random while that doubles with each
time, until `total_seconds` have passed, or it was sent `max_attempts` times. Tasks of Spark stand
on this alone: on a local master Spark tries a task once. The libraries' own retries are off: this
is the only loop, so that an error can say how often something was asked.

An attempt has `request_seconds`, and the time that its bytes take at `SLOWEST_BYTES_PER_SECOND`:
a large part on a slow line is no silence. Waiting for room is not counted as an attempt's time.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar

from lance_stream.errors import StoreRefusedError, StoreUnavailableError
from lance_stream.storage.object_requests import Patience, RefusedError, TryAgainError

T = TypeVar("T")

_log = logging.getLogger(__name__)

SAID_AFTER: Final = 5
"""After so many attempts at one request the log says that it is tried again."""

SLOWEST_BYTES_PER_SECOND: Final = 250_000
"""Data that come or go more slowly count as if they did not."""


async def ask_patiently(
    ask: Callable[[int], Awaitable[T]],
    patience: Patience,
    what: str,
    whom: str,
    *,
    num_bytes: int = 0,
    room: AbstractAsyncContextManager[Any] | None = None,
) -> T:
    """Return a service's answer.

    Args:
        ask: Sends the request; given the number of the attempt, from 1.
        patience: How often and how long.
        what: What is asked, for errors: "GET data/a.lance".
        whom: Who is asked, for errors; see `ServiceSettings.where`.
        num_bytes: How many bytes come or go.
        room: Entered for each attempt.

    Raises:
        StoreUnavailableError: There was no answer, or none but "later", each time.
        StoreRefusedError: The service said no.
        MissingError: There is no such object.
    """
    begin = time.monotonic()
    allowed = patience.request_seconds + num_bytes / SLOWEST_BYTES_PER_SECOND
    attempt = 0
    while True:
        attempt += 1
        try:
            async with room or nullcontext(), asyncio.timeout(allowed):
                return await ask(attempt)
        except RefusedError as error:
            raise StoreRefusedError(f"{what} was refused by {whom}: {error}") from error
        except (TryAgainError, TimeoutError) as error:
            answer = str(error) or f"none within {allowed:.3g} s"
            after = getattr(error, "after_seconds", None)
            spent = time.monotonic() - begin
            wait = _delay_seconds(patience, attempt, after)
            if attempt >= patience.max_attempts or spent + wait > patience.total_seconds:
                raise StoreUnavailableError(
                    f"{what} was asked of {whom} {_times(attempt)} in {spent:.1f} s; the last "
                    f"answer was: {answer}. Nothing is lost: try again when the service answers, "
                    "or raise the storage options client_max_retries and client_retry_timeout"
                ) from error
            if attempt == SAID_AFTER:
                say_that_it_goes_on(what, whom, attempt, spent, error, patience)
        await asyncio.sleep(wait)


def say_that_it_goes_on(
    what: str, whom: str, attempt: int, spent: float, error: Exception, patience: Patience
) -> None:
    """Say in the log, once a request, that somebody is waiting."""
    _log.warning(
        "%s was asked of %s %s in %.1f s; the last answer was: %s. It is asked again, for %g s in "
        "all",
        what,
        whom,
        _times(attempt),
        spent,
        str(error) or type(error).__name__,
        patience.total_seconds,
    )


def _times(number: int) -> str:
    return "1 time" if number == 1 else f"{number} times"


def _delay_seconds(patience: Patience, attempt: int, asked_for: float | None) -> float:
    asked_for = min(asked_for or 0.0, patience.max_delay_seconds)
    return max(asked_for, patience.delay_seconds(attempt, random.random()))
