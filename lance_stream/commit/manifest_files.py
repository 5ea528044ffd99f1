"""Reads manifest files, and caches those that this process has read or written.

A stream opens its table for every batch, and again in every commit attempt, and usually reads the
manifest that it has just written. The manifest of a table of 20,000 fragments has four megabytes to
read, decode and search.

A manifest file never changes, but a table can be deleted and re-created, or restored from a copy.
So a cached manifest is verified before it is returned. If the listing states the ETag of the file,
and it is that of the cached bytes, this costs no request. Otherwise the last bytes of the file
(`TAIL_BYTES`) are read, and must be those of the cached bytes. They contain the version's timestamp
in nanoseconds and the unique name of its transaction file. A manifest without both in its last
bytes is not cached.
"""

import hashlib
from typing import Final, NamedTuple

from lance_stream.byte_ranges import ByteRange
from lance_stream.caches import Cache
from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest, decode_manifest, unique_parts

TAIL_BYTES: Final = 64 << 10
"""The number of bytes at the end of a file that are compared."""

MAX_BYTES: Final = 64 << 20
"""Maximum total size of the cached manifests' files."""

MAX_TABLES: Final = 64
"""Maximum number of tables in the cache."""

MAX_PER_TABLE: Final = 2
"""The number of cached manifests per table, the latest ones: a follower compares two."""


class _CachedManifest(NamedTuple):
    path: str
    manifest: Manifest
    size_bytes: int
    tail: bytes
    etag: str


class ManifestCache:
    """The latest manifests of each table that this process has read or written. Thread-safe.

    Args:
        max_bytes: Maximum total size of the manifests' files.
        max_tables: Maximum number of tables, whatever the size of their manifests.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_tables: int = MAX_TABLES) -> None:
        self._max_bytes = max_bytes
        min_weight = max_bytes / max_tables  # of a table, which limits the number of tables
        self._manifests: Cache[str, tuple[_CachedManifest, ...]] = Cache(
            max_bytes, lambda of_table: max(min_weight, _size_of(of_table))
        )

    def remember(
        self, store: Store, path: str, manifest: Manifest, data: bytes, etag: str = ""
    ) -> None:
        """Cache a manifest.

        Args:
            store: The table's directory.
            path: The file.
            manifest: The decoded manifest.
            data: Its bytes.
            etag: The file's ETag in a listing; empty if unknown.
        """
        tail = data[-TAIL_BYTES:]
        unique = unique_parts(manifest)
        if not unique or any(part not in tail for part in unique):
            return
        new = _CachedManifest(path, manifest, len(data), tail, etag)

        def with_new(of_table: tuple[_CachedManifest, ...] | None) -> tuple[_CachedManifest, ...]:
            others = tuple(entry for entry in of_table or () if entry.path != path)
            entries = (*others[1 - MAX_PER_TABLE :], new)
            return entries if _size_of(entries) <= self._max_bytes else (new,)

        self._manifests.change(store.uri, with_new)

    def find(self, store: Store, path: str, etag: str = "") -> Manifest | None:
        """Return a manifest if it is cached and its file has not changed; otherwise None.

        Args:
            store: The table's directory.
            path: The file.
            etag: The file's ETag in a new listing; empty if unknown.

        Raises:
            NotFoundError: The manifest is cached, but the file no longer exists.
        """
        of_table = self._manifests.get(store.uri) or ()
        cached = next((entry for entry in of_table if entry.path == path), None)
        if cached is None:
            return None
        if etag and etag == cached.etag:
            return cached.manifest
        start = cached.size_bytes - len(cached.tail)
        # Read one byte more: a file that has grown is a different file.
        (tail,) = store.read_ranges(path, [ByteRange(start, cached.size_bytes + 1)])
        if bytes(tail) != cached.tail:
            return None
        if etag:
            self._set_etag(store.uri, cached, etag)
        return cached.manifest

    def _set_etag(self, uri: str, cached: _CachedManifest, etag: str) -> None:
        updated = cached._replace(etag=etag)
        self._manifests.change(
            uri,
            lambda of_table: tuple(
                updated if entry is cached else entry for entry in of_table or ()
            ),
        )


def _size_of(of_table: tuple[_CachedManifest, ...]) -> int:
    return sum(entry.size_bytes for entry in of_table)


MANIFESTS: Final = ManifestCache()
"""This process's cache."""


def read_manifest(
    store: Store,
    path: str,
    version: int,
    etag: str,
    *,
    is_newest: bool,
    size_bytes: int | None = None,
) -> Manifest:
    """Return the manifest in a file; caches the newest one of a table.

    Args:
        store: The table's directory.
        path: The file.
        version: The version that it must describe.
        etag: The file's ETag in a new listing; empty if unknown.
        is_newest: Whether it is the table's newest manifest.
        size_bytes: The size that the file must have; None if unknown.

    Raises:
        NotFoundError: The file does not exist.
        BadDataError: The file is damaged, has another size, or describes another version.
    """
    cached = MANIFESTS.find(store, path, etag)
    if cached is not None:
        return cached
    data = store.read(path)
    if size_bytes not in (None, len(data)):
        raise CorruptDataError(
            f"the manifest of version {version} at {store.uri}/{path} has {len(data)} bytes "
            f"instead of {size_bytes}"
        )
    manifest = decode_manifest_of(store, path, version, data)
    if is_newest:
        MANIFESTS.remember(store, path, manifest, data, etag or _likely_etag(store, data))
    return manifest


def remember_manifest(store: Store, path: str, manifest: Manifest, data: bytes) -> None:
    """Cache a manifest that this process has written."""
    MANIFESTS.remember(store, path, manifest, data, _likely_etag(store, data))


def decode_manifest_of(store: Store, path: str, version: int, data: bytes) -> Manifest:
    """Decode the manifest in a file's bytes; see `read_manifest`."""
    try:
        manifest = decode_manifest(data)
        if manifest.version != version:
            raise CorruptDataError(
                f"the manifest of version {version} describes version {manifest.version}"
            )
    except BadDataError as error:
        error.add_note(f"manifest {store.uri}/{path}")
        raise
    return manifest


def _likely_etag(store: Store, data: bytes) -> str:
    """Return the ETag that most services compute; a wrong one costs a read of the file's end."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest() if store.lists_in_order else ""
