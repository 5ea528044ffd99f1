"""Workers that search fragments for keys, and read and write their rows: threads, or Spark's tasks.

Threads of this process first search its index (`key_index`), then read the key columns of fragments
that are not indexed (`fragment_matches`), and add these keys to the index. Tasks on other machines
(`spark.jobs.spark_workers`) read the key columns for every batch.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.fragment_matches import (
    NO_MATCHES,
    KeyedRows,
    Matches,
    find_matches,
    live_matches,
)
from lance_stream.keys.index.key_index import (
    MAX_NEW_ROWS,
    MAX_SAVED_ROWS,
    KeyIndex,
    RowMatches,
    key_index_of,
)
from lance_stream.keys.index.memtable import Collector
from lance_stream.keys.index.run_files import RunUnavailableError
from lance_stream.keys.stored_sequences import cache_sequences
from lance_stream.read.prefetch import num_readers
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit
from lance_stream.row_updates.in_place import ColumnsJob, write_all_columns
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment, decode_fragment
from lance_stream.table.lineage.row_addresses import pack_addresses


class Workers(Protocol):
    """Reads and writes data files: threads of this process, or tasks on other machines."""

    def find_matches(
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
        fragments: Sequence[Fragment],
        rows: pa.RecordBatch,
    ) -> None:
        """Add the keys of written files to the index, if the workers have one.

        Args:
            table: The version that they were written for.
            on: The key columns.
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
    """Reads data files in threads of this process, and indexes their keys."""

    def find_matches(
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
        index = key_index_of(table, on)
        fragments = [decode_fragment(unit.fragment) for unit in units]
        file_numbers, indexed_rows = _search_index(index, table, fragments, lookup)
        results: list[Matches] = [NO_MATCHES] * len(units)
        for position, rows in _by_unit(indexed_rows, file_numbers):
            unit, fragment = units[position], fragments[position]
            addresses = pack_addresses(fragment.id, rows.offsets)
            matches = live_matches(unit, fragment, Matches(addresses, rows.keys))
            if len(unit.columns) > len(on) and len(matches.addresses):
                matches = matches.with_sequences(unit, fragment, use_cache=True)
            results[position] = matches
        is_worth_it = index.is_worth_it or was_looked_up
        for group in _groups(index, fragments, file_numbers, is_worth_it=is_worth_it):
            collectors = _collectors(index, [fragments[unit] for unit in group], is_worth_it)
            read = _read_keys([units[unit] for unit in group], lookup, len(on), collectors)
            index.add(collector for collector in collectors if collector is not None)
            index.save(table, MAX_SAVED_ROWS)
            for position, matches in zip(group, read, strict=True):
                results[position] = matches
        index.save(table)
        return results

    def remember(
        self,
        table: TableVersion,
        on: Sequence[str],
        fragments: Sequence[Fragment],
        rows: pa.RecordBatch,
    ) -> None:
        """Add the keys of new files to the index, if lookups in the table repeat."""
        index = key_index_of(table, on)
        keys = rows.select(list(on)).columns
        sequence = [name for name in rows.schema.names if name not in on]
        first = 0
        for fragment, collector in zip(
            fragments, _collectors(index, fragments, index.is_worth_it), strict=True
        ):
            if collector is not None:
                part = slice(first, first + fragment.physical_rows)
                collector.add_keys([values[part] for values in keys])
                index.add([collector])
                for field in table.schema.fields_named(sequence):
                    cache_sequences(fragment, field, rows.column(field.name)[part])
            first += fragment.physical_rows

    def read(self, units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, in order."""
        return read_units(units)

    def write_columns(self, jobs: Sequence[ColumnsJob]) -> list[Fragment]:
        """Write columns of fragments; see `in_place.write_columns`."""
        return write_all_columns(jobs)


THREADS = Threads()
"""The default workers."""


def _read_keys(
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


def _by_unit(rows: RowMatches, file_numbers: Positions) -> Iterator[tuple[int, RowMatches]]:
    """Yield the position of each unit with rows from the index, and these rows by offset.

    Args:
        rows: Rows of any files.
        file_numbers: (num_units,) i64, the number of each unit's file; -1 if it is not indexed.
    """
    row_keys = (rows.files.astype(np.uint64) << np.uint64(32)) | rows.offsets
    order = np.argsort(row_keys)
    files = rows.files[order]
    firsts = np.searchsorted(files, file_numbers, "left")
    stops = np.searchsorted(files, file_numbers, "right")
    for unit in np.flatnonzero((file_numbers >= 0) & (stops > firsts)).tolist():
        part = order[firsts[unit] : stops[unit]]
        yield unit, RowMatches(rows.files[part], rows.offsets[part], rows.keys[part])


def _search_index(
    index: KeyIndex,
    table: TableVersion,
    fragments: Sequence[Fragment],
    lookup: KeyLookup,
) -> tuple[Positions, RowMatches]:
    """Return the number of each fragment's file, -1 if not indexed; and the matching rows."""
    while True:
        snapshot = index.look_up(fragments, len(table.manifest.fragments), table.store)
        try:
            return snapshot.numbers, snapshot.find(lookup.key_columns, table.store)
        except RunUnavailableError as error:
            index.drop_run(error, table.store)


def _groups(
    index: KeyIndex, fragments: Sequence[Fragment], file_numbers: Positions, *, is_worth_it: bool
) -> Iterator[list[int]]:
    """Yield groups of fragments that are not indexed, by position; a group fits into one run."""
    group: list[int] = []
    num_rows = 0
    for position in np.flatnonzero(file_numbers < 0).tolist():
        is_full = num_rows + fragments[position].physical_rows > MAX_SAVED_ROWS
        if group and is_full and is_worth_it and index.can_save:
            yield group
            group, num_rows = [], 0
        group.append(position)
        num_rows += fragments[position].physical_rows
    if group:
        yield group


def _collectors(
    index: KeyIndex, fragments: Sequence[Fragment], is_worth_it: bool
) -> list[Collector | None]:
    """Return collectors for the keys of fragments that are read; None if not to be indexed."""
    collectors: list[Collector | None] = []
    max_rows = MAX_SAVED_ROWS if index.can_save else MAX_NEW_ROWS
    num_remaining = min(max_rows, index.num_free_rows) if is_worth_it else 0
    for fragment in fragments:
        file = index.file_of(fragment) if 0 < fragment.physical_rows <= num_remaining else None
        if file is not None:
            num_remaining -= fragment.physical_rows
        collectors.append(None if file is None else index.collector(file, fragment.physical_rows))
    return collectors
