"""Stores that count, stop, or fail at their calls: for counting requests and staging faults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore
from lance_stream.storage.store import FileWriter, Store, StoredFile

Watch = Callable[[str, str], None]


@dataclass
class WatchedStore:
    """Passes every call on to another store, with a look before and one after.

    Attributes:
        inner: The store that does the work.
        before: Called with the call's name and path before it is passed on; may wait or raise.
        after: The same once it is done: an error here is an answer that got lost.
        calls: What was called so far.
    """

    inner: Store
    before: Watch = lambda _call, _path: None
    after: Watch = lambda _call, _path: None
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def root(self) -> str:
        return self.inner.root

    @property
    def service(self) -> tuple[str | None, ...]:
        return self.inner.service

    @property
    def shared_uri(self) -> str:
        return self.inner.shared_uri

    def at_root(self, root: str) -> Store:
        return replace(self, inner=self.inner.at_root(root))

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)

    def lance_options(self) -> Mapping[str, str] | None:
        return self.inner.lance_options()

    @property
    def lists_in_order(self) -> bool:
        return self.inner.lists_in_order

    @property
    def closes_slowly(self) -> bool:
        return self.inner.closes_slowly

    @property
    def num_readers(self) -> int:
        return self.inner.num_readers

    @property
    def bytes_per_request(self) -> int:
        return self.inner.bytes_per_request

    def _pass(self, call: str, path: str, *arguments: Any, **named: Any) -> Any:
        self.calls.append((call, path))
        self.before(call, path)
        answer = getattr(self.inner, call)(path, *arguments, **named)
        self.after(call, path)
        return answer

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return self._pass("read_ranges", path, ranges)

    def read(self, path: str) -> bytes:
        return self._pass("read", path)

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        return self._pass("read_end", path, num_bytes)

    def copy(self, source: str, target: str) -> None:
        self._pass("copy", source, target)

    def size(self, path: str) -> int:
        return self._pass("size", path)

    def exists(self, path: str) -> bool:
        return self._pass("exists", path)

    def list_names(self, folder: str, limit: int | None = None) -> list[str]:
        return self._pass("list_names", folder, limit)

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        return self._pass("list_files", folder, limit)

    def list(self, folder: str = "") -> list[StoredFile]:
        return self._pass("list", folder)

    def create_once(self, path: str, data: Any, *, flush: bool = True) -> bool:
        return self._pass("create_once", path, data, flush=flush)

    def open_writer(self, path: str) -> FileWriter:
        return self._pass("open_writer", path)

    def write(self, path: str, data: Any, *, is_hint: bool = False) -> None:
        self._pass("write", path, data, is_hint=is_hint)

    def delete(self, path: str) -> None:
        self._pass("delete", path)


@dataclass(eq=False)
class WatchedManifests:
    """The same for a manifest store: calls are watched with the versions that they are about."""

    inner: ManifestStore
    before: Callable[[str, int], None] = lambda _call, _version: None
    after: Callable[[str, int], None] = lambda _call, _version: None
    calls: list[tuple[str, int]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def where(self) -> str:
        return self.inner.where

    def _pass(self, call: str, version: int, *arguments: Any) -> Any:
        self.calls.append((call, version))
        self.before(call, version)
        answer = getattr(self.inner, call)(*arguments)
        self.after(call, version)
        return answer

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        return self._pass("put_if_not_exists", item.version, base_uri, item)

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        return self._pass("put_if_exists", item.version, base_uri, item)

    def put_all_if_not_exist(self, items: Mapping[str, ManifestItem]) -> frozenset[str]:
        return self._pass("put_all_if_not_exist", 0, items)

    def latest_of_all(self, base_uris: Sequence[str]) -> dict[str, ManifestItem]:
        return self._pass("latest_of_all", 0, base_uris)

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        return self._pass("get", version, base_uri, version)

    def latest(self, base_uri: str) -> ManifestItem | None:
        return self._pass("latest", 0, base_uri)

    def items(self, base_uri: str) -> list[ManifestItem]:
        return self._pass("items", 0, base_uri)

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        self._pass("delete", 0, base_uri, versions)
