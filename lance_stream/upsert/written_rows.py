"""Writing what was decided: the changed rows, whole and in table order, then the new ones."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.read.changed_rows import read_rows
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.ascending import distinct
from lance_stream.table.fragments import Fragment
from lance_stream.upsert.decisions import Decision
from lance_stream.upsert.incoming import Incoming
from lance_stream.upsert.key_bounds import FileBounds, bounds_of_written, key_fields
from lance_stream.upsert.keys import hash_keys
from lance_stream.upsert.matching import THREADS, Workers
from lance_stream.upsert.partial_structs import with_stored_parts
from lance_stream.upsert.tombstone_files import Deletes
from lance_stream.upsert.tombstones import RememberedDeletes
from lance_stream.write.fragments import WriteTarget, write_fragments


class Written(NamedTuple):
    """A worker's result for (a part of) a batch; picklable.

    Attributes:
        fragments: New fragments: first the changed rows, in the order of their addresses, then
            the new ones.
        decision: The decisions about the rows.
        inserted_keys: (m,) u64 hashes of the keys of the new rows, and of the deletes.
        num_unchanged: How many rows would not have changed and were left untouched.
        deletes: The deletes to remember; None if none are.
        file_bounds: The key bounds of the new files.
    """

    fragments: tuple[Fragment, ...]
    decision: Decision
    inserted_keys: npt.NDArray[np.uint64]
    num_unchanged: int = 0
    deletes: Deletes | None = None
    file_bounds: tuple[FileBounds, ...] = ()


def write_rows(
    table: TableVersion,
    incoming: Incoming,
    decision: Decision,
    target: WriteTarget,
    num_unchanged: int = 0,
    remembered: RememberedDeletes | None = None,
    workers: Workers = THREADS,
) -> Written:
    """Write the changed rows, whole, and the new ones into new data files.

    Args:
        table: The version that was planned on.
        incoming: The rows that count.
        decision: The decisions about them.
        target: Where new data files go.
        num_unchanged: How many rows were left untouched.
        remembered: The deletes that the version remembers, if those of the batch are remembered,
            too.
        workers: What reads the table's data files.

    Raises:
        InvalidInputError: New rows lack a column that must not be null; no file is left behind.
    """
    fragments = write_fragments(_rows_to_write(table, incoming, decision, workers), target)
    new = pa.array(decision.inserted_rows)
    keys = [[incoming.rows.column(name).take(new) for name in incoming.rules.on]]
    deletes = None
    if remembered is not None and remembered.is_remembering:
        deletes = remembered.deletes_of(incoming, decision.deleted_keys)
        keys.append(deletes.keys)
    hashes = [_hashes(table, incoming.rules.on, each) for each in keys]
    fields = key_fields(table.schema, incoming.rules.on)
    own = incoming.rows.select(list(incoming.rules.on)).columns
    return Written(
        tuple(fragments),
        decision,
        distinct(np.concatenate(hashes)),
        num_unchanged,
        deletes,
        tuple(bounds_of_written(fragments, fields, own)),
    )


def _hashes(
    table: TableVersion, on: Sequence[str], keys: Sequence[pa.Array]
) -> npt.NDArray[np.uint64]:
    """Return the hashes of keys; their columns are in the order of the table."""
    by_name = dict(zip(on, keys, strict=True))
    return hash_keys([by_name[name] for name in table.arrow_schema.names if name in by_name])


def _rows_to_write(
    table: TableVersion, incoming: Incoming, decision: Decision, workers: Workers
) -> Iterator[pa.RecordBatch]:
    """Yield the changed rows, whole, and then the new ones."""
    own_names = set(incoming.rows.schema.names)
    missing = [each for each in table.arrow_schema.names if each not in own_names]
    kept_columns = [*missing, *incoming.partial]
    done = 0
    if not kept_columns:
        yield incoming.rows.take(pa.array(decision.changed_rows))
    elif len(decision.changed):
        for kept in read_rows(table, decision.changed, kept_columns, workers.read):
            rows = decision.changed_rows[done : done + kept.num_rows]
            done += kept.num_rows
            own = incoming.rows.take(pa.array(rows))
            own = with_stored_parts(own, kept, incoming.partial)
            yield pa.RecordBatch.from_arrays(
                [*own.columns, *kept.select(missing).columns], [*own.schema.names, *missing]
            )
    if len(decision.inserted_rows):
        yield incoming.rows.take(pa.array(decision.inserted_rows))
