"""Files of a filesystem that a user has registered with fsspec: read-only.

fsspec has no create-if-absent, so no commit would be safe. Tables on such filesystems can be
opened, scanned and followed.

Filesystems cache listings and look up files in them. The cached listing is therefore dropped before
reading a file that may have been replaced (`read`: tags, manifests), and before reporting that a
file is missing.

The filesystem object is created by each process and never pickled. Every process that reads must
have registered the protocol; Spark's workers do so when they import the module that registers it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NoReturn

import fsspec
from fsspec.registry import registry

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import (
    NotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedFeatureError,
)
from lance_stream.storage.coalesce import Joining, split_responses
from lance_stream.storage.store import BytesLike, FileWriter, StoredFile, check_path, check_whole

# Buffers begin at a multiple of its alignment, in the file and in memory alike.
_JOINING: Final = Joining(256 << 10, 8 << 20, alignment=8)
_READERS: Final = 8


def is_registered(protocol: str) -> bool:
    """Return whether a protocol has been registered with fsspec, or used."""
    return protocol in registry


@dataclass(frozen=True)
class FsspecStore:
    """The files below one root of a registered filesystem.

    Args:
        protocol: Its name in fsspec's registry.
        root: A path of the filesystem, without a trailing "/".
        options: The filesystem's arguments.
    """

    protocol: str
    root: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def uri(self) -> str:
        """The root as a URI."""
        return f"{self.protocol}://{self.root}"

    @property
    def service(self) -> tuple[str | None, ...]:
        """The protocol, and the first part of the root: a bucket or a host."""
        return self.protocol, self.root.partition("/")[0]

    @property
    def shared_uri(self) -> str:
        """The root as a URI."""
        return self.uri

    def at_root(self, root: str) -> "FsspecStore":
        """Return the files below another root of the filesystem."""
        return replace(self, root=root)

    def local_path(self, _path: str) -> None:
        """Return None: it is unknown whether a filesystem is on a disk."""

    def lance_options(self) -> None:
        """Return None: pylance does not know the filesystem."""

    @property
    def lists_in_order(self) -> bool:
        """False: fsspec does not guarantee it."""
        return False

    @property
    def num_readers(self) -> int:
        """A few, since most filesystems wait for a network."""
        return _READERS

    @property
    def closes_slowly(self) -> bool:
        """False: nothing is written."""
        return False

    @property
    def bytes_per_request(self) -> int:
        """An estimate of a request's latency, in bytes."""
        return _JOINING.max_gap_bytes

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range; see `Store.read_ranges`."""
        requests = _JOINING.plan(ranges)
        if not requests:
            self.size(path)
            return [memoryview(b"")] * len(ranges)
        size = self.size(path)  # filesystems treat ranges beyond the end differently
        answers = [
            memoryview(self._bytes(path, request.start, min(request.stop, size)))
            if request.start < size
            else memoryview(b"")
            for request in requests
        ]
        return split_responses(ranges, requests, answers)

    def read(self, path: str) -> bytes:
        """Return a whole file; see `Store.read`."""
        full_path = self._path(path)
        with self._filesystem_for(path) as filesystem:
            _forget_listing_with(filesystem, full_path)
        check_whole(self.uri, path, self.size(path))
        return self._bytes(path, None, None)

    def read_end(self, path: str, num_bytes: int) -> tuple[Buffer, int]:
        """Return the last bytes of a file, and its size; see `Store.read_end`."""
        size = self.size(path)
        if not size or not num_bytes:
            return memoryview(b""), size
        return memoryview(self._bytes(path, max(size - num_bytes, 0), size)), size

    def size(self, path: str) -> int:
        """Return the size of a file; see `Store.size`."""
        full_path = self._path(path)
        with self._filesystem_for(path) as filesystem:
            try:
                info = filesystem.info(full_path)
            except FileNotFoundError:
                _forget_listing_with(filesystem, full_path)
                info = filesystem.info(full_path)
            if info.get("type") != "file":
                raise IsADirectoryError(path)
            return int(info["size"])

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        try:
            self.size(path)
        except NotFoundError:
            return False
        return True

    def list_names(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files directly in a folder; see `Store.list_names`."""
        return [file.path.rpartition("/")[2] for file in self.list_files(folder, limit)]

    def list_files(self, folder: str, limit: int | None = None) -> list[StoredFile]:
        """Return the files directly in a folder; see `Store.list_files`."""
        return self._listed(folder, deep=False)[:limit]

    def _listed(self, folder: str, *, deep: bool) -> list[StoredFile]:
        top = self._path(folder)
        try:
            with self._filesystem_for(folder) as filesystem:
                filesystem.invalidate_cache()
                if deep:
                    # Some filesystems wrap another one, whose names are in the values.
                    entries = list(filesystem.find(top, detail=True).items())
                else:
                    entries = [(entry["name"], entry) for entry in filesystem.ls(top, detail=True)]
                start = str(filesystem._strip_protocol(self.root)).rstrip("/") + "/"
        except NotFoundError:
            return []
        return sorted(
            StoredFile(str(name)[len(start) :], int(entry.get("size") or 0), _modified(entry))
            for name, entry in entries
            if entry.get("type") == "file" and str(name).startswith(start)
        )

    def list(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder; see `Store.list`."""
        return self._listed(folder, deep=True)

    def create_once(
        self,
        path: str,
        data: BytesLike,
        *,
        flush: bool = True,  # noqa: ARG002  # there is nothing to flush
    ) -> bool:
        """Refuse; see `Store.create_once`."""
        self._refuse(path, data)

    def open_writer(self, path: str) -> FileWriter:
        """Refuse; see `Store.open_writer`."""
        self._refuse(path)

    def write(
        self,
        path: str,
        data: BytesLike,
        *,
        is_hint: bool = False,  # noqa: ARG002  # nothing is flushed anyway
    ) -> None:
        """Refuse; see `Store.write`."""
        self._refuse(path, data)

    def copy(self, source: str, target: str) -> None:
        """Refuse; see `Store.copy`."""
        self._refuse(source, target)

    def delete(self, path: str) -> None:
        """Refuse; see `Store.delete`."""
        self._refuse(path)

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise UnsupportedFeatureError(
            f"{self.uri} is read-only: fsspec has no create-if-absent, which commits depend on. "
            "Nothing was written. Write tables to a local disk, or to s3://, gs:// or az://"
        )

    def _bytes(self, path: str, start: int | None, stop: int | None) -> bytes:
        full_path = self._path(path)
        with self._filesystem_for(path) as filesystem:
            data = bytes(filesystem.cat_file(full_path, start=start, end=stop))
        if start is not None and stop is not None and len(data) != stop - start:
            raise StoreUnavailableError(
                f"{self.uri}/{path} returned {len(data):,} bytes instead of the range {start:,} to "
                f"{stop:,}: the file was replaced in the meantime, or the filesystem truncates "
                "ranges. Read it again"
            )
        return data

    def _path(self, path: str) -> str:
        return f"{self.root}/{check_path(path)}" if path else self.root

    @contextmanager
    def _filesystem_for(self, path: str) -> Iterator[Any]:
        try:
            yield fsspec.filesystem(self.protocol, **self.options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise NotFoundError(f"there is no file {self.uri}/{path}") from error
        except PermissionError as error:
            raise StoreRefusedError(
                f"{self.uri}/{path} cannot be read: {error}. Correct its permissions"
            ) from error
        except Exception as error:  # filesystems raise errors of all classes
            raise StoreUnavailableError(
                f"{self.uri}/{path} cannot be read: {type(error).__name__}: {str(error)[:300]}"
            ) from error


def _forget_listing_with(filesystem: Any, path: str) -> None:
    filesystem.invalidate_cache(path.rpartition("/")[0])


def _modified(info: Mapping[str, Any]) -> float:
    """Return the modification time of a file; 0 if its filesystem does not record it."""
    time = next((info[key] for key in ("mtime", "LastModified", "created") if key in info), 0)
    return time.timestamp() if isinstance(time, datetime) else float(time or 0)
