"""The contract of a store: files below one root, each complete or absent.

    read_ranges, read, read_end,        immutable files, read in few requests
    size, exists
    list, list_files, list_names        never cached, and complete: all names, or an error
    create_once                         of several callers, exactly one creates the name; the file
                                        is never partial
    open_writer, write                  a file is complete, or does not exist
    copy, delete

Paths are relative to the root and use "/". A store has no open files or connections that a pickle
or a fork could break: it can be created on a driver and used on workers.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError

BytesLike: TypeAlias = bytes | bytearray | memoryview | Any
"""Anything with the buffer protocol, including numpy arrays and Arrow buffers."""


NUM_READERS: Final = min(8, os.cpu_count() or 1)
"""The number of threads that read local stores; they also decode what they read."""


MAX_WHOLE_BYTES: Final = 4 << 30
"""The maximum size of files that are read as a whole: manifests, transactions, tags, deletions."""


class StoredFile(NamedTuple):
    """A file in a listing.

    Attributes:
        path: The path, relative to the store's root.
        size_bytes: The size.
        modified: The time of the last write, in seconds since 1970-01-01 UTC.
        etag: The store's identifier of the content, different for different content; in hex if it
            is the content's MD5. Empty if the store has none.
    """

    path: str
    size_bytes: int
    modified: float
    etag: str = ""


class FileWriter(Protocol):
    """Receives a new file's bytes in order. The file exists, complete, once `close` returns.

    As a context manager, it closes the file, or aborts if the body raises.
    """

    def write(self, data: BytesLike) -> None:
        """Append bytes. The caller may change them after this returns."""
        ...

    def close(self) -> None:
        """Make the file visible under its name, replacing an older one."""
        ...

    def abort(self) -> None:
        """Discard the file. Does nothing after `close`."""
        ...

    def __enter__(self) -> "FileWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Store(Protocol):
    """The files below one root. Two stores are equal if their roots are."""

    @property
    def uri(self) -> str:
        """The root as a full URI."""
        ...

    @property
    def root(self) -> str:
        """The root in the store's own form, as `at_root` takes it; all paths are relative to it."""
        ...

    @property
    def service(self) -> tuple[str | None, ...]:
        """The service and account: equal for two stores of one service and account."""
        ...

    @property
    def shared_uri(self) -> str:
        """The root as a URI that is the same for all programs, however they reach the store."""
        ...

    def at_root(self, root: str) -> "Store":
        """Return the files below another root of the same disk, bucket or memory."""
        ...

    def local_path(self, path: str) -> str | None:
        """Return the path of a file or folder on this machine's disk; None if it is not on it."""
        ...

    def lance_options(self) -> Mapping[str, str] | None:
        """Return the storage options with which pylance opens it; None if pylance cannot.

        Raises:
            InvalidInputError: A setting has no counterpart in pylance.
        """
        ...

    @property
    def lists_in_order(self) -> bool:
        """Whether one request lists the first names of a folder of any size."""
        ...

    @property
    def num_readers(self) -> int:
        """The best number of threads that read from it concurrently in one process."""
        ...

    @property
    def closes_slowly(self) -> bool:
        """Whether closing a new file takes longer than starting a thread."""
        ...

    @property
    def bytes_per_request(self) -> int:
        """The number of additional bytes that cost about as much as one additional request."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range, in order.

        Nearby ranges are combined into one request. A result is short, or empty, if the file ends
        before the range. Buffers are read-only and may share memory. If a range begins at a
        multiple of 8, so does the address of its buffer.

        Raises:
            NotFoundError: There is no such file.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return a whole file.

        Raises:
            NotFoundError: There is no such file.
            CorruptDataError: The file is larger than `MAX_WHOLE_BYTES`.
        """
        ...

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        """Return the last bytes of a file, or all of a shorter one, and its size in bytes.

        Raises:
            NotFoundError: There is no such file.
        """
        ...

    def size(self, path: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            NotFoundError: There is no such file.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is such a file.

        Raises:
            OSError: The store did not answer.
        """
        ...

    def list_names(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files directly in a folder, sorted; none if it does not exist.

        Args:
            folder: The folder.
            limit: The number of names to return, the first ones; None for all. Stores that list in
                order read no more.

        Raises:
            OSError: The folder could not be listed; partial results are never returned.
        """
        ...

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        """Return the files directly in a folder, sorted by name; none if it does not exist.

        Args:
            folder: The folder.
            limit: As in `list_names`.

        Raises:
            OSError: As in `list_names`.
        """
        ...

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder, sorted by path; none if it does not exist.

        Raises:
            OSError: The folder, or one below it, could not be listed. Partial results are never
                returned, because cleanup would delete needed files.
        """
        ...

    def create_once(self, path: str, data: BytesLike, *, flush: bool = True) -> bool:
        """Create a file, unless its name is taken. Exactly one of several callers succeeds.

        Args:
            path: The file.
            data: Its bytes.
            flush: Whether it must survive a power failure. Stores whose confirmed writes always
                survive ignore it.

        Returns:
            True if this call created it; False if the name is taken. If a response can be lost and
            the request repeated, a file with identical bytes counts as created.

        Raises:
            OSError: Or any other error: it is unknown whether the file was created.
            StoreRefusedError: The store refused; nothing was created.
            UnsupportedFeatureError: The store does not support this; nothing was created.
        """
        ...

    def open_writer(self, path: str) -> FileWriter:
        """Return a writer of a new file."""
        ...

    def write(self, path: str, data: BytesLike, *, is_hint: bool = False) -> None:
        """Write a whole file, replacing an older one.

        Args:
            path: The file.
            data: Its bytes.
            is_hint: Whether no reader relies on it. Then it is never flushed, and on a local disk
                it may be overwritten in place, so that a reader can see a mix of both contents.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the store, replacing an older one. A copy is never partial.

        Raises:
            NotFoundError: There is no file to copy.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        ...


def create_if_absent(store: Store, path: str, data: BytesLike) -> bool:
    """Create a file, unless its name is taken; see `Store.create_once`.

    If the store has no create-if-absent, this checks whether the file exists and then writes it:
    two concurrent callers may both succeed there.
    """
    try:
        return store.create_once(path, data)
    except UnsupportedFeatureError:
        if store.exists(path):
            return False
        store.write(path, data)
        return True


def is_reached_through_link(store: Store, folder: str) -> bool:
    """Return whether a folder below the root is a link, or is reached through one.

    The target may belong to another table. The root itself may be a link.
    """
    parts = folder.split("/")
    paths = (store.local_path("/".join(parts[:count])) for count in range(1, len(parts) + 1))
    return any(path is not None and Path(path).is_symlink() for path in paths)


def check_is_in_table(store: Store, folder: str, what: str) -> None:
    """Check that files written to a folder of a table cannot end up in another table.

    New files with random names may be written through a link: `data` is often on another disk. But
    through a link, a version or a tag would become one of another table.

    Args:
        store: The table's directory.
        folder: The folder.
        what: The kind of file, for the message.

    Raises:
        UnsupportedFeatureError: The folder is a link, or is reached through one.
    """
    if is_reached_through_link(store, folder):
        raise UnsupportedFeatureError(
            f"{store.uri}/{folder} is a link, or is reached through one, so {what} there could "
            "become part of another table. Nothing was committed. Replace the link with the folder "
            "itself, or make the table's whole directory a link. Within a table, only the folder "
            "of data files may be a link"
        )


def check_whole(uri: str, path: str, size_bytes: int) -> None:
    """Check that a file is not too large to be read as a whole: sparse files take no disk space.

    Raises:
        CorruptDataError: The file is too large.
    """
    if size_bytes > MAX_WHOLE_BYTES:
        raise CorruptDataError(
            f"{uri}/{path} has {size_bytes:,} bytes, but a file of its kind has at most "
            f"{MAX_WHOLE_BYTES:,}: it is damaged, or does not belong to the table. It was not read"
        )


def check_path(path: str) -> str:
    """Return a path if it is below the root of its store.

    Paths from manifests have been checked before; this is a last check.

    Raises:
        InvalidInputError: The path is absolute, or contains "..".
    """
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise InvalidInputError(f"the path {path[:200]!r} leaves the root of its store")
    return path
