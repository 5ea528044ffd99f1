"""Retries of requests to services.

A request that got no answer, or "later", is repeated after a random delay that doubles each time,
until its `RequestPolicy` or the time limit of the operation around it is exhausted (see
`lance_stream.retries`). Spark tasks depend on this alone: on a local master, Spark does not retry
tasks. The libraries' own retries are off: this is the only loop, so an error can state how often a
request was sent. Object services are asked by `with_retries`, which awaits, and manifest stores by
`commit.manifest_stores.retrying`, which sleeps.

An attempt at an object service has `request_seconds`, and the time that its bytes take at
`SLOWEST_BYTES_PER_SECOND`: a large part on a slow line is not a timeout. Waiting for a free slot
does not count as an attempt's time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import StoreRefusedError, StoreUnavailableError
from lance_stream.retries import Retrying, RetryPolicy
from lance_stream.storage.objects.object_requests import (
    RefusedError,
    RequestPolicy,
    TryAgainError,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

LOGGED_ATTEMPT: Final = 5
"""After this many attempts at a request, retries are logged."""

SLOWEST_BYTES_PER_SECOND: Final = 250_000
"""Slower transfers count as timeouts."""

_REMEDY: Final = (
    "try again when the service answers, or raise the storage options client_max_retries and "
    "client_retry_timeout"
)


class Attempts:
    """The attempts at one request: how long to wait between them, and when to give up.

    Args:
        policy: The limits.
        what: The request, for errors: "GET data/a.lance".
        whom: The service's name, for errors.
        remedy: What to do if there is no answer, for errors.
        environment: The clock and randomness.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        what: str,
        whom: str,
        remedy: str,
        environment: Environment = MACHINE,
    ) -> None:
        self._retrying = Retrying(policy, environment)
        self._what, self._whom, self._remedy = what, whom, remedy

    @property
    def number(self) -> int:
        """The number of the current attempt, from 1."""
        return self._retrying.number

    def seconds_until_next(self, error: TryAgainError) -> float:
        """Count another attempt; return how long to wait before it.

        Args:
            error: How the current attempt failed.

        Raises:
            StoreUnavailableError: There are no attempts left.
        """
        problem = f"{self._what} failed at {self._whom}: {self._retrying}"
        number = self.number
        delay = self._retrying.next_delay(error.after_seconds or 0.0)
        if delay is None:
            raise StoreUnavailableError(
                f"{problem}; the last answer was: {error.answer}. Nothing is lost: {self._remedy}"
            ) from error
        if number == LOGGED_ATTEMPT:
            _log.warning("%s; the last answer was: %s. Retrying", problem, error.answer)
        return delay


async def with_retries(
    request: Callable[[int], Awaitable[T]],
    policy: RequestPolicy,
    what: str,
    whom: str,
    *,
    num_bytes: int = 0,
    slot: AbstractAsyncContextManager[Any] | None = None,
    environment: Environment = MACHINE,
) -> T:
    """Return a service's answer to a request.

    Args:
        request: Sends it; given the number of the attempt, from 1.
        policy: The limits.
        what: The request, for errors: "GET data/a.lance".
        whom: The service's name, for errors; see `ServiceSettings.where`.
        num_bytes: How many bytes are transferred.
        slot: Entered for each attempt.
        environment: The clock and randomness; sleeps between attempts.

    Raises:
        StoreUnavailableError: Every attempt got no answer, or "later".
        StoreRefusedError: The service refused.
        MissingError: There is no such object.
    """
    attempts = Attempts(policy, what, whom, _REMEDY, environment)
    allowed = policy.request_seconds + num_bytes / SLOWEST_BYTES_PER_SECOND
    while True:
        try:
            async with slot or nullcontext(), asyncio.timeout(allowed):
                return await request(attempts.number)
        except RefusedError as error:
            raise StoreRefusedError(f"{whom} refused {what}: {error}") from error
        except TryAgainError as error:
            delay = attempts.seconds_until_next(error)
        except TimeoutError as error:
            answer = str(error) or f"none within {allowed:.3g} s"
            delay = attempts.seconds_until_next(TryAgainError(answer))
        await environment.sleep_async(delay)
