"""The clock, sleep and randomness that code depends on, passed in as a value."""

import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


async def _sleep_async(seconds: float) -> None:
    import asyncio  # most processes have no event loop and do not need it

    await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine's clock, sleep and randomness, which tests replace.

    Attributes:
        now_nanos: Returns nanoseconds since 1970-01-01 UTC.
        sleep: Waits for some seconds.
        chance: Returns a number from 0 up to but not including 1.
        random_id: Returns a random u64.
        monotonic: Returns seconds since an arbitrary moment; never decreases.
        sleep_async: Waits for some seconds while other coroutines run.
    """

    now_nanos: Callable[[], int]
    sleep: Callable[[float], None]
    chance: Callable[[], float]
    random_id: Callable[[], int]
    monotonic: Callable[[], float] = time.monotonic
    sleep_async: Callable[[float], Awaitable[None]] = _sleep_async


MACHINE = Environment(
    now_nanos=time.time_ns,
    sleep=time.sleep,
    chance=random.random,
    random_id=lambda: secrets.randbits(64),
)
"""The real clock, sleep and randomness."""
