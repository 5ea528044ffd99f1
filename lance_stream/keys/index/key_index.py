"""The key index of a table in one process: keys of data files that need not be read again.

A stream looks up the keys of every batch in the same files. The index keeps the keys of files that
were read or written, sorted, in a few runs for all files together:

    key  ->  words     runs (sorted words, and the row of each)     row 17 of file 4

The time of a lookup therefore depends on the size of the batch, not on the number of files. Data
files are immutable, so their entries stay valid whatever other writers commit. The index has all
rows of a file, including deleted ones, because a restore can bring those back; the caller checks
whether a row is live.

Once the index holds the keys of many rows in memory, it writes them to the table's directory as a
run (`run_files`). This process and others then search that run, and its keys take no memory.

Only a process that reads the data files itself has an index. The index stays empty until the second
lookup in a table, unless another process has looked up keys in the table before.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions, U64s
from lance_stream.caches import Cache
from lance_stream.keys.file_columns import file_column
from lance_stream.keys.index import run_files
from lance_stream.keys.index.memtable import (
    Collector,
    Memtable,
    split_rows,
)
from lance_stream.keys.index.run_files import IndexRun, RunUnavailableError
from lance_stream.keys.index.run_format import (
    CoveredFile,
    FileKey,
    KeyColumns,
    RunFooter,
    U32s,
    joined,
)
from lance_stream.keys.index.run_merging import (
    RenumberedKeys,
    groups_to_merge,
    merged,
    planned_parts,
)
from lance_stream.keys.index.sorted_words import spread
from lance_stream.keys.key_words import are_exact, new_seeds, words_of
from lance_stream.keys.stored_sequences import clear_sequences
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field, Schema
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.ascending import distinct
from lance_stream.threads import map_ahead

MAX_BYTES: Final = 256 << 20
"""The maximum memory of the indices of all tables; other keys are read again for every batch."""

MAX_NEW_ROWS: Final = 2 << 20
"""The maximum number of rows that one lookup adds to the index if they must stay in memory."""

MIN_SAVED_ROWS: Final = 1 << 20
"""The minimum number of rows in memory for which a run is written."""

MAX_SAVED_ROWS: Final = 4 << 20
"""The approximate maximum number of rows in a run that is written from memory."""

MIN_SHARED_ROWS: Final = 1 << 19
"""Before reading this number of rows, a process checks whether another one has saved their keys."""

MAX_MERGED_KEYS: Final = 16 << 20
"""The maximum number of keys in a merged run."""

LOOKUPS_BEFORE_RETRY: Final = 16
"""The number of lookups between a failed write of a run and the next attempt."""

# Runs in memory are merged up to this many keys: merging takes several times their memory.
_MAX_MERGED_IN_MEMORY: Final = 2 << 20
# Smaller runs in memory are of one tier.
_MIN_IN_MEMORY: Final = 1 << 14

_SEARCHING_THREADS: Final = 2

_MAX_TABLES: Final = 16
_BYTES_PER_ROW: Final = 24
_FORGET_FROM: Final = 64


class RowMatches(NamedTuple):
    """Rows of files that have a key of a batch; live or not.

    Attributes:
        files: (n,) i64, the number of each row's file.
        offsets: (n,) u64 row offsets.
        keys: (n,) i64, the number of each row's key.
    """

    files: Positions
    offsets: npt.NDArray[np.uint64]
    keys: Positions


class IndexSnapshot(NamedTuple):
    """An immutable snapshot of the index for one lookup.

    Attributes:
        numbers: (n,) i64, the number of each fragment's file; -1 if the index does not have it.
        runs: The runs in memory.
        saved: The runs in files that have some of the fragments' files.
        seeds: The seeds of the hashes of the runs in memory.
    """

    numbers: Positions
    runs: tuple[Memtable, ...]
    saved: tuple[IndexRun, ...]
    seeds: tuple[int, int]

    def find(self, keys: Sequence[pa.Array], store: Store) -> RowMatches:
        """Return the rows of all indexed files that have one of the keys.

        Args:
            keys: (num_keys,) values of each key column, distinct and without nulls.
            store: The table's store.

        Raises:
            RunUnavailableError: A run can no longer be used.
        """
        lookups = {seeds: _HashedKeys.of(keys, seeds) for seeds in self._all_seeds()}
        row_parts = [RowMatches(*_NOTHING)]
        row_parts += [lookups[self.seeds].in_memory(run) for run in self.runs]

        def in_index(run: IndexRun) -> RowMatches:
            return lookups[run.footer.columns.seeds].in_index(run, store)

        if len(self.saved) > 1:
            row_parts += map_ahead(in_index, self.saved, _SEARCHING_THREADS)
        else:
            row_parts += map(in_index, self.saved)
        return RowMatches(*(np.concatenate(parts) for parts in zip(*row_parts, strict=True)))

    def _all_seeds(self) -> set[tuple[int, int]]:
        seeds = {self.seeds} if self.runs else set()
        return seeds | {run.footer.columns.seeds for run in self.saved}


_NOTHING: Final = np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64)


class _HashedKeys(NamedTuple):
    """The keys of a batch, sorted by the words to search for.

    Attributes:
        words: (num_keys,) u64, ascending.
        others: (num_keys,) u32 further bits, in the same order; None if words are exact.
        numbers: (num_keys,) i64, the number of each key.
    """

    words: U64s
    others: U32s | None
    numbers: Positions

    @classmethod
    def of(cls, keys: Sequence[pa.Array], seeds: tuple[int, int]) -> "_HashedKeys":
        words = words_of(keys, seeds)
        order = np.argsort(words.words, kind="stable")
        others = None if words.others is None else words.others[order]
        return cls(words.words[order], others, order)

    def in_memory(self, run: Memtable) -> RowMatches:
        at, which = spread(*run.search.equal_to(self.words))
        same = self._same(None if run.others is None else run.others[at], which)
        files, offsets = split_rows(run.rows[at[same]])
        return RowMatches(files, offsets, self.numbers[which[same]])

    def in_index(self, run: IndexRun, store: Store) -> RowMatches:
        """Return the rows of a run that have one of the keys.

        Raises:
            RunUnavailableError: Chunks cannot be read, or the run states two keys for one row.
        """
        hits = run.find(store, self.words)
        same = self._same(hits.others, hits.which)
        rows = hits.rows[same].astype(np.int64)
        if len(distinct(rows)) < len(rows):
            raise RunUnavailableError(run, is_damaged=True)
        files = np.searchsorted(run.starts, rows, "right") - 1
        offsets = (rows - run.starts[files]).astype(np.uint64)
        numbers = run.numbers[files]
        in_table = np.flatnonzero(numbers >= 0)
        return RowMatches(
            numbers[in_table], offsets[in_table], self.numbers[hits.which[same[in_table]]]
        )

    def _same(self, others: U32s | None, which: Positions) -> Positions:
        """Return the positions of the keys whose further bits are equal, too.

        Args:
            others: (n,) u32, the further bits of keys with equal words; None if there are none.
            which: (n,) i64, the positions of these words among those of the batch.
        """
        if others is None or self.others is None:
            return np.arange(len(which))
        return np.flatnonzero(others == self.others[which])


class KeyIndex:
    """The keys of a table's data files that this process has read or written. Thread-safe.

    Args:
        fields: The key columns.
        seeds: The seeds of the hashes; None for random ones.
    """

    def __init__(self, fields: Sequence[Field], seeds: tuple[int, int] | None = None) -> None:
        self._fields = tuple(fields)
        self._lock = threading.RLock()
        self._runs: list[Memtable] = []
        self._saved: dict[str, IndexRun] = {}
        # Runs that were rejected, or are redundant: not opened again.
        self._rejected_runs: set[str] = set()
        self._saved_files: set[CoveredFile] = set()
        self._save_from_lookup = 0
        self._seeds = seeds or new_seeds()
        # By file, and the number of rows that its fragment states.
        self._number_of: dict[CoveredFile, int] = {}
        self._last_lookup: dict[int, int] = {}
        self._next = 0
        self._num_lookups = 0

    @property
    def num_bytes(self) -> int:
        """The memory that the index takes, in bytes."""
        return sum(run.num_bytes for run in self._runs)

    @property
    def num_files(self) -> int:
        """The number of indexed files."""
        return len(self._number_of)

    @property
    def num_saved_runs(self) -> int:
        """The number of runs in files that are open."""
        return len(self._saved)

    @property
    def num_free_rows(self) -> int:
        """The number of rows whose keys still fit into memory."""
        return max(0, MAX_BYTES - _cached_bytes()) // _BYTES_PER_ROW

    @property
    def can_save(self) -> bool:
        """Whether runs may be written: not shortly after a failed write."""
        with self._lock:
            return self._num_lookups >= self._save_from_lookup

    @property
    def is_worth_it(self) -> bool:
        """Whether lookups in the table repeat, so that an index pays off."""
        return self._num_lookups > 1 or bool(self._saved)

    def fields_in(self, schema: Schema) -> list[Field]:
        """Return the current key columns of a table; an empty list if it lacks one of them."""
        fields_by_id = {field.id: field for field in schema.fields}
        return (
            [fields_by_id[field.id] for field in self._fields] if self._are_in(fields_by_id) else []
        )

    def _are_in(self, fields: Mapping[int, Field]) -> bool:
        return all(
            field.id in fields
            and field_to_arrow(fields[field.id]).type == field_to_arrow(field).type
            for field in self._fields
        )

    def collector(self, file: FileKey, num_rows: int) -> Collector:
        """Return a collector for the keys of a fragment."""
        return Collector(file, num_rows, self._seeds)

    def file_of(self, fragment: Fragment) -> FileKey | None:
        """Return the file columns that store a fragment's keys; None if it cannot be indexed."""
        columns = tuple(file_column(fragment, field.id) for field in self._fields)
        return None if None in columns else columns  # type: ignore[return-value]  # none is None

    def covered_by(self, fragment: Fragment) -> CoveredFile | None:
        """Return the file of a fragment's keys as the index identifies it; None if not indexable.

        The number of rows is part of the identity. If a damaged fragment states a wrong number, its
        file is not found in the index, but read, which reports the damage.
        """
        file = self.file_of(fragment)
        return None if file is None else CoveredFile(file, fragment.physical_rows)

    def look_up(
        self, fragments: Sequence[Fragment], num_fragments: int, store: Store
    ) -> IndexSnapshot:
        """Start a lookup; return a snapshot for some fragments.

        Args:
            fragments: The fragments that may have a key of the batch.
            num_fragments: The number of fragments in the version.
            store: The table's store.
        """
        files = [self.covered_by(fragment) for fragment in fragments]
        with self._lock:
            self._num_lookups += 1
            self._forget_unused(num_fragments)
            unknown = [file for file in files if file and file not in self._number_of]
        if sum(file.num_rows for file in unknown) >= MIN_SHARED_ROWS:
            self.refresh(store)
        with self._lock:
            snapshot = self._snapshot(files)
            for number in snapshot.numbers.tolist():
                self._last_lookup[number] = self._num_lookups
            return snapshot

    def knows(self, file: CoveredFile) -> bool:
        """Return whether the index has the keys of a file."""
        with self._lock:
            return file in self._number_of

    def snapshot_of(self, files: Sequence[CoveredFile | None]) -> IndexSnapshot:
        """Return a snapshot for some files, without counting it as a lookup."""
        with self._lock:
            return self._snapshot(files)

    def _snapshot(self, files: Sequence[CoveredFile | None]) -> IndexSnapshot:
        numbers = np.array(
            [-1 if file is None else self._number_of.get(file, -1) for file in files], np.int64
        )
        saved = [run for run in self._saved.values() if np.isin(run.numbers, numbers).any()]
        return IndexSnapshot(numbers, tuple(self._runs), tuple(saved), self._seeds)

    def add(self, collected: Iterable[Collector]) -> None:
        """Add the collected keys of files."""
        for collector in collected:
            with self._lock:
                if collector.is_complete and collector.seeds == self._seeds:
                    self._add_collected(collector)

    def _add_collected(self, collected: Collector) -> None:
        file = CoveredFile(collected.file, collected.num_rows)
        if file in self._number_of:
            return
        run = collected.to_run(self._next)
        self._give_number(file)
        if run is not None:
            self._insert(run)

    def add_sorted(
        self,
        store: Store,
        files: Sequence[CoveredFile],
        parts: Sequence[RenumberedKeys],
        seeds: tuple[int, int],
    ) -> None:
        """Add sorted keys: many as a run in a file, a few in memory.

        Holds no lock while keys are merged or written, so that other threads can look up keys.

        Args:
            store: The table's store.
            files: Files that are not indexed yet.
            parts: All keys of these files; rows are numbered in the order of the files.
            seeds: The seeds of the hashes.
        """
        if sum(file.num_rows for file in files) >= MIN_SAVED_ROWS:
            run = run_files.write_run(store, self.columns(seeds), files, parts)
            if run is not None:
                with self._lock:
                    self._adopt(run)
            return
        keys = joined(list(merged(parts)))
        starts = np.cumsum([0, *(file.num_rows for file in files)])
        with self._lock:
            is_indexed = any(file in self._number_of for file in files)
            if is_indexed or seeds != self._seeds or len(keys.words) > self.num_free_rows:
                return
            numbers = np.array([self._give_number(file) for file in files], np.int64)
            self._runs.append(Memtable.of(keys, starts, numbers))

    def _give_number(self, file: CoveredFile) -> int:
        self._number_of[file] = number = self._next
        self._last_lookup[number] = self._num_lookups
        self._next += 1
        return number

    def _insert(self, run: Memtable) -> None:
        """Add a run in memory, and merge runs of similar size."""
        self._runs.append(run)
        while group := self._similar_runs():
            others = [run for run in self._runs if all(run is not one for one in group)]
            self._runs = [*others, Memtable.merged(group)]

    def _similar_runs(self) -> tuple[Memtable, ...] | None:
        """Return a group of runs in memory to merge; None if there is none."""
        groups = groups_to_merge(
            [(run, len(run.words)) for run in self._runs],
            min_keys=_MIN_IN_MEMORY,
            max_keys=_MAX_MERGED_IN_MEMORY,
        )
        return next((group for group in groups if len(group) > 1), None)

    def _forget_unused(self, num_fragments: int) -> None:
        """Drop the least recently used files in memory once they outnumber the table's files."""
        if len(self._number_of) - len(self._saved_files) <= 2 * num_fragments + _FORGET_FROM:
            return
        numbers = self._files_in_memory()
        by_age = sorted(numbers.items(), key=lambda entry: self._last_lookup.get(entry[1], 0))
        for file, _ in by_age[: len(by_age) - num_fragments]:
            del self._number_of[file]
        self._forget_others()

    def _files_in_memory(self) -> dict[CoveredFile, int]:
        """Return the files whose keys are in memory, and their numbers."""
        numbers = self._number_of.items()
        return {file: number for file, number in numbers if file not in self._saved_files}

    def _forget_others(self) -> None:
        """Drop all keys in memory whose files no longer have a number."""
        is_used = np.zeros(self._next, np.bool_)
        is_used[list(self._number_of.values())] = True
        self._last_lookup = {
            number: self._last_lookup.get(number, 0) for number in self._number_of.values()
        }
        runs = [run.where(is_used[run.files]) for run in self._runs]
        self._runs = [run for run in runs if len(run.words)]

    # --- the index

    def columns(self, seeds: tuple[int, int]) -> KeyColumns:
        """Return the description of the keys that a run states.

        Args:
            seeds: The seeds of the hashes; ignored if words are exact.
        """
        types = tuple(field_to_arrow(field).type for field in self._fields)
        is_exact = are_exact([pa.array([], _plain(kind)) for kind in types])
        return KeyColumns(
            tuple(field.id for field in self._fields),
            tuple(map(str, types)),
            is_exact,
            (0, 0) if is_exact else seeds,
        )

    def refresh(self, store: Store) -> None:
        """Find the runs that other processes have written, merged or deleted.

        Holds no lock during requests to the store, so that other threads can look up keys.
        """
        columns = self.columns(self._seeds)
        with self._lock:
            before = dict(self._saved)
            rejected = set(self._rejected_runs)
        paths = run_files.list_runs(store, columns.field_ids)
        if paths is None:
            return
        footers = {
            path: run_files.footer_if_sound(store, path)
            for path in paths
            if path not in before and path not in rejected
        }
        with self._lock:
            for path in before.keys() - set(paths):
                if self._saved.get(path) is before[path]:
                    self._remove_run(before[path])
            self._rejected_runs -= rejected - set(paths)
            for path, footer in footers.items():
                if path not in self._saved:
                    self._open(path, footer, columns)

    def _open(self, path: str, footer: RunFooter | None, columns: KeyColumns) -> None:
        self._rejected_runs.add(path)
        if footer is None or footer.columns._replace(seeds=columns.seeds) != columns:
            return
        if all(file in self._number_of for file in footer.files):
            return
        size = sum(run.num_bytes for run in self._saved.values())
        run = run_files.open_run(path, footer, size)
        if run is None:
            return
        if not columns.is_exact and not self._saved and footer.columns.seeds != self._seeds:
            self._switch_seeds(footer.columns.seeds)
        self._adopt(run)

    def _switch_seeds(self, seeds: tuple[int, int]) -> None:
        """Adopt the seeds of saved runs, so that runs can be merged; drop keys with other seeds."""
        self._seeds = seeds
        self._number_of, self._runs = {}, []

    def _adopt(self, run: IndexRun) -> None:
        if run.path in self._saved:  # another thread has already found the new run in the store
            return
        for index, file in enumerate(run.footer.files):
            if file not in self._number_of:
                run.numbers[index] = self._give_number(file)
                self._saved_files.add(file)
        self._saved[run.path] = run
        self._rejected_runs.discard(run.path)

    def drop_run(self, error: RunUnavailableError, store: Store) -> None:
        """Stop using a run that is unavailable; delete it if it is damaged."""
        with self._lock:
            if self._saved.get(error.run.path) is error.run:
                self._remove_run(error.run)
                self._rejected_runs.add(error.run.path)
        if error.is_damaged:
            run_files.delete_runs(store, [error.run.path])

    def _remove_run(self, run: IndexRun) -> None:
        del self._saved[run.path]
        for number, file in zip(run.numbers.tolist(), run.footer.files, strict=True):
            if number >= 0:
                del self._number_of[file]
                self._saved_files.discard(file)

    def save(self, table: TableVersion, min_rows: int | None = None) -> None:
        """Write the keys in memory as a run, if there are enough.

        Args:
            table: The version of the lookup.
            min_rows: The minimum number of keys; `MIN_SAVED_ROWS` by default.
        """
        min_rows = MIN_SAVED_ROWS if min_rows is None else min_rows
        with self._lock:
            if not self.can_save or sum(len(run.words) for run in self._runs) < min_rows:
                return
            if self._save_memory(table.store):
                self._compact(table)
            else:
                self._save_from_lookup = self._num_lookups + LOOKUPS_BEFORE_RETRY

    def _save_memory(self, store: Store) -> bool:
        numbers = self._files_in_memory()
        files = list(numbers)
        starts = np.concatenate([[0], np.cumsum([file.num_rows for file in files], dtype=np.int64)])
        start_of = np.zeros(self._next, np.int64)
        start_of[list(numbers.values())] = starts[:-1]
        parts = [RenumberedKeys(run.numbered(start_of), None) for run in self._runs]
        run = run_files.write_run(store, self.columns(self._seeds), files, parts)
        if run is None:
            return False
        run.numbers = np.array(list(numbers.values()), np.int64)
        self._saved[run.path] = run
        self._saved_files.update(files)
        self._runs = []
        return True

    def _compact(self, table: TableVersion) -> None:
        """Merge runs of similar size, and delete runs that have no file of the table."""
        columns = self.columns(self._seeds)
        runs = [run for run in self._saved.values() if run.footer.columns.seeds == columns.seeds]
        num_keys = sum(run.footer.num_keys for run in runs)
        num_rows = int(table.manifest.fragments.numbers.physical_rows.sum())
        table_files = set(filter(None, map(self.covered_by, table.manifest.fragments)))
        for group in groups_to_merge(
            [(run, run.footer.num_keys) for run in runs],
            min_keys=MIN_SAVED_ROWS,
            max_keys=MAX_MERGED_KEYS,
            merges_all=num_keys > 2 * num_rows + MIN_SAVED_ROWS,
        ):
            self._merge_all(table.store, group, table_files)

    def merge(self, table: TableVersion, paths: Sequence[str]) -> None:
        """Merge runs, which any process may have written, into one; best effort.

        Args:
            table: The version whose files the merged run keeps.
            paths: The runs; together not much larger than the largest merged run. Runs with other
                seeds or key columns are skipped.
        """
        footers = {path: run_files.footer_if_sound(table.store, path) for path in paths}
        table_files = set(filter(None, map(self.covered_by, table.manifest.fragments)))
        with self._lock:
            columns = self.columns(self._seeds)
            for path, footer in footers.items():
                if footer is not None and footer.columns == columns:
                    self._open(path, footer, columns)
            self._merge_all(table.store, list(self._saved.values()), table_files)

    def _merge_all(
        self, store: Store, runs: Sequence[IndexRun], table_files: set[CoveredFile]
    ) -> None:
        files = {file for run in runs for file in run.footer.files}
        if len(runs) == 1 and len(files & table_files) * 2 > len(files):
            return
        try:
            for run in runs:
                run.fetch_all(store)
        except RunUnavailableError as error:
            self.drop_run(error, store)
            return
        remaining, parts = planned_parts([(run, run.footer.files) for run in runs], table_files)
        merged_run = (
            run_files.write_run(store, self.columns(self._seeds), remaining, parts)
            if remaining
            else None
        )
        if remaining and merged_run is None:
            return
        for run in runs:
            self._remove_run(run)
        if merged_run is not None:
            self._adopt(merged_run)
        run_files.delete_runs(store, [run.path for run in runs])


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_indices: Final[Cache[tuple[str, tuple[tuple[int, str], ...]], KeyIndex]] = Cache(_MAX_TABLES)


def key_index_of(table: TableVersion, on: Sequence[str]) -> KeyIndex:
    """Return this process's index of a table's keys.

    Args:
        table: Any version.
        on: Names of its key columns.
    """
    fields = table.schema.fields_named(on)
    types = tuple((field.id, str(field_to_arrow(field).type)) for field in fields)
    return _indices.get_or_make((table.store.uri, types), lambda: KeyIndex(fields))


def key_indices_of(table: TableVersion) -> list[KeyIndex]:
    """Return this process's non-empty indices of a table, one per set of key columns."""
    indices = [index for (uri, _), index in _indices.items() if uri == table.store.uri]
    return [index for index in indices if index.num_files]


def clear_key_indices() -> None:
    """Clear the indices and cached sequences of all tables, as if the process had just started."""
    _indices.clear()
    clear_sequences()


def _cached_bytes() -> int:
    return sum(index.num_bytes for _, index in _indices.items())
