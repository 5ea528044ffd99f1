"""Asking a key-value store again, a bounded number of times, as object services are asked."""

from collections.abc import Callable
from typing import Final, TypeVar

from lance_stream.environment import MACHINE, Environment
from lance_stream.storage.object_requests import Patience, TryAgainError
from lance_stream.storage.retries import Attempts

T = TypeVar("T")

PATIENCE: Final = Patience(
    max_attempts=60, total_seconds=60.0, request_seconds=20.0, max_delay_seconds=5.0
)
"""A commit waits for each of these requests; they are small. The time is the bound."""

_WAY_OUT: Final = "try again when the manifest store answers"


def ask_patiently(
    ask: Callable[[], T], what: str, whom: str, environment: Environment = MACHINE
) -> T:
    """Return a store's answer.

    Args:
        ask: Sends the request; raises TryAgainError where the same may go through in a moment.
        what: What is asked, for errors: "the item of version 5".
        whom: Who is asked, for errors; see `ManifestStore.where`.
        environment: The clock and the randomness; sleeps between two attempts.

    Raises:
        StoreUnavailableError: There was no answer, or none but "later", each time.
    """
    attempts = Attempts(PATIENCE, what, whom, _WAY_OUT, environment)
    while True:
        try:
            return ask()
        except TryAgainError as error:
            wait = attempts.seconds_until_next(error)
        environment.sleep(wait)
