"""An object service without a server: it answers what `object_requests` asks, and counts.

`ObjectStore` runs on it as on any other service. A request is said in the words that the proxy of
`tests.servers` has for it, too: "get", "head", "list", "put", "put once", "copy", "delete",
"start upload", "part", "complete", "complete once", "abort".
"""

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from lance_stream.storage.objects.object_requests import (
    Data,
    MissingError,
    ObjectInfo,
    Pages,
    RequestPolicy,
    Upload,
)
from lance_stream.storage.objects.object_store import ObjectStore

KEYS_A_PAGE = 1000
Watch = Callable[[str, str], None]
_NO_RETRIES = RequestPolicy(max_attempts=1)

_numbers = itertools.count(1)
_SETTINGS: WeakValueDictionary[int, Any] = WeakValueDictionary()


class RecordedRequest(NamedTuple):
    """A request, and how many bytes its body and its answer's body had."""

    kind: str
    key: str
    num_bytes: int


@dataclass
class ObjectService:
    """The objects of one bucket, and the requests for them.

    Attributes:
        objects: By key.
        requests: The requests so far.
        etag_of: What a listing says of an object's bytes.
        is_unordered: Whether listings begin at the other end, as they may on S3 Express.
        before: Called with a request's kind and key before it is answered; may raise.
        after: The same once it is done: an error here is an answer that got lost.
        seconds: How long each answer takes.
        max_at_once: So many requests were under way at once.
        uploads: The parts of those that were begun, and neither finished nor aborted.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[RecordedRequest] = field(default_factory=list)
    etag_of: Callable[[bytes], str] = lambda data: hashlib.md5(data).hexdigest()
    is_unordered: bool = False
    before: Watch = lambda _kind, _key: None
    after: Watch = lambda _kind, _key: None
    seconds: float = 0.0
    max_at_once: int = 0
    uploads: dict[int, dict[int, bytes]] = field(default_factory=dict)
    _num_under_way: int = 0

    def kinds(self) -> dict[str, int]:
        """Return how many requests there were of each kind."""
        return dict(Counter(request.kind for request in self.requests))

    def clear(self) -> None:
        """Forget what was asked."""
        self.requests.clear()

    def store(self, root: str = "t", **settings: Any) -> ObjectStore:
        """Return the store of the objects below a prefix."""
        return ObjectStore(_Settings(next(_numbers), self, **settings), "bucket", root)

    async def get(self, key: str, start: int, stop: int | None) -> bytes:
        return await self._answer("get", key, lambda: self._find(key)[start:stop])

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
        data = await self._answer(
            "get", key, lambda: self._find(key)[max(len(self._find(key)) - num_bytes, 0) :]
        )
        return data, len(self._find(key))

    async def head(self, key: str) -> ObjectInfo:
        await self._answer("head", key, lambda: self._find(key) and b"")
        return self._info(key, self._find(key))

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        return await self._make("put", key, bytes(data), bytes(data), once)

    def list_pages(self, prefix: str, *, is_flat: bool, limit: int | None) -> "_Listing":
        return _Listing(self, prefix, is_flat, limit)

    async def list_page(
        self, prefix: str, after: str | None, is_flat: bool, limit: int | None
    ) -> tuple[list[ObjectInfo], str | None]:
        """Return a page, and the name after which the next begins, if there is one."""
        keys = sorted(
            key
            for key in self.objects
            if key.startswith(prefix)
            and (after is None or key > after)
            and not (is_flat and "/" in key[len(prefix) :])
        )
        if self.is_unordered:
            assert after is None, "one page holds them all"
            keys.reverse()
        some = keys[: min(limit or KEYS_A_PAGE, KEYS_A_PAGE)]
        await self._answer("list", prefix, lambda: b"x" * 250 * len(some))
        page = [self._info(key, self.objects[key]) for key in some]
        return page, some[-1] if len(some) < len(keys) else None

    async def delete(self, key: str) -> None:
        await self._answer("delete", key, lambda: self.objects.pop(key, b"") and b"")

    async def copy(self, source: str, target: str) -> None:
        def copy() -> bytes:
            self.objects[target] = self._find(source)
            return b""

        await self._answer("copy", source, copy)

    def open_upload(self, key: str) -> "_Upload":
        return _Upload(self, key, next(_numbers))

    async def close(self) -> None:
        return

    def _find(self, key: str) -> bytes:
        if key not in self.objects:
            raise MissingError(key)
        return self.objects[key]

    async def _make(self, kind: str, key: str, sent: bytes, data: bytes, once: bool) -> bool:
        outcomes = []

        def make() -> bytes:
            outcomes.append(not (once and key in self.objects))
            if outcomes[0]:
                self.objects[key] = data
            return sent

        await self._answer(f"{kind} once" if once else kind, key, make)
        return outcomes[0]

    async def _answer(self, kind: str, key: str, do: Callable[[], bytes]) -> bytes:
        """Do what is asked; a request counts whatever becomes of it."""
        self._num_under_way += 1
        self.max_at_once = max(self.max_at_once, self._num_under_way)
        data = b""
        try:
            self.before(kind, key)
            if self.seconds:
                await asyncio.sleep(self.seconds)
            data = do()
            self.after(kind, key)
            return data
        finally:
            self._num_under_way -= 1
            self.requests.append(RecordedRequest(kind, key, len(data)))

    def _info(self, key: str, data: bytes) -> ObjectInfo:
        return ObjectInfo(key, len(data), 1.7e9, self.etag_of(data))


class _Listing(Pages):
    def __init__(
        self, service: ObjectService, prefix: str, is_flat: bool, limit: int | None
    ) -> None:
        self._service, self._prefix, self._is_flat = service, prefix, is_flat
        self._limit = limit
        self._after: str | None = None
        self._is_over = False

    async def next(self) -> list[ObjectInfo] | None:
        if self._is_over:
            return None
        page, self._after = await self._service.list_page(
            self._prefix, self._after, self._is_flat, self._limit
        )
        self._is_over = self._after is None
        return page


class _Upload(Upload):
    def __init__(self, service: ObjectService, key: str, number: int) -> None:
        self._service, self._key, self._number = service, key, number
        self._num_parts = 0

    async def write(self, part: Data) -> None:
        number = self._num_parts
        self._num_parts += 1
        if number == 0:
            await self._service._answer("start upload", self._key, self._start)
        await self._service._answer("part", self._key, lambda: self._put(number, bytes(part)))

    async def finish(self) -> None:
        parts = self._service.uploads[self._number]
        assert sorted(parts) == list(range(len(parts)))
        whole = b"".join(parts[part] for part in sorted(parts))
        await self._service._make("complete", self._key, b"", whole, False)
        del self._service.uploads[self._number]

    async def abort(self) -> None:
        await self._service._answer(
            "abort", self._key, lambda: self._service.uploads.pop(self._number, {}) and b""
        )

    def _start(self) -> bytes:
        self._service.uploads[self._number] = {}
        return b""

    def _put(self, number: int, data: bytes) -> bytes:
        self._service.uploads[self._number][number] = data
        return data


def _settings_of(number: int) -> "_Settings":
    """Return settings that were pickled in this process: their service is no copy."""
    settings: _Settings = _SETTINGS[number]
    return settings


@dataclass(frozen=True)
class _Settings:
    number: int
    fake: ObjectService = field(compare=False, repr=False)
    scheme: str = "test"
    retry_policy: RequestPolicy = _NO_RETRIES
    max_requests_at_once: int = 16

    def __post_init__(self) -> None:
        _SETTINGS[self.number] = self

    def __reduce__(self) -> Any:
        return _settings_of, (self.number,)

    def connect(self, _container: str) -> ObjectService:
        return self.fake

    @property
    def service(self) -> tuple[str, str]:
        return "test", str(self.number)

    def shared_uri(self, container: str) -> str:
        return f"test://{container}"

    def lance_options(self, _container: str) -> dict[str, str]:
        return {}

    def where(self, _container: str) -> str:
        return "a service of a test"
