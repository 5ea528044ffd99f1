"""Asking an object service again: how often, how soon, for how long at most.

A request that got no answer, or "later", is sent again after a random while that doubles with each
time, until it was sent `max_attempts` times, or `total_seconds` have passed. The libraries' own
retries are off: this is the only loop, so that an error can say how often something was asked.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lance_stream.errors import StoreRefusedError, StoreUnavailableError
from lance_stream.storage.object_requests import Patience, RefusedError, TryAgainError

T = TypeVar("T")


async def ask_patiently(
    ask: Callable[[int], Awaitable[T]], patience: Patience, what: str, whom: str
) -> T:
    """Return a service's answer.

    Args:
        ask: Sends the request; given the number of the attempt, from 1.
        patience: How often and how long.
        what: What is asked, for errors: "GET data/a.lance".
        whom: Who is asked, for errors; see `ServiceSettings.where`.

    Raises:
        StoreUnavailableError: There was no answer, or none but "later", each time.
        StoreRefusedError: The service said no.
        MissingError: There is no such object.
    """
    begin = time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        try:
            async with asyncio.timeout(patience.request_seconds):
                return await ask(attempt)
        except RefusedError as error:
            raise StoreRefusedError(f"{what} was refused by {whom}: {error}") from error
        except (TryAgainError, TimeoutError) as error:
            answer = str(error) or f"no answer within {patience.request_seconds:g} s"
            after = getattr(error, "after_seconds", None)
            spent = time.monotonic() - begin
            wait = _delay_seconds(patience, attempt, after)
            if attempt >= patience.max_attempts or spent + wait > patience.total_seconds:
                raise StoreUnavailableError(
                    f"{what} was asked of {whom} {attempt} times in {spent:.1f} s; the last "
                    f"answer was: {answer}. Nothing is lost: try again when the service answers, "
                    "or raise the storage options client_max_retries and client_retry_timeout"
                ) from error
        await asyncio.sleep(wait)


def _delay_seconds(patience: Patience, attempt: int, asked_for: float | None) -> float:
    longest = min(
        patience.first_delay_seconds * 2.0 ** min(attempt - 1, 30), patience.max_delay_seconds
    )
    return max(min(asked_for or 0.0, patience.max_delay_seconds), longest * random.random())
