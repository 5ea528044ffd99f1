"""Clock and chance, as values: what a commit takes from outside, so that tests can give it."""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    """The clock and the dice that a commit uses.

    Attributes:
        now_nanos: Returns nanoseconds since 1970-01-01 UTC.
        sleep: Waits for some seconds.
        chance: Returns a number from 0 up to but not including 1.
        random_id: Returns a random u64.
    """

    now_nanos: Callable[[], int]
    sleep: Callable[[float], None]
    chance: Callable[[], float]
    random_id: Callable[[], int]


REAL_WORLD = World(
    now_nanos=time.time_ns,
    sleep=time.sleep,
    chance=random.random,
    random_id=lambda: secrets.randbits(64),
)
"""The machine's clock and dice."""
