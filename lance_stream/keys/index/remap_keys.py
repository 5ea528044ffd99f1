"""Carries the key index over a compaction: derives the keys of new files from those of old files.

    old file A   rows 0 1 2 3   row 1 deleted          new file C   rows 0 1 2 3 4
    old file B   rows 0 1                               from         A0 A2 A3 B0 B1

    entries      word → A2   word → B0   word → A1      become       word → C1   word → C3

A compaction moves rows without changing them, and knows where each row goes. The entries of the old
files, in memory and in runs, become entries of the new files when their rows are renumbered: no key
is read or hashed, and the words stay sorted. The next upsert finds the new files in the index.

This happens before the commit, in the compaction's thread, and without a lock that a batch waits
for. A run names its data files, so a run whose files are never committed is harmless; merging drops
the files that the table does not have. If anything fails here, the next upsert reads the keys.
"""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from lance_stream.arrays import Positions
from lance_stream.keys.index import key_index, run_files
from lance_stream.keys.index.key_index import IndexSnapshot, KeyIndex
from lance_stream.keys.index.run_files import IndexRun, RunUnavailableError
from lance_stream.keys.index.run_format import CoveredFile, U32s
from lance_stream.keys.index.run_merging import REMOVED, RenumberedKeys
from lance_stream.read.fragment import read_unit
from lance_stream.read.units import unit_of
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.conflicts.carried_rows import RewrittenRows
from lance_stream.table.fragments.fragment import Fragment

_log = logging.getLogger("lance_stream.compaction")

MAX_COPIED: Final = 8
"""A run is skipped if more than this many keys would have to be copied per key to carry over."""


class RewrittenFiles(NamedTuple):
    """Fragments whose live rows a compaction wrote to new fragments.

    Attributes:
        old: The old fragments.
        rows: For each of them, its number of rows, and the rows that were not written.
        new: The new fragments; together they have the written rows.
        order: (n,) i64, for each written row, its position among the live rows of the old
            fragments; None if the order did not change.
    """

    old: Sequence[Fragment]
    rows: Sequence[RewrittenRows]
    new: Sequence[Fragment]
    order: Positions | None

    @property
    def num_written(self) -> int:
        """The number of written rows."""
        return sum(row.num_written for row in self.rows)

    def new_numbers(self, first: int) -> U32s:
        """Return the number of each old row among the rows of the new files.

        Args:
            first: The number of the first row of the new files.

        Returns:
            (num_old_rows,) u32; `REMOVED` for a row that was not written.
        """
        is_written = np.ones(sum(row.physical_rows for row in self.rows), np.bool_)
        start = 0
        for row in self.rows:
            is_written[start + row.deleted.astype(np.int64)] = False
            start += row.physical_rows
        positions = np.arange(first, first + self.num_written, dtype=np.uint32)
        if self.order is not None:
            written = positions
            positions = np.empty_like(written)
            positions[self.order] = written
        numbers = np.full(len(is_written), REMOVED, np.uint32)
        numbers[is_written] = positions
        return numbers


def remap_keys(table: TableVersion, groups: Sequence[RewrittenFiles]) -> None:
    """Add the keys of new files to the indices that have the keys of the old files.

    Args:
        table: The version that was compacted.
        groups: The rewritten files; not committed yet.
    """
    try:
        for memory in _memories(table, groups):
            _carry(memory, table, groups)
    except Exception:  # from the disk, or out of memory: the index is optional
        _log.warning(
            "%s: cannot carry the key index over a compaction; the next upsert reads the keys",
            table.uri,
            exc_info=True,
        )


def _memories(table: TableVersion, groups: Sequence[RewrittenFiles]) -> list[KeyIndex]:
    """Return the indices of the table's keys: those of this process, or else the saved ones."""
    indices = key_index.key_indices_of(table)
    if indices:
        return indices
    num_rows = sum(row.physical_rows for group in groups for row in group.rows)
    if num_rows < key_index.MIN_SHARED_ROWS:
        return []
    fields = {field.id: field for field in table.schema.fields}
    by_fields: dict[tuple[int, ...], KeyIndex] = {}
    for columns in run_files.indexed_columns(table.store):
        ids = columns.field_ids
        if ids not in by_fields and all(
            field_id in fields and str(field_to_arrow(fields[field_id]).type) == kind
            for field_id, kind in zip(ids, columns.types, strict=True)
        ):
            by_fields[ids] = KeyIndex([fields[field_id] for field_id in ids])
    for index in by_fields.values():
        index.refresh(table.store)
    return list(by_fields.values())


def _carry(memory: KeyIndex, table: TableVersion, groups: Sequence[RewrittenFiles]) -> None:
    """Add the keys of new files to the index of one set of key columns."""
    covered = [memory.covered_by(fragment) for group in groups for fragment in group.old]
    unknown = [file for file in covered if file is not None and not memory.knows(file)]
    if sum(file.num_rows for file in unknown) >= key_index.MIN_SHARED_ROWS:
        memory.refresh(table.store)
    _read_few(memory, table, groups)
    while True:
        carried = _carried(memory, memory.snapshot_of(covered), groups, covered)
        if carried is None:
            return
        try:
            for run in carried.runs:
                run.fetch_all(table.store)
        except RunUnavailableError as error:
            memory.drop_run(error, table.store)
            continue
        parts = carried.parts()
        if parts:
            memory.add_sorted(table.store, carried.files, parts, carried.snapshot.seeds)
        return


def _read_few(memory: KeyIndex, table: TableVersion, groups: Sequence[RewrittenFiles]) -> None:
    """Read the keys of old files that are not indexed, if most rows of their group are.

    No upsert has read these files: their bounds have excluded all keys so far, or another writer
    has just added them.
    """
    index_by_id = {number: index for index, number in enumerate(table.manifest.fragments.ids)}
    names = tuple(field.name for field in memory.fields_in(table.schema))
    for group in groups:
        files = [memory.covered_by(fragment) for fragment in group.old]
        unknown = [
            (fragment, file)
            for fragment, file in zip(group.old, files, strict=True)
            if file is not None and not memory.knows(file)
        ]
        num_rows = sum(file.num_rows for _, file in unknown)
        max_rows = sum(row.physical_rows for row in group.rows) // 2
        if not names or num_rows > min(max_rows, memory.num_free_rows):
            continue
        for fragment, file in unknown:
            collector = memory.collector(file.file, file.num_rows)
            index = index_by_id[fragment.id]
            for batch in read_unit(unit_of(table, index, columns=names, include_deleted=True)):
                collector.add_keys(batch.columns)
            memory.add([collector])


class _CarriedKeys(NamedTuple):
    """The keys to carry over.

    Attributes:
        files: The new files.
        number_of: (num_files,) the numbers that the index has given to the old files.
        starts: (num_files + 1,) where the rows of each old file start in `numbers`.
        numbers: (num_old_rows,) u32, the number of each old row among the rows of the new files.
        snapshot: The keys of the old files.
        runs: The runs that have some of them.
    """

    files: tuple[CoveredFile, ...]
    number_of: Positions
    starts: Positions
    numbers: U32s
    snapshot: IndexSnapshot
    runs: tuple[IndexRun, ...]

    def parts(self) -> list[RenumberedKeys]:
        """Return the keys to merge."""
        in_memory = [run for run in self.snapshot.runs if len(run.words)]
        max_number = max(
            int(numbers.max()) for numbers in (self.number_of, *(run.files for run in in_memory))
        )
        start_of = np.full(max_number + 1, -1, np.int64)
        start_of[self.number_of] = self.starts[:-1]
        parts = [RenumberedKeys(run.numbered(start_of), self.numbers) for run in in_memory]
        return [*parts, *(RenumberedKeys(run, self._numbers_in(run)) for run in self.runs)]

    def _numbers_in(self, run: IndexRun) -> U32s:
        """Return the new number of each row of a run."""
        numbers = np.full(int(run.starts[-1]), REMOVED, np.uint32)
        index_by_id = {number: at for at, number in enumerate(self.number_of.tolist())}
        for index, number in enumerate(run.numbers.tolist()):
            at = index_by_id.get(number)
            if at is not None:
                numbers_of_file = self.numbers[self.starts[at] : self.starts[at + 1]]
                numbers[run.starts[index] : run.starts[index + 1]] = numbers_of_file
        return numbers


def _carried(
    memory: KeyIndex,
    snapshot: IndexSnapshot,
    groups: Sequence[RewrittenFiles],
    covered: Sequence[CoveredFile | None],
) -> _CarriedKeys | None:
    """Return the keys that can be carried over; None if there are none.

    Args:
        memory: The index.
        snapshot: The entries of the old files.
        groups: The rewritten files.
        covered: The old files of all groups, in order.
    """
    runs = _usable_runs(memory, snapshot, covered)
    unusable = [run for run in snapshot.saved if run not in runs]
    usable = set(snapshot.numbers.tolist()) - {-1}
    usable -= {number for run in unusable for number in run.numbers.tolist()}
    files: list[CoveredFile] = []
    numbers: list[U32s] = []
    number_of: list[int] = []
    sizes: list[int] = []
    first = at = 0
    for group in groups:
        numbers_of_group = snapshot.numbers[at : at + len(group.old)].tolist()
        old, at = covered[at : at + len(group.old)], at + len(group.old)
        new = [memory.covered_by(fragment) for fragment in group.new]
        rows = [row.physical_rows for row in group.rows]
        if (
            usable.issuperset(numbers_of_group)
            and sum(rows) <= key_index.MAX_MERGED_KEYS
            and rows == [file.num_rows for file in old if file is not None]
            and None not in new
        ):
            usable -= set(numbers_of_group)  # carry over a file that two fragments share only once
            files += [file for file in new if file is not None]
            numbers.append(group.new_numbers(first))
            number_of += numbers_of_group
            sizes += rows
            first += group.num_written
    if not files or len(set(number_of)) < len(number_of):
        return None
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return _CarriedKeys(
        tuple(files),
        np.array(number_of, np.int64),
        starts,
        np.concatenate(numbers),
        snapshot,
        tuple(run for run in runs if np.isin(run.numbers, number_of).any()),
    )


def _usable_runs(
    memory: KeyIndex, snapshot: IndexSnapshot, covered: Sequence[CoveredFile | None]
) -> list[IndexRun]:
    """Return the runs that have the same seeds as the keys in memory, and enough keys to carry.

    Args:
        memory: The index.
        snapshot: The entries of the old files.
        covered: The old files.
    """
    num_rows = [0 if file is None else file.num_rows for file in covered]
    rows_of = dict(zip(snapshot.numbers.tolist(), num_rows, strict=True))
    columns = memory.columns(snapshot.seeds)
    usable = []
    for run in snapshot.saved:
        num_carried = sum(rows_of.get(number, 0) for number in run.numbers.tolist() if number >= 0)
        if run.footer.columns == columns and run.num_missing <= MAX_COPIED * num_carried:
            usable.append(run)
    return usable
