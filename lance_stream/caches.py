"""Thread-safe LRU caches of values that a process has read or computed."""

import threading
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The values used last, as many as fit; safe for several threads.

    Args:
        room: How many values fit; with `size_of`, the sum of their sizes.
        size_of: Returns the size of a value. One that is larger than the room is not kept.
    """

    def __init__(self, room: int, size_of: Callable[[V], float] | None = None) -> None:
        self._values: LRUCache[K, V] = LRUCache(room, getsizeof=size_of)
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a value; None if it is not there."""
        with self._lock:
            return self._values.get(key)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return a value, which is made if it is not there.

        Threads that ask for it meanwhile may make it, too; all get the one that was there first.
        """
        cached = self.get(key)
        if cached is not None:
            return cached
        value = make()
        with self._lock:
            cached = self._values.get(key)
            if cached is None:
                self._keep(key, value)
            return value if cached is None else cached

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of an older one."""
        with self._lock:
            self._keep(key, value)

    def change(self, key: K, change: Callable[[V | None], V]) -> V:
        """Put another value in place of the one that is there, while no other thread does.

        Args:
            key: Its key.
            change: Returns the new value, given the old one; None if there is none.
        """
        with self._lock:
            value = change(self._values.get(key))
            self._keep(key, value)
            return value

    def items(self) -> list[tuple[K, V]]:
        """Return all keys and values."""
        with self._lock:
            return list(self._values.items())

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()

    def _keep(self, key: K, value: V) -> None:
        self._values.pop(key, None)
        if self._values.getsizeof(value) <= self._values.maxsize:
            self._values[key] = value


class ByIdentity(Generic[V]):
    """What was made of objects that never change: found by the objects, not by what they equal.

    A table's schema is the same object from version to version, and comparing two of 1,000 columns
    takes as long as what is to be saved. A value is forgotten with its object, to which it must not
    refer. Safe for several threads; two may make the same value.

    Args:
        make: Makes a value of an object.
    """

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make = make
        self._cached: dict[int, tuple[weakref.ref[Any], V]] = {}

    def of(self, owner: object) -> V:
        """Return the value of an object."""
        key = id(owner)
        cached = self._cached.get(key)
        if cached is not None and cached[0]() is owner:
            return cached[1]
        value = self._make(owner)
        self._cached[key] = weakref.ref(owner, partial(self._forget, key)), value
        return value

    def _forget(self, key: int, reference: "weakref.ref[Any]") -> None:
        cached = self._cached.get(key)
        if cached is not None and cached[0] is reference:
            self._cached.pop(key, None)

    def __len__(self) -> int:
        """Return how many values are kept."""
        return len(self._cached)
