"""Reads manifest files: from this process's cache if unchanged, otherwise the whole file."""

import hashlib

from lance_stream.commit.manifest_memory import MANIFESTS
from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest, decode_manifest


def read_manifest(
    store: Store,
    path: str,
    version: int,
    etag: str = "",
    *,
    is_newest: bool = False,
    size_bytes: int | None = None,
) -> Manifest:
    """Return the manifest in a file. The newest one is cached, since it will be read again.

    Args:
        store: The table's directory.
        path: The file.
        version: The version that it has to describe.
        etag: The file's ETag in a listing just made, if known.
        is_newest: Whether it is the table's newest.
        size_bytes: The size that the file has to have; None if unknown.

    Raises:
        NotFoundError: There is no such file.
        BadDataError: It is damaged, has another size, or describes another version.
    """
    known = MANIFESTS.recall(store, path, etag)
    if known is not None:
        return known
    data = store.read(path)
    if size_bytes not in (None, len(data)):
        raise CorruptDataError(
            f"the manifest of version {version} at {store.uri}/{path} has {len(data)} bytes, and "
            f"should have {size_bytes}"
        )
    manifest = decode_manifest_of(store, path, version, data)
    if is_newest:
        MANIFESTS.remember(store, path, manifest, data, etag or _likely_etag(store, data))
    return manifest


def remember_manifest(store: Store, path: str, manifest: Manifest, data: bytes) -> None:
    """Cache a manifest that this process has written."""
    MANIFESTS.remember(store, path, manifest, data, _likely_etag(store, data))


def decode_manifest_of(store: Store, path: str, version: int, data: bytes) -> Manifest:
    """Return the manifest in a file's bytes; see `read_manifest`."""
    try:
        manifest = decode_manifest(data)
        if manifest.version != version:
            raise CorruptDataError(
                f"the manifest of version {version} states version {manifest.version}"
            )
    except BadDataError as error:
        error.add_note(f"manifest {store.uri}/{path}")
        raise
    return manifest


def _likely_etag(store: Store, data: bytes) -> str:
    """Return the ETag that most services compute; if it differs, the file's end is read once."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest() if store.lists_in_order else ""
