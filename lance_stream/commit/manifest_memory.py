"""Manifests that this process has read or written before, so that none is decoded twice.

A stream opens its table for every batch, and looks again for every attempt to commit: mostly at
the manifest that it wrote itself a moment ago. Of a table of 20,000 fragments that is four
megabytes, which are read, taken apart, and searched for what a commit must know of all fragments.

A manifest is never changed under its name, but a table can be deleted and made anew, or put back
from a copy. So nothing is given from memory on trust. Where the listing that named the file says
its etag, and that is the one of the remembered bytes, it costs no request. Else the last bytes of
the file (`TAIL_BYTES`) are read first, and have to be the very same, up to its end. They state when
the version was made, to the nanosecond, and the name of its transaction's file, which is created
once. A manifest that says neither there is not remembered.
"""

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from lance_stream.byte_ranges import ByteRange
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest, own_marks

TAIL_BYTES: Final = 64 << 10
"""How much of a file's end is compared."""

MAX_BYTES: Final = 64 << 20
"""The remembered manifests' files are not larger than this, all together."""

MAX_TABLES: Final = 64
"""So many tables are remembered."""

MAX_OF_TABLE: Final = 2
"""Of each the manifests that were met last: who follows a table compares two."""


class _Remembered(NamedTuple):
    manifest: Manifest
    size_bytes: int
    tail: bytes
    etag: str


class ManifestMemory:
    """The last manifests that were met of each table; safe to use from several threads.

    Args:
        max_bytes: How large the manifests' files may be, all together.
        max_tables: Of how many tables.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_tables: int = MAX_TABLES) -> None:
        self._max_bytes = max_bytes
        self._max_tables = max_tables
        self._size_bytes = 0
        self._known: OrderedDict[str, OrderedDict[str, _Remembered]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(
        self, store: Store, path: str, manifest: Manifest, data: bytes, etag: str = ""
    ) -> None:
        """Remember what a manifest states.

        Args:
            store: The table's directory.
            path: The file.
            manifest: What it states.
            data: Its bytes.
            etag: What a listing says of them; empty if that is not known.
        """
        tail = data[-TAIL_BYTES:]
        marks = own_marks(manifest)
        if len(data) > self._max_bytes or not marks or any(each not in tail for each in marks):
            return
        with self._lock:
            self._forget(store.uri, path)
            of_table = self._known.setdefault(store.uri, OrderedDict())
            of_table[path] = _Remembered(manifest, len(data), tail, etag)
            self._known.move_to_end(store.uri)
            self._size_bytes += len(data)
            while len(of_table) > MAX_OF_TABLE:
                self._forget(store.uri, next(iter(of_table)))
            while self._size_bytes > self._max_bytes or len(self._known) > self._max_tables:
                uri, oldest = next(iter(self._known.items()))
                self._forget(uri, next(iter(oldest)))

    def recall(self, store: Store, path: str, etag: str = "") -> Manifest | None:
        """Return what a manifest states, if it was among the last met and is the same; else None.

        Args:
            store: The table's directory.
            path: The file.
            etag: What a listing has just said of it; empty if none has, or says nothing.

        Raises:
            NotFoundError: It was met before, and is gone.
        """
        with self._lock:
            known = self._of(store.uri).get(path)
        if known is None:
            return None
        if not etag or etag != known.etag:
            start = known.size_bytes - len(known.tail)
            # One byte more than there was: a file that has grown is another one.
            (tail,) = store.read_ranges(path, [ByteRange(start, known.size_bytes + 1)])
            if bytes(tail) != known.tail:
                return None
        with self._lock:
            of_table = self._of(store.uri)
            if path in of_table:
                of_table[path] = known._replace(etag=etag or known.etag)
                self._known.move_to_end(store.uri)
        return known.manifest

    def _of(self, uri: str) -> OrderedDict[str, _Remembered]:
        return self._known.get(uri) or OrderedDict()

    def _forget(self, uri: str, path: str) -> None:
        of_table = self._of(uri)
        known = of_table.pop(path, None)
        if known is not None:
            self._size_bytes -= known.size_bytes
        if not of_table:
            self._known.pop(uri, None)


MANIFESTS: Final = ManifestMemory()
"""What this process remembers."""
