"""Threads that work ahead of the consumer of their results."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
U = TypeVar("U")


def map_ahead(function: Callable[[T], U], items: Sequence[T], num_threads: int) -> Iterator[U]:
    """Yield what a function gives for each item, in order; threads are a little ahead."""
    with ThreadPoolExecutor(num_threads, thread_name_prefix="lance-stream-ahead") as threads:
        ahead: deque[Future[U]] = deque()
        try:
            for item in items:
                ahead.append(threads.submit(function, item))
                if len(ahead) > num_threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


_STATE: Final = threading.local()


def mark_as_reader() -> None:
    """Note that the calling thread is one of as many as there are cores, each reading rows."""
    _STATE.is_reader = True


def is_reader() -> bool:
    """Return whether the calling thread is such a thread, and starts no more threads itself."""
    return getattr(_STATE, "is_reader", False)
