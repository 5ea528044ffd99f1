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

from typing import Final, NamedTuple

from lance_stream.byte_ranges import ByteRange
from lance_stream.caches import Cache
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
    path: str
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
        least = max_bytes / max_tables  # what a table counts as, so that they are not too many
        self._known: Cache[str, tuple[_Remembered, ...]] = Cache(
            max_bytes, lambda of_table: max(least, _size_of(of_table))
        )

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
        met = _Remembered(path, manifest, len(data), tail, etag)

        def with_it(of_table: tuple[_Remembered, ...] | None) -> tuple[_Remembered, ...]:
            others = tuple(each for each in of_table or () if each.path != path)
            kept = (*others[1 - MAX_OF_TABLE :], met)
            return kept if _size_of(kept) <= self._max_bytes else (met,)

        self._known.change(store.uri, with_it)

    def recall(self, store: Store, path: str, etag: str = "") -> Manifest | None:
        """Return what a manifest states, if it was among the last met and is the same; else None.

        Args:
            store: The table's directory.
            path: The file.
            etag: What a listing has just said of it; empty if none has, or says nothing.

        Raises:
            NotFoundError: It was met before, and is gone.
        """
        of_table = self._known.get(store.uri) or ()
        known = next((each for each in of_table if each.path == path), None)
        if known is None:
            return None
        if etag and etag == known.etag:
            return known.manifest
        start = known.size_bytes - len(known.tail)
        # One byte more than there was: a file that has grown is another one.
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
"""What this process remembers."""
