"""Connections that a process keeps, as many as it needs and no more.

Credentials that are renewed make other settings, and other connections: without a bound a stream
that runs for months would hold one for each of them.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from cachetools import LRUCache

K = TypeVar("K")
V = TypeVar("V")

MAX_KEPT: Final = 8
"""So many connections of each kind are kept; the one that was used longest ago goes first."""


class Kept(LRUCache[K, V]):
    """Values by key, each of which is closed when it has to go.

    Args:
        close: Closes a value; errors are its own affair.
    """

    def __init__(self, close: Callable[[V], object]) -> None:
        super().__init__(MAX_KEPT)
        self._close = close

    def popitem(self) -> tuple[K, V]:
        """Let the value go that was used longest ago."""
        key, value = super().popitem()
        self._close(value)
        return key, value
