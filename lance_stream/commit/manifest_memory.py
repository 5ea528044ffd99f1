"""Manifests that this process has read or written before, so that none is decoded twice.

A stream opens its table for every batch, and looks again for every attempt to commit: mostly at
the manifest that it wrote itself a moment ago. Of a table of 20,000 fragments that is four
megabytes, which are read, taken apart, and searched for what a commit must know of all fragments.

A manifest is never changed under its name, but a table can be deleted and made anew, or put back
from a copy. So nothing is given from memory on trust: the last bytes of the file (`TAIL_BYTES`)
are read first, and have to be the very same, up to its end. They state when the version was made,
to the nanosecond, and the name of its transaction's file, which is created once. A manifest that
says neither there is not remembered.
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
"""So many tables are remembered, each by its last manifest."""


class _Remembered(NamedTuple):
    path: str
    manifest: Manifest
    size_bytes: int
    tail: bytes


class ManifestMemory:
    """The last manifest that was met of each table; safe to use from several threads.

    Args:
        max_bytes: How large the manifests' files may be, all together.
        max_tables: Of how many tables.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_tables: int = MAX_TABLES) -> None:
        self._max_bytes = max_bytes
        self._max_tables = max_tables
        self._size_bytes = 0
        self._known: OrderedDict[str, _Remembered] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, store: Store, path: str, manifest: Manifest, data: bytes) -> None:
        """Remember what a manifest states, in the place of the table's last one.

        Args:
            store: The table's directory.
            path: The file.
            manifest: What it states.
            data: Its bytes.
        """
        tail = data[-TAIL_BYTES:]
        marks = own_marks(manifest)
        if len(data) > self._max_bytes or not marks or any(each not in tail for each in marks):
            return
        with self._lock:
            self._forget(store.uri)
            self._known[store.uri] = _Remembered(path, manifest, len(data), tail)
            self._size_bytes += len(data)
            while self._size_bytes > self._max_bytes or len(self._known) > self._max_tables:
                self._forget(next(iter(self._known)))

    def recall(self, store: Store, path: str) -> Manifest | None:
        """Return what a manifest states, if it was the last one met and is the same; else None.

        Raises:
            NotFoundError: It was met before, and is gone.
        """
        with self._lock:
            known = self._known.get(store.uri)
        if known is None or known.path != path:
            return None
        start = known.size_bytes - len(known.tail)
        # One byte more than there was: a file that has grown is another one.
        (tail,) = store.read_ranges(path, [ByteRange(start, known.size_bytes + 1)])
        if bytes(tail) != known.tail:
            return None
        with self._lock:
            if store.uri in self._known:
                self._known.move_to_end(store.uri)
        return known.manifest

    def _forget(self, uri: str) -> None:
        known = self._known.pop(uri, None)
        if known is not None:
            self._size_bytes -= known.size_bytes


MANIFESTS: Final = ManifestMemory()
"""What this process remembers."""
