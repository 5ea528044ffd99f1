"""Connections to object services: one driver a process for each bucket and settings.

All requests run on one thread, the event loop's that fsspec keeps; callers on any thread wait for
their answer. A forked child has neither that thread nor may it use its parent's connections: it
begins with none. Drivers are never pickled: stores carry settings.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from fsspec.asyn import get_loop

from lance_stream.storage.object_requests import ObjectRequests, ServiceSettings

T = TypeVar("T")

_drivers: dict[tuple[ServiceSettings, str], ObjectRequests] = {}
_lock = threading.Lock()

# A parent's drivers are kept in its children for good: what closes them takes their sockets out of
# the event loop's epoll, which parent and child share, and the parent would wait in vain.
_of_parents: list[ObjectRequests] = []


def ask(
    settings: ServiceSettings,
    container: str,
    question: Callable[[ObjectRequests], Awaitable[T]],
) -> T:
    """Return what a question to a service gives, asked on the event loop's thread.

    Args:
        settings: How the service is reached.
        container: The bucket or container.
        question: Asks a driver; may send several requests, and several at once.
    """
    asked = begin_to_ask(settings, container, question)
    try:
        return asked.result()
    except BaseException:
        asked.cancel()
        raise


def begin_to_ask(
    settings: ServiceSettings,
    container: str,
    question: Callable[[ObjectRequests], Awaitable[T]],
) -> Future[T]:
    """Return what will hold what a question to a service gives; see `ask`."""

    async def run() -> T:
        return await question(_driver(settings, container))

    return asyncio.run_coroutine_threadsafe(run(), get_loop())


def _driver(settings: ServiceSettings, container: str) -> ObjectRequests:
    with _lock:
        driver = _drivers.get((settings, container))
        if driver is None:
            driver = _drivers[settings, container] = settings.connect(container)
        return driver


def _forget_all() -> None:
    global _lock  # the parent may have held it in the moment of the fork
    _lock = threading.Lock()
    _of_parents.extend(_drivers.values())
    _drivers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
