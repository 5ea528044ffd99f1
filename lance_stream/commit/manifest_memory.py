"""A cache of the manifests that this process has read or written, so that none is decoded twice.

A stream opens its table for every batch and again for every commit attempt, and usually finds the
manifest that it has just written. For a table of 20,000 fragments, that manifest is four megabytes
to read, decode and search.

A manifest never changes under its name, but a table can be deleted and re-created, or restored from
a copy. So each cached manifest is verified before it is returned. If the listing that named the
file contains its ETag, and the cached bytes have the same one, that costs no request. Otherwise the
last bytes of the file (`TAIL_BYTES`) are read and must be identical, up to its end. They contain
the version's time in nanoseconds and the name of its transaction file, which is created once. A
manifest with neither in its last bytes is not cached.
"""

from typing import Final, NamedTuple

from lance_stream.byte_ranges import ByteRange
from lance_stream.caches import Cache
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest, own_marks

TAIL_BYTES: Final = 64 << 10
"""How many bytes at a file's end are compared."""

MAX_BYTES: Final = 64 << 20
"""Maximum total size of the cached manifests' files."""

MAX_TABLES: Final = 64
"""Maximum number of tables in the cache."""

MAX_OF_TABLE: Final = 2
"""Cached manifests per table, the latest ones: a reader that follows a table compares two."""


class _Remembered(NamedTuple):
    path: str
    manifest: Manifest
    size_bytes: int
    tail: bytes
    etag: str


class ManifestMemory:
    """The latest manifests seen of each table. Thread-safe.

    Args:
        max_bytes: Maximum total size of the manifests' files.
        max_tables: Maximum number of tables.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_tables: int = MAX_TABLES) -> None:
        self._max_bytes = max_bytes
        least = max_bytes / max_tables  # minimum weight of a table, to bound their number
        self._known: Cache[str, tuple[_Remembered, ...]] = Cache(
            max_bytes, lambda of_table: max(least, _size_of(of_table))
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
            etag: Their ETag in a listing; empty if unknown.
        """
        tail = data[-TAIL_BYTES:]
        marks = own_marks(manifest)
        if len(data) > self._max_bytes or not marks or any(mark not in tail for mark in marks):
            return
        met = _Remembered(path, manifest, len(data), tail, etag)

        def with_it(of_table: tuple[_Remembered, ...] | None) -> tuple[_Remembered, ...]:
            others = tuple(each for each in of_table or () if each.path != path)
            kept = (*others[1 - MAX_OF_TABLE :], met)
            return kept if _size_of(kept) <= self._max_bytes else (met,)

        self._known.change(store.uri, with_it)

    def recall(self, store: Store, path: str, etag: str = "") -> Manifest | None:
        """Return a manifest if it is cached and its file is unchanged; otherwise None.

        Args:
            store: The table's directory.
            path: The file.
            etag: Its ETag in a listing just made; empty if unknown.

        Raises:
            NotFoundError: It is cached, but the file no longer exists.
        """
        of_table = self._known.get(store.uri) or ()
        known = next((each for each in of_table if each.path == path), None)
        if known is None:
            return None
        if etag and etag == known.etag:
            return known.manifest
        start = known.size_bytes - len(known.tail)
        # One byte more than the file had: a file that has grown is a different one.
        (tail,) = store.read_ranges(path, [ByteRange(start, known.size_bytes + 1)])
        if bytes(tail) != known.tail:
            return None
        if etag:
            self._note_etag(store.uri, known, etag)
        return known.manifest

    def _note_etag(self, uri: str, known: _Remembered, etag: str) -> None:
        noted = known._replace(etag=etag)
        if self._known.get(uri):
            self._known.change(
                uri,
                lambda of_table: tuple(noted if each is known else each for each in of_table or ()),
            )


def _size_of(of_table: tuple[_Remembered, ...]) -> int:
    return sum(each.size_bytes for each in of_table)


MANIFESTS: Final = ManifestMemory()
"""This process's cache."""
