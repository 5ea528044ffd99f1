"""A bounded cache of a process's connections.

New credentials mean new settings and new connections: without a bound, a stream that runs for
months would accumulate connections.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from cachetools import LRUCache

K = TypeVar("K")
V = TypeVar("V")

MAX_CONNECTIONS: Final = 8
"""Maximum number of connections of each kind; the least recently used one is closed first."""


class ConnectionCache(LRUCache[K, V]):
    """Values by key, each of which is closed when it is evicted.

    Args:
        close: Closes a value; handles its own errors.
    """

    def __init__(self, close: Callable[[V], object]) -> None:
        super().__init__(MAX_CONNECTIONS)
        self._close = close

    def popitem(self) -> tuple[K, V]:
        """Evict and close the least recently used value."""
        key, value = super().popitem()
        self._close(value)
        return key, value
