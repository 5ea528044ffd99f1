"""Sends a file in parts while it is written; a small file by one request when it is closed.

    write     sends parts of 8 MiB while the caller produces the next ones
    close     sends the last part, and the request that completes the object
    abort     tells the service to discard the parts; they were never visible

A few parts are in memory at the same time: one being filled, one waiting, and those being sent.
"""

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from lance_stream.errors import StoreRefusedError, StoreUnavailableError
from lance_stream.storage.objects.clients import Client
from lance_stream.storage.objects.object_requests import (
    PART_BYTES,
    MissingError,
    ObjectRequests,
    RefusedError,
    TryAgainError,
    Upload,
)
from lance_stream.storage.store import BytesLike, FileWriter


class ObjectWriter(FileWriter):
    """Writes one object.

    Args:
        client: The bucket's client.
        key: The object.
        path: The caller's name for it, for errors.
    """

    def __init__(self, client: Client, key: str, path: str) -> None:
        self._client = client
        self._key = key
        self._path = path
        self._unsent = bytearray()
        self._upload: Upload | None = None
        self._pending: Future[None] | None = None
        self._is_closed = False

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        if self._is_closed:
            raise ValueError(f"the writer of {self._path!r} is closed")
        view = memoryview(data).cast("B")
        while view:
            room = PART_BYTES - len(self._unsent)
            if room == 0:  # more follows, so this is not the last part
                self._send()
                continue
            self._unsent += view[:room]
            view = view[room:]

    def close(self) -> None:
        """Make the file visible under its name."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._upload is None and self._pending is None:
            self._put()
            return
        try:
            self._send()
            self._wait()
            self._begin(lambda upload: upload.finish(), "the end")
            self._wait()
        except BaseException:
            self._drop()
            raise

    def abort(self) -> None:
        """Discard the file. Does nothing after `close`."""
        if not self._is_closed:
            self._is_closed = True
            self._unsent = bytearray()
            self._drop()

    def _put(self) -> None:
        data, self._unsent = bytes(self._unsent), bytearray()

        async def put(driver: ObjectRequests) -> None:
            await self._client.with_retries(
                lambda _: driver.put(self._key, data, once=False),
                f"PUT of {self._path!r}",
                num_bytes=len(data),
            )

        self._client.run(put)

    def _send(self) -> None:
        """Pass on the buffered bytes, once the previous part has been accepted."""
        self._wait()
        data, self._unsent = bytes(self._unsent), bytearray()
        self._begin(lambda upload: upload.write(data), "a part")

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _begin(self, request: Callable[[Upload], Coroutine[Any, Any, None]], what: str) -> None:
        async def run(driver: ObjectRequests) -> None:
            if self._upload is None:
                self._upload = driver.open_upload(self._key)
            try:
                await request(self._upload)
            except RefusedError as error:
                raise StoreRefusedError(
                    f"{self._client.service} refused {what} of {self._path!r}: {error}"
                ) from error
            except (TryAgainError, MissingError) as error:
                raise StoreUnavailableError(
                    f"{what} of {self._path!r} failed at {self._client.service}, even after "
                    f"retries; the last response was: {error}. No part of the file is visible: "
                    "write it again when the service responds, or raise the storage options "
                    "client_max_retries and client_retry_timeout"
                ) from error

        self._pending = self._client.start(run)

    def _drop(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()

        async def abort(_driver: ObjectRequests) -> None:
            upload, self._upload = self._upload, None
            if upload is not None:
                await upload.abort()

        # Remaining parts are invisible, and the bucket's own rules remove them.
        if pending is not None or self._upload is not None:
            with suppress(Exception):
                self._client.run(abort)
