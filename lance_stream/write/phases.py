"""Measures the duration of the phases of an operation."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds per phase; repeated phases are added up.

    Attributes:
        seconds: The seconds by phase, in the order in which the phases began.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure the body as a phase, or a part of one."""
        start = time.perf_counter()
        self.seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
