"""Files of a bucket or container of an object service.

A store consists of a name and settings, so it can be pickled, and created on a driver for use on
workers. `object_requests` sends the requests; this module decides which requests are sent and how
many concurrently, and interprets the responses.

Listings are never cached. Objects are complete or absent: large ones are sent in parts, which
become the object in one last request.
"""

import asyncio
import re
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

import pyarrow as pa

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import NotFoundError, StoreRefusedError, StoreUnavailableError
from lance_stream.retries import Retrying, RetryPolicy
from lance_stream.storage.coalesce import Joining, split_responses
from lance_stream.storage.objects.clients import Client
from lance_stream.storage.objects.object_requests import (
    OTHER_NAME,
    Data,
    MissingError,
    ObjectInfo,
    ObjectRequests,
    ServiceSettings,
)
from lance_stream.storage.objects.object_writer import ObjectWriter
from lance_stream.storage.store import (
    NUM_READERS,
    BytesLike,
    FileWriter,
    StoredFile,
    check_path,
    check_whole,
)

T = TypeVar("T")

JOINING: Final = Joining(256 << 10, 16 << 20, alignment=64)
"""Reading 256 KiB takes about as long as a request; longer requests are sent concurrently. Buffers
begin at a multiple of 64 both in the file and in memory."""

PIECE_BYTES: Final = 16 << 20
"""Longer ranges are fetched in equal pieces, concurrently."""

# For a longer range, the object's size is requested first.
_LONGEST_BYTES = 1 << 30

# Maximum number of threads that read concurrently.
_MAX_READERS = 16

# Attempts if the service reports a name both as taken and as missing.
_MAX_PUTS = 3

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_QUOTED = 200

# Names of directory buckets of S3 Express, and no others, end like this.
_EXPRESS = "--x-s3"


@dataclass(frozen=True)
class ObjectStore:
    """The files below one prefix of a bucket.

    Args:
        settings: The settings of the service.
        container: The bucket or container.
        root: The prefix of all keys, without "/" at either end; possibly empty.

    Attributes:
        where: The service and the bucket as text. It distinguishes buckets of the same name at two
            services, or in two accounts.
    """

    settings: ServiceSettings = field(compare=False)
    container: str = field(compare=False)
    root: str
    where: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", self.settings.where(self.container))

    @property
    def _client(self) -> Client:
        return Client(self.settings, self.container, f"{self.where}, below {self.root!r}")

    @property
    def uri(self) -> str:
        """The root as a URI."""
        return f"{self.settings.scheme}://{self.container}/{quote(self.root)}"

    @property
    def service(self) -> tuple[str | None, ...]:
        """The service and account, without the bucket."""
        return self.settings.service

    @property
    def shared_uri(self) -> str:
        """The root as a URI, with the names that all programs know."""
        return f"{self.settings.shared_uri(self.container)}/{quote(self.root)}"

    def at_root(self, root: str) -> "ObjectStore":
        """Return the files below another prefix of the bucket."""
        return replace(self, root=root)

    def local_path(self, _path: str) -> None:
        """Return None: nothing is on a disk."""

    def lance_options(self) -> Mapping[str, str]:
        """Return the settings by pylance's names."""
        return self.settings.lance_options(self.container)

    @property
    def lists_in_order(self) -> bool:
        """Whether the first page has the first names; only S3 Express does not."""
        return not self.container.endswith(_EXPRESS)

    @property
    def num_readers(self) -> int:
        """Many, because each waits for the network most of the time."""
        return min(_MAX_READERS, self.settings.max_requests_at_once)

    @property
    def closes_slowly(self) -> bool:
        """Whether requests can be sent concurrently; closing a file sends one."""
        return self.num_readers > NUM_READERS

    @property
    def bytes_per_request(self) -> int:
        """An estimate of a request's latency, in bytes."""
        return JOINING.max_gap_bytes

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range; see `Store.read_ranges`."""
        requests = JOINING.plan(ranges)
        if not requests:
            self.size(path)
            return [memoryview(b"")] * len(ranges)
        key = self._key(path)

        async def read(driver: ObjectRequests) -> list[Buffer]:
            reads = (
                self._fetch(driver, key, path, request.start, request.stop) for request in requests
            )
            return await _all_or_none(reads)

        with self._convert_not_found(path):
            responses = self._client.run(read)
        return split_responses(ranges, requests, responses)

    def read(self, path: str) -> bytes:
        """Return a whole file; see `Store.read`."""
        key = self._key(path)

        async def read(driver: ObjectRequests) -> bytes:
            begin = await self._fetch(driver, key, path, 0, PIECE_BYTES)
            if len(begin) < PIECE_BYTES:
                return bytes(begin)
            info = await self._client.with_retries(lambda _: driver.head(key), f"HEAD of {path!r}")
            if info.size_bytes <= PIECE_BYTES:
                return bytes(begin)
            check_whole(self.uri, path, info.size_bytes)
            rest = await self._fetch(driver, key, path, PIECE_BYTES, info.size_bytes)
            return b"".join((begin, rest))

        with self._convert_not_found(path):
            return self._client.run(read)

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        """Return the last bytes of a file, and its size; see `Store.read_end`."""
        data, size = self._send(
            path, f"GET of the end of {path!r}", lambda driver, key: driver.get_end(key, num_bytes)
        )
        return _aligned(data), size

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
        """Return the names of the files directly in a folder; see `Store.list_names`."""
        return [file.path.rpartition("/")[2] for file in self.list_files(folder, limit)]

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        """Return the files directly in a folder; see `Store.list_files`."""
        if self.lists_in_order:
            return [*self._files(folder, is_flat=True, limit=limit)]
        return sorted(self._files(folder, is_flat=True))[:limit]

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder; see `Store.list`."""
        return sorted(self._files(folder, is_flat=False))

    def create_once(
        self,
        path: str,
        data: BytesLike,
        *,
        flush: bool = True,  # noqa: ARG002  # there is nothing to flush
    ) -> bool:
        """Create a file unless its name is taken; see `Store.create_once`."""
        view = memoryview(data).cast("B")
        policy = RetryPolicy(_MAX_PUTS, 0.0, 0.0, self.settings.retry_policy.total_seconds)
        with Retrying(policy) as attempts:
            for _ in attempts:
                if self._put(path, view, once=True):
                    return True
                with suppress(NotFoundError):
                    # The object is ours if a response was lost and the request was repeated.
                    return self.read(path) == view
        raise StoreUnavailableError(
            f"{self.settings.where(self.container)} reports that the name {self._key(path)!r} is "
            f"taken, but also that there is no such object: {attempts}. Nothing was created. Try "
            "again later"
        )

    def open_writer(self, path: str) -> FileWriter:
        """Return a writer of a new file; see `Store.open_writer`."""
        return ObjectWriter(self._client, self._key(path), path)

    def write(
        self,
        path: str,
        data: BytesLike,
        *,
        is_hint: bool = False,  # noqa: ARG002  # nothing is flushed anyway
    ) -> None:
        """Write a whole file; see `Store.write`."""
        self._put(path, memoryview(data).cast("B"), once=False)

    def copy(self, source: str, target: str) -> None:
        """Copy a file; see `Store.copy`."""
        target_key = self._key(target)
        self._send(
            source,
            f"copy of {source!r} to {target!r}",
            lambda driver, key: driver.copy(key, target_key),
        )

    def delete(self, path: str) -> None:
        """Delete a file; see `Store.delete`."""
        self._send(path, f"DELETE of {path!r}", lambda driver, key: driver.delete(key))

    def _head(self, path: str) -> ObjectInfo:
        return self._send(path, f"HEAD of {path!r}", lambda driver, key: driver.head(key))

    def _files(
        self, folder: str, *, is_flat: bool, limit: int | None = None
    ) -> Sequence[StoredFile]:
        start = len(self._prefix(""))
        return [
            StoredFile(item.key[start:], *item[1:])
            for item in self._objects(folder, is_flat=is_flat, limit=limit)
        ]

    def _objects(self, folder: str, *, is_flat: bool, limit: int | None) -> Sequence[ObjectInfo]:
        prefix = self._prefix(folder)

        async def pages(driver: ObjectRequests) -> list[ObjectInfo]:
            objects: dict[str, ObjectInfo] = {}  # after an error, a page may be returned again
            listing = driver.list_pages(prefix, is_flat=is_flat, limit=limit)
            while limit is None or len(objects) < limit:
                page = await self._client.with_retries(
                    lambda _: listing.next(), f"a listing of {folder!r}"
                )
                if page is None:
                    break
                objects.update((item.key, item) for item in page if not item.key.endswith("/"))
            return [*objects.values()][:limit]

        return self._client.run(pages)

    def _put(self, path: str, data: memoryview, *, once: bool) -> bool:
        return self._send(
            path,
            f"PUT of {path!r}",
            lambda driver, key: driver.put(key, data, once=once),
            num_bytes=len(data),
        )

    def _send(
        self,
        path: str,
        what: str,
        request: Callable[[ObjectRequests, str], Awaitable[T]],
        *,
        num_bytes: int = 0,
    ) -> T:
        """Send one request about a file, and return the response."""
        key = self._key(path)
        with self._convert_not_found(path):
            return self._client.run(
                lambda driver: self._client.with_retries(
                    lambda _: request(driver, key), what, num_bytes=num_bytes
                )
            )

    async def _fetch(
        self, driver: ObjectRequests, key: str, path: str, start: int, stop: int
    ) -> Buffer:
        """Return the bytes of one range as one buffer; a long one is fetched in pieces."""

        async def get(start: int, stop: int) -> Data:
            return await self._client.with_retries(
                lambda _: driver.get(key, start, stop),
                f"GET of the bytes {start} to {stop} of {path!r}",
                num_bytes=stop - start,
            )

        if stop - start <= PIECE_BYTES:
            return _aligned(await get(start, stop))
        if stop - start > _LONGEST_BYTES:
            info = await self._client.with_retries(lambda _: driver.head(key), f"HEAD of {path!r}")
            stop = max(start, min(stop, info.size_bytes))
        buffer = memoryview(pa.allocate_buffer(stop - start)).cast("B")
        num_pieces = max(1, -(-(stop - start) // PIECE_BYTES))
        size = max(1, -(-(stop - start) // num_pieces))

        async def fill(first: int) -> int:
            data = await get(first, min(first + size, stop))
            buffer[first - start : first - start + len(data)] = data
            return len(data)

        firsts = range(start, stop, size)
        lengths = await _all_or_none(map(fill, firsts))
        for first, length in zip(firsts, lengths, strict=True):
            if length < min(size, stop - first):  # the object ends here
                return buffer[: first - start + length].toreadonly()
        return buffer.toreadonly()

    def _key(self, path: str) -> str:
        return self._checked("/".join(part for part in (self.root, check_path(path)) if part))

    def _prefix(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""

    def _checked(self, key: str) -> str:
        """Return a key if obstore accepts it.

        Raises:
            StoreRefusedError: obstore does not accept it; nothing was sent.
        """
        if key and ({"", ".", ".."} & set(key.split("/")) or _CONTROL.search(key)):
            raise StoreRefusedError(
                f"{key[:_MAX_QUOTED]!r} in {self.where} cannot be requested. {OTHER_NAME}"
            )
        return key

    @contextmanager
    def _convert_not_found(self, path: str) -> Iterator[None]:
        try:
            yield
        except MissingError as error:
            raise NotFoundError(f"there is no file {self.uri}/{path}") from error


def _aligned(data: Data) -> Buffer:
    """Return bytes at an address that is a multiple of 8, as decoders require."""
    buffer = pa.py_buffer(data)
    if buffer.address % 8:
        buffer = pa.py_buffer(bytes(data))
    return memoryview(buffer).cast("B")


async def _all_or_none(operations: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of concurrent operations; the first error cancels the others."""
    tasks = [asyncio.ensure_future(operation) for operation in operations]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
