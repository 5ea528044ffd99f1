"""Retries of requests to services: how often, how soon, and for how long at most.

A request that got no answer, or "later", is repeated after a random delay that doubles each time,
until `total_seconds` have passed or it was sent `max_attempts` times. Spark tasks depend on this
alone: on a local master, Spark does not retry tasks. The libraries' own retries are off: this is
the only loop, so an error can state how often a request was sent. `Attempts` decides; object
services are asked by `ask_patiently`, which awaits, and manifest stores by
`commit.manifest_stores.asking`, which sleeps.

An attempt at an object service has `request_seconds`, and the time that its bytes take at
`SLOWEST_BYTES_PER_SECOND`: a large part on a slow line is not a timeout. Waiting for room does not
count as an attempt's time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import StoreRefusedError, StoreUnavailableError
from lance_stream.storage.objects.object_requests import Patience, RefusedError, TryAgainError

T = TypeVar("T")

_log = logging.getLogger(__name__)

SAID_AFTER: Final = 5
"""After this many attempts at a request, retries are logged."""

SLOWEST_BYTES_PER_SECOND: Final = 250_000
"""Slower transfers count as timeouts."""

_WAY_OUT: Final = (
    "try again when the service answers, or raise the storage options client_max_retries and "
    "client_retry_timeout"
)


class Attempts:
    """The attempts at one request: how long to wait between them, and when to give up.

    Args:
        patience: How often and how long.
        what: The request, for errors: "GET data/a.lance".
        whom: The service's name, for errors.
        way_out: What to do if there is no answer, for errors.
        environment: The clock and randomness.

    Attributes:
        number: The number of the current attempt, from 1.
    """

    def __init__(
        self,
        patience: Patience,
        what: str,
        whom: str,
        way_out: str,
        environment: Environment = MACHINE,
    ) -> None:
        self.number = 1
        self._patience = patience
        self._what, self._whom, self._way_out = what, whom, way_out
        self._environment = environment
        self._begin = environment.monotonic()

    def seconds_until_next(self, error: TryAgainError) -> float:
        """Count another attempt; return how long to wait before it.

        Args:
            error: How the current attempt failed.

        Raises:
            StoreUnavailableError: There are no attempts left.
        """
        patience = self._patience
        spent = self._environment.monotonic() - self._begin
        asked_for = min(error.after_seconds or 0.0, patience.max_delay_seconds)
        wait = max(asked_for, patience.delay_seconds(self.number, self._environment.chance()))
        asked = (
            f"{self._what} was asked of {self._whom} {_times(self.number)} in {spent:.1f} s; the "
            f"last answer was: {error.answer}."
        )
        if self.number >= patience.max_attempts or spent + wait > patience.total_seconds:
            raise StoreUnavailableError(f"{asked} Nothing is lost: {self._way_out}") from error
        if self.number == SAID_AFTER:
            _log.warning("%s It is asked again, for %g s in all", asked, patience.total_seconds)
        self.number += 1
        return wait


async def ask_patiently(
    ask: Callable[[int], Awaitable[T]],
    patience: Patience,
    what: str,
    whom: str,
    *,
    num_bytes: int = 0,
    room: AbstractAsyncContextManager[Any] | None = None,
    environment: Environment = MACHINE,
) -> T:
    """Return a service's answer.

    Args:
        ask: Sends the request; given the number of the attempt, from 1.
        patience: How often and how long.
        what: The request, for errors: "GET data/a.lance".
        whom: The service's name, for errors; see `ServiceSettings.where`.
        num_bytes: How many bytes are transferred.
        room: Entered for each attempt.
        environment: The clock and randomness; sleeps between attempts.

    Raises:
        StoreUnavailableError: Every attempt got no answer, or "later".
        StoreRefusedError: The service refused.
        MissingError: There is no such object.
    """
    attempts = Attempts(patience, what, whom, _WAY_OUT, environment)
    allowed = patience.request_seconds + num_bytes / SLOWEST_BYTES_PER_SECOND
    while True:
        try:
            async with room or nullcontext(), asyncio.timeout(allowed):
                return await ask(attempts.number)
        except RefusedError as error:
            raise StoreRefusedError(f"{what} was refused by {whom}: {error}") from error
        except TryAgainError as error:
            wait = attempts.seconds_until_next(error)
        except TimeoutError as error:
            answer = str(error) or f"none within {allowed:.3g} s"
            wait = attempts.seconds_until_next(TryAgainError(answer))
        await environment.sleep_async(wait)


def _times(number: int) -> str:
    return "1 time" if number == 1 else f"{number} times"
