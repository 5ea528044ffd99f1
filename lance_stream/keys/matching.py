"""Finds the rows of a table that have a key of a batch: what workers read, and what is cached.

    fragment          key columns, read by a worker        matches
    ------------------------------------------------------------------------------------
    0                 17, 4, 99, ...                       (address, number of the key)
    1                 ...                                  ...

Only the key columns are read, and the sequence if one is stored. Fragments whose key bounds exclude
the batch are skipped (`key_bounds`); bounds of the others are collected on the way. When a batch is
planned again because the table changed, only fragments that were added or changed since are
searched (`KeyMatcher`): an address stays valid as long as its fragment's files do.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions, RowAddresses
from lance_stream.errors import NotFoundError
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.bounds.cached_key_bounds import key_bounds, save_key_bounds
from lance_stream.keys.bounds.key_bounds import BoundsLearner, FileBounds, key_fields
from lance_stream.keys.index.column_cache import (
    cache_column,
    cached_column,
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
from lance_stream.read.fragment import read_unit
from lance_stream.read.prefetch import num_readers
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, unit_of
from lance_stream.row_updates.in_place import ColumnsJob, write_all_columns
from lance_stream.schema.fields import Field
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment, decode_fragment
from lance_stream.table.lineage.ascending import are_among
from lance_stream.table.lineage.row_addresses import pack_addresses, unpack_addresses


class Matches(NamedTuple):
    """Rows of the table that have a key of the batch.

    Attributes:
        addresses: (n,) u64 row addresses, ascending within a fragment.
        keys: (n,) i64, the number of each row's key.
        sequence: (n,) the stored sequence of each row; None if none is stored.
        file_bounds: The bounds of all keys of the fragment, including those of deleted rows.
    """

    addresses: RowAddresses
    keys: Positions
    sequence: pa.Array | None = None
    file_bounds: tuple[FileBounds, ...] = ()

    def where(self, chosen: Positions) -> "Matches":
        """Return some of them.

        Args:
            chosen: (m,) i64 indices.
        """
        sequence = None if self.sequence is None else self.sequence.take(pa.array(chosen))
        return Matches(self.addresses[chosen], self.keys[chosen], sequence)


class KeyedRows(Protocol):
    """A batch whose keys are looked up."""

    @property
    def on(self) -> tuple[str, ...]:
        """Its key columns."""
        ...

    @property
    def lookup(self) -> KeyLookup:
        """Its keys."""
        ...

    @property
    def scanned_columns(self) -> tuple[str, ...]:
        """The table's key columns, and another one whose values are wanted, if any."""
        ...


class Workers(Protocol):
    """What reads data files: threads of this process, or tasks on other machines."""

    def find(
        self, units: Sequence[WorkUnit], lookup: KeyLookup, num_keys: int
    ) -> Sequence[Matches]:
        """Return the matches of each unit; see `find_matches`."""
        ...

    def read(self, units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, in order."""
        ...

    def write_columns(self, jobs: Sequence[ColumnsJob]) -> list[Fragment]:
        """Write columns of fragments; see `in_place.write_columns`."""
        ...


class Threads:
    """Reads data files in threads of this process."""

    def find(
        self, units: Sequence[WorkUnit], lookup: KeyLookup, num_keys: int
    ) -> Sequence[Matches]:
        """Return the matches of each unit; see `find_matches`."""
        return self.find_and_collect(units, lookup, num_keys, [None] * len(units))

    def find_and_collect(
        self,
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
        with ThreadPoolExecutor(
            num_readers(units), thread_name_prefix="lance-stream-keys"
        ) as threads:
            return list(
                threads.map(
                    lambda pair: find(pair[0], collector=pair[1]),
                    zip(units, collectors, strict=True),
                )
            )

    def read(self, units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, in order."""
        return read_units(units)

    def write_columns(self, jobs: Sequence[ColumnsJob]) -> list[Fragment]:
        """Write columns of fragments; see `in_place.write_columns`."""
        return write_all_columns(jobs)


THREADS = Threads()
"""The default workers."""


def find_matches(
    unit: WorkUnit, lookup: KeyLookup, num_keys: int, collector: Collector | None = None
) -> Matches:
    """Return the rows of a fragment that have a key of the batch.

    Args:
        unit: Names the key columns, then the sequence if one is stored, then the row addresses.
        lookup: The keys of the batch.
        num_keys: How many of the columns are key columns.
        collector: Receives the keys of all rows; if there is one, the sequence is kept, too.
    """
    matches_of_batches: list[Matches] = []
    fragment = decode_fragment(unit.fragment)
    learner = _learner(unit, fragment, num_keys) if unit.include_deleted else None
    reads_all = unit.include_deleted or collector is not None or _most_live(fragment)
    keys_alone = replace(unit, columns=unit.columns[:num_keys])
    if reads_all:
        keys_alone = replace(keys_alone, include_deleted=True, system_columns=())
    first = 0
    for batch in read_unit(keys_alone):
        keys = batch.columns[:num_keys]
        if learner is not None:
            learner.see(keys)
        if collector is not None:
            collector.see(keys)
        rows, numbers = lookup.find_rows(keys)
        if len(rows):
            if reads_all:
                addresses = pack_addresses(fragment.id, rows + first)
            else:
                addresses = batch.column(batch.num_columns - 1).to_numpy()[rows]
            matches_of_batches.append(Matches(addresses, numbers))
        first += batch.num_rows
    matches = join_matches(matches_of_batches)
    if reads_all:
        matches = _alive(unit, fragment, matches)
    if len(unit.columns) > num_keys and len(matches.addresses):
        keeps = collector is not None
        matches = matches._replace(sequence=_sequence_of(unit, fragment, matches, keeps=keeps))
    return (
        matches if learner is None else matches._replace(file_bounds=tuple(learner.file_bounds()))
    )


def _sequence_of(unit: WorkUnit, fragment: Fragment, matches: Matches, *, keeps: bool) -> pa.Array:
    """Return the sequence of each match; reads all of the fragment's, unless the matches are few.

    Args:
        unit: Names the sequence as the last of its columns.
        fragment: The fragment.
        matches: Rows of the fragment, by ascending addresses.
        keeps: Whether this process keeps the fragment's sequence, or has kept it.
    """
    _, offsets = unpack_addresses(matches.addresses)
    (field,) = key_fields(unit.schema, unit.columns[-1:])
    location = column_location(fragment, field) if keeps else None
    cached = None if location is None else cached_column(location, field)
    if cached is not None and len(cached) == fragment.physical_rows:
        return cached.take(pa.array(offsets))
    rows = replace(unit, columns=unit.columns[-1:], system_columns=())
    if len(offsets) * _FEW_OF < fragment.physical_rows:
        rows = replace(rows, offsets=offsets.astype(np.uint32))
        return pa.concat_arrays([batch.column(0) for batch in read_unit(rows)])
    parts: list[pa.Array] = []
    whole: list[pa.Array] = []
    done = first = 0
    for batch in read_unit(replace(rows, include_deleted=True)):
        stop = int(np.searchsorted(offsets, first + batch.num_rows))
        parts.append(batch.column(0).take(pa.array(offsets[done:stop] - np.uint64(first))))
        if location is not None:
            whole.append(batch.column(0))
        done, first = stop, first + batch.num_rows
    if location is not None and first == fragment.physical_rows:
        cache_column(location, pa.concat_arrays(whole))
    return pa.concat_arrays(parts)


_FEW_OF: Final = 256
"""If fewer than one row in this many matches, each row is better read by itself."""


def _most_live(fragment: Fragment) -> bool:
    """Return whether filtering out deleted rows costs more than looking up their keys, too."""
    file = fragment.deletion_file
    if file is None:
        return True
    return bool(file.num_deleted_rows) and 2 * file.num_deleted_rows < fragment.physical_rows


def _learner(unit: WorkUnit, fragment: Fragment, num_keys: int) -> BoundsLearner:
    return BoundsLearner(fragment, key_fields(unit.schema, unit.columns[:num_keys]))


def _alive(unit: WorkUnit, fragment: Fragment, matches: Matches) -> Matches:
    """Return the matches that are live."""
    if fragment.deletion_file is None or not len(matches.addresses):
        return matches
    num_rows = fragment.physical_rows or unit.files.num_rows(fragment.files[0])
    deleted = unit.files.deleted_offsets(fragment, num_rows)
    _, offsets = unpack_addresses(matches.addresses)
    return matches.where(np.flatnonzero(~are_among(offsets, deleted)))


_NO_MATCHES: Final = Matches(np.empty(0, np.uint64), np.empty(0, np.int64))


def join_matches(parts: Iterable[Matches]) -> Matches:
    """Return the matches of several fragments, in the order of their addresses."""
    non_empty = [part for part in parts if len(part.addresses)]
    if not non_empty:
        return _NO_MATCHES
    addresses = np.concatenate([part.addresses for part in non_empty])
    keys = np.concatenate([part.keys for part in non_empty])
    sequences = [part.sequence for part in non_empty if part.sequence is not None]
    joined = Matches(addresses, keys, pa.concat_arrays(sequences) if sequences else None)
    order = np.argsort(addresses, kind="stable")
    return joined if bool((order[1:] > order[:-1]).all()) else joined.where(order)


class KeyMatcher:
    """The matches of one batch: kept for when it is planned again.

    Args:
        workers: The workers that read.
    """

    def __init__(self, workers: Workers = THREADS) -> None:
        self._workers = workers
        self._matches_of: dict[int, tuple[bytes, Matches]] = {}
        self._fields_read: tuple[Field, ...] = ()

    def look_up(self, table: TableVersion, incoming: KeyedRows) -> Matches:
        """Return the rows of a version that have a key of the batch.

        Args:
            table: The version.
            incoming: The batch; the same rows each time.
        """
        columns = incoming.scanned_columns
        fields = {field.name: field for field in table.schema.fields}
        fields_read = tuple(fields[name] for name in columns)
        if (
            fields_read != self._fields_read
        ):  # the first call, or others: renamed columns have other ids
            self._fields_read, self._matches_of = fields_read, {}
        valid: list[Matches] = []
        places: list[int] = []
        fragments = table.manifest.fragments
        bounds = key_bounds(table, incoming.on)
        for index in np.flatnonzero(bounds.may_hold(fragments, incoming.lookup)).tolist():
            cached = self._matches_of.get(fragments.ids[index])
            still_valid = None if cached is None else _still(table, index, *cached)
            if still_valid is None:
                places.append(index)
            else:
                valid.append(still_valid)
        are_unknown = bounds.are_unknown(fragments)
        units = [
            unit_of(
                table,
                index,
                columns=columns,
                system_columns=(ROW_ADDRESS,),
                include_deleted=bool(are_unknown[index]),
            )
            for index in places
        ]
        was_looked_up = any(column.saved_work for column in bounds.columns)
        results = self._find(table, incoming, units, was_looked_up=was_looked_up)
        for index, unit, result in zip(places, units, results, strict=True):
            self._matches_of[fragments.ids[index]] = (unit.fragment, result)
        bounds.add_bounds(file_bounds for result in results for file_bounds in result.file_bounds)
        save_key_bounds(table, bounds)
        return join_matches([*valid, *results])

    def _find(
        self,
        table: TableVersion,
        incoming: KeyedRows,
        units: Sequence[WorkUnit],
        *,
        was_looked_up: bool,
    ) -> Sequence[Matches]:
        """Return the matches of each unit: remembered, or else read.

        Args:
            table: The version.
            incoming: The batch.
            units: Of the fragments that may have a key of it.
            was_looked_up: Whether a process has looked up keys in the table before.
        """
        lookup, on = incoming.lookup, incoming.on
        if not isinstance(self._workers, Threads) or not units:
            return self._workers.find(units, lookup, len(on))
        memory = key_index_of(table, on)
        fragments = [decode_fragment(unit.fragment) for unit in units]
        numbers, remembered = _remembered(memory, table, fragments, lookup)
        results: list[Matches | None] = [None] * len(units)
        for at, rows in _by_unit(remembered, numbers):
            addresses = pack_addresses(fragments[at].id, rows.offsets)
            alive = _alive(units[at], fragments[at], Matches(addresses, rows.keys))
            if len(units[at].columns) > len(on) and len(alive.addresses):
                sequence = _sequence_of(units[at], fragments[at], alive, keeps=True)
                alive = alive._replace(sequence=sequence)
            results[at] = alive
        is_worth_it = memory.is_worth_it or was_looked_up
        for some in _groups(memory, fragments, numbers, is_worth_it=is_worth_it):
            collectors = _collectors(memory, [fragments[at] for at in some], is_worth_it)
            read = self._workers.find_and_collect(
                [units[at] for at in some], lookup, len(on), collectors
            )
            memory.add(collector for collector in collectors if collector is not None)
            memory.save(table, MOST_SAVED_ROWS)
            for at, matches in zip(some, read, strict=True):
                results[at] = matches
        memory.save(table)
        return [_NO_MATCHES if matches is None else matches for matches in results]

    def remember(
        self,
        table: TableVersion,
        on: Sequence[str],
        sequence_by: str | None,
        fragments: Sequence[Fragment],
        rows: pa.RecordBatch,
    ) -> None:
        """Keep the keys of files that were written, if this process reads files again and again.

        Args:
            table: The version that they were written for.
            on: The key columns.
            sequence_by: The column that orders rows of a key; None if there is none.
            fragments: The new fragments.
            rows: Their rows, in order, with these columns.
        """
        if not isinstance(self._workers, Threads):
            return
        memory = key_index_of(table, on)
        keys = rows.select(list(on)).columns
        ordering = [name for name in rows.schema.names if name == sequence_by]
        first = 0
        for fragment, collector in zip(
            fragments, _collectors(memory, fragments, memory.is_worth_it), strict=True
        ):
            if collector is not None:
                part = slice(first, first + fragment.physical_rows)
                collector.see([values[part] for values in keys])
                memory.add([collector])
                for field in key_fields(table.schema, ordering):
                    location = column_location(fragment, field)
                    if location is not None:
                        cache_column(location, rows.column(field.name)[part])
            first += fragment.physical_rows


def _by_unit(rows: RowMatches, numbers: Positions) -> Iterator[tuple[int, RowMatches]]:
    """Yield remembered rows by the place of their file's unit, in the order of their offsets.

    Args:
        rows: Rows of any files.
        numbers: (num_units,) i64, the number of each unit's file; -1 if it has none.
    """
    places = (rows.files.astype(np.uint64) << np.uint64(32)) | rows.offsets
    order = np.argsort(places)
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
    """Return the number of each fragment's file, -1 if unknown; and the rows with a key."""
    while True:
        snapshot = memory.look_up(fragments, len(table.manifest.fragments), table.store)
        try:
            return snapshot.numbers, snapshot.find(lookup.key_columns, table.store)
        except RunUnavailableError as error:
            memory.drop_run(error, table.store)


def _groups(
    memory: KeyIndex, fragments: Sequence[Fragment], numbers: Positions, *, is_worth_it: bool
) -> Iterator[list[int]]:
    """Yield the unknown fragments; as many at a time as fit into a run of the index."""
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
    """Return what collects the keys of fragments that are read; None where they are not kept."""
    collectors: list[Collector | None] = []
    most = MOST_SAVED_ROWS if memory.can_save else MAX_NEW_ROWS
    num_remaining = min(most, memory.num_free_rows) if is_worth_it else 0
    for fragment in fragments:
        file = memory.file_of(fragment) if 0 < fragment.physical_rows <= num_remaining else None
        if file is not None:
            num_remaining -= fragment.physical_rows
        collectors.append(None if file is None else memory.collector(file, fragment.physical_rows))
    return collectors


def _still(table: TableVersion, index: int, raw: bytes, matches: Matches) -> Matches | None:
    """Return the matches in a fragment that are still live; None if it must be read again.

    Args:
        table: The version now.
        index: The fragment's index in it.
        raw: The fragment as it was.
        matches: The matches in it.
    """
    now = table.manifest.fragments.raw(index)
    if now == raw:
        return matches
    deleted = deleted_rows(table, decode_fragment(raw), decode_fragment(now))
    if deleted is None:
        return None
    _, offsets = unpack_addresses(matches.addresses)
    return matches.where(np.flatnonzero(~are_among(offsets, deleted)))


def deleted_rows(
    table: TableVersion, before: Fragment, now: Fragment
) -> npt.NDArray[np.uint32] | None:
    """Return the offsets of a fragment's deleted rows; None if it has changed in another way.

    Args:
        table: The version that has the fragment as it is now.
        before: The fragment as it was.
        now: The fragment as it is.
    """
    if _without_deletion_file(before) != _without_deletion_file(now):
        return None
    try:
        deleted_before, deleted = table.deleted_offsets(before), table.deleted_offsets(now)
    except NotFoundError:
        return None
    if not bool(are_among(deleted_before, deleted).all()):
        return None  # a restore: deleted rows are live again
    return deleted


def _without_deletion_file(fragment: Fragment) -> Fragment:
    return replace(fragment, deletion_file=None)
