"""An object service without a server: it answers what `object_requests` asks, and counts.

`ObjectStore` runs on it as on any other service. A request is said in the words that the proxy of
`tests.servers` has for it, too: "get", "head", "list", "put", "put once", "copy", "delete".
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lance_stream.storage.object_requests import Data, MissingError, ObjectInfo, Page
from lance_stream.storage.object_store import ObjectStore
from lance_stream.storage.retries import Patience

KEYS_A_PAGE = 1000
_NO_PATIENCE = Patience(max_attempts=1)

_numbers = itertools.count(1)


class Asked(NamedTuple):
    """A request, and how many bytes its body and its answer's body had."""

    kind: str
    key: str
    num_bytes: int


@dataclass
class ObjectService:
    """The objects of one bucket, and what was asked of it.

    Attributes:
        objects: By key.
        asked: What was asked so far.
        etag_of: What a listing says of an object's bytes.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    etag_of: Callable[[bytes], str] = lambda data: hashlib.md5(data).hexdigest()

    def kinds(self) -> dict[str, int]:
        """Return how many requests there were of each kind."""
        return dict(Counter(each.kind for each in self.asked))

    def clear(self) -> None:
        """Forget what was asked."""
        self.asked.clear()

    def store(self, root: str = "t") -> ObjectStore:
        """Return the store of the objects below a prefix."""
        return ObjectStore(_Settings(next(_numbers), self), "bucket", root)

    async def get(self, key: str, start: int, stop: int | None) -> bytes:
        data = self._find("get", key)[start:stop]
        return self._answered("get", key, data)

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
        data = self._find("get", key)
        return self._answered("get", key, data[max(len(data) - num_bytes, 0) :]), len(data)

    async def head(self, key: str) -> ObjectInfo:
        data = self._find("head", key)
        self._answered("head", key, b"")
        return self._info(key, data)

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        self._answered("put once" if once else "put", key, bytes(data))
        if once and key in self.objects:
            return False
        self.objects[key] = bytes(data)
        return True

    async def list_page(
        self, prefix: str, *, token: str | None, only_here: bool, limit: int | None
    ) -> Page:
        keys = sorted(
            key
            for key in self.objects
            if key.startswith(prefix)
            and (token is None or key > token)
            and not (only_here and "/" in key[len(prefix) :])
        )
        some = keys[: min(limit or KEYS_A_PAGE, KEYS_A_PAGE)]
        self._answered("list", prefix, b"x" * 250 * len(some))
        found = [self._info(key, self.objects[key]) for key in some]
        return Page(found, some[-1] if len(some) < len(keys) else None)

    async def delete(self, key: str) -> None:
        self._answered("delete", key, b"")
        self.objects.pop(key, None)

    async def copy(self, source: str, target: str) -> None:
        self.objects[target] = self._find("copy", source)
        self._answered("copy", source, b"")

    async def start_upload(self, _key: str, **_how: bool) -> Any:
        raise NotImplementedError("no test sends so much")

    async def close(self) -> None:
        return

    def _find(self, kind: str, key: str) -> bytes:
        if key not in self.objects:
            self._answered(kind, key, b"")
            raise MissingError(key)
        return self.objects[key]

    def _answered(self, kind: str, key: str, data: bytes) -> bytes:
        self.asked.append(Asked(kind, key, len(data)))
        return data

    def _info(self, key: str, data: bytes) -> ObjectInfo:
        return ObjectInfo(key, len(data), 1.7e9, self.etag_of(data))


@dataclass(frozen=True)
class _Settings:
    number: int
    service: ObjectService = field(compare=False, repr=False)
    scheme: str = "test"
    patience: Patience = _NO_PATIENCE
    max_put_bytes: int = 1 << 30
    max_requests_at_once: int = 16

    def connect(self, _container: str) -> ObjectService:
        return self.service

    def where(self, _container: str) -> str:
        return "a service of a test"
