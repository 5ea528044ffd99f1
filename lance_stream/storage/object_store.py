"""Files of a bucket or container of an object service.

A store is a name and settings: it may be pickled, and made on a driver for use on workers. The
requests themselves are a driver's (`object_requests`); this module says which are sent, how many at
once, and what an answer means.

A listing comes from the service each time. Objects are whole or not there: large ones are sent in
parts, which become the object in one last request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import NotFoundError, StoreUnavailableError
from lance_stream.storage.clients import ask, begin_to_ask
from lance_stream.storage.coalesce import Request, cut_answers, plan_requests
from lance_stream.storage.object_requests import (
    MissingError,
    ObjectInfo,
    ObjectRequests,
    ServiceSettings,
    Upload,
)
from lance_stream.storage.retries import ask_patiently
from lance_stream.storage.store import BytesLike, FileWriter, StoredFile, check_path

T = TypeVar("T")

MAX_GAP_BYTES: Final = 256 << 10
"""Ranges that lie nearer to each other are read by one request: about a request's latency."""

MAX_JOINED_BYTES: Final = 8 << 20
"""A request that joins ranges is not longer; others are fetched beside it."""

PART_BYTES: Final = 8 << 20
"""What a writer sends at once at least, if the file is larger."""

# How often a name that is taken, and not there, is asked for at most.
_TIMES_TAKEN = 3

# Buffers begin at a multiple of this, in the file and in memory alike.
_ALIGNMENT = 64

# How the names of all directory buckets of S3 Express end, and of no others.
_EXPRESS = "--x-s3"


@dataclass(frozen=True)
class ObjectStore:
    """The files below one prefix of a bucket.

    Args:
        settings: How the service is reached.
        container: The bucket or container.
        root: What all keys begin with, without "/" at either end; may be empty.

    Attributes:
        place: The service and the bucket in words. Buckets of one name at two services, or in two
            accounts of one, are two.
    """

    settings: ServiceSettings = field(compare=False)
    container: str = field(compare=False)
    root: str
    place: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", self.settings.where(self.container))

    @property
    def uri(self) -> str:
        """The root as a URI."""
        return f"{self.settings.scheme}://{self.container}/{quote(self.root)}"

    @property
    def lists_in_order(self) -> bool:
        """Whether a page of names is the first by name; of all services, S3 Express's is not."""
        return not self.container.endswith(_EXPRESS)

    @property
    def num_readers(self) -> int:
        """Each waits for the network nearly all the time."""
        return self.settings.max_requests_at_once

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range; see `Store.read_ranges`."""
        requests = plan_requests(
            ranges,
            max_gap_bytes=MAX_GAP_BYTES,
            max_request_bytes=MAX_JOINED_BYTES,
            alignment=_ALIGNMENT,
        )
        if not requests:
            self.size(path)
            return [memoryview(b"")] * len(ranges)
        key = self._key(path)

        async def read(driver: ObjectRequests) -> list[bytes]:
            room = asyncio.Semaphore(self.settings.max_requests_at_once)

            async def get(each: Request) -> bytes:
                async with room:
                    return await self._patiently(
                        lambda _: driver.get(key, each.start, each.stop), f"GET of {path!r}"
                    )

            return await asyncio.gather(*map(get, requests))

        with self._missing_is_not_found(path):
            answers = ask(self.settings, self.container, read)
        return cut_answers(ranges, requests, [memoryview(each) for each in answers])

    def read(self, path: str) -> bytes:
        """Return a whole file; see `Store.read`."""
        return self._ask_for(path, f"GET of {path!r}", lambda driver, key: driver.get(key, 0, None))

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        """Return the last bytes of a file, and its size; see `Store.read_end`."""
        data, size = self._ask_for(
            path, f"GET of the end of {path!r}", lambda driver, key: driver.get_end(key, num_bytes)
        )
        return memoryview(data), size

    def size(self, path: str) -> int:
        """Return the size of a file; see `Store.size`."""
        return self._head(path).size_bytes

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        try:
            self._head(path)
        except NotFoundError:
            return False
        return True

    def list_names(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files right in a folder; see `Store.list_names`."""
        return [each.path.rpartition("/")[2] for each in self.list_files(folder, limit)]

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        """Return the files right in a folder; see `Store.list_files`."""
        if self.lists_in_order:
            return [*self._files(folder, only_here=True, limit=limit)]
        return sorted(self._files(folder, only_here=True))[:limit]

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder; see `Store.list`."""
        return sorted(self._files(folder, only_here=False))

    def create_once(self, path: str, data: BytesLike) -> bool:
        """Create a file unless its name is taken; see `Store.create_once`."""
        view = memoryview(data).cast("B")
        for _ in range(_TIMES_TAKEN):
            if self._put(path, view, once=True):
                return True
            with suppress(NotFoundError):
                # Ours all the same, if an answer got lost and the request was sent again.
                return self.read(path) == view
        raise StoreUnavailableError(
            f"{self.settings.where(self.container)} said {_TIMES_TAKEN} times that "
            f"{self._key(path)!r} is taken, and each time that there is no such object"
        )

    def open_writer(self, path: str) -> FileWriter:
        """Return a writer of a new file; see `Store.open_writer`."""
        self._key(path)
        return ObjectWriter(self, path)

    def write(self, path: str, data: BytesLike) -> None:
        """Write a whole file; see `Store.write`."""
        self._put(path, memoryview(data).cast("B"), once=False)

    def copy(self, source: str, target: str) -> None:
        """Copy a file; see `Store.copy`."""
        to = self._key(target)
        self._ask_for(
            source,
            f"copy of {source!r} to {target!r}",
            lambda driver, key: driver.copy(key, to),
        )

    def delete(self, path: str) -> None:
        """Delete a file; see `Store.delete`."""
        self._ask_for(path, f"DELETE of {path!r}", lambda driver, key: driver.delete(key))

    def _head(self, path: str) -> ObjectInfo:
        return self._ask_for(path, f"HEAD of {path!r}", lambda driver, key: driver.head(key))

    def _files(
        self, folder: str, *, only_here: bool, limit: int | None = None
    ) -> Sequence[StoredFile]:
        start = len(self._prefix(""))
        return [
            StoredFile(each.key[start:], *each[1:])
            for each in self._objects(folder, only_here=only_here, limit=limit)
        ]

    def _objects(self, folder: str, *, only_here: bool, limit: int | None) -> Sequence[ObjectInfo]:
        prefix = self._prefix(folder)

        async def pages(driver: ObjectRequests) -> list[ObjectInfo]:
            found: list[ObjectInfo] = []
            token: str | None = None
            while True:
                left = None if limit is None else limit - len(found)
                if left is not None and left <= 0:
                    return found[:limit]
                page = await self._patiently(
                    lambda _, token=token, left=left: driver.list_page(  # type: ignore[misc]  # mypy does not infer a lambda's defaults
                        prefix, token=token, only_here=only_here, limit=left
                    ),
                    f"a listing of {folder!r}",
                )
                found += [each for each in page.objects if not each.key.endswith("/")]
                token = page.token
                if token is None:
                    return found[:limit]

        return ask(self.settings, self.container, pages)

    def _put(self, path: str, data: memoryview, *, once: bool) -> bool:
        if len(data) > self.settings.max_put_bytes:
            writer = ObjectWriter(self, path, once=once)
            with writer:
                writer.write(data)
                return writer.finish()
        return self._ask_for(
            path, f"PUT of {path!r}", lambda driver, key: driver.put(key, data, once=once)
        )

    def _ask_for(
        self,
        path: str,
        what: str,
        request: Callable[[ObjectRequests, str], Awaitable[T]],
    ) -> T:
        """Return the answer to one request about a file."""
        key = self._key(path)
        with self._missing_is_not_found(path):
            return ask(
                self.settings,
                self.container,
                lambda driver: self._patiently(lambda _: request(driver, key), what),
            )

    async def _patiently(self, request: Callable[[int], Awaitable[T]], what: str) -> T:
        return await ask_patiently(
            request,
            self.settings.patience,
            what,
            f"{self.place}, below {self.root!r}",
        )

    def _key(self, path: str) -> str:
        return self._prefix("") + check_path(path)

    def _prefix(self, folder: str) -> str:
        parts = (part for part in (self.root, check_path(folder)) if part)
        return "".join(f"{part}/" for part in parts)

    @contextmanager
    def _missing_is_not_found(self, path: str) -> Iterator[None]:
        try:
            yield
        except MissingError as error:
            raise NotFoundError(f"there is no file {self.uri}/{path}") from error


class ObjectWriter(FileWriter):
    """Sends a file in parts while it is being written; a small one at once, when it is closed.

    Args:
        store: Where.
        path: The file.
        once: Whether it is not to replace an older one.
    """

    def __init__(self, store: ObjectStore, path: str, *, once: bool = False) -> None:
        self._store = store
        self._path = path
        self._once = once
        self._key = store._key(path)
        self._buffer = bytearray()
        self._upload: Upload | None = None
        self._num_parts = 0
        self._size_bytes = 0
        self._under_way: list[Future[None]] = []
        self._is_closed = False

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        if self._is_closed:
            raise ValueError(f"the writer of {self._store.uri}/{self._path} is closed")
        view = memoryview(data).cast("B")
        self._buffer += view
        self._size_bytes += len(view)
        while len(self._buffer) > 2 * (size := self._part_bytes()):
            self._send(bytes(memoryview(self._buffer)[:size]))
            del self._buffer[:size]

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
        last = bytes(self._buffer)
        upload = self._upload
        if upload is None:
            return self._ask(lambda driver, _: driver.put(self._key, last, once=self._once), "PUT")
        try:
            while self._under_way:
                self._under_way.pop(0).result()
            made = self._ask(
                lambda driver, attempt: self._finish(driver, upload, last, attempt),
                "the last part",
            )
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
            self._drop()

    def _part_bytes(self) -> int:
        """Return how large the next part is; a file has 10,000 at most."""
        wanted = PART_BYTES << (self._num_parts // 1000)
        unit = self._upload.part_bytes if self._upload else 1
        return -(-wanted // unit) * unit

    def _send(self, data: bytes) -> None:
        if self._upload is None:
            self._upload = self._ask(
                lambda driver, _: driver.start_upload(self._key, once=self._once),
                "the beginning of an upload",
            )
        upload, number = self._upload, self._num_parts
        self._num_parts += 1
        while len(self._under_way) >= upload.max_parts_at_once:
            self._under_way.pop(0).result()
        self._under_way.append(
            self._begin_to_ask(lambda _driver, _: upload.put_part(number, data), f"part {number}")
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
                self._ask(lambda _driver, _: upload.abort(), "the end of an upload")

    def _ask(
        self, request: Callable[[ObjectRequests, int], Coroutine[Any, Any, T]], what: str
    ) -> T:
        return self._begin_to_ask(request, what).result()

    def _begin_to_ask(
        self, request: Callable[[ObjectRequests, int], Coroutine[Any, Any, T]], what: str
    ) -> Future[T]:
        store = self._store
        return begin_to_ask(
            store.settings,
            store.container,
            lambda driver: store._patiently(
                lambda attempt: request(driver, attempt), f"{what} of {self._path!r}"
            ),
        )
