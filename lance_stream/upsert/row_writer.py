"""Writes the changed rows, complete, followed by the new rows.

If only some columns of a fragment's rows change, and it costs less, the rows stay in place and
these columns are written to an additional data file of the fragment (`in_place`).

Changed rows are written in the order of their row ids, if the table has row ids. Then the ids
ascend, and so do the created-at versions, because ids are assigned in the order of versions. The
manifest needs two bytes per row for such lineage. In the order of addresses it needs up to 14, and
more with every version: in an old table, the changed rows come from all fragments and form many
runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions, RowAddresses
from lance_stream.file.type_support import holds_only_nulls
from lance_stream.keys.bounds.key_bounds import FileBounds, bounds_of_written
from lance_stream.keys.key_words import hash_keys
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.row_updates.changed_rows import read_rows, row_ids_of
from lance_stream.row_updates.in_place import (
    columns_that_may_stay,
    fragments_that_stay,
    jobs_of_incoming,
)
from lance_stream.row_updates.partial_structs import with_stored_parts
from lance_stream.row_updates.staged_files import SortedRows, discard_files
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.ascending import distinct
from lance_stream.upsert.decisions import Decision
from lance_stream.upsert.incoming import IncomingRows
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.tombstone_files import Deletes
from lance_stream.upsert.tombstones import RememberedDeletes
from lance_stream.write.fragments import (
    WriteTarget,
    delete_files,
    write_fragments,
    write_target,
)
from lance_stream.write.lineage_files import limit_of


class Written(NamedTuple):
    """A worker's result for a batch, or for a part of one; picklable.

    Attributes:
        fragments: New fragments: first the changed rows that moved, then the new ones.
        decision: The decisions about the rows.
        changed: (n,) u64 addresses of the changed rows that moved, in the order in which they were
            written.
        inserted_keys: (m,) u64 hashes of the keys of the new rows and of the remembered deletes.
        deletes: The deletes to remember; None if deletes are not remembered.
        file_bounds: The key bounds of the new files.
        in_place: The fragments whose changed rows stay in place, each with only its new file.
    """

    fragments: tuple[Fragment, ...]
    decision: Decision
    changed: RowAddresses
    inserted_keys: npt.NDArray[np.uint64]
    deletes: Deletes | None
    file_bounds: tuple[FileBounds, ...]
    in_place: tuple[Fragment, ...]

    @property
    def files(self) -> tuple[Fragment, ...]:
        """All fragments with new data files."""
        return (*self.fragments, *self.in_place)


@dataclass(frozen=True)
class UpsertPart:
    """The outcome of a part of a batch, which has all rows of its keys; picklable.

    A batch that fits into one process is one part; a larger batch has one part per range of keys.

    Attributes:
        written: What was decided and written.
        num_rows: The number of rows of the batch in this part.
        num_late: The number of these rows that were late.
        changes: Changed rows that other parts will write, by address.
        partial: The columns of `changes` whose structs are incomplete, as in `IncomingRows`.
    """

    written: Written
    num_rows: int = 0
    num_late: int = 0
    changes: SortedRows = field(default_factory=SortedRows)
    partial: Mapping[str, pa.DataType] = field(default_factory=dict)


def discard_parts(store: Store, parts: Iterable[UpsertPart]) -> None:
    """Delete the files of parts, which no version references; best effort."""
    for part in parts:
        delete_files(store, part.written.files)
        discard_files(store, [part.changes])


class ChangedRows(NamedTuple):
    """Changed rows of the table, without the batch that they come from.

    Attributes:
        rules: The user's rules for the batch.
        rows: (n,) the rows, in the table's types, with only the columns that the batch has.
        partial: As in `IncomingRows`.
    """

    rules: UpsertRules
    rows: pa.RecordBatch
    partial: Mapping[str, pa.DataType]


def write_rows(
    table: TableVersion,
    incoming: IncomingRows | ChangedRows,
    decision: Decision,
    remembered: RememberedDeletes | None = None,
    workers: Workers = THREADS,
    *,
    may_stay: bool = True,
) -> Written:
    """Write the changed rows, or only their new columns, and the new rows to new data files.

    Args:
        table: The version that was planned on.
        incoming: The incoming rows, one per key.
        decision: The decisions about them.
        remembered: The deletes that the version remembers, if the upsert remembers its own.
        workers: Reads the table's data files, and writes columns of fragments.
        may_stay: Whether changed rows may stay in place. False if other workers may change rows of
            the same fragments in the same operation.

    Raises:
        InvalidInputError: New rows lack a column that must not be null; no file is left behind.
    """
    target = write_target(table)
    in_place, moving = _write_in_place(
        table, incoming, decision, target, workers, may_stay=may_stay
    )
    try:
        changed, rows = _changed_rows(table, incoming, moving, workers)
        fragments = _write(table, rows, _new_rows(incoming, decision), len(changed), target)
    except BaseException:
        delete_files(target.store, in_place)
        raise
    new = pa.array(decision.inserted_rows)
    keys = [[incoming.rows.column(name).take(new) for name in incoming.rules.on]]
    deletes = None
    if isinstance(incoming, IncomingRows) and remembered is not None and remembered.is_remembering:
        deleted = pa.array(decision.deleted_keys)
        deleted_keys = [key.take(deleted) for key in incoming.keys]
        sequence = incoming.compared_sequence
        assert sequence is not None  # deletes are remembered in the order of their rows
        deletes = remembered.new_deletes(deleted_keys, sequence.take(deleted))
        keys.append(deletes.keys)
    hashes = [hashes_of(table, incoming.rules.on, key) for key in keys]
    fields = table.schema.fields_named(incoming.rules.on)
    key_columns = incoming.rows.select(list(incoming.rules.on))
    if in_place:
        key_columns = key_columns.take(
            pa.array(np.concatenate([moving.changed_rows, decision.inserted_rows]))
        )
    return Written(
        tuple(fragments),
        decision,
        changed,
        distinct(np.concatenate(hashes)),
        deletes,
        tuple(bounds_of_written(fragments, fields, key_columns.columns)),
        tuple(in_place),
    )


def _write_in_place(
    table: TableVersion,
    incoming: IncomingRows | ChangedRows,
    decision: Decision,
    target: WriteTarget,
    workers: Workers,
    *,
    may_stay: bool,
) -> tuple[list[Fragment], Decision]:
    """Write the columns of rows that stay in place; return the decision about the other rows."""
    if not (may_stay and len(decision.changed)):
        return [], decision
    names = incoming.rows.schema.names
    changing = [name for name in names if name not in incoming.rules.on]
    fields = columns_that_may_stay(table, changing, names, incoming.rows.nbytes)
    stays = fragments_that_stay(table, decision.changed, fields)
    if not stays.any():
        return [], decision
    rows = incoming.rows.take(pa.array(decision.changed_rows[stays]))
    jobs = jobs_of_incoming(table, decision.changed[stays], rows, fields, target, incoming.partial)
    moving = decision._replace(
        changed=decision.changed[~stays], changed_rows=decision.changed_rows[~stays]
    )
    return workers.write_columns(jobs), moving


_BYTES_PER_ID: Final = 2
"""The approximate size of a changed row's lineage in the manifest, in bytes."""


def _write(
    table: TableVersion,
    changed: Iterable[pa.RecordBatch],
    new: Iterable[pa.RecordBatch],
    num_changed: int,
    target: WriteTarget,
) -> list[Fragment]:
    """Write the changed rows and the new rows.

    They share fragments if the manifest stores the lineage of the changed rows. A lineage file must
    hold the lineage of all rows of a fragment, but the commit assigns that of new rows. So if
    lineage goes to a file, changed and new rows get separate fragments.
    """
    limit = limit_of(table)
    if limit is None or _BYTES_PER_ID * num_changed <= limit:
        return write_fragments(chain(changed, new), target)
    fragments = write_fragments(changed, target)
    try:
        return fragments + write_fragments(new, target)
    except BaseException:
        delete_files(target.store, fragments)
        raise


def remember_keys(
    table: TableVersion,
    rules: UpsertRules,
    rows: pa.RecordBatch,
    written: Written,
    workers: Workers = THREADS,
) -> None:
    """Add the keys of written rows, and their sequences, to the index of keys.

    Args:
        table: The version that they were written for.
        rules: The user's rules for them.
        rows: The incoming rows, in the table's types.
        written: What was written of them.
        workers: The owners of the index.
    """
    decision = written.decision
    order = np.searchsorted(decision.changed, written.changed)
    written_rows = pa.array(np.concatenate([decision.changed_rows[order], decision.inserted_rows]))
    names = [name for name in rows.schema.names if name in (*rules.on, rules.sequence_by)]
    keys = rows.select(names).take(written_rows)
    workers.remember(table, rules.on, written.fragments, keys)


def hashes_of(
    table: TableVersion, on: Sequence[str], keys: Sequence[pa.Array]
) -> npt.NDArray[np.uint64]:
    """Return the hashes of keys, with the key columns in the order of the table."""
    by_name = dict(zip(on, keys, strict=True))
    return hash_keys([by_name[name] for name in table.arrow_schema.names if name in by_name])


def _changed_rows(
    table: TableVersion, incoming: IncomingRows | ChangedRows, decision: Decision, workers: Workers
) -> tuple[RowAddresses, Iterable[pa.RecordBatch]]:
    """Return the addresses of the changed rows, and the complete rows in the same order."""
    if not len(decision.changed):
        return decision.changed, ()
    order = _order_of_ids(table, decision.changed)
    incoming_names = set(incoming.rows.schema.names)
    missing = [name for name in table.arrow_schema.names if name not in incoming_names]
    copied_columns = [*missing, *incoming.partial]
    if not copied_columns:
        return decision.changed[order], _taken(incoming.rows, decision.changed_rows[order])
    reading = read_rows(table, decision.changed, copied_columns, workers.read)
    first = list(_up_to(_MAX_SORTED_BYTES, reading))
    joined = pa.Table.from_batches(first).combine_chunks().to_batches()
    if not _can_be_mixed(table, copied_columns) or joined[0].num_rows < len(order):
        parts = chain(first, reading)  # in the order of addresses
        return decision.changed, _completed(incoming, decision.changed_rows, parts, missing)
    stored = joined[0].take(pa.array(order))
    changed = decision.changed_rows[order]
    return decision.changed[order], _completed(incoming, changed, (stored,), missing)


def _can_be_mixed(table: TableVersion, names: Sequence[str]) -> bool:
    """Return whether rows of different files can be mixed in one file.

    Files of version 2.0 cannot hold null structs: such rows go to files that omit the column.
    """
    fields = [field for field in table.schema.fields if field.name in names]
    return all(holds_only_nulls(field, table.file_version) for field in fields)


_MAX_SORTED_BYTES: Final = 64 << 20
"""Stored values of the changed rows are sorted in memory up to this size."""


def _order_of_ids(table: TableVersion, addresses: RowAddresses) -> npt.NDArray[np.intp]:
    """Return the order that sorts rows by row id, or by address if the table has no row ids."""
    if not table.has_stable_row_ids:
        return np.arange(len(addresses))
    return np.argsort(row_ids_of(table, addresses), kind="stable")


def _up_to(num_bytes: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches until at least `num_bytes` bytes have been yielded."""
    while num_bytes > 0 and (batch := next(batches, None)) is not None:
        num_bytes -= batch.nbytes
        yield batch


def _completed(
    incoming: IncomingRows | ChangedRows,
    rows: Positions,
    stored_batches: Iterable[pa.RecordBatch],
    missing: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield incoming rows, completed with stored values.

    Args:
        incoming: The incoming rows.
        rows: The rows to yield, in order.
        stored_batches: The stored values of these rows: the missing columns, and the structs that
            arrived incomplete.
        missing: The columns that the incoming rows lack.
    """
    position = 0
    for stored in stored_batches:
        incoming_rows = incoming.rows.take(pa.array(rows[position : position + stored.num_rows]))
        position += stored.num_rows
        incoming_rows = with_stored_parts(incoming_rows, stored, incoming.partial)
        yield pa.RecordBatch.from_arrays(
            [*incoming_rows.columns, *stored.select(missing).columns],
            [*incoming_rows.schema.names, *missing],
        )


def _new_rows(incoming: IncomingRows | ChangedRows, decision: Decision) -> Iterator[pa.RecordBatch]:
    if len(decision.inserted_rows):
        yield from _taken(incoming.rows, decision.inserted_rows)


_TAKEN_BYTES: Final = 16 << 20
"""Rows are copied to be written in portions of about this size."""


def _taken(rows: pa.RecordBatch, positions: Positions) -> Iterator[pa.RecordBatch]:
    """Yield the rows at some positions, in order; a portion is copied when it is requested."""
    num_portions = rows.nbytes * len(positions) // max(1, rows.num_rows) // _TAKEN_BYTES
    for portion in np.array_split(positions, max(1, num_portions)):
        yield rows.take(pa.array(portion))
