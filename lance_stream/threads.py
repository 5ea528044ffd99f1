"""Threads that compute results ahead of their consumer."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from lance_stream.errors import InvalidInputError

T = TypeVar("T")
U = TypeVar("U")


def map_ahead(function: Callable[[T], U], items: Sequence[T], num_threads: int) -> Iterator[U]:
    """Yield a function's results in the order of the items; threads compute the next ones ahead."""
    with ThreadPoolExecutor(num_threads, thread_name_prefix="lance-stream-ahead") as threads:
        pending: deque[Future[U]] = deque()
        try:
            for item in items:
                pending.append(threads.submit(function, item))
                if len(pending) > num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def check_is_not_forked(process: int) -> None:
    """Check that this process is the one that started some threads: a fork does not copy threads.

    Args:
        process: The id of the process that started the threads.

    Raises:
        InvalidInputError: This process was forked since.
    """
    if os.getpid() != process:
        raise InvalidInputError(
            f"the rows are read by threads of process {process}, from which this process was "
            "forked, so they would never arrive here. Open the reader or stream in the process "
            "that uses it; a dataset may be opened before"
        )


_STATE: Final = threading.local()


def mark_as_reader() -> None:
    """Record that the calling thread reads rows, as one of a pool with a thread per core."""
    _STATE.is_reader = True


def is_reader() -> bool:
    """Return whether the calling thread is in such a pool, so that it need not start threads."""
    return getattr(_STATE, "is_reader", False)
