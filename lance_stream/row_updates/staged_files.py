"""Staged files: rows in the table's directory that await a commit, sorted, to be read by range.

    file     bundle  bundle  ...   of one portion of the rows, ascending by word
             bundle  bundle  ...   of the next portion
    bundle   an Arrow stream of adjacent rows of a portion, with their words as the last column

A word is a number that the caller assigns to a row: derived from its key, or its address. To read
all rows in a range of words, a few adjacent bundles of every portion are enough. The positions of
the bundles, and their smallest and largest words, are passed along with the path.

No version ever references such a file. Cleanup removes the files that a killed process or a failed
attempt of a task left, like any old unreferenced file.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import U64s
from lance_stream.arrow_streams import decode_batches, encode_batches
from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import LanceStreamError
from lance_stream.storage.store import Store
from lance_stream.table.paths import staged_rows_path

BundleRanges: TypeAlias = npt.NDArray[np.int64]

LAST_WORD: Final = (1 << 64) - 1

BUNDLES_PER_BATCH: Final = 128
"""The maximum number of bundles in a portion. A range reads one or two bundles too many."""

MIN_ROWS: Final = 4096
"""The minimum number of rows in a bundle, except for the last one of a portion."""

_WORD: Final = "_lance_stream_word"


class WordRange(NamedTuple):
    """A range of words, inclusive at both ends.

    Attributes:
        first: The smallest word.
        last: The largest word.
    """

    first: int = 0
    last: int = LAST_WORD


ALL_WORDS: Final = WordRange()


@dataclass(frozen=True)
class SortedRows:
    """Sorted rows in a file or in memory; picklable.

    Attributes:
        path: The file; empty if the rows are in memory.
        data: The rows in memory, in the format of a file; empty if there is a file.
        bundles: (n, 3) i64, of each bundle: its number of rows, and where it starts and stops.
        words: (n, 2) u64, the smallest and the largest word of each bundle.
    """

    path: str = ""
    data: bytes = b""
    bundles: BundleRanges = field(default_factory=lambda: np.empty((0, 3), np.int64))
    words: U64s = field(default_factory=lambda: np.empty((0, 2), np.uint64))

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return int(self.bundles[:, 0].sum())

    @property
    def num_bytes(self) -> int:
        """Their size as Arrow streams."""
        return int((self.bundles[:, 2] - self.bundles[:, 1]).sum())

    def read(self, store: Store, words: WordRange = ALL_WORDS) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; those of a portion ascend.

        Args:
            store: The table's.
            words: The range.

        Raises:
            OSError: The file does not exist, or cannot be read.
        """
        for rows, _ in self.read_with_words(store, words):
            yield rows

    def read_with_words(
        self, store: Store, word_range: WordRange
    ) -> Iterator[tuple[pa.RecordBatch, U64s]]:
        """Yield the rows of a range, and their words; see `read`."""
        first, last = np.uint64(word_range.first), np.uint64(word_range.last)
        bundles = self.bundles[(self.words[:, 1] >= first) & (self.words[:, 0] <= last)]
        ranges = [ByteRange(start, stop) for start, stop in bundles[:, 1:].tolist()]
        if not ranges:
            return
        streams: Sequence[Buffer | bytes]
        if self.path:
            streams = store.read_ranges(self.path, ranges)
        else:
            streams = [self.data[span.start : span.stop] for span in ranges]
        for stream in streams:
            for batch in decode_batches(stream):
                words = batch.column(batch.num_columns - 1).to_numpy()
                start = int(np.searchsorted(words, first, "left"))
                stop = int(np.searchsorted(words, last, "right"))
                rows = batch.select(list(range(batch.num_columns - 1)))
                yield rows.slice(start, stop - start), words[start:stop]


def sort_rows(batches: Iterable[tuple[pa.RecordBatch, U64s]]) -> SortedRows:
    """Sort rows, and keep them in memory.

    Args:
        batches: Rows, and their words; each is sorted by itself.
    """
    data: list[bytes] = []
    bundles = _BundleIndex()
    for bundle, num_rows, first, last in _bundles(batches):
        data.append(bundle)
        bundles.add(num_rows, len(bundle), first, last)
    return bundles.to_rows(data=b"".join(data))


def write_sorted(batches: Iterable[tuple[pa.RecordBatch, U64s]], store: Store) -> SortedRows:
    """Sort rows, and write them to a new file.

    Args:
        batches: Rows, and their words; each is sorted by itself, and held meanwhile.
        store: The table's.
    """
    path = staged_rows_path(secrets.token_bytes(16))
    bundles = _BundleIndex()
    with store.open_writer(path) as file:
        for bundle, num_rows, first, last in _bundles(batches):
            file.write(bundle)
            bundles.add(num_rows, len(bundle), first, last)
    return bundles.to_rows(path=path)


def discard_files(store: Store, files: Iterable[SortedRows]) -> None:
    """Delete the files of rows; best effort."""
    for file in files:
        if file.path:
            with suppress(OSError, LanceStreamError):
                store.delete(file.path)


class _BundleIndex:
    """Collects the positions and words of the bundles of a file."""

    def __init__(self) -> None:
        self._bundles: list[tuple[int, int, int]] = []
        self._words: list[tuple[int, int]] = []
        self._stop = 0

    def add(self, num_rows: int, num_bytes: int, first: int, last: int) -> None:
        self._bundles.append((num_rows, self._stop, self._stop + num_bytes))
        self._words.append((first, last))
        self._stop += num_bytes

    def to_rows(self, path: str = "", data: bytes = b"") -> SortedRows:
        bundles = np.array(self._bundles, np.int64).reshape(-1, 3)
        return SortedRows(path, data, bundles, np.array(self._words, np.uint64).reshape(-1, 2))


def _bundles(
    batches: Iterable[tuple[pa.RecordBatch, U64s]],
) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield bundles, each with its number of rows and its smallest and largest word."""
    for rows, words in batches:
        order = np.argsort(words)
        words = words[order]
        ordered = rows.take(pa.array(order))
        whole = pa.RecordBatch.from_arrays(
            [*ordered.columns, pa.array(words)],
            schema=ordered.schema.append(pa.field(_WORD, pa.uint64())),
        )
        size = max(MIN_ROWS, -(-rows.num_rows // BUNDLES_PER_BATCH))
        for start in range(0, rows.num_rows, size):
            slice_ = whole.slice(start, size)
            stop = start + slice_.num_rows
            yield (
                encode_batches(slice_.schema, [slice_]),
                slice_.num_rows,
                int(words[start]),
                int(words[stop - 1]),
            )


def cut_ranges(
    rows: Sequence[SortedRows], max_rows: int, max_bytes: int, multiple: int = 1
) -> list[WordRange]:
    """Return ranges that together cover all rows, as large as the limits allow.

    Rows with equal words are in one range, however many there are.

    Args:
        rows: The rows.
        max_rows: The approximate maximum number of rows in a range; bundles are not split.
        max_bytes: The approximate maximum size of the rows in a range.
        multiple: The first word of every range is a multiple of this number.
    """
    if not any(len(row.words) for row in rows):
        return []
    firsts = np.concatenate([row.words[:, 0] for row in rows])
    bundles = np.concatenate([row.bundles for row in rows])
    order = np.argsort(firsts, kind="stable")
    sizes = np.stack([bundles[:, 0], bundles[:, 2] - bundles[:, 1]], axis=1)[order]
    ranges: list[WordRange] = []
    start, num_rows, num_bytes = 0, 0, 0
    first_of_part = int(firsts[order[0]])
    for word, (bundle_rows, bundle_bytes) in zip(
        firsts[order].tolist(), sizes.tolist(), strict=True
    ):
        is_full = num_rows + bundle_rows > max_rows or num_bytes + bundle_bytes > max_bytes
        first = word - word % multiple
        if is_full and first > first_of_part:
            ranges.append(WordRange(start, first - 1))
            start, first_of_part, num_rows, num_bytes = first, first, 0, 0
        num_rows += bundle_rows
        num_bytes += bundle_bytes
    return [*ranges, WordRange(start)]
