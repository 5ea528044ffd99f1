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
from lance_stream.keys.bounds.key_bounds import BoundsLearner, FileBounds
from lance_stream.keys.index.memtable import Collector
from lance_stream.keys.stored_sequences import read_sequences
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

    def with_sequences(self, unit: WorkUnit, fragment: Fragment, *, use_cache: bool) -> "Matches":
        """Return the matches, all in one fragment, with their stored sequences.

        The arguments are those of `read_sequences`.
        """
        _, offsets = unpack_addresses(self.addresses)
        return self._replace(sequence=read_sequences(unit, fragment, offsets, use_cache=use_cache))


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
    learner = None
    if unit.include_deleted:
        learner = BoundsLearner(fragment, unit.schema.fields_named(unit.columns[:num_keys]))
    reads_all = unit.include_deleted or collector is not None or _is_mostly_live(fragment)
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
        matches = matches.with_sequences(unit, fragment, use_cache=collector is not None)
    return (
        matches if learner is None else matches._replace(file_bounds=tuple(learner.file_bounds()))
    )


def _is_mostly_live(fragment: Fragment) -> bool:
    """Return whether looking up the keys of deleted rows is cheaper than filtering these out."""
    file = fragment.deletion_file
    if file is None:
        return True
    return bool(file.num_deleted_rows) and 2 * file.num_deleted_rows < fragment.physical_rows


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
