"""Files on a local disk.

A new file is written under a temporary name in the same folder, and renamed when it is complete. So
a reader sees either the complete file or nothing, and a killed writer leaves a file that no reader
mistakes for a file of the table:

    .{name}.{16 random hex digits}.tmp      long names are shortened

Reads go directly into buffers of Arrow's memory pool, which reuses memory if it can: a file in the
page cache is read two to three times as fast as into fresh memory. Files are never memory-mapped:
if a mapped file were truncated, the process would be killed.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import (
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    StoreError,
    StoreRefusedError,
)
from lance_stream.storage.coalesce import Joining, split_responses
from lance_stream.storage.create_once import TO_CREATE, create_by_link, flush_names, write_all
from lance_stream.storage.store import (
    NUM_READERS,
    BytesLike,
    FileWriter,
    StoredFile,
    check_path,
    check_whole,
)
from lance_stream.threads import is_reader

TEMPORARY_SUFFIX = ".tmp"

# O_NONBLOCK: opening a named pipe in place of a file would block.
_TO_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_TO_OVERWRITE = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
# Small writes to a new file are buffered up to this number of bytes.
_BUFFERED_BYTES = 1 << 16

_SPACE = "Free some space, or move the table to a larger disk"
_OPEN_FILES = "Raise the limit of open files (`ulimit -n`), or close files that are not needed"
_PERMISSION = "Check the owner and the permissions of the file and of its parent folders"
_REFUSALS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: (
        "Raise the limit of this process (`ulimit -f`), or move the table to a file system that "
        "accepts larger files"
    ),
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "The file system is mounted read-only",
    errno.ELOOP: "Links form a cycle: replace them with a folder or a file",
    errno.EISDIR: "There is a folder in place of a file: move it away",
    errno.ENXIO: "There is a socket or a device in place of a file: move it away",
}
"""Errors that a retry would not change, and their remedies."""

_MAX_QUOTED = 200

# Linux's limits, in bytes; other systems count characters.
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4096

# Reading 16 KiB from the page cache takes about as long as a system call.
_JOINING = Joining(16 << 10, 1 << 20)
# Buffers begin at a multiple of this both in the file and in memory, as pages of data files do.
_ALIGNMENT = 64
# From this size on, two threads are faster than one, unless other threads keep the cores busy.
_PARALLEL_BYTES = 4 << 20
_NUM_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class LocalStore:
    """The files below a local directory, which need not exist yet.

    Args:
        root: An absolute path.
        durable: Whether every new file is flushed to disk before it is visible, so that it
            survives a power failure. Otherwise, only files of `create_once` are flushed.
        volatile: Whether nothing at all is flushed: after a power failure, the table may be
            unreadable.
    """

    root: str
    durable: bool = False
    volatile: bool = False

    def __post_init__(self) -> None:
        if not os.path.isabs(self.root):
            raise InvalidInputError(
                f"the root of a store must be an absolute path, not {self.root!r}"
            )
        if self.durable and self.volatile:
            raise InvalidInputError("a store cannot be both durable and volatile")

    @property
    def uri(self) -> str:
        """The root as a file URI."""
        return f"file://{quote(self.root)}"

    @property
    def service(self) -> tuple[str | None, ...]:
        """This machine."""
        return ("local",)

    @property
    def shared_uri(self) -> str:
        """The root with all links resolved, as a file URI."""
        return f"file://{quote(os.path.realpath(self.root))}"

    def at_root(self, root: str) -> "LocalStore":
        """Return the files below another directory."""
        return replace(self, root=root)

    def local_path(self, path: str) -> str:
        """Return the path of a file or folder on this machine."""
        return self._path(path)

    def lance_options(self) -> Mapping[str, str]:
        """Return no options: pylance opens the directory."""
        return {}

    @property
    def lists_in_order(self) -> bool:
        """False: a folder is always read completely."""
        return False

    @property
    def num_readers(self) -> int:
        """The number of cores, at most 8."""
        return NUM_READERS

    @property
    def closes_slowly(self) -> bool:
        """Whether closing a file flushes it."""
        return self.durable

    @property
    def bytes_per_request(self) -> int:
        """The bytes that the page cache delivers in the time of a system call."""
        return _JOINING.max_gap_bytes

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range; see `Store.read_ranges`."""
        with self._open(path) as file:
            size = os.fstat(file).st_size
            existing = ranges
            if any(span.stop > size for span in ranges):
                existing = [ByteRange(min(r.start, size), min(r.stop, size)) for r in ranges]
            requests = _JOINING.plan(existing)
            buffers = _read_all(file, [(request.start, request.stop) for request in requests])
        return split_responses(existing, requests, buffers)

    def read(self, path: str) -> bytes:
        """Return a whole file; see `Store.read`."""
        with self._open(path) as file, open(file, "rb", closefd=False) as whole:
            check_whole(self.uri, path, os.fstat(file).st_size)
            return whole.read()

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        """Return the last bytes of a file, and its size; see `Store.read_end`."""
        with self._open(path) as file:
            size = os.fstat(file).st_size
            (end,) = _read_all(file, [(max(size - num_bytes, 0), size)])
        return end, size

    def size(self, path: str) -> int:
        """Return the size of a file; see `Store.size`."""
        with self._open(path) as file:
            return os.fstat(file).st_size

    def exists(self, path: str) -> bool:
        """Return whether there is such a file; see `Store.exists`."""
        try:
            with _convert_errors(self.root, path):
                return stat.S_ISREG(os.stat(self._path(path)).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def list_names(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files directly in a folder; see `Store.list_names`."""
        try:
            with _convert_errors(self.root, folder), os.scandir(self._path(folder)) as entries:
                names = [entry.name for entry in entries if entry.is_file()]
            names.sort()
            return names[:limit]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        """Return the files directly in a folder; see `Store.list_files`."""
        files = []
        for name in self.list_names(folder, limit):
            with suppress(FileNotFoundError):  # deleted in the meantime
                status = os.stat(self._path(path := f"{folder}/{name}"))
                files.append(StoredFile(path, status.st_size, status.st_mtime))
        return files

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder; see `Store.list`."""
        with _convert_errors(self.root, folder):
            return sorted(self._walk(folder))

    def _walk(self, folder: str) -> Iterator[StoredFile]:
        for directory, _, names in os.walk(self._path(folder), onerror=_raise_unless_missing):
            relative = Path(directory).relative_to(self.root).as_posix()
            for name in names:
                with suppress(FileNotFoundError):
                    status = Path(directory, name).stat()
                    path = name if relative == "." else f"{relative}/{name}"
                    yield StoredFile(path, status.st_size, status.st_mtime)

    def create_once(self, path: str, data: BytesLike, *, flush: bool = True) -> bool:
        """Create a file unless its name is taken; see `Store.create_once`."""
        target = self._path(path)
        flush = (flush or self.durable) and not self.volatile
        with _folder_of_new_file(target):
            _make_folder(os.path.dirname(target), durable=flush)
            return create_by_link(target, _temporary_name(target), data, flush=flush)

    def open_writer(self, path: str) -> "LocalFileWriter":
        """Return a writer of a new file; see `Store.open_writer`."""
        return self._open_writer(path, durable=self.durable)

    def _open_writer(self, path: str, *, durable: bool) -> "LocalFileWriter":
        target = self._path(path)
        with _folder_of_new_file(target):
            _make_folder(os.path.dirname(target), durable=durable)
            return LocalFileWriter(target, durable=durable)

    def write(self, path: str, data: BytesLike, *, is_hint: bool = False) -> None:
        """Write a whole file; see `Store.write`."""
        if is_hint and self._overwrite(path, data):
            return
        with self._open_writer(path, durable=self.durable and not is_hint) as writer:
            writer.write(data)

    def _overwrite(self, path: str, data: BytesLike) -> bool:
        """Overwrite a file in place; return whether that was possible.

        If a file is renamed over another one, ext4 writes it to the disk early, in case its writer
        relies on that, and the next flush waits for it. A file with several names is not
        overwritten: it may belong to a copy of the table that consists of hard links.
        """
        try:
            file = os.open(self._path(path), _TO_OVERWRITE)
        except OSError:  # missing, a link, or another user's: the caller replaces it
            return False
        with _convert_errors(self.root, path):
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    return False
                write_all(file, data)
                if status.st_size > memoryview(data).nbytes:
                    os.ftruncate(file, memoryview(data).nbytes)
            finally:
                os.close(file)
        return True

    def copy(self, source: str, target: str) -> None:
        """Copy a file; see `Store.copy`."""
        with (
            self._open(source) as file,
            open(file, "rb", closefd=False) as whole,
            self.open_writer(target) as writer,
        ):
            while part := whole.read(_PARALLEL_BYTES):
                writer.write(part)

    def delete(self, path: str) -> None:
        """Delete a file; see `Store.delete`."""
        with _convert_errors(self.root, path), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._path(path))

    def _path(self, path: str) -> str:
        return f"{self.root}/{check_path(path)}" if path else self.root

    @contextmanager
    def _open(self, path: str) -> Iterator[int]:
        try:
            file = os.open(self._path(path), _TO_READ)
        except OSError:
            with _convert_not_found(self, path):
                raise
        try:
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise NotFoundError(f"{self.uri}/{path} is not a file")
                yield file
            finally:
                os.close(file)
        except OSError:
            with _convert_errors(self.root, path):
                raise


class LocalFileWriter(FileWriter):
    """Writes a file under a temporary name, and renames it when it is closed.

    Small writes are buffered: a file of a few rows takes one system call.

    Args:
        target: The path of the file.
        durable: Whether to flush the file to the disk before it is renamed.
    """

    def __init__(self, target: str, *, durable: bool) -> None:
        self._target = target
        self._durable = durable
        self._temporary = _temporary_name(target)
        self._file: int | None = os.open(self._temporary, TO_CREATE, 0o666)
        self._buffered = bytearray()

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        if self._file is None:
            raise ValueError(f"the writer of {self._target} is closed")
        with memoryview(data) as view, view.cast("B") as rest:
            if len(self._buffered) + len(rest) <= _BUFFERED_BYTES:
                self._buffered += rest
                return
            with _folder_of_new_file(self._target):
                self._write_buffered(self._file)
                write_all(self._file, rest)

    def _write_buffered(self, file: int) -> None:
        buffered, self._buffered = self._buffered, bytearray()
        write_all(file, buffered)

    def close(self) -> None:
        """Make the file visible under its name."""
        if self._file is None:
            return
        try:
            with _folder_of_new_file(self._target):
                self._finish(self._file)
        except BaseException:
            self.abort()
            raise

    def _finish(self, file: int) -> None:
        self._write_buffered(file)
        if self._durable:
            os.fsync(file)
        self._file = None
        os.close(file)
        os.replace(self._temporary, self._target)
        if self._durable:
            flush_names(Path(self._target).parent)

    def abort(self) -> None:
        """Discard the file; on a disk that fails, cleanup deletes it later."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)
        with suppress(OSError):
            os.unlink(self._temporary)


def _temporary_name(target: str) -> str:
    """Return the path of the temporary file for a new file.

    A long name is shortened, after a check that the disk accepts the long one.
    """
    ending = f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    folder, name = os.path.split(target)
    if len(os.fsencode(name)) > (room := _MAX_NAME_BYTES - len(ending) - 1):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(target)
        name = name[: room // 4]
    return f"{folder}/.{name}{ending}"


def _make_folder(path: str, *, durable: bool) -> None:
    """Create a folder and its parents if they do not exist.

    Args:
        path: The folder.
        durable: Whether to flush the names of new folders: a file survives a power failure only if
            all its parent folders do.

    Raises:
        InvalidInputError: A file has the name of a folder, or a link is dangling.
        StoreRefusedError: The file system does not accept new folders.
    """
    if os.path.isdir(path):
        return
    folder = Path(path)
    chain = [folder, *folder.parents]
    missing = [parent for parent in chain if not os.path.lexists(parent)] if durable else []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for parent in reversed(missing):
            flush_names(parent.parent)
    except (FileExistsError, NotADirectoryError) as error:
        existing = (parent for parent in chain if os.path.lexists(parent))
        obstacle = next((parent for parent in existing if not parent.is_dir()), folder)
        raise InvalidInputError(
            f"the folder {str(folder)!r} cannot be created: {str(obstacle)!r} exists, but is "
            "not a folder. Move it away, or choose another location"
        ) from error
    except FileNotFoundError as error:  # in virtual file systems, such as /proc
        nearest = next(parent for parent in folder.parents if os.path.lexists(parent))
        raise StoreRefusedError(
            f"the folder {str(folder)!r} cannot be created: the file system of {str(nearest)!r} "
            "does not accept new folders. Choose another location"
        ) from error


def _raise_unless_missing(error: OSError) -> None:
    """Raise an error of a listing; by default, `os.walk` skips folders that it cannot read."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextmanager
def _convert_not_found(store: LocalStore, path: str) -> Iterator[None]:
    try:
        with _convert_errors(store.root, path):
            yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no file {store.uri}/{path}") from error


@contextmanager
def _folder_of_new_file(target: str) -> Iterator[None]:
    """Convert the errors of writing a new file, including those of a folder that disappears.

    Raises:
        NotFoundError: The folder was deleted; there is no new file.
    """
    folder, name = os.path.split(target)
    try:
        with _convert_errors(folder, name):
            yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"the folder {folder!r} was deleted while a file was written to it. If the table "
            "still exists, open it again and repeat the operation"
        ) from error


@contextmanager
def _convert_errors(root: str, path: str) -> Iterator[None]:
    """Convert a disk's errors to ours, except those of missing and existing files.

    Raises:
        InvalidInputError: The name of a branch, a tag or a table's folder is too long.
        StoreRefusedError: The disk refused, for example because it is full; nothing was done.
        StoreError: The disk failed in another way.
    """
    try:
        yield
    except (LanceStreamError, FileNotFoundError, NotADirectoryError, FileExistsError):
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _too_long(f"{root}/{path}") from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        where = str(error.filename or f"{root}/{path}")[:_MAX_QUOTED]
        if error.errno in _REFUSALS:
            raise StoreRefusedError(
                f"the disk refused the operation on {where!r}: {reason}. {_REFUSALS[error.errno]}"
            ) from error
        raise StoreError(
            f"the disk failed at {where!r}: {reason}. See the system's log, and try again"
        ) from error


def _too_long(path: str) -> InvalidInputError:
    longest = max(path.split("/"), key=lambda part: len(os.fsencode(part)))
    size = len(os.fsencode(longest))
    problem = f"its part {longest[:40]!r}... has {size} bytes"
    limit = f"a name can have {_MAX_NAME_BYTES}"
    if size <= _MAX_NAME_BYTES:
        problem = f"it has {len(os.fsencode(path))} bytes"
        limit = f"a path can have {_MAX_PATH_BYTES - 1}"
    return InvalidInputError(
        f"the path {path[:_MAX_QUOTED]!r}... is too long for this disk: {problem}, but {limit} on "
        "most disks. Use a shorter name"
    )


def _read_all(file: int, requests: Sequence[tuple[int, int]]) -> list[Buffer]:
    """Read each request into a separate buffer; many bytes are read by several threads."""
    buffers = [_Target(start, stop) for start, stop in requests]
    total = sum(stop - start for start, stop in requests)
    if total < _PARALLEL_BYTES or _NUM_THREADS == 1 or is_reader():
        for buffer in buffers:
            buffer.fill(file, buffer.start, buffer.stop)
    else:
        shares = _divide(buffers, max(_PARALLEL_BYTES // 2, -(-total // (2 * _NUM_THREADS))))
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            list(threads.map(lambda slices: _fill(file, slices), shares))
    return [buffer.view() for buffer in buffers]


def _divide(
    buffers: Sequence["_Target"], share_bytes: int
) -> list[list[tuple["_Target", int, int]]]:
    """Divide the reads of all buffers into shares of about equal size, one per thread."""
    shares: list[list[tuple[_Target, int, int]]] = [[]]
    room = share_bytes
    for buffer in buffers:
        start = buffer.start
        while start < buffer.stop:
            if room <= 0:
                shares.append([])
                room = share_bytes
            # A small remainder is not split off.
            stop = buffer.stop if buffer.stop - start <= 2 * room else start + room
            shares[-1].append((buffer, start, stop))
            room -= stop - start
            start = stop
    return shares


def _fill(file: int, slices: Sequence[tuple["_Target", int, int]]) -> None:
    for target, start, stop in slices:
        target.fill(file, start, stop)


class _Target:
    """A buffer for the bytes `start` to `stop` of a file, with the same alignment in memory."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._skip = start % _ALIGNMENT
        self._buffer = memoryview(pa.allocate_buffer(stop - start + self._skip))[self._skip :]
        self._filled_to = stop

    def fill(self, file: int, start: int, stop: int) -> None:
        while start < stop:
            num_read = os.preadv(
                file, [self._buffer[start - self.start : stop - self.start]], start
            )
            if num_read == 0:  # truncated after its size was read
                self._filled_to = min(self._filled_to, start)
                return
            start += num_read

    def view(self) -> Buffer:
        return self._buffer[: self._filled_to - self.start].toreadonly()
