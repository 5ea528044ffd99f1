"""Connections to object services: one driver per process, bucket and settings.

All requests run on one thread with an event loop; callers on any thread wait for the responses.
Drivers are never pickled; stores contain the settings.

New credentials are new settings, so opening a connection closes those that were idle for an hour.

A forked child does not have the thread and must not use its parent's connections, so it starts
without connections.
"""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from lance_stream.storage.objects.object_requests import ObjectRequests, ServiceSettings
from lance_stream.storage.objects.retries import with_retries

T = TypeVar("T")

_CLOSE_SECONDS: Final = 2.0


_IDLE_SECONDS: Final = 3600.0


@dataclass
class _Connection:
    """A driver and its users; accessed on the event loop's thread only."""

    driver: ObjectRequests
    slot: asyncio.Semaphore
    num_users: int = 0
    last_used: float = field(default_factory=time.monotonic)

    @contextmanager
    def used(self) -> Iterator[ObjectRequests]:
        self.num_users += 1
        try:
            yield self.driver
        finally:
            self.num_users -= 1
            self.last_used = time.monotonic()

    def is_idle(self) -> bool:
        return not self.num_users and time.monotonic() - self.last_used > _IDLE_SECONDS


_connections: dict[tuple[ServiceSettings, str], _Connection] = {}
_loop: asyncio.AbstractEventLoop | None = None
_lock = threading.Lock()
_closing: set[asyncio.Future[None]] = set()


@dataclass(frozen=True)
class Client:
    """Sends requests to one bucket, from any thread and in any process.

    Args:
        settings: The settings of the service.
        container: The bucket or container.
        service: The service's name, for errors.
    """

    settings: ServiceSettings
    container: str
    service: str

    def run(self, operation: Callable[[ObjectRequests], Awaitable[T]]) -> T:
        """Run an operation on the event loop's thread, and return its result.

        Args:
            operation: Uses a driver. It can send several requests, also concurrently, each through
                `with_retries`.
        """
        result = self.start(operation)
        try:
            return result.result()
        except BaseException:
            result.cancel()
            raise

    def start(self, operation: Callable[[ObjectRequests], Awaitable[T]]) -> Future[T]:
        """Start an operation, and return a future with its result; see `run`."""

        async def run() -> T:
            with self._connection().used() as driver:
                return await operation(driver)

        return asyncio.run_coroutine_threadsafe(run(), _running_loop())

    async def with_retries(
        self, request: Callable[[int], Awaitable[T]], what: str, *, num_bytes: int = 0
    ) -> T:
        """Send a request, with retries if necessary, and return the response.

        The settings limit the number of concurrent requests of this process.

        Args:
            request: Sends the request; its argument is the number of the attempt, from 1.
            what: The request, for errors.
            num_bytes: The number of bytes to transfer.
        """
        return await with_retries(
            request,
            self.settings.retry_policy,
            what,
            self.service,
            num_bytes=num_bytes,
            slot=self._connection().slot,
        )

    def _connection(self) -> _Connection:
        with _lock:
            connection = _connections.get((self.settings, self.container))
            if connection is None:
                _close_idle()
                connection = _connections[self.settings, self.container] = _Connection(
                    self.settings.connect(self.container),
                    asyncio.Semaphore(self.settings.max_requests_at_once),
                )
            return connection


def _close_idle() -> None:
    for key in [key for key, connection in _connections.items() if connection.is_idle()]:
        closing = asyncio.ensure_future(_close(_connections.pop(key).driver))
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)


async def _close(driver: ObjectRequests) -> None:
    with suppress(Exception):
        await driver.close()


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop for all requests of this process."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="lance-stream-io", daemon=True).start()
        return _loop


def close_all() -> None:
    """Close all connections of this process."""
    with _lock:
        drivers = [connection.driver for connection in _connections.values()]
        _connections.clear()

    async def close() -> None:
        await asyncio.gather(*map(_close, drivers))

    if drivers:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(close(), _running_loop()).result(_CLOSE_SECONDS)


def _forget_parent() -> None:
    global _lock, _loop, _connections  # the parent may have held the lock when it forked
    _lock, _loop, _connections = threading.Lock(), None, {}


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
