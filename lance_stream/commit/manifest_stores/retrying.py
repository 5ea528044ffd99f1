"""Retries of requests to a manifest store, limited like those to object services."""

from collections.abc import Callable
from typing import Final, TypeVar

from lance_stream.environment import MACHINE, Environment
from lance_stream.storage.objects.object_requests import RequestPolicy, TryAgainError
from lance_stream.storage.objects.retries import Attempts

T = TypeVar("T")

POLICY: Final = RequestPolicy(
    max_attempts=60, total_seconds=60.0, request_seconds=20.0, max_delay_seconds=5.0
)
"""A commit waits for these small requests, so their time is limited."""

_REMEDY: Final = "try again when the manifest store responds"


def with_retries(
    request: Callable[[], T], what: str, store: str, environment: Environment = MACHINE
) -> T:
    """Send a request until it succeeds, and return the response.

    Args:
        request: Sends the request; raises TryAgainError if it may succeed later.
        what: The request, for errors: "reading the item of version 5".
        store: The store, for errors; see `ManifestStore.where`.
        environment: The clock, randomness, and the sleep between attempts.

    Raises:
        StoreUnavailableError: No attempt got a response other than a temporary error.
    """
    attempts = Attempts(POLICY, what, store, _REMEDY, environment)
    while True:
        try:
            return request()
        except TryAgainError as error:
            delay = attempts.seconds_until_next(error)
        environment.sleep(delay)
