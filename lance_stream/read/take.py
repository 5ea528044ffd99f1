"""Random access: rows by position in a version, or by their row id.

In each fragment that has one of the rows, the requested columns are read at just those offsets. The
row id index is built when rows are first requested by id; access by position does not need it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.read.row_lookup import find_rows
from lance_stream.read.scan import names_of
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import BYTES, check_blob_handling, output_schema, projected, unit_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import NUM_READERS
from lance_stream.table.lineage.row_addresses import pack_addresses, unpack_addresses
from lance_stream.table.lineage.row_ids import MAX_MATERIALIZED

Numbers: TypeAlias = Any
"""A list of integers, a numpy array or an Arrow array of them."""

FEW_IDS: Final = 64
"""Up to this many row ids are looked up only in the fragments that have them, if reads are slow."""

FEW_FRAGMENTS: Final = 1000
MOST_INDEXED_ROWS: Final = 1 << 24
"""In larger tables rows are looked up in the fragments that may have them, unless so many have ids
that are not one range per fragment, and would be read at each call."""

_MAX_EXAMPLES = 5


def take(
    table: TableVersion,
    *,
    row_offsets: Numbers | None = None,
    row_ids: Numbers | None = None,
    columns: Sequence[str] | None = None,
    blob_handling: str = BYTES,
) -> pa.Table:
    """Return some rows, in the requested order; see `Dataset.take`."""
    check_blob_handling(blob_handling)
    names = names_of(table, columns)
    arrow = output_schema(projected(table.schema, names, blob_handling), ())
    if not names:
        raise InvalidInputError("take needs at least one column")
    addresses = addresses_of(table, row_offsets=row_offsets, row_ids=row_ids)
    inverse = None
    if not _is_ascending(addresses):
        addresses, inverse = np.unique(addresses, return_inverse=True)
    fragment_ids, offsets = unpack_addresses(addresses)
    index_by_id = table.manifest.fragments.index_by_id
    units = []
    heads = (np.flatnonzero(fragment_ids[1:] != fragment_ids[:-1]) + 1).tolist()
    bounds = [0, *heads, len(addresses)] if len(addresses) else []
    for low, high in pairwise(bounds):
        fragment_id = int(fragment_ids[low])
        units.append(
            unit_of(
                table,
                index_by_id[fragment_id],
                columns=names,
                offsets=offsets[low:high].astype(np.uint32),
                blob_handling=blob_handling,
            )
        )
    rows = pa.Table.from_batches(read_units(units), arrow)
    if inverse is not None:
        rows = rows.combine_chunks().take(pa.array(inverse))
    return rows


def addresses_of(
    table: TableVersion, *, row_offsets: Numbers | None, row_ids: Numbers | None
) -> npt.NDArray[np.uint64]:
    """Return the addresses of rows given by position or by row id.

    Raises:
        NotFoundError: A row does not exist.
        InvalidInputError: Neither or both are given, or they are not whole numbers.
    """
    if (row_offsets is None) == (row_ids is None):
        raise InvalidInputError("take needs either row_offsets or row_ids")
    if row_offsets is not None:
        return _addresses_at(table, _numbers(row_offsets, "row_offsets"))
    return _addresses_of_ids(table, _numbers(row_ids, "row_ids"))


def _is_ascending(addresses: npt.NDArray[np.uint64]) -> bool:
    return bool((addresses[1:] > addresses[:-1]).all())


def _numbers(numbers: Numbers, name: str) -> npt.NDArray[np.uint64]:
    if isinstance(numbers, pa.Array | pa.ChunkedArray):
        if numbers.null_count:
            raise InvalidInputError(f"{name} must not contain nulls")
        numbers = (
            numbers.to_numpy(zero_copy_only=False)
            if isinstance(numbers, pa.Array)
            else (numbers.to_numpy())
        )
    array = np.asarray(numbers)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InvalidInputError(f"{name} must be a list of whole numbers")
    if array.dtype.kind == "i" and len(array) and int(array.min()) < 0:
        raise InvalidInputError(f"{name} must not be negative, but {int(array.min())} is")
    return array.astype(np.uint64)


def _addresses_at(table: TableVersion, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the addresses of rows by their position among the live rows, in scan order."""
    fragments, counts = table.manifest.fragments, table.row_counts.live
    stops = counts.cumsum()
    num_rows = int(stops[-1]) if len(stops) else 0
    if len(positions) and int(positions.max()) >= num_rows:
        raise NotFoundError(
            f"there is no row {int(positions.max())}: version {table.version} has {num_rows} rows"
        )
    alive = positions.astype(np.int64)
    which = stops.searchsorted(alive, side="right")
    alive -= (stops - counts)[which]
    numbers = fragments.numbers
    for index in np.flatnonzero(numbers.has_deletion_file & _are_among(which, len(stops))).tolist():
        deleted = table.deleted_offsets(fragments[index]).astype(np.int64)
        if len(deleted):
            chosen = np.flatnonzero(which == index)
            # how many live rows precede each deleted one; ascending, like the deleted rows
            before = deleted - np.arange(len(deleted))
            alive[chosen] += np.searchsorted(before, alive[chosen], side="right")
    return pack_addresses(numbers.ids[which], alive)


def _are_among(positions: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.bool_]:
    """Return which of the numbers below `count` are among some of them."""
    are_among = np.zeros(count, np.bool_)
    are_among[positions] = True
    return are_among


def _addresses_of_ids(
    table: TableVersion, row_ids: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    if not table.has_stable_row_ids:
        addresses, is_there = row_ids, _are_live(table, row_ids)
    elif _is_worth_an_index(table, len(row_ids)):
        addresses, is_there = table.row_id_index.find(row_ids)
    else:
        addresses, is_there = find_rows(table, row_ids)
    if not bool(is_there.all()):
        missing = row_ids[~is_there]
        examples = ", ".join(map(str, missing[:_MAX_EXAMPLES].tolist()))
        raise NotFoundError(
            f"{len(missing)} of the row ids are not in version {table.version}, for example "
            f"{examples}"
        )
    return addresses


def _is_worth_an_index(table: TableVersion, num_ids: int) -> bool:
    """Return whether ids are looked up in an index of all rows, which serves later calls, too.

    It holds every row in memory, and building it reads all deletion files. So it is not built for
    a large table whose manifest has the ids of most rows as ranges; nor for a few ids if reads
    cost requests.
    """
    if "row_id_index" in table.__dict__:
        return True
    fragments, rows = table.manifest.fragments, table.row_counts.physical
    is_far = table.store.num_readers > NUM_READERS
    if is_far and num_ids <= FEW_IDS and fragments.has_deletion_files:
        return False
    num_rows = int(rows.sum())
    if len(fragments) <= FEW_FRAGMENTS and num_rows <= MOST_INDEXED_ROWS:
        return True
    num_listed = int(rows[~fragments.lineage.first_row_ids.is_constant].sum())
    return num_listed > MOST_INDEXED_ROWS and num_rows <= MAX_MATERIALIZED


def _are_live(table: TableVersion, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which addresses belong to live rows; without stable ids they are the row ids."""
    fragment_ids, offsets = unpack_addresses(addresses)
    is_live = np.zeros(len(addresses), np.bool_)
    for fragment_id in np.unique(fragment_ids).tolist():
        fragment = table.manifest.fragments.by_id(fragment_id)
        if fragment is not None:
            chosen = np.flatnonzero(fragment_ids == fragment_id)
            is_live[chosen] = (offsets[chosen] < table.physical_rows(fragment)) & ~np.isin(
                offsets[chosen], table.deleted_offsets(fragment)
            )
    return is_live
