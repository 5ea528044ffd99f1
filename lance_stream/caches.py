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
    """The most recently used values, up to a total size; safe for several threads.

    Args:
        capacity: Maximum number of values; with `size_of`, the maximum sum of their sizes.
        size_of: Returns the size of a value. A value larger than the capacity is not cached.
    """

    def __init__(self, capacity: int, size_of: Callable[[V], float] | None = None) -> None:
        self._values: LRUCache[K, V] = LRUCache(capacity, getsizeof=size_of)
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a cached value, or None."""
        with self._lock:
            return self._values.get(key)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return a cached value; compute and cache it if it is missing.

        Several threads may compute it concurrently; all of them get the first result.
        """
        cached = self.get(key)
        if cached is not None:
            return cached
        value = make()
        with self._lock:
            cached = self._values.get(key)
            if cached is None:
                self._store(key, value)
            return value if cached is None else cached

    def put(self, key: K, value: V) -> None:
        """Cache a value, replacing an older one."""
        with self._lock:
            self._store(key, value)

    def change(self, key: K, change: Callable[[V | None], V]) -> V:
        """Replace a value atomically, and return the new one.

        Args:
            key: Its key.
            change: Returns the new value for the cached one, which is None if it is missing.
        """
        with self._lock:
            value = change(self._values.get(key))
            self._store(key, value)
            return value

    def items(self) -> list[tuple[K, V]]:
        """Return all cached keys and values."""
        with self._lock:
            return list(self._values.items())

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()

    def _store(self, key: K, value: V) -> None:
        self._values.pop(key, None)
        if self._values.getsizeof(value) <= self._values.maxsize:
            self._values[key] = value


class IdentityCache(Generic[V]):
    """Values computed from immutable objects, looked up by identity instead of equality.

    A table's schema is the same object from version to version, and comparing two schemas of 1,000
    columns takes as long as computing the value. A value is dropped together with its object, so it
    must not refer to the object. Safe for several threads; two may compute the same value.

    Args:
        make: Computes the value of an object.
    """

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make = make
        self._cached: dict[int, tuple[weakref.ref[Any], V]] = {}

    def of(self, owner: object) -> V:
        """Return the value of an object; compute it on first use."""
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
        """Return the number of cached values."""
        return len(self._cached)
