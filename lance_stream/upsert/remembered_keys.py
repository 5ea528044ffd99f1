"""The keys of data files that this process has read or written: found without reading them again.

A stream looks up the keys of each batch in the same files. Those of files that were read or written
are kept, sorted, in a few runs for all files together:

    key  ->  words     runs (sorted words, and where each row is)     row 17 of file 4

so that the look-up takes as long as the batch is large, however many files the table has. A data
file never changes, so what is known of it stays true whatever any writer commits: whether a row is
still live is for the caller to find out. All rows of a file are known, including deleted ones,
because a restore brings those back.

A key is known by one word if that tells all keys apart, as for numbers of up to 8 bytes. Other keys
are known by two hashes of 64 bits, whose seeds no one knows outside this process: among a billion
keys, two with equal hashes are less likely than a fault of the machine's memory.

The column that orders the rows of a key (`sequence_by`) is kept as it is, file by file: the rows
that are found are looked up in it.

Only the process that reads the data files itself keeps anything, and nothing of a table until its
second look-up.
"""

import secrets
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.caches import Cache
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments import Fragment
from lance_stream.upsert.key_bounds import FileColumn, file_column, key_fields
from lance_stream.upsert.key_filter import KeyWords, are_exact, key_words
from lance_stream.upsert.keys import Places, hash_keys, without_dictionary

FileKey: TypeAlias = tuple[FileColumn, ...]
"""The columns of data files that hold the key columns of a fragment."""

MAX_BYTES: Final = 256 << 20
"""How much memory the keys of all tables take at most; more are read again for each batch."""

MAX_COLUMN_BYTES: Final = 128 << 20
"""How much memory the columns that order the rows of a key take at most."""

MAX_NEW_ROWS: Final = 2 << 20
"""Of how many rows the keys are newly kept at one look-up at most: no batch is much longer."""

_MAX_TABLES: Final = 16
_BYTES_PER_ROW: Final = 24
# Runs are merged up to this many rows: merging takes several times their memory for a moment.
_MOST_MERGED: Final = 2 << 20
_SEEDS: Final = secrets.randbits(64), secrets.randbits(64)
_FORGET_FROM: Final = 64
_OFFSET_BITS: Final = np.uint64(32)
_OFFSET_MASK: Final = np.uint64((1 << 32) - 1)


class Words(NamedTuple):
    """What keys are known by.

    Attributes:
        words: (n,) u64; equal for equal keys.
        others: (n,) u64 further words; None if the first tell all keys apart.
    """

    words: KeyWords
    others: KeyWords | None


def words_of(keys: Sequence[pa.Array]) -> Words:
    """Return what keys are known by, in this process.

    Args:
        keys: (n,) values of each key column, without dictionaries, none of them null.
    """
    if are_exact(keys):
        return Words(key_words(keys), None)
    first, second = (hash_keys(keys, seed) for seed in _SEEDS)
    return Words(first, second)


class Collector:
    """Collects the keys of one fragment while they are read, batch by batch.

    Args:
        file: The columns that hold them.
        num_rows: How many rows the fragment has, including deleted ones.
    """

    def __init__(self, file: FileKey, num_rows: int) -> None:
        self.file = file
        self.num_rows = num_rows
        self._num_seen = 0
        self._parts: list[tuple[Words, npt.NDArray[np.uint64]]] = []

    def see(self, keys: Sequence[pa.Array]) -> None:
        """Add the next rows of the fragment, live or not.

        Args:
            keys: (n,) values of each key column; may be null.
        """
        # Each file has dictionaries of its own: indices in them tell nothing about the keys.
        keys = [without_dictionary(each) for each in keys]
        rows = np.arange(self._num_seen, self._num_seen + len(keys[0]), dtype=np.uint64)
        self._num_seen += len(rows)
        if any(each.null_count for each in keys):
            is_key = np.ones(len(rows), np.bool_)
            for each in keys:
                is_key &= pc.is_valid(each).to_numpy(zero_copy_only=False)
            rows = rows[is_key]
            keys = [each.filter(pa.array(is_key)) for each in keys]
        if len(rows):
            self._parts.append((words_of(keys), rows))

    @property
    def is_complete(self) -> bool:
        """Whether every row was seen."""
        return self._num_seen == self.num_rows

    def to_run(self, number: int) -> "_Run | None":
        """Return the keys as a run; None if there are none.

        Args:
            number: The number of the file.
        """
        if not self._parts:
            return None
        words = np.concatenate([words.words for words, _ in self._parts])
        others = [words.others for words, _ in self._parts if words.others is not None]
        rows = np.concatenate([rows for _, rows in self._parts])
        return _sorted(
            words,
            np.concatenate(others) if others else None,
            rows | np.uint64(number << int(_OFFSET_BITS)),
        )


class _Run(NamedTuple):
    """Keys of some files.

    Attributes:
        words: (n,) u64, ascending.
        others: (n,) u64, the other words of the same keys; None if there are none.
        rows: (n,) u64, the number of the file and the row's offset in it.
    """

    words: KeyWords
    others: KeyWords | None
    rows: npt.NDArray[np.uint64]

    @property
    def num_bytes(self) -> int:
        return self.words.nbytes * (2 if self.others is None else 3)


def _sorted(words: KeyWords, others: KeyWords | None, rows: npt.NDArray[np.uint64]) -> _Run:
    order = np.argsort(words, kind="stable")
    return _Run(words[order], None if others is None else others[order], rows[order])


def _are_merged(one: int, other: int) -> bool:
    return 2 * other >= one and one + other <= _MOST_MERGED


def _merged(one: _Run, other: _Run) -> _Run:
    others = None
    if one.others is not None and other.others is not None:
        others = np.concatenate([one.others, other.others])
    words = np.concatenate([one.words, other.words])
    return _sorted(words, others, np.concatenate([one.rows, other.rows]))


class FoundRows(NamedTuple):
    """Rows of files that have a key of a batch; live or not.

    Attributes:
        files: (n,) i64, the number of each row's file.
        offsets: (n,) u64 row offsets.
        keys: (n,) i64, the number of each row's key.
    """

    files: Places
    offsets: npt.NDArray[np.uint64]
    keys: Places


class Known(NamedTuple):
    """What is remembered at the begin of a look-up, whatever is learned or forgotten meanwhile.

    Attributes:
        numbers: (n,) i64, the number of each fragment's file; -1 if it is not known.
        runs: The keys of all known files.
    """

    numbers: Places
    runs: "tuple[_Run, ...]"

    def find(self, keys: Sequence[pa.Array]) -> FoundRows:
        """Return the rows of all known files that have one of some keys.

        Args:
            keys: (num_keys,) values of each key column, none of them null, all different.
        """
        words = words_of([without_dictionary(each) for each in keys])
        order = np.argsort(words.words, kind="stable")
        wanted = words.words[order]
        found_rows, found_keys = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for run in self.runs:
            first = np.searchsorted(run.words, wanted, "left")
            counts = np.searchsorted(run.words, wanted, "right") - first
            which = np.repeat(np.arange(len(wanted)), counts)
            ends = np.cumsum(counts)
            at = np.arange(len(which)) - np.repeat(ends - counts, counts) + first[which]
            numbers = order[which]
            if run.others is not None and words.others is not None:
                same = run.others[at] == words.others[numbers]
                at, numbers = at[same], numbers[same]
            found_rows.append(run.rows[at])
            found_keys.append(numbers)
        rows = np.concatenate(found_rows)
        return FoundRows(
            (rows >> _OFFSET_BITS).astype(np.int64), rows & _OFFSET_MASK, np.concatenate(found_keys)
        )


class RememberedKeys:
    """The keys of a table's data files that this process has read or written. Thread-safe.

    Args:
        fields: The key columns.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = tuple(fields)
        self._lock = threading.Lock()
        self._runs: list[_Run] = []
        # By the file, and the number of rows that its fragment states.
        self._number_of: dict[tuple[FileKey | None, int], int] = {}
        self._asked_at: dict[int, int] = {}
        self._next = 0
        self._num_lookups = 0

    @property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        return sum(each.num_bytes for each in self._runs)

    @property
    def num_files(self) -> int:
        """How many files it knows."""
        return len(self._number_of)

    @property
    def num_rows_left(self) -> int:
        """Of how many more rows the keys fit."""
        return max(0, MAX_BYTES - _bytes_kept()) // _BYTES_PER_ROW

    @property
    def is_worth_it(self) -> bool:
        """Whether the table is looked up again and again."""
        return self._num_lookups > 1

    def file_of(self, fragment: Fragment) -> FileKey | None:
        """Return which columns of files hold a fragment's keys; None if they cannot be kept."""
        found = tuple(file_column(fragment, each.id) for each in self._fields)
        return None if None in found else found  # type: ignore[return-value]  # none is None

    def look_up(self, fragments: Iterable[Fragment], num_fragments: int) -> Known:
        """Begin a look-up; return what is known of some fragments.

        Args:
            fragments: The fragments that may have a key of the batch.
            num_fragments: How many the version has.
        """
        # A damaged fragment may state another number of rows than its file has: it is read, and
        # refused, as if the file were not known.
        files = [(self.file_of(each), each.physical_rows) for each in fragments]
        with self._lock:
            self._num_lookups += 1
            numbers = [self._number_of.get(each, -1) for each in files]
            for each in numbers:
                self._asked_at[each] = self._num_lookups
            known = Known(np.array(numbers, np.int64), tuple(self._runs))
            self._forget_unused(num_fragments)
        return known

    def learn(self, collected: Iterable[Collector]) -> None:
        """Keep the keys of files, as long as there is room."""
        for each in collected:
            if each.is_complete and (each.file, each.num_rows) not in self._number_of:
                self._learn(each)

    def _learn(self, collected: Collector) -> None:
        with self._lock:
            file = collected.file, collected.num_rows
            if file in self._number_of:
                return
            run = collected.to_run(self._next)
            self._number_of[file] = self._next
            self._asked_at[self._next] = self._num_lookups
            self._next += 1
            if run is not None:
                self._add(run)

    def _add(self, run: _Run) -> None:
        """Add a run, merged with those that are not much larger: few remain, and few are merged."""
        self._runs.sort(key=lambda each: -len(each.words))
        while self._runs and _are_merged(len(self._runs[-1].words), len(run.words)):
            run = _merged(self._runs.pop(), run)
        self._runs.append(run)

    def _forget_unused(self, num_fragments: int) -> None:
        """Forget the files that were asked for longest ago, once they are as many as the others."""
        if len(self._number_of) <= 2 * num_fragments + _FORGET_FROM:
            return
        by_age = sorted(self._number_of.items(), key=lambda each: self._asked_at.get(each[1], 0))
        self._number_of = dict(by_age[-num_fragments:] if num_fragments else [])
        is_kept = np.zeros(self._next, np.bool_)
        is_kept[list(self._number_of.values())] = True
        self._asked_at = {each: self._asked_at.get(each, 0) for each in self._number_of.values()}
        left = [_only(each, is_kept) for each in self._runs]
        self._runs = [each for each in left if len(each.words)]


def _only(run: _Run, is_kept: npt.NDArray[np.bool_]) -> _Run:
    mask = is_kept[(run.rows >> _OFFSET_BITS).astype(np.int64)]
    others = None if run.others is None else run.others[mask]
    return _Run(run.words[mask], others, run.rows[mask])


_columns: Final[Cache[tuple[FileColumn, str], pa.Array]] = Cache(
    MAX_COLUMN_BYTES, lambda values: values.nbytes
)


def place_of_column(fragment: Fragment, field: Field) -> FileColumn | None:
    """Return where all values of a column are; None if they cannot be kept.

    Parts of a struct may lie in other files than the struct, which are replaced one by one.
    """
    is_nested = pa.types.is_nested(field_to_arrow(field).type)
    return None if is_nested else file_column(fragment, field.id)


def remembered_column(place: FileColumn, field: Field) -> pa.Array | None:
    """Return the values of a column of a file, those of deleted rows too; None if not known."""
    return _columns.get((place, str(field_to_arrow(field).type)))


def remember_column(place: FileColumn, values: pa.Array) -> None:
    """Keep the values of a column of a file, of all its rows, for as long as there is room."""
    _columns.put((place, str(values.type)), values)


_known: Final[Cache[tuple[str, tuple[tuple[int, str], ...]], RememberedKeys]] = Cache(_MAX_TABLES)


def remembered_keys(table: TableVersion, on: Sequence[str]) -> RememberedKeys:
    """Return what this process remembers of a table's keys.

    Args:
        table: Any version.
        on: Names of its key columns.
    """
    fields = key_fields(table.schema, on)
    types = tuple((each.id, str(field_to_arrow(each).type)) for each in fields)
    return _known.get_or_make((table.store.uri, types), lambda: RememberedKeys(fields))


def forget_keys() -> None:
    """Forget the keys and columns of all tables, as a new process would."""
    _known.clear()
    _columns.clear()


def _bytes_kept() -> int:
    return sum(each.num_bytes for _, each in _known.items())
