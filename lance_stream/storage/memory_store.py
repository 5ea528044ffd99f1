"""Files in this process's memory, visible to every memory store and to fsspec itself.

The filesystem object is created by each process and never pickled.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFile

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import NotFoundError
from lance_stream.storage.coalesce import Joining, split_responses
from lance_stream.storage.create_once import create_in_memory
from lance_stream.storage.store import (
    NUM_READERS,
    BytesLike,
    FileWriter,
    StoredFile,
    check_path,
)

# Buffers begin at a multiple of its alignment, in the file and in memory alike.
_JOINING = Joining(16 << 10, 16 << 20, alignment=8)


@dataclass(frozen=True)
class MemoryStore:
    """The files below one root in memory.

    Args:
        root: A path that begins, but does not end, with "/".
    """

    root: str

    @property
    def uri(self) -> str:
        """The root as a URI."""
        return f"memory://{self.root.removeprefix('/')}"

    @property
    def service(self) -> tuple[str | None, ...]:
        """This process."""
        return ("memory",)

    @property
    def shared_uri(self) -> str:
        """The root as a URI."""
        return self.uri

    def at_root(self, root: str) -> "MemoryStore":
        """Return the files below another root."""
        return replace(self, root=root)

    def local_path(self, _path: str) -> None:
        """Return None: nothing is on a disk."""

    def lance_options(self) -> None:
        """Return None: pylance cannot access this process's memory."""

    @property
    def lists_in_order(self) -> bool:
        """True, as for Lance's memory store."""
        return True

    @property
    def num_readers(self) -> int:
        """The number of cores, at most 8."""
        return NUM_READERS

    @property
    def closes_slowly(self) -> bool:
        """False: there is nothing to wait for."""
        return False

    @property
    def bytes_per_request(self) -> int:
        """The bytes that are copied in the time of a call."""
        return _JOINING.max_gap_bytes

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range; see `Store.read_ranges`."""
        requests = _JOINING.plan(ranges)
        with self._convert_not_found(path):
            if not requests:
                self.size(path)
                return [memoryview(b"")] * len(ranges)
            answers = self._filesystem().cat_ranges(
                [self._path(path)] * len(requests),
                [request.start for request in requests],
                [request.stop for request in requests],
                on_error="raise",
            )
        return split_responses(ranges, requests, [memoryview(answer) for answer in answers])

    def read(self, path: str) -> bytes:
        """Return a whole file; see `Store.read`."""
        with self._convert_not_found(path):
            return bytes(self._filesystem().cat_file(self._path(path)))

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        """Return the last bytes of a file, and its size; see `Store.read_end`."""
        data = memoryview(self.read(path))
        return data[max(len(data) - num_bytes, 0) :], len(data)

    def size(self, path: str) -> int:
        """Return the size of a file; see `Store.size`."""
        with self._convert_not_found(path):
            info = self._filesystem().info(self._path(path))
            if info["type"] != "file":
                raise IsADirectoryError(path)
            return int(info["size"])

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        return bool(self._filesystem().isfile(self._path(path)))

    def list_names(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files directly in a folder; see `Store.list_names`."""
        return [file.path.rpartition("/")[2] for file in self.list_files(folder, limit)]

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        """Return the files directly in a folder; see `Store.list_files`."""
        return [file for file in self._below(folder) if file.path.rpartition("/")[0] == folder][
            :limit
        ]

    def _below(self, folder: str) -> list[StoredFile]:
        """Return all files below a folder.

        The names are copied in one step from fsspec's dictionary of files, because fsspec's own
        listings fail if another thread creates or deletes a file at the same time.
        """
        start, prefix = len(self.root) + 1, f"{self._path(folder)}/"
        files = self._filesystem().store
        names = [name for name in tuple(files) if name.startswith(prefix)]
        entries = ((name[start:], files.get(name)) for name in names)
        return sorted(
            StoredFile(path, file.size, file.created.timestamp())
            for path, file in entries
            if file is not None
        )

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder; see `Store.list`."""
        return self._below(folder)

    def create_once(
        self,
        path: str,
        data: BytesLike,
        *,
        flush: bool = True,  # noqa: ARG002  # there is nothing to flush
    ) -> bool:
        """Create a file unless its name is taken; see `Store.create_once`."""
        filesystem = self._filesystem()
        file = MemoryFile(filesystem, self._path(path), bytes(data))
        return create_in_memory(filesystem.store, self._path(path), file)

    def open_writer(self, path: str) -> FileWriter:
        """Return a writer of a new file; see `Store.open_writer`."""
        return CollectedFileWriter(self, path)

    def write(
        self,
        path: str,
        data: BytesLike,
        *,
        is_hint: bool = False,  # noqa: ARG002  # nothing is flushed anyway
    ) -> None:
        """Write a whole file; see `Store.write`."""
        self._filesystem().pipe_file(self._path(path), bytes(data))

    def copy(self, source: str, target: str) -> None:
        """Copy a file; see `Store.copy`."""
        self.write(target, self.read(source))

    def delete(self, path: str) -> None:
        """Delete a file; see `Store.delete`."""
        try:
            self._filesystem().rm_file(self._path(path))
        except (FileNotFoundError, KeyError):
            return

    def _path(self, path: str) -> str:
        return f"{self.root}/{check_path(path)}" if path else self.root

    def _filesystem(self) -> Any:
        return fsspec.filesystem("memory", skip_instance_cache=True)

    @contextmanager
    def _convert_not_found(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotFoundError(f"there is no file {self.uri}/{path}") from error


class CollectedFileWriter(FileWriter):
    """Collects a file's bytes, and stores them when it is closed."""

    def __init__(self, store: MemoryStore, path: str) -> None:
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
        """Discard the file."""
        self._parts = None
