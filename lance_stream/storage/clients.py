"""Connections to object services: one driver a process for each bucket and settings.

All requests run on one thread, the event loop's that fsspec keeps; callers on any thread wait for
their answer. Drivers are never pickled: stores carry settings.

A forked child has neither that thread nor may it use its parent's connections, so it begins with
none. What it inherited it must not even let go: closing would take the parent's sockets out of the
list of those that the parent's loop waits for, which the two share.
"""

import asyncio
import atexit
import ctypes
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from fsspec.asyn import get_loop

from lance_stream.storage.object_requests import ObjectRequests, ServiceSettings
from lance_stream.storage.retries import ask_patiently

T = TypeVar("T")

_CLOSE_SECONDS: Final = 2.0


class _Connection(NamedTuple):
    driver: ObjectRequests
    room: asyncio.Semaphore


_connections: dict[tuple[ServiceSettings, str], _Connection] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Client:
    """Asks one bucket, from any thread and in any process.

    Args:
        settings: How the service is reached.
        container: The bucket or container.
        whom: Who is asked, in words, for errors.
    """

    settings: ServiceSettings
    container: str
    whom: str

    def ask(self, question: Callable[[ObjectRequests], Awaitable[T]]) -> T:
        """Return what a question gives, asked on the event loop's thread.

        Args:
            question: Asks a driver; may send several requests, and several at once, each of them
                by way of `patiently`.
        """
        asked = self.begin(question)
        try:
            return asked.result()
        except BaseException:
            asked.cancel()
            raise

    def begin(self, question: Callable[[ObjectRequests], Awaitable[T]]) -> Future[T]:
        """Return what will hold what a question gives; see `ask`."""

        async def run() -> T:
            return await question(self._connection().driver)

        return asyncio.run_coroutine_threadsafe(run(), get_loop())

    async def patiently(
        self, request: Callable[[int], Awaitable[T]], what: str, *, num_bytes: int = 0
    ) -> T:
        """Return the answer to a request, which is sent again if it has to be.

        Only so many requests of this process are under way at once as the settings say.

        Args:
            request: Sends it; given the number of the attempt, from 1.
            what: What is asked, for errors.
            num_bytes: How many bytes come or go.
        """
        return await ask_patiently(
            request,
            self.settings.patience,
            what,
            self.whom,
            num_bytes=num_bytes,
            room=self._connection().room,
        )

    def _connection(self) -> _Connection:
        with _lock:
            known = _connections.get((self.settings, self.container))
            if known is None:
                known = _connections[self.settings, self.container] = _Connection(
                    self.settings.connect(self.container),
                    asyncio.Semaphore(self.settings.max_requests_at_once),
                )
            return known


def close_all() -> None:
    """Let all connections of this process go."""
    with _lock:
        drivers = [each.driver for each in _connections.values()]
        _connections.clear()

    async def close() -> None:
        await asyncio.gather(*(each.close() for each in drivers), return_exceptions=True)

    if drivers:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(close(), get_loop()).result(_CLOSE_SECONDS)


def _leave_to_the_parent() -> None:
    global _lock, _connections  # the parent may have held the lock in the moment of the fork
    if _connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_connections))  # for ever
    _lock, _connections = threading.Lock(), {}


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
