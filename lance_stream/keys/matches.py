"""Finds the rows of a fragment that have a key of a batch, by reading its key columns.

    fragment          key columns                          matches
    ------------------------------------------------------------------------------------
    0                 17, 4, 99, ...                       (address, number of the key)
    1                 ...                                  ...

Reads only the key columns, and the stored sequence of matching rows. Reading also collects key
bounds, and keys for the index.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions, RowAddresses
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.bounds.key_bounds import BoundsLearner, FileBounds, key_fields
from lance_stream.keys.index.column_cache import (
    cache_column,
    cached_column,
    column_location,
)
from lance_stream.keys.index.memtable import Collector
from lance_stream.read.fragment import read_unit
from lance_stream.read.units import WorkUnit
from lance_stream.table.fragments.fragment import Fragment, decode_fragment
from lance_stream.table.lineage.ascending import are_among
from lance_stream.table.lineage.row_addresses import pack_addresses, unpack_addresses


class Matches(NamedTuple):
    """Rows of the table that have a key of the batch.

    Attributes:
        addresses: (n,) u64 row addresses, ascending within a fragment.
        keys: (n,) i64, the number of each row's key.
        sequence: (n,) the stored sequence of each row; None if the table stores no sequence.
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
        """The table's key columns, and the sequence column to read for matches, if any."""
        ...


def find_matches(
    unit: WorkUnit, lookup: KeyLookup, num_keys: int, collector: Collector | None = None
) -> Matches:
    """Return the rows of a fragment that have a key of the batch.

    Args:
        unit: Names the key columns, then the sequence if one is stored, then the row addresses.
        lookup: The keys of the batch.
        num_keys: The number of key columns.
        collector: Receives the keys of all rows. If set, the sequence column is cached, too.
    """
    matches_of_batches: list[Matches] = []
    fragment = decode_fragment(unit.fragment)
    learner = _bounds_learner(unit, fragment, num_keys) if unit.include_deleted else None
    reads_all = unit.include_deleted or collector is not None or _most_live(fragment)
    keys_alone = replace(unit, columns=unit.columns[:num_keys])
    if reads_all:
        keys_alone = replace(keys_alone, include_deleted=True, system_columns=())
    first = 0
    for batch in read_unit(keys_alone):
        keys = batch.columns[:num_keys]
        if learner is not None:
            learner.add_keys(keys)
        if collector is not None:
            collector.add_keys(keys)
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
        matches = live_matches(unit, fragment, matches)
    if len(unit.columns) > num_keys and len(matches.addresses):
        keeps = collector is not None
        matches = matches._replace(sequence=sequence_of(unit, fragment, matches, keeps=keeps))
    return (
        matches if learner is None else matches._replace(file_bounds=tuple(learner.file_bounds()))
    )


def sequence_of(unit: WorkUnit, fragment: Fragment, matches: Matches, *, keeps: bool) -> pa.Array:
    """Return the sequence of each match; reads the whole column unless there are few matches.

    Args:
        unit: Names the sequence as the last of its columns.
        fragment: The fragment.
        matches: Rows of the fragment, by ascending addresses.
        keeps: Whether to use the cache of sequence columns.
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
"""If fewer than one row in this number matches, only the matching rows are read."""


def _most_live(fragment: Fragment) -> bool:
    """Return whether looking up the keys of deleted rows is cheaper than filtering these out."""
    file = fragment.deletion_file
    if file is None:
        return True
    return bool(file.num_deleted_rows) and 2 * file.num_deleted_rows < fragment.physical_rows


def _bounds_learner(unit: WorkUnit, fragment: Fragment, num_keys: int) -> BoundsLearner:
    return BoundsLearner(fragment, key_fields(unit.schema, unit.columns[:num_keys]))


def live_matches(unit: WorkUnit, fragment: Fragment, matches: Matches) -> Matches:
    """Return the matches that are live."""
    if fragment.deletion_file is None or not len(matches.addresses):
        return matches
    num_rows = fragment.physical_rows or unit.files.num_rows(fragment.files[0])
    deleted = unit.files.deleted_offsets(fragment, num_rows)
    _, offsets = unpack_addresses(matches.addresses)
    return matches.where(np.flatnonzero(~are_among(offsets, deleted)))


NO_MATCHES: Final = Matches(np.empty(0, np.uint64), np.empty(0, np.int64))


def join_matches(parts: Iterable[Matches]) -> Matches:
    """Return the matches of several fragments, in the order of their addresses."""
    non_empty = [part for part in parts if len(part.addresses)]
    if not non_empty:
        return NO_MATCHES
    addresses = np.concatenate([part.addresses for part in non_empty])
    keys = np.concatenate([part.keys for part in non_empty])
    sequences = [part.sequence for part in non_empty if part.sequence is not None]
    joined = Matches(addresses, keys, pa.concat_arrays(sequences) if sequences else None)
    order = np.argsort(addresses, kind="stable")
    return joined if bool((order[1:] > order[:-1]).all()) else joined.where(order)
