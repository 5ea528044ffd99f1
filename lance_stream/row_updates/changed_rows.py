"""Updated and deleted rows: reads them by address, deletes them, and preserves their lineage.

Shared by upserts, updates and deletes. Rows are identified by ascending addresses, so that the
rows of one fragment are adjacent.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import RowAddresses, RowIds, RowVersions
from lance_stream.commit.rebasing import write_deletion_file
from lance_stream.environment import Environment
from lance_stream.errors import NotFoundError
from lance_stream.read.scan import check_filter, units_of
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, unit_of
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import NUM_READERS
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.ascending import are_among, union
from lance_stream.table.lineage.row_addresses import unpack_addresses
from lance_stream.table.lineage.row_ids import encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions


def chosen_rows(table: TableVersion, predicate: str) -> RowAddresses:
    """Return the addresses of the rows for which a condition is true, ascending.

    Raises:
        NotFoundError: The condition names a column that does not exist.
        InvalidInputError: The condition is invalid.
    """
    predicate = check_filter(table, predicate)
    units = units_of(table, predicate, columns=(), system_columns=(ROW_ADDRESS,))
    parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in read_units(units)]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))


def read_rows(
    table: TableVersion,
    addresses: RowAddresses,
    columns: Sequence[str],
    read: Callable[[Sequence[WorkUnit]], Iterator[pa.RecordBatch]] = read_units,
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of rows, in the order of their addresses, which ascend.

    Args:
        table: The version that the addresses belong to.
        addresses: (n,) u64, ascending.
        columns: The columns to read.
        read: Yields the rows of work units, in order.
    """
    positions = table.manifest.fragments.index_by_id
    units = [
        unit_of(table, positions[fragment_id], columns=tuple(columns), offsets=offsets)
        for fragment_id, offsets in by_fragment(addresses)
    ]
    # The order of fragments may differ from that of their ids: read one at a time, by address.
    return read(units)


class MovedLineage(NamedTuple):
    """The lineage that rows keep when they move to other fragments.

    Attributes:
        row_ids: (n,) their stable row ids.
        created_at: (n,) the versions that created them.
    """

    row_ids: RowIds
    created_at: RowVersions

    def at(self, chosen: npt.NDArray[np.int64] | slice) -> "MovedLineage":
        """Return the lineage of some of the rows."""
        return MovedLineage(self.row_ids[chosen], self.created_at[chosen])


def row_ids_of(table: TableVersion, addresses: RowAddresses) -> RowIds:
    """Return the stable row ids of rows, in the order of their addresses, which ascend."""
    positions = table.manifest.fragments.index_by_id
    parts = [
        table.row_ids_at(table.manifest.fragments[positions[fragment_id]], offsets)
        for fragment_id, offsets in by_fragment(addresses)
    ]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def moved_lineage(table: TableVersion, addresses: RowAddresses) -> MovedLineage:
    """Return the lineage of rows, in the order of their addresses, which ascend."""
    positions = table.manifest.fragments.index_by_id
    created = [np.empty(0, np.uint64)]
    for fragment_id, offsets in by_fragment(addresses):
        fragment = table.manifest.fragments[positions[fragment_id]]
        created.append(table.row_versions_at(fragment, fragment.created_at_versions, offsets))
    return MovedLineage(row_ids_of(table, addresses), np.concatenate(created))


def with_moved_lineage(fragments: Iterable[Fragment], lineage: MovedLineage) -> list[Fragment]:
    """Set the lineage of the rows that existed before; they precede the new rows."""
    with_lineage: list[Fragment] = []
    first = 0
    for fragment in fragments:
        rows = lineage.at(slice(first, first + fragment.physical_rows))
        first += len(rows.row_ids)
        if len(rows.row_ids):
            created = RowVersionSequence.from_array(rows.created_at)
            fragment = replace(
                fragment,
                row_ids=encode_row_ids(rows.row_ids),
                created_at_versions=encode_row_versions(created),
            )
        with_lineage.append(fragment)
    return with_lineage


def without_rows(
    table: TableVersion, addresses: RowAddresses, environment: Environment
) -> tuple[tuple[Fragment, ...], tuple[int, ...]]:
    """Write deletion files; return the fragments with new ones, and the ids of emptied fragments.

    The fragments are for a transaction, which only takes their deletion files. They omit row ids
    and row versions: in an old table, these would make every transaction, and its copy in the
    manifest, as large as the lineage of the whole table.
    """
    positions = table.manifest.fragments.index_by_id
    dying: list[tuple[Fragment, npt.NDArray[np.uint32]]] = []
    removed: list[int] = []
    chosen = list(by_fragment(addresses))
    fragments = [table.manifest.fragments[positions[fragment_id]] for fragment_id, _ in chosen]
    before = table.deleted_offsets_of(fragments)
    for fragment, died, (fragment_id, offsets) in zip(fragments, before, chosen, strict=True):
        num_rows = table.physical_rows(fragment)
        deleted = union(died, offsets)
        if len(deleted) == num_rows:
            removed.append(fragment_id)
        else:
            dying.append((replace(fragment, physical_rows=num_rows), deleted))

    # Read everything before writing anything.
    def write(job: tuple[Fragment, npt.NDArray[np.uint32], int]) -> Fragment:
        fragment, deleted, file_id = job
        file = write_deletion_file(table.store, fragment.id, deleted, table.version, file_id)
        table.files.cache_deleted_offsets(fragment, file, deleted)
        return replace(
            fragment,
            deletion_file=file,
            row_ids=None,
            created_at_versions=None,
            last_updated_at_versions=None,
        )

    jobs = [(fragment, deleted, environment.random_id()) for fragment, deleted in dying]
    if len(jobs) < 2 or table.store.num_readers <= NUM_READERS:
        return tuple(map(write, jobs)), tuple(removed)
    with ThreadPoolExecutor(min(table.store.num_readers, len(jobs))) as threads:
        return tuple(threads.map(write, jobs)), tuple(removed)


def deleted_rows(
    table: TableVersion, before: Fragment, now: Fragment
) -> npt.NDArray[np.uint32] | None:
    """Return the offsets of a fragment's deleted rows; None if anything else has changed.

    Args:
        table: The version that has the fragment as it is now.
        before: The fragment as it was.
        now: The fragment as it is.
    """
    if replace(before, deletion_file=None) != replace(now, deletion_file=None):
        return None
    try:
        deleted_before, deleted = table.deleted_offsets(before), table.deleted_offsets(now)
    except NotFoundError:
        return None
    if not bool(are_among(deleted_before, deleted).all()):
        return None  # a restore: deleted rows are live again
    return deleted


def by_fragment(addresses: RowAddresses) -> Iterator[tuple[int, npt.NDArray[np.uint32]]]:
    """Yield fragment ids, ascending, with the row offsets of the addresses in each."""
    fragment_ids, offsets = unpack_addresses(addresses)
    distinct, firsts = np.unique(fragment_ids, return_index=True)
    stops = [*firsts[1:].tolist(), len(offsets)]
    # Without rows there are no fragments, but one stop: hence not strict.
    for fragment_id, start, stop in zip(distinct.tolist(), firsts.tolist(), stops, strict=False):
        yield fragment_id, offsets[start:stop].astype(np.uint32)
