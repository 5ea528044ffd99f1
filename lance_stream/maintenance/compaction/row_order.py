"""Chooses the order in which a compaction writes rows, so that their lineage takes few bytes.

A manifest contains three sequences for every fragment: the row ids, and the versions that created
and last updated each row. Their encoding is short where neighboring values are similar. Our upserts
write each batch's rows in the order of their ids. Other writers do not, so neighbors differ.

    current order    (version of the last update, row id)
    8 2   9 1   5    2 8   1 9   5                           row id
    3 3   4 4   5    3 3   4 4   5                           last updated at

Versions of the last update already ascend in most tables, because an upsert writes the rows
that it changes into new fragments at the end. So the new order moves rows only among those that
one version changed, and a table of appends is not reordered. If rows were sorted by row id alone,
the ids would form one range, but the versions would have one run per row, which takes eight times
as many bytes as an id.

Rows are reordered only if this at least halves the number of parts of the sequences, and if the
rows that have been read but not yet written fit in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions, U64s
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, stored_bytes
from lance_stream.schema.arrow_schemas import has_narrow_indices
from lance_stream.schema.fields import Schema
from lance_stream.schema.system_columns import (
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.lineage_limits import inline_bytes
from lance_stream.table.fragments.fragment import Fragment, decode_fragment
from lance_stream.table.lineage.row_ids import RowIdSequence
from lance_stream.table.lineage.row_versions import RowVersionSequence

MIN_GAIN: Final = 2.0
"""The factor by which the number of parts of the sequences must fall for rows to be moved."""

SHORT_LINEAGE: Final = 256
"""The size in bytes up to which sequences are not worth reordering rows for."""

_EXPANSION: Final = 4
"""The assumed ratio of the size of rows in memory to their size in files."""

MAX_ROWS: Final = 1 << 24
"""More rows keep their order: sorting them would take a gigabyte."""

MAX_BYTES_WAITING: Final = 256 << 20
"""Rows keep their order if more than this would be in memory."""


@dataclass(frozen=True, eq=False)
class Lineage:
    """The lineage of rows, all arrays in the same order of rows.

    Attributes:
        row_ids: (n,) stable row ids.
        created: (n,) created-at versions.
        updated: (n,) last-updated-at versions.
    """

    row_ids: U64s
    created: U64s
    updated: U64s

    def take(self, positions: Positions) -> "Lineage":
        """Return the lineage of the rows at some positions, in their order."""
        return Lineage(self.row_ids[positions], self.created[positions], self.updated[positions])

    @property
    def num_parts(self) -> int:
        """The approximate number of parts: ascending runs of ids, and runs of one version."""
        descents = np.count_nonzero(self.row_ids[1:] <= self.row_ids[:-1])
        runs = [
            np.count_nonzero(versions[1:] != versions[:-1])
            for versions in (self.created, self.updated)
        ]
        return int(descents + sum(runs)) + 3


def order_of(units: Sequence[WorkUnit], lineage: Callable[[], Lineage]) -> Positions | None:
    """Return the order in which live rows are written; None for their current order.

    The driver and the worker that writes the rows compute it independently, because it would be
    too large to send.

    Args:
        units: The work units that read the rows' fragments.
        lineage: Returns the lineage of their live rows; called only if reordering may be
            worthwhile.

    Returns:
        (n,) for each row that is written, its position in the current order.
    """
    fragments = [decode_fragment(unit.fragment) for unit in units]
    if not any(map(_has_long_lineage, fragments)):
        return None
    if not _can_be_mixed(units[0].schema):
        return None
    if sum(fragment.physical_rows for fragment in fragments) > MAX_ROWS:
        return None
    return best_order(lineage(), _bytes_per_row(fragments))


def has_disordered_lineage(table: TableVersion, fragment: Fragment) -> bool:
    """Return whether the lineage of a fragment becomes much shorter if its rows are reordered."""
    num_rows = fragment.physical_rows
    if num_rows > MAX_ROWS or inline_bytes(fragment) <= num_rows:
        return False
    if not _can_be_mixed(table.schema):
        return False
    return best_order(lineage_of(table, [fragment]), _bytes_per_row([fragment])) is not None


def _can_be_mixed(schema: Schema) -> bool:
    """Return whether rows from anywhere in the fragments can be buffered together.

    Rows with blobs may have any size, and narrow dictionary indices may be too small for the
    combined values of several dictionaries.
    """
    return not any(field.is_blob or has_narrow_indices(field) for field in schema.walk())


def read_lineage(units: Sequence[WorkUnit]) -> Lineage:
    """Return the lineage of the live rows of units, in their order."""
    columns = (ROW_ID, ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)
    batches = read_units([replace(unit, columns=(), system_columns=columns) for unit in units])
    return Lineage(*(column.to_numpy() for column in pa.Table.from_batches(batches).columns))


def lineage_of(table: TableVersion, fragments: Sequence[Fragment]) -> Lineage:
    """Return the lineage of the live rows of fragments, in their order."""
    deleted_by_fragment = table.deleted_offsets_of(fragments)
    ids = [
        table.row_ids(fragment).without(deleted)
        for fragment, deleted in zip(fragments, deleted_by_fragment, strict=True)
    ]
    created, updated = (
        RowVersionSequence.concat(
            table.row_versions(fragment, getattr(fragment, name)).without(deleted)
            for fragment, deleted in zip(fragments, deleted_by_fragment, strict=True)
        ).to_array()
        for name in ("created_at_versions", "last_updated_at_versions")
    )
    return Lineage(RowIdSequence.concat(ids).to_array(), created, updated)


def _has_long_lineage(fragment: Fragment) -> bool:
    return any(
        sequence is not None and (not isinstance(sequence, bytes) or len(sequence) > SHORT_LINEAGE)
        for sequence in fragment.sequences
    )


def _bytes_per_row(fragments: Sequence[Fragment]) -> int:
    num_rows = sum(fragment.physical_rows for fragment in fragments)
    return _EXPANSION * sum(map(stored_bytes, fragments)) // max(num_rows, 1)


def best_order(lineage: Lineage, bytes_per_row: int) -> Positions | None:
    """Return the order in which rows are written; None for their current order.

    Args:
        lineage: The lineage of the rows in their current order.
        bytes_per_row: The approximate size of a row in memory.

    Returns:
        (n,) for each row that is written, its position in the current order.
    """
    order: Positions = np.lexsort((lineage.row_ids, lineage.updated))
    if MIN_GAIN * lineage.take(order).num_parts > lineage.num_parts:
        return None
    if max_waiting(order) * bytes_per_row > MAX_BYTES_WAITING:
        return None
    return order


def max_waiting(order: Positions) -> int:
    """Return the maximum number of rows that are read but not yet written."""
    if not len(order):
        return 0
    first_remaining = np.minimum.accumulate(order[::-1])[::-1]
    return int((np.maximum.accumulate(order) - first_remaining).max()) + 1


def reordered(batches: Iterable[pa.RecordBatch], order: Positions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in another order; buffers only rows that must be written later.

    Args:
        batches: Rows, as many as the order has positions.
        order: See `best_order`.
    """
    last_needed = np.maximum.accumulate(order)
    first_remaining = np.minimum.accumulate(order[::-1])[::-1]
    waiting: list[pa.RecordBatch] = []
    first = num_read = num_written = 0
    for batch in batches:
        waiting.append(batch)
        num_read += batch.num_rows
        stop = int(np.searchsorted(last_needed, num_read))
        if stop == num_written:
            continue
        rows = pa.Table.from_batches(waiting)
        positions = pa.array(order[num_written:stop] - first)
        yield from rows.take(positions).combine_chunks().to_batches()
        num_written = stop
        num_passed = (int(first_remaining[stop]) if stop < len(order) else num_read) - first
        first += num_passed
        waiting = rows.slice(num_passed).to_batches()
