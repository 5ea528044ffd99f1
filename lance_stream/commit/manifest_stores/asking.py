"""Asking a key-value store again, a bounded number of times, as object services are asked."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import StoreUnavailableError
from lance_stream.storage.object_requests import Patience, TryAgainError
from lance_stream.storage.retries import SAID_AFTER, say_that_it_goes_on

T = TypeVar("T")

PATIENCE: Final = Patience(
    max_attempts=60, total_seconds=60.0, request_seconds=20.0, max_delay_seconds=5.0
)
"""A commit waits for each of these requests; they are small. The time is the bound."""


def ask_patiently(
    ask: Callable[[], T], what: str, whom: str, environment: Environment = MACHINE
) -> T:
    """Return a store's answer.

    Args:
        ask: Sends the request; raises TryAgainError where the same may go through in a moment.
        what: What is asked, for errors: "the item of version 5".
        whom: Who is asked, for errors; see `ManifestStore.where`.
        environment: What sleeps between two attempts, and the randomness.

    Raises:
        StoreUnavailableError: There was no answer, or none but "later", each time.
    """
    patience = PATIENCE
    begin = time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        try:
            return ask()
        except TryAgainError as error:
            spent = time.monotonic() - begin
            wait = patience.delay_seconds(attempt, environment.chance())
            if attempt >= patience.max_attempts or spent + wait > patience.total_seconds:
                raise StoreUnavailableError(
                    f"{what} was asked of {whom} {attempt} times in {spent:.1f} s; the last answer "
                    f"was: {error}. Nothing is lost: try again when the manifest store answers"
                ) from error
            if attempt == SAID_AFTER:
                say_that_it_goes_on(what, whom, attempt, spent, error, patience)
        environment.sleep(wait)
