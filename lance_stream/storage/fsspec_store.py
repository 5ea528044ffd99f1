"""Files of a filesystem that fsspec knows.

The filesystem object is made where it is used, never pickled, never shared with other users of
fsspec, and without a cache of listings: a cached listing hides what other writers have done.

For now the protocol is "memory": files in this process's memory, seen by every store of that
protocol and by fsspec itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

import fsspec
from fsspec.implementations.memory import MemoryFile

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import NotFoundError, UnsupportedFeatureError
from lance_stream.storage.coalesce import cut_answers, plan_requests
from lance_stream.storage.create_once import create_in_memory
from lance_stream.storage.store import BytesLike, FileWriter, StoredFile, check_path

_MAX_GAP_BYTES = 16 << 10
_MAX_JOINED_BYTES = 16 << 20

T = TypeVar("T")

_LISTINGS: Final = 5
"""How often a listing is tried at most, less one."""


@dataclass(frozen=True)
class FsspecStore:
    """The files below one root of a filesystem.

    Args:
        protocol: What fsspec calls the filesystem.
        root: A path in it, without the protocol and without a "/" at the end.
        options: What fsspec makes it with.
    """

    protocol: str
    root: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The root as a URI."""
        return f"{self.protocol}://{self.root.removeprefix('/')}"

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range; see `Store.read_ranges`."""
        requests = plan_requests(
            ranges, max_gap_bytes=_MAX_GAP_BYTES, max_request_bytes=_MAX_JOINED_BYTES
        )
        with self._missing_is_not_found(path):
            if not requests:
                self.size(path)
                return [memoryview(b"")] * len(ranges)
            answers = self._filesystem().cat_ranges(
                [self._path(path)] * len(requests),
                [each.start for each in requests],
                [each.stop for each in requests],
                on_error="raise",
            )
        return cut_answers(ranges, requests, [memoryview(each) for each in answers])

    def read(self, path: str) -> bytes:
        """Return a whole file; see `Store.read`."""
        with self._missing_is_not_found(path):
            return bytes(self._filesystem().cat_file(self._path(path)))

    def size(self, path: str) -> int:
        """Return the size of a file; see `Store.size`."""
        with self._missing_is_not_found(path):
            info = self._filesystem().info(self._path(path))
            if info["type"] != "file":
                raise IsADirectoryError(path)
            return int(info["size"])

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        return bool(self._filesystem().isfile(self._path(path)))

    def list_names(self, folder: str) -> list[str]:
        """Return the names of the files right in a folder; see `Store.list_names`."""
        try:
            entries = _listed(lambda: self._filesystem().ls(self._path(folder), detail=True))
        except FileNotFoundError:
            return []
        return sorted(
            str(each["name"]).rpartition("/")[2] for each in entries if each["type"] == "file"
        )

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder; see `Store.list`."""
        found = _listed(lambda: self._filesystem().find(self._path(folder), detail=True))
        start = len(self.root) + 1
        return sorted(
            StoredFile(str(name)[start:], int(info["size"]), _seconds(info))
            for name, info in found.items()
        )

    def create_once(self, path: str, data: BytesLike) -> bool:
        """Create a file unless its name is taken; see `Store.create_once`."""
        way = CREATE_ONCE.get(self.protocol)
        if way is None:
            raise UnsupportedFeatureError(
                f"no way is known to create a file just once by the protocol {self.protocol!r}, "
                "and without it two writers would overwrite each other's versions"
            )
        return way(self._filesystem(), self._path(path), data)

    def open_writer(self, path: str) -> FileWriter:
        """Return a writer of a new file; see `Store.open_writer`."""
        return CollectedFileWriter(self, path)

    def write(self, path: str, data: BytesLike) -> None:
        """Write a whole file; see `Store.write`."""
        self._filesystem().pipe_file(self._path(path), bytes(data))

    def delete(self, path: str) -> None:
        """Delete a file; see `Store.delete`."""
        try:
            self._filesystem().rm_file(self._path(path))
        except (FileNotFoundError, KeyError):
            return

    def _path(self, path: str) -> str:
        return f"{self.root}/{check_path(path)}" if path else self.root

    def _filesystem(self) -> Any:
        return fsspec.filesystem(
            self.protocol,
            use_listings_cache=False,
            skip_instance_cache=True,
            **self.options,
        )

    @contextmanager
    def _missing_is_not_found(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotFoundError(f"there is no file {self.uri}/{path}") from error


class CollectedFileWriter(FileWriter):
    """Collects a file's bytes and writes them at once when it is closed."""

    def __init__(self, store: FsspecStore, path: str) -> None:
        self._store = store
        self._path = path
        self._parts: list[bytes] | None = []

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        if self._parts is None:
            raise ValueError(f"the writer of {self._store.uri}/{self._path} is closed")
        self._parts.append(bytes(data))

    def close(self) -> None:
        """Make the file visible under its name."""
        if self._parts is not None:
            self._store.write(self._path, b"".join(self._parts))
            self._parts = None

    def abort(self) -> None:
        """Leave nothing behind."""
        self._parts = None


def _create_in_memory(filesystem: Any, path: str, data: BytesLike) -> bool:
    path = filesystem._strip_protocol(path)
    return create_in_memory(filesystem.store, path, MemoryFile(filesystem, path, bytes(data)))


CREATE_ONCE: Mapping[str, Callable[[Any, str, BytesLike], bool]] = {"memory": _create_in_memory}
"""How a file is created once, by protocol. A protocol that is not here has no known way."""


def _seconds(info: Mapping[str, Any]) -> float:
    when = info.get("LastModified", info.get("mtime", info.get("created", 0.0)))
    return when.timestamp() if isinstance(when, datetime) else float(when)


def _listed(list_files: Callable[[], T]) -> T:
    """Return a listing; that of memory fails where another thread deletes a file meanwhile."""
    for _ in range(_LISTINGS):
        with suppress(KeyError):
            return list_files()
    return list_files()
