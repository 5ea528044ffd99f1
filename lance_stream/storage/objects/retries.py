"""Retries of requests to services.

A request without a response, or with a temporary error, is repeated after a random delay that
doubles each time, until its `RequestPolicy` or the time limit of the surrounding operation is
exhausted (see `lance_stream.retries`). Spark tasks depend on this alone, since Spark does not retry
tasks on a local master. The libraries' own retries are off: this is the only loop, so an error can
state how often a request was sent. `with_retries` sends the requests to object services, and
`commit.manifest_stores.retrying` those to manifest stores.

The time limit of an attempt is `request_seconds`, plus the time that its bytes take at
`SLOWEST_BYTES_PER_SECOND`, so that a large part on a slow connection does not time out. Waiting for
a free slot does not count.
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
"""The number of attempts at a request after which a warning is logged."""

SLOWEST_BYTES_PER_SECOND: Final = 250_000
"""Slower transfers count as timeouts."""

_REMEDY: Final = (
    "try again when the service responds, or raise the storage options client_max_retries and "
    "client_retry_timeout"
)


class Attempts:
    """The attempts at one request: the delays between them, and their limits.

    Args:
        policy: The limits.
        what: The request, for errors: "GET data/a.lance".
        service: The service's name, for errors.
        remedy: The remedy if there is no response, for errors.
        environment: The clock and randomness.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        what: str,
        service: str,
        remedy: str,
        environment: Environment = MACHINE,
    ) -> None:
        self._retrying = Retrying(policy, environment)
        self._what, self._service, self._remedy = what, service, remedy

    @property
    def number(self) -> int:
        """The number of the current attempt, from 1."""
        return self._retrying.number

    def seconds_until_next(self, error: TryAgainError) -> float:
        """Count another attempt, and return the delay before it.

        Args:
            error: The error of the current attempt.

        Raises:
            StoreUnavailableError: There are no attempts left.
        """
        problem = f"{self._what} failed at {self._service}: {self._retrying}"
        number = self.number
        delay = self._retrying.next_delay(error.after_seconds or 0.0)
        if delay is None:
            raise StoreUnavailableError(
                f"{problem}; the last response was: {error.response}. Nothing is lost: "
                f"{self._remedy}"
            ) from error
        if number == LOGGED_ATTEMPT:
            _log.warning("%s; the last response was: %s. Retrying", problem, error.response)
        return delay


async def with_retries(
    request: Callable[[int], Awaitable[T]],
    policy: RequestPolicy,
    what: str,
    service: str,
    *,
    num_bytes: int = 0,
    slot: AbstractAsyncContextManager[Any] | None = None,
    environment: Environment = MACHINE,
) -> T:
    """Send a request until it succeeds, and return the response.

    Args:
        request: Sends the request; its argument is the number of the attempt, from 1.
        policy: The limits.
        what: The request, for errors: "GET data/a.lance".
        service: The service's name, for errors; see `ServiceSettings.where`.
        num_bytes: The number of bytes to transfer.
        slot: A context that is entered for each attempt.
        environment: The clock, randomness, and the sleep between attempts.

    Raises:
        StoreUnavailableError: No attempt got a response other than a temporary error.
        StoreRefusedError: The service refused.
        MissingError: There is no such object.
    """
    attempts = Attempts(policy, what, service, _REMEDY, environment)
    limit = policy.request_seconds + num_bytes / SLOWEST_BYTES_PER_SECOND
    while True:
        try:
            async with slot or nullcontext(), asyncio.timeout(limit):
                return await request(attempts.number)
        except RefusedError as error:
            raise StoreRefusedError(f"{service} refused {what}: {error}") from error
        except TryAgainError as error:
            delay = attempts.seconds_until_next(error)
        except TimeoutError as error:
            response = str(error) or f"none within {limit:.3g} s"
            delay = attempts.seconds_until_next(TryAgainError(response))
        await environment.sleep_async(delay)
