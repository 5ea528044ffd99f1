"""Sending a file in parts while it is being written; a small one at once, when it is closed.

    write     parts of 8 MiB and more go out while the caller makes the next ones
    close     the last part, and the request that makes an object of all of them
    abort     the service is told to forget the parts; nothing was ever visible

At most one unsent part, and those on their way, are in memory. A file may have 10,000 parts, so
they grow: the first 1,000 hold 8 MiB each, the next 1,000 twice as much, and so on: 8 TB in all.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from lance_stream.errors import StoreUnavailableError
from lance_stream.storage.clients import Client
from lance_stream.storage.object_requests import MissingError, ObjectRequests, Upload
from lance_stream.storage.store import BytesLike, FileWriter

T = TypeVar("T")

PART_BYTES: Final = 8 << 20
"""What is sent at once at least, if the file is larger."""

_PARTS_ALIKE: Final = 1000


class ObjectWriter(FileWriter):
    """Writes one object.

    Args:
        client: Asks the bucket.
        key: The object.
        path: What the caller calls it, for errors.
        once: Whether it is not to replace an older one.
    """

    def __init__(self, client: Client, key: str, path: str, *, once: bool = False) -> None:
        self._client = client
        self._key = key
        self._path = path
        self._once = once
        self._unsent = bytearray()
        self._upload: Upload | None = None
        self._num_parts = 0
        self._size_bytes = 0
        self._under_way: deque[Future[None]] = deque()
        self._is_closed = False

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        if self._is_closed:
            raise ValueError(f"the writer of {self._path!r} is closed")
        view = memoryview(data).cast("B")
        self._size_bytes += len(view)
        while view:
            room = self._part_bytes() - len(self._unsent)
            if room == 0:  # more follows, so this is not the last part
                self._send()
                continue
            self._unsent += view[:room]
            view = view[room:]

    def close(self) -> None:
        """Make the file visible under its name."""
        if not self._is_closed:
            self.finish()

    def finish(self) -> bool:
        """Make the file visible under its name.

        Returns:
            False if it is to replace no older one and the name is taken; nothing was replaced.
        """
        self._is_closed = True
        last, upload = bytes(self._unsent), self._upload
        self._unsent = bytearray()
        if upload is None:
            return self._begin(
                lambda driver, _: driver.put(self._key, last, once=self._once), "PUT", len(last)
            ).result()
        try:
            while self._under_way:
                self._under_way.popleft().result()
            made = self._begin(
                lambda driver, attempt: self._finish(driver, upload, last, attempt),
                "the last part",
                len(last),
            ).result()
        except BaseException:
            self._drop()
            raise
        if not made:
            self._drop()
        return made

    def abort(self) -> None:
        """Leave nothing behind."""
        if not self._is_closed:
            self._is_closed = True
            self._unsent = bytearray()
            self._drop()

    def _part_bytes(self) -> int:
        """Return how large the next part is."""
        wanted = PART_BYTES << (self._num_parts // _PARTS_ALIKE)
        unit = self._upload.part_bytes if self._upload else 1
        return -(-wanted // unit) * unit

    def _send(self) -> None:
        if self._upload is None:
            self._upload = self._begin(
                lambda driver, _: driver.start_upload(self._key, once=self._once),
                "the beginning of an upload",
                0,
            ).result()
            if len(self._unsent) < self._part_bytes():  # the service has units of its own
                return
        upload, number, data = self._upload, self._num_parts, bytes(self._unsent)
        self._unsent = bytearray()
        self._num_parts += 1
        while len(self._under_way) >= upload.max_parts_at_once:
            self._under_way.popleft().result()
        self._under_way.append(
            self._begin(
                lambda _driver, _: upload.put_part(number, data), f"part {number}", len(data)
            )
        )

    async def _finish(
        self, driver: ObjectRequests, upload: Upload, last: bytes, attempt: int
    ) -> bool:
        try:
            return await upload.finish(self._num_parts, last)
        except MissingError:
            if attempt == 1:
                raise
            # Finished by an attempt whose answer got lost, if the object is there.
            return not self._once and (await driver.head(self._key)).size_bytes == self._size_bytes

    def _drop(self) -> None:
        for each in self._under_way:
            each.cancel()
        self._under_way.clear()
        upload, self._upload = self._upload, None
        if upload is not None:
            # What is left of it is invisible, and goes by the bucket's own rules.
            with suppress(Exception):
                self._begin(lambda _driver, _: upload.abort(), "the end of an upload", 0).result()

    def _begin(
        self,
        request: Callable[[ObjectRequests, int], Coroutine[Any, Any, T]],
        what: str,
        num_bytes: int,
    ) -> Future[T]:
        async def patiently(driver: ObjectRequests) -> T:
            try:
                return await self._client.patiently(
                    lambda attempt: request(driver, attempt),
                    f"{what} of {self._path!r}",
                    num_bytes=num_bytes,
                )
            except MissingError as error:
                raise StoreUnavailableError(
                    f"{what} of {self._path!r} was answered by {self._client.whom} with {error}: "
                    "somebody else has ended this upload, or it is too old. Nothing of it is "
                    "visible: write the file again"
                ) from error

        return self._client.begin(patiently)
