"""What a store promises: files below one root, whole or not there.

    read_ranges, read, read_end,        immutable files, read in as few requests as is sensible
    size, exists
    list, list_files, list_names        always fresh: no listing is cached; all names or an error
    create_once                         of many who create one name, one succeeds; never torn
    open_writer, write                  a file is there when it is whole, or not at all
    copy, delete

Paths are relative to the root and use "/". A store holds no open file or connection that a pickle
or a fork could break: it may be made on a driver and used on workers.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import CorruptDataError, InvalidInputError

BytesLike: TypeAlias = bytes | bytearray | memoryview | Any
"""Anything with the buffer protocol: a numpy array and an Arrow buffer are, too."""


NUM_READERS: Final = min(8, os.cpu_count() or 1)
"""How many threads read from stores of this machine: they decode what they have read, too."""


MAX_WHOLE_BYTES: Final = 4 << 30
"""Files that are read whole are no larger: manifests, transactions, tags, files of deleted rows."""


class StoredFile(NamedTuple):
    """A file as a listing has it.

    Attributes:
        path: Relative to the store's root.
        size_bytes: Its size.
        modified: Seconds since 1970-01-01 UTC at which it was last written.
        etag: What the store says of its content, another text for another content; if it is the
            content's MD5, in hex. Empty where the store says nothing.
    """

    path: str
    size_bytes: int
    modified: float
    etag: str = ""


class FileWriter(Protocol):
    """Takes a new file's bytes in order. The file is there once `close` returns, and whole.

    As a context manager it closes, or aborts when its body raises.
    """

    def write(self, data: BytesLike) -> None:
        """Append bytes. They may be changed by the caller once this returns."""
        ...

    def close(self) -> None:
        """Make the file visible under its name, in place of an older one."""
        ...

    def abort(self) -> None:
        """Leave nothing behind. Does nothing after `close`."""
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
    def lists_in_order(self) -> bool:
        """Whether the first names of a folder cost one request, however many there are."""
        ...

    @property
    def num_readers(self) -> int:
        """How many threads of one process that read from it are best under way at once."""
        ...

    @property
    def bytes_per_request(self) -> int:
        """How many bytes more cost about as much as one request more."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range, in order.

        Near ranges are joined to one request. A range is answered short, or empty, where the file
        ends before it does. Buffers are read-only, may share memory, and begin at an address that
        is a multiple of 8 if their range begins at one.

        Raises:
            NotFoundError: There is no such file.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return a whole file.

        Raises:
            NotFoundError: There is no such file.
            CorruptDataError: It is larger than `MAX_WHOLE_BYTES`.
        """
        ...

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        """Return the last bytes of a file, all of a shorter one, and its size in bytes.

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
            OSError: It is not known whether there is.
        """
        ...

    def list_names(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files right in a folder, sorted; none if it is not there.

        Args:
            folder: Where.
            limit: The first so many are enough; stores that list in order ask for no more.

        Raises:
            OSError: The folder could not be listed; a part of the names is never returned.
        """
        ...

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        """Return the files right in a folder, sorted by name; none if it is not there.

        Args:
            folder: Where.
            limit: As in `list_names`.

        Raises:
            OSError: As in `list_names`.
        """
        ...

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder, sorted by path; none if it is not there.

        Raises:
            OSError: The folder, or one below it, could not be listed; a part of the files is never
                returned, for cleanup deletes what a listing does not show to be needed.
        """
        ...

    def create_once(self, path: str, data: BytesLike) -> bool:
        """Create a file, unless one of that name is there: of many callers, one succeeds.

        Returns:
            True when this call created it; False when the name is taken. Where an answer can get
            lost and the request be sent again, a file of the very same bytes counts as created.

        Raises:
            OSError: Or another: it is not known whether the file was created.
            StoreRefusedError: The store does not let us; nothing was created.
            UnsupportedFeatureError: The store has no way to do this; nothing was created.
        """
        ...

    def open_writer(self, path: str) -> FileWriter:
        """Return a writer of a new file."""
        ...

    def write(self, path: str, data: BytesLike) -> None:
        """Write a whole file, in place of an older one."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the store, in place of an older one, whole or not at all.

        Raises:
            NotFoundError: There is no file to copy.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file; it may be gone already."""
        ...


def at_root(store: Store, root: str) -> Store:
    """Return the files below another root of the same disk, bucket or memory.

    Args:
        store: One whose root can be said in a text, as that of each store of ours.
        root: As the store has its own.
    """
    moved: Store = replace(store, root=root)  # type: ignore[type-var]  # a dataclass, all of them
    return moved


def root_of(store: Store) -> str:
    """Return the root of a store as `at_root` takes it; empty if it cannot be said."""
    return str(getattr(store, "root", ""))


def check_whole(uri: str, path: str, size_bytes: int) -> None:
    """Check that a file is not too large to be read whole: a hole in a file takes no disk space.

    Raises:
        CorruptDataError: It is.
    """
    if size_bytes > MAX_WHOLE_BYTES:
        raise CorruptDataError(
            f"{uri}/{path} has {size_bytes:,} bytes, and no file of its kind has more than "
            f"{MAX_WHOLE_BYTES:,}: it is damaged, or none of the table's. It was not read"
        )


def check_path(path: str) -> str:
    """Return a path, if it stays below the root of its store.

    Whoever takes a path from a manifest has refused a bad one before; this is the last door.

    Raises:
        InvalidInputError: It is absolute, or climbs with "..".
    """
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise InvalidInputError(f"the path {path[:200]!r} leads out of the store it belongs to")
    return path
