"""Waiting for something that another part does, with a bound."""

import time
from collections.abc import Callable


def wait_for(is_there: Callable[[], bool], what: str, seconds: float = 600) -> None:
    """Return as soon as something is there.

    Raises:
        TimeoutError: It never came.
    """
    deadline = time.monotonic() + seconds
    while not is_there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not appear in {seconds:.0f} s")
        time.sleep(0.25)
