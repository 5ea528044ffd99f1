"""Retries for requests to a key-value store, bounded like those to object services."""

from collections.abc import Callable
from typing import Final, TypeVar

from lance_stream.environment import MACHINE, Environment
from lance_stream.storage.objects.object_requests import Patience, TryAgainError
from lance_stream.storage.objects.retries import Attempts

T = TypeVar("T")

PATIENCE: Final = Patience(
    max_attempts=60, total_seconds=60.0, request_seconds=20.0, max_delay_seconds=5.0
)
"""A commit waits for each of these small requests, so their time is bounded."""

_WAY_OUT: Final = "try again when the manifest store answers"


def ask_patiently(
    ask: Callable[[], T], what: str, whom: str, environment: Environment = MACHINE
) -> T:
    """Return a store's answer.

    Args:
        ask: Sends the request; raises TryAgainError if the same request may succeed later.
        what: The request, for errors: "the item of version 5".
        whom: The store, for errors; see `ManifestStore.where`.
        environment: The clock and randomness; sleeps between attempts.

    Raises:
        StoreUnavailableError: Every attempt got no answer, or "try later".
    """
    attempts = Attempts(PATIENCE, what, whom, _WAY_OUT, environment)
    while True:
        try:
            return ask()
        except TryAgainError as error:
            wait = attempts.seconds_until_next(error)
        environment.sleep(wait)
