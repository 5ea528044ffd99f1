"""Creating a file once: of several writers exactly one succeeds, and readers see no partial file.

Commits depend on it: the manifest of version N is created once. fsspec's `pipe_file(mode="create")`
checks whether the file exists and then writes it: on a local disk and in memory, two writers can
both succeed. So each kind of store has a different method:

    local              write a temporary file, flush it, and hard-link it to the name, which fails
                       if the name is taken; flush the name
    memory             check and write under a lock
    S3, Azure          PUT with If-None-Match: *
    Google             PUT with x-goog-if-generation-match: 0
    key-value store    put if absent, for stores without such a method: see `commit.manifest_stores`

`engine.requests` sends the requests to services; local disks and memory are here. If the response
to the first request is lost, a repeated one reports our own file as "taken": then the file is read,
and if it has identical bytes, this call created it.

Opening the name itself with O_EXCL would also let one writer succeed, but a writer that is killed
in between would leave a partial file under the name.
"""

import errno
import os
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lance_stream.errors import UnsupportedFeatureError

TO_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
"""The flags for opening a local file that must be new."""

_MEMORY_LOCK = threading.Lock()

# Errors of file systems without hard links. EMLINK: too many links to one file.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


def create_by_link(target: str, temporary: str, data: Any, *, flush: bool) -> bool:
    """Create a local file unless its name is taken.

    Args:
        target: The file.
        temporary: A unique name in the same directory.
        data: Its bytes.
        flush: Whether to flush the bytes before the file gets its name, and the name before this
            function returns. Otherwise, a power failure can leave an empty file.

    Returns:
        Whether this call created it.

    Raises:
        UnsupportedFeatureError: The file system has no hard links; nothing was created.
    """
    file = os.open(temporary, TO_CREATE, 0o666)
    try:
        try:
            write_all(file, data)
            if flush:
                os.fsync(file)
        finally:
            os.close(file)
        try:
            os.link(temporary, target, follow_symlinks=False)
        except FileExistsError:
            # On a network file system, the call may be a repetition whose first response was lost.
            return os.stat(temporary).st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise UnsupportedFeatureError(
                f"the file system of {os.path.dirname(target)} has no hard links "
                f"({error.strerror}), which publishing a version requires: without them, two "
                "writers could overwrite each other. Nothing was written. Store the table on a "
                "local file system such as ext4, xfs, btrfs, apfs or ntfs. If this is a mounted "
                "bucket (gcsfuse, mountpoint-s3, blobfuse), use the URI of the bucket: gs://, "
                "s3:// or az://"
            ) from error
        # The version now exists: later failures must not look like a failed commit.
        if flush:
            with suppress(OSError):
                flush_names(Path(target).parent)
        return True
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def write_all(file: int, data: Any) -> None:
    """Write all bytes to an open file."""
    with memoryview(data) as view, view.cast("B") as whole:
        written = 0
        while written < len(whole):
            written += os.write(file, whole[written:])


def create_in_memory(files: MutableMapping[str, Any], path: str, file: Any) -> bool:
    """Add a file to a mapping of files, unless its name is taken.

    Args:
        files: The files by path, shared by all memory stores.
        path: The file's path.
        file: The file to add.

    Returns:
        Whether this call added it.
    """
    with _MEMORY_LOCK:
        if path in files:
            return False
        files[path] = file
        return True


def flush_names(directory: Path) -> None:
    """Flush the names in a directory to the disk."""
    file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
