"""Keys in memory: collected from batches, and sorted into runs by their words (`key_words`).

key  ->  words     run (sorted words, and the row of each)     row 17 of file 4
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Positions, U64s
from lance_stream.keys.index.run_format import FileKey, Keys, U32s
from lance_stream.keys.index.sorted_words import SortedWords
from lance_stream.keys.key_words import Words, without_dictionary, words_of

_OFFSET_BITS: Final = np.uint64(32)
_OFFSET_MASK: Final = np.uint64((1 << 32) - 1)


class Collector:
    """Collects the keys of one fragment while they are read, batch by batch.

    Args:
        file: The columns of files that store the keys.
        num_rows: The number of rows of the fragment, including deleted ones.
        seeds: The seeds of the hashes.
    """

    def __init__(self, file: FileKey, num_rows: int, seeds: tuple[int, int]) -> None:
        self.file = file
        self.num_rows = num_rows
        self.seeds = seeds
        self._num_seen = 0
        self._parts: list[tuple[Words, npt.NDArray[np.uint64]]] = []

    def add_keys(self, keys: Sequence[pa.Array]) -> None:
        """Add the next rows of the fragment, live or not.

        Args:
            keys: (n,) values of each key column; may be null.
        """
        # Files have different dictionaries: their indices do not identify keys.
        keys = [without_dictionary(key) for key in keys]
        rows = np.arange(self._num_seen, self._num_seen + len(keys[0]), dtype=np.uint64)
        self._num_seen += len(rows)
        if any(key.null_count for key in keys):
            is_key = np.ones(len(rows), np.bool_)
            for key in keys:
                is_key &= pc.is_valid(key).to_numpy(zero_copy_only=False)
            rows = rows[is_key]
            keys = [key.filter(pa.array(is_key)) for key in keys]
        if len(rows):
            self._parts.append((words_of(keys, self.seeds), rows))

    @property
    def is_complete(self) -> bool:
        """Whether every row was seen."""
        return self._num_seen == self.num_rows

    def to_run(self, number: int) -> "Memtable | None":
        """Return the keys as a run; None if all keys are null.

        Args:
            number: The number of the file.
        """
        if not self._parts:
            return None
        words = np.concatenate([words.words for words, _ in self._parts])
        others = [words.others for words, _ in self._parts if words.others is not None]
        rows = np.concatenate([rows for _, rows in self._parts])
        order = np.argsort(words)  # faster than a stable sort for unsorted words
        return Memtable(
            words[order],
            np.concatenate(others)[order] if others else None,
            (rows | np.uint64(number << int(_OFFSET_BITS)))[order],
        )


@dataclass(frozen=True, eq=False)
class Memtable:
    """Keys of some files.

    Attributes:
        words: (n,) u64, ascending.
        others: (n,) u32, further bits of the same keys; None if words are exact.
        rows: (n,) u64, the number of the file << 32 | the row's offset in it.
    """

    words: U64s
    others: U32s | None
    rows: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, keys: Keys, starts: Positions, numbers: Positions) -> "Memtable":
        """Return keys of some files as a run.

        Args:
            keys: The keys; their rows are numbered across all files.
            starts: (num_files + 1,) the number of each file's first row, and the number of rows.
            numbers: (num_files,) the number of each file.
        """
        files = np.searchsorted(starts, keys.rows, "right") - 1
        offsets = (keys.rows - starts[files]).astype(np.uint64)
        rows = numbers[files].astype(np.uint64) << _OFFSET_BITS | offsets
        return cls(keys.words, keys.others, rows)

    @property
    def num_bytes(self) -> int:
        """The memory that the keys take, in bytes."""
        others = 0 if self.others is None else self.others.nbytes
        return self.words.nbytes + others + self.rows.nbytes

    @cached_property
    def search(self) -> SortedWords:
        """The search of the words."""
        return SortedWords(self.words)

    @property
    def files(self) -> Positions:
        """(n,) i64, the number of each row's file."""
        return split_rows(self.rows)[0]

    def where(self, mask: npt.NDArray[np.bool_]) -> "Memtable":
        """Return some of the keys.

        Args:
            mask: (n,) whether to keep each key.
        """
        others = None if self.others is None else self.others[mask]
        return Memtable(self.words[mask], others, self.rows[mask])

    @classmethod
    def merged(cls, runs: Sequence["Memtable"]) -> "Memtable":
        """Return the keys of several runs."""
        words = np.concatenate([run.words for run in runs])
        order = np.argsort(words, kind="stable")  # exploits the order of both runs
        others = [run.others for run in runs if run.others is not None]
        return cls(
            words[order],
            np.concatenate(others)[order] if others else None,
            np.concatenate([run.rows for run in runs])[order],
        )

    def numbered(self, start_of: Positions) -> Keys:
        """Return the keys of some files, with rows numbered across these files.

        Args:
            start_of: By the number of a file, the number of its first row; -1 for other files.
        """
        files, offsets = split_rows(self.rows)
        starts = start_of[files]
        keys = self
        if bool((starts < 0).any()):
            keys, offsets, starts = (
                self.where(starts >= 0),
                offsets[starts >= 0],
                starts[starts >= 0],
            )
        rows = starts + offsets.astype(np.int64)
        return Keys(keys.words, keys.others, rows.astype(np.uint32))


def split_rows(rows: npt.NDArray[np.uint64]) -> tuple[Positions, npt.NDArray[np.uint64]]:
    """Return the number of each row's file, and the row's offset in it; see `Memtable.rows`."""
    return (rows >> _OFFSET_BITS).astype(np.int64), rows & _OFFSET_MASK
