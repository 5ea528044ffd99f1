"""Workers that look up keys and read and write data files: threads, or tasks on other machines.

Threads of this process add the keys that they read to its index (`key_index`), and find most keys
there. Tasks on other machines (`spark_workers`) read the key columns for every batch.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.bounds.key_bounds import key_fields
from lance_stream.keys.index.column_cache import (
    cache_column,
    column_location,
)
from lance_stream.keys.index.key_index import (
    MAX_NEW_ROWS,
    MOST_SAVED_ROWS,
    KeyIndex,
    RowMatches,
    key_index_of,
)
from lance_stream.keys.index.memtable import Collector
from lance_stream.keys.index.run_files import RunUnavailableError
from lance_stream.keys.matches import (
    NO_MATCHES,
    KeyedRows,
    Matches,
    find_matches,
    live_matches,
    sequence_of,
)
from lance_stream.read.prefetch import num_readers
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit
from lance_stream.row_updates.in_place import ColumnsJob, write_all_columns
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment, decode_fragment
from lance_stream.table.lineage.row_addresses import pack_addresses


class Workers(Protocol):
    """Reads and writes data files: threads of this process, or tasks on other machines."""

    def find(
        self,
        table: TableVersion,
        incoming: KeyedRows,
        units: Sequence[WorkUnit],
        *,
        was_looked_up: bool,
    ) -> Sequence[Matches]:
        """Return the matches of each unit; see `find_matches`.

        Args:
            table: The version.
            incoming: The batch.
            units: The units of the fragments that may have a key of the batch.
            was_looked_up: Whether any process has looked up keys in the table before.
        """
        ...

    def remember(
        self,
        table: TableVersion,
        on: Sequence[str],
        sequence_by: str | None,
        fragments: Sequence[Fragment],
        rows: pa.RecordBatch,
    ) -> None:
        """Note the keys of files that were written.

        Args:
            table: The version that they were written for.
            on: The key columns.
            sequence_by: The column that orders rows of a key; None if rows have no order.
            fragments: The new fragments.
            rows: Their rows, in order: the key columns, and the sequence column if there is one.
        """
        ...

    def read(self, units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, in order."""
        ...

    def write_columns(self, jobs: Sequence[ColumnsJob]) -> list[Fragment]:
        """Write columns of fragments; see `in_place.write_columns`."""
        ...


class Threads:
    """Reads data files in threads of this process, and keeps their keys."""

    def find(
        self,
        table: TableVersion,
        incoming: KeyedRows,
        units: Sequence[WorkUnit],
        *,
        was_looked_up: bool,
    ) -> Sequence[Matches]:
        """Return the matches of each unit: from the index, or else from the key columns."""
        if not units:
            return []
        lookup, on = incoming.lookup, incoming.on
        memory = key_index_of(table, on)
        fragments = [decode_fragment(unit.fragment) for unit in units]
        numbers, remembered = _remembered(memory, table, fragments, lookup)
        results: list[Matches | None] = [None] * len(units)
        for at, rows in _by_unit(remembered, numbers):
            addresses = pack_addresses(fragments[at].id, rows.offsets)
            alive = live_matches(units[at], fragments[at], Matches(addresses, rows.keys))
            if len(units[at].columns) > len(on) and len(alive.addresses):
                sequence = sequence_of(units[at], fragments[at], alive, keeps=True)
                alive = alive._replace(sequence=sequence)
            results[at] = alive
        is_worth_it = memory.is_worth_it or was_looked_up
        for some in _groups(memory, fragments, numbers, is_worth_it=is_worth_it):
            collectors = _collectors(memory, [fragments[at] for at in some], is_worth_it)
            read = _read([units[at] for at in some], lookup, len(on), collectors)
            memory.add(collector for collector in collectors if collector is not None)
            memory.save(table, MOST_SAVED_ROWS)
            for at, matches in zip(some, read, strict=True):
                results[at] = matches
        memory.save(table)
        return [NO_MATCHES if matches is None else matches for matches in results]

    def remember(
        self,
        table: TableVersion,
        on: Sequence[str],
        sequence_by: str | None,
        fragments: Sequence[Fragment],
        rows: pa.RecordBatch,
    ) -> None:
        """Add the keys of new files to the index, if lookups in the table repeat."""
        memory = key_index_of(table, on)
        keys = rows.select(list(on)).columns
        ordering = [name for name in rows.schema.names if name == sequence_by]
        first = 0
        for fragment, collector in zip(
            fragments, _collectors(memory, fragments, memory.is_worth_it), strict=True
        ):
            if collector is not None:
                part = slice(first, first + fragment.physical_rows)
                collector.add_keys([values[part] for values in keys])
                memory.add([collector])
                for field in key_fields(table.schema, ordering):
                    location = column_location(fragment, field)
                    if location is not None:
                        cache_column(location, rows.column(field.name)[part])
            first += fragment.physical_rows

    def read(self, units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, in order."""
        return read_units(units)

    def write_columns(self, jobs: Sequence[ColumnsJob]) -> list[Fragment]:
        """Write columns of fragments; see `in_place.write_columns`."""
        return write_all_columns(jobs)


THREADS = Threads()
"""The default workers."""


def _read(
    units: Sequence[WorkUnit],
    lookup: KeyLookup,
    num_keys: int,
    collectors: Sequence[Collector | None],
) -> Sequence[Matches]:
    """Return the matches of each unit, and collect the keys of some; see `find_matches`."""
    find = partial(find_matches, lookup=lookup, num_keys=num_keys)
    if len(units) < 2:
        return [
            find(unit, collector=collector)
            for unit, collector in zip(units, collectors, strict=True)
        ]
    with ThreadPoolExecutor(num_readers(units), thread_name_prefix="lance-stream-keys") as threads:
        return list(
            threads.map(
                lambda pair: find(pair[0], collector=pair[1]),
                zip(units, collectors, strict=True),
            )
        )


def _by_unit(rows: RowMatches, numbers: Positions) -> Iterator[tuple[int, RowMatches]]:
    """Yield the position of each unit with rows from the index, and these rows by offset.

    Args:
        rows: Rows of any files.
        numbers: (num_units,) i64, the number of each unit's file; -1 if it is not indexed.
    """
    row_keys = (rows.files.astype(np.uint64) << np.uint64(32)) | rows.offsets
    order = np.argsort(row_keys)
    files = rows.files[order]
    firsts = np.searchsorted(files, numbers, "left")
    stops = np.searchsorted(files, numbers, "right")
    for at in np.flatnonzero((numbers >= 0) & (stops > firsts)).tolist():
        part = order[firsts[at] : stops[at]]
        yield at, RowMatches(rows.files[part], rows.offsets[part], rows.keys[part])


def _remembered(
    memory: KeyIndex,
    table: TableVersion,
    fragments: Sequence[Fragment],
    lookup: KeyLookup,
) -> tuple[Positions, RowMatches]:
    """Return the number of each fragment's file, -1 if not indexed; and the matching rows."""
    while True:
        snapshot = memory.look_up(fragments, len(table.manifest.fragments), table.store)
        try:
            return snapshot.numbers, snapshot.find(lookup.key_columns, table.store)
        except RunUnavailableError as error:
            memory.drop_run(error, table.store)


def _groups(
    memory: KeyIndex, fragments: Sequence[Fragment], numbers: Positions, *, is_worth_it: bool
) -> Iterator[list[int]]:
    """Yield groups of the fragments that are not indexed; a group fits into one run."""
    group: list[int] = []
    num_rows = 0
    for at in np.flatnonzero(numbers < 0).tolist():
        is_full = num_rows + fragments[at].physical_rows > MOST_SAVED_ROWS
        if group and is_full and is_worth_it and memory.can_save:
            yield group
            group, num_rows = [], 0
        group.append(at)
        num_rows += fragments[at].physical_rows
    if group:
        yield group


def _collectors(
    memory: KeyIndex, fragments: Sequence[Fragment], is_worth_it: bool
) -> list[Collector | None]:
    """Return collectors for the keys of fragments that are read; None if not to be indexed."""
    collectors: list[Collector | None] = []
    most = MOST_SAVED_ROWS if memory.can_save else MAX_NEW_ROWS
    num_remaining = min(most, memory.num_free_rows) if is_worth_it else 0
    for fragment in fragments:
        file = memory.file_of(fragment) if 0 < fragment.physical_rows <= num_remaining else None
        if file is not None:
            num_remaining -= fragment.physical_rows
        collectors.append(None if file is None else memory.collector(file, fragment.physical_rows))
    return collectors
