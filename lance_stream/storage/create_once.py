"""Creating a file once: of many who try, exactly one succeeds, and nobody sees half a file.

Commits stand on it: the manifest of version N is created once. fsspec's own way,
`pipe_file(mode="create")`, looks whether the file exists and then writes it; on a local disk and
in memory two writers can both win. So each kind of store names its own way:

    local           write aside, flush, hard-link to the name: the link fails if it is taken
    memory          look and write under a lock
    S3, Azure       PUT with If-None-Match: *
    Google          PUT with x-goog-if-generation-match: 0
    a key-value     put if not there, for a store of files that has no way of its own: see
    store           `commit.manifest_stores`

What the services are asked stands in `engine.requests`; here are the ways of local disks and
memory. A service that is asked twice, because its first answer got lost, says "taken" of what is
ours: then the file is read, and if it holds the very same bytes, it was created by this call.

Opening the name itself with O_EXCL would also pick one winner, but one that is killed half-way
leaves a torn file under the name.
"""

import errno
import os
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lance_stream.errors import UnsupportedFeatureError

_MEMORY_LOCK = threading.Lock()

# What a file system without hard links answers; EMLINK would be a link too many to one file.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


def create_by_link(target: Path, temporary: Path, data: Any) -> bool:
    """Create a local file unless its name is taken.

    Args:
        target: The file.
        temporary: A name in the same directory that nobody else uses.
        data: Its bytes.

    Returns:
        Whether this call created it.

    Raises:
        UnsupportedFeatureError: The file system has no hard links; nothing was created.
    """
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        finally:
            os.close(file)
        try:
            os.link(temporary, target, follow_symlinks=False)
        except FileExistsError:
            # Over a network the first answer may have been lost, and the call sent again.
            return temporary.stat().st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise UnsupportedFeatureError(
                f"the file system of {target.parent} has no hard links ({error.strerror}), and "
                "without them a version cannot be published so that two writers never overwrite "
                "each other. Nothing was written. Keep the table on a local file system such as "
                "ext4, xfs, btrfs, apfs or ntfs. If this is a bucket that is mounted as a folder "
                "(gcsfuse, mountpoint-s3, blobfuse), name the bucket itself: gs://, s3:// or az://"
            ) from error
        # The version is there from here on: what fails now must not look like a failed commit.
        with suppress(OSError):
            flush_names(target.parent)
        return True
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def create_in_memory(files: MutableMapping[str, Any], path: str, made: Any) -> bool:
    """Put a file into a mapping of files, unless its name is taken.

    Args:
        files: The files by path, shared by all stores in memory.
        path: The file's.
        made: What to put there.

    Returns:
        Whether this call put it there.
    """
    with _MEMORY_LOCK:
        if path in files:
            return False
        files[path] = made
        return True


def flush_names(directory: Path) -> None:
    """Flush the names in a directory to the disk."""
    file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
