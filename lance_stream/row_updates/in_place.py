"""Updates rows in place: rewrites only the columns that have new values.

    fragment 4     a.lance: id, price, photo of ten rows; a batch has new prices for rows 2 and 7
    before         a.lance  fields 0 1 2
    after          a.lance  fields 0 -2 2      its prices are no longer used
                   b.lance  fields 1           ten prices, eight of them copied

Rows keep their addresses, row ids and created-at versions. The commit sets the last-updated-at
versions of the changed rows, whose offsets the operation lists. Deleted rows are copied, too. Other
columns are not read, however wide they are. An upsert never rewrites key columns, because it
matches rows by equal keys: their files, and all bounds and indices of these files, stay valid.

For every fragment, `in_place_costs` decides whether this is cheaper than writing the complete rows
elsewhere. Some fragments do not support it (`_may_stay`).

Source:  table.proto; transaction.proto, Update; observed in the reference.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_stream.arrays import RowAddresses
from lance_stream.file.type_support import holds_only_nulls
from lance_stream.read.fragment import read_unit
from lance_stream.read.prefetch import num_readers
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, unit_of
from lance_stream.row_updates.changed_rows import by_fragment
from lance_stream.row_updates.in_place_costs import FragmentCosts, measured
from lance_stream.row_updates.partial_structs import with_stored_parts
from lance_stream.schema.arrow_schemas import has_narrow_indices
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.fields import TOMBSTONED_ID, Field, Schema
from lance_stream.schema.types.logical_types import STRUCT
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.index_coverage import keep_old_values
from lance_stream.table.fragments.fragment import DataFile, Fragment, LineageColumn, decode_fragment
from lance_stream.threads import map_ahead
from lance_stream.write.fragments import WriteTarget, delete_files, write_fragments
from lance_stream.write.lineage_files import limit_of

_BYTES_PER_RUN = 12
"""The approximate size of a run of row versions in bytes."""

_MAX_BYTES = 1 << 30
"""The maximum size of new values for rows to stay in place: one array holds old and new values."""


NewValues: TypeAlias = Callable[[pa.RecordBatch, slice], pa.RecordBatch]
"""Returns the new values of some changed rows, given the stored rows and their range among the
changed rows."""


@dataclass(frozen=True)
class ColumnsJob:
    """The columns of one fragment to rewrite.

    Attributes:
        unit: Reads these columns and those that the new values depend on, including deleted rows.
        num_rows: The number of rows of the fragment, including deleted ones.
        offsets: (n,) u32 offsets of the rows with new values, ascending.
        new: Returns the new values; the job is picklable if this is.
        target: Where the columns are written, in a single file.
        needs_stored: Whether the new values depend on stored values.
    """

    unit: WorkUnit
    num_rows: int
    offsets: npt.NDArray[np.uint32]
    new: NewValues
    target: WriteTarget
    needs_stored: bool


@dataclass(frozen=True)
class IncomingValues:
    """New values from a batch.

    Attributes:
        rows: (n,) the values of all changed rows of a fragment.
        partial: The columns whose structs are incomplete; missing fields keep their values.
    """

    rows: pa.RecordBatch
    partial: Mapping[str, pa.DataType]

    def __call__(self, stored: pa.RecordBatch, which: slice) -> pa.RecordBatch:
        """Return the new values of some of the rows; see `NewValues`."""
        rows = self.rows.slice(which.start, which.stop - which.start)
        return with_stored_parts(rows, stored, self.partial) if self.partial else rows


def columns_that_may_stay(
    table: TableVersion, names: Iterable[str], unchanged: Iterable[str], num_bytes: int
) -> tuple[Field, ...]:
    """Return the columns with new values; an empty tuple if they cannot be updated in place.

    Args:
        table: The version that is changed.
        names: The columns with new values.
        unchanged: The columns that need not be read to write the changed rows elsewhere.
        num_bytes: The size of the new values.
    """
    name_set = set(names)
    fields = tuple(field for field in table.schema.fields if field.name in name_set)
    if table.file_version.data_file_numbers < (2, 0):
        return ()  # files of version 0.1 cannot mark columns as unused
    if set(unchanged).issuperset(table.schema.names):
        return ()
    if any(part.is_blob for field in fields for part in field.walk()):
        return ()  # the blobs of all rows would be copied
    if not all(holds_only_nulls(field, table.file_version) for field in fields):
        return ()  # one file cannot hold both null and other structs
    if any(has_narrow_indices(part) for field in fields for part in field.walk()):
        return ()  # old and new values together may be too many for the type of the indices
    if keep_old_values(table.manifest, ids_of(fields)):
        return ()
    return fields if num_bytes <= _MAX_BYTES else ()


def fragments_that_stay(
    table: TableVersion,
    changed: RowAddresses,
    fields: Sequence[Field],
    *,
    at_any_cost: bool = False,
) -> npt.NDArray[np.bool_]:
    """Return (n,) whether each changed row stays in place, because that is cheaper.

    Args:
        table: The version that is changed.
        changed: (n,) u64 addresses of the changed rows, ascending.
        fields: The columns with new values, from `columns_that_may_stay`.
        at_any_cost: Whether rows stay in place wherever possible, so that no other column is read.
    """
    stays = np.zeros(len(changed), np.bool_)
    if not fields:
        return stays
    limit = limit_of(table)
    max_lineage_bytes = sys.maxsize if limit is None else limit
    positions = table.manifest.fragments.index_by_id
    candidates: list[tuple[slice, Fragment, FragmentCosts]] = []
    position = 0
    for fragment_id, offsets in by_fragment(changed):
        part = slice(position, position + len(offsets))
        position = part.stop
        fragment = table.manifest.fragments[positions[fragment_id]]
        if not _may_stay(table, fragment):
            continue
        if at_any_cost:
            stays[part] = True
            continue
        costs = FragmentCosts.of(table, fragment, fields, offsets)
        if (
            _lineage_bytes(fragment, costs.num_runs) <= max_lineage_bytes
            and costs.is_cheaper_in_place
        ):
            candidates.append(
                (part, fragment, costs)
            )  # the sizes of columns may still tell against it

    def is_cheaper(candidate: tuple[slice, Fragment, FragmentCosts]) -> bool:
        return measured(table, candidate[1], fields, candidate[2]).is_cheaper_in_place

    num_threads = min(table.store.num_readers, len(candidates))
    answers = (
        map(is_cheaper, candidates)
        if num_threads < 2
        else map_ahead(is_cheaper, candidates, num_threads)
    )
    for (part, _, _), answer in zip(candidates, answers, strict=True):
        stays[part] = answer
    return stays


def _may_stay(table: TableVersion, fragment: Fragment) -> bool:
    """Return whether the columns and row versions of a fragment can be updated in place."""
    numbers = table.file_version.data_file_numbers
    if any(file.file_version != numbers for file in fragment.files):
        return False
    stamps = fragment.last_updated_at_versions
    # The commit must be able to set last-updated-at versions: not if there are none, or if they
    # are in a lineage column, which it does not read.
    return not table.has_stable_row_ids or not (stamps is None or isinstance(stamps, LineageColumn))


def _lineage_bytes(fragment: Fragment, num_runs: int) -> int:
    """Return an upper bound for the size of the last-updated-at versions after the change."""
    stamps = fragment.last_updated_at_versions
    num_bytes = len(stamps) if isinstance(stamps, bytes) else 0
    return num_bytes + 2 * _BYTES_PER_RUN * num_runs


def columns_job(
    table: TableVersion,
    fragment_id: int,
    offsets: npt.NDArray[np.uint32],
    fields: Sequence[Field],
    new: NewValues,
    target: WriteTarget,
    sources: Sequence[str] = (),
    *,
    needs_stored: bool = True,
) -> ColumnsJob:
    """Return the job that updates rows of a fragment in place.

    Args:
        table: The version that is changed.
        fragment_id: The fragment.
        offsets: (n,) u32 offsets of the rows, ascending.
        fields: The columns with new values.
        new: Returns the new values.
        target: Where new data files go.
        sources: The columns that the new values depend on.
        needs_stored: Whether the new values depend on stored values.
    """
    index = table.manifest.fragments.index_by_id[fragment_id]
    fragment = table.manifest.fragments[index]
    num_rows = table.physical_rows(fragment)
    job_fields = fields if fragment.deletion_file is None else map(_with_nulls, fields)
    names = dict.fromkeys(quote_path((name,)) for name in (*(e.name for e in fields), *sources))
    return ColumnsJob(
        unit_of(table, index, columns=tuple(names), include_deleted=True),
        num_rows,
        offsets,
        new,
        replace(
            target,
            schema=Schema(tuple(job_fields)),
            max_rows_per_file=num_rows,
            max_bytes_per_file=sys.maxsize,
        ),
        needs_stored,
    )


def _with_nulls(field: Field) -> Field:
    """Return a nullable copy of a column and its struct fields: deleted rows may have nulls."""
    children = field.children
    if field.logical_type == STRUCT:
        children = tuple(map(_with_nulls, children))
    return replace(field, nullable=True, children=children)


def jobs_of_incoming(
    table: TableVersion,
    changed: RowAddresses,
    rows: pa.RecordBatch,
    fields: Sequence[Field],
    target: WriteTarget,
    partial: Mapping[str, pa.DataType],
) -> list[ColumnsJob]:
    """Return the jobs that update rows with incoming values, one per fragment.

    Args:
        table: The version that is changed.
        changed: (n,) u64 addresses of the rows, ascending.
        rows: (n,) their incoming values; only the columns in `fields` are used.
        fields: The columns with new values.
        target: Where new data files go.
        partial: The columns whose structs are incomplete.
    """
    names = [field.name for field in fields]
    rows = rows.select(names)
    partial = {name: kind for name, kind in partial.items() if name in names}
    jobs: list[ColumnsJob] = []
    position = 0
    for fragment_id, offsets in by_fragment(changed):
        new = IncomingValues(rows.slice(position, len(offsets)), partial)
        position += len(offsets)
        jobs.append(
            columns_job(
                table, fragment_id, offsets, fields, new, target, needs_stored=bool(partial)
            )
        )
    return jobs


def write_columns(
    job: ColumnsJob,
    read: Callable[[WorkUnit], Iterator[pa.RecordBatch]] = read_unit,
) -> Fragment:
    """Write the columns of one fragment; return the fragment with only the new file.

    Args:
        job: What to write.
        read: Yields the rows of a unit, in order.

    Raises:
        BadDataError: The stored values cannot be read; no file is left behind.
    """
    (written,) = write_fragments(_values(job, read), job.target)
    return replace(written, id=decode_fragment(job.unit.fragment).id)


def write_all_columns(jobs: Sequence[ColumnsJob]) -> list[Fragment]:
    """Write the columns of fragments in threads of this process; see `write_columns`."""
    if len(jobs) < 2:
        return [write_columns(job, _read_ahead) for job in jobs]
    written: list[Fragment] = []
    units = [job.unit for job in jobs]
    try:
        # The threads append their files, so that after an error all of them can be deleted.
        list(map_ahead(lambda job: written.append(write_columns(job)), jobs, num_readers(units)))
    except BaseException:
        delete_files(jobs[0].target.store, written)
        raise
    return sorted(written, key=lambda fragment: fragment.id)


def _read_ahead(unit: WorkUnit) -> Iterator[pa.RecordBatch]:
    return read_units([unit])


def _values(
    job: ColumnsJob, read: Callable[[WorkUnit], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of all rows: new values for changed rows, stored values for the others."""
    names = job.target.schema.names
    if len(job.offsets) == job.num_rows and not job.needs_stored:
        none = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
        yield job.new(none, slice(0, job.num_rows)).select(names)
        return
    first = position = 0
    for stored in read(job.unit):
        stop = int(np.searchsorted(job.offsets, first + stored.num_rows))
        at = job.offsets[position:stop].astype(np.int64) - first
        first += stored.num_rows
        if len(at):
            new = job.new(
                stored.take(pa.array(at)) if job.needs_stored else stored, slice(position, stop)
            )
            yield _with_new_values(stored.select(names), at, new)
        else:
            yield stored.select(names)
        position = stop


def _with_new_values(
    stored: pa.RecordBatch, at: npt.NDArray[np.int64], new: pa.RecordBatch
) -> pa.RecordBatch:
    """Return stored rows with new values at some positions.

    Args:
        stored: (n,) rows.
        at: (m,) positions, ascending.
        new: (m,) the new values of the same columns.
    """
    order = np.arange(stored.num_rows)
    order[at] = np.arange(stored.num_rows, stored.num_rows + len(at))
    chosen = pa.array(order)
    columns = [
        pa.concat_arrays(
            [old, new_values if new_values.type == old.type else new_values.cast(old.type)]
        ).take(chosen)
        for old, new_values in zip(stored.columns, new.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, stored.schema.names)


def with_new_columns(
    table: TableVersion, updated: Sequence[Fragment], written: Sequence[Fragment]
) -> tuple[Fragment, ...]:
    """Return the changed fragments of an operation: with new deletion files, new columns, or both.

    Args:
        table: The version that is changed.
        updated: The fragments with new deletion files, from `changed_rows.without_rows`.
        written: The fragments with new columns, from `write_columns`; may overlap with `updated`.
    """
    positions = table.manifest.fragments.index_by_id
    changed = {fragment.id: fragment for fragment in updated}
    for fragment in written:
        now = changed.get(fragment.id) or table.manifest.fragments[positions[fragment.id]]
        (file,) = fragment.files
        changed[fragment.id] = replace(
            now,
            files=(*(_without(old, file) for old in now.files), file),
            physical_rows=fragment.physical_rows,
            row_ids=None,
            created_at_versions=None,
            last_updated_at_versions=None,
        )
    return tuple(changed.values())


def _without(old: DataFile, new: DataFile) -> DataFile:
    new_ids = set(new.field_ids)
    if new_ids.isdisjoint(old.field_ids):
        return old
    field_ids = tuple(
        TOMBSTONED_ID if field_id in new_ids else field_id for field_id in old.field_ids
    )
    return replace(old, field_ids=field_ids)


def changed_offsets(changed: RowAddresses, written: Sequence[Fragment]) -> dict[int, bytes]:
    """Return which rows of fragments with new columns changed, as an operation lists them.

    Args:
        changed: u64 addresses of changed rows; those in other fragments are left out.
        written: The fragments with new columns.
    """
    ids = {fragment.id for fragment in written}
    return {
        fragment_id: BitMap(offsets).serialize()
        for fragment_id, offsets in by_fragment(changed)
        if fragment_id in ids
    }


def ids_of(fields: Iterable[Field]) -> tuple[int, ...]:
    """Return the ids of columns and all their parts, ascending."""
    return tuple(sorted(part.id for field in fields for part in field.walk()))
