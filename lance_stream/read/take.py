"""Random access: rows by their position in a version, or by row id.

In each fragment that has requested rows, the columns are read at the offsets of these rows only.
Access by row id may build an index of all row ids; access by position does not need it.
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
"""Integers as a list, a numpy array or an Arrow array."""

FEW_IDS: Final = 64
"""Up to this many row ids are looked up without an index, if the store is slow."""

FEW_FRAGMENTS: Final = 1000
MAX_INDEXED_ROWS: Final = 1 << 24
"""In tables with more fragments or rows, row ids are looked up without an index, unless more rows
than this are in fragments whose ids are not one range, which each lookup would decode."""

_MAX_EXAMPLES = 5


def take(
    table: TableVersion,
    *,
    row_offsets: Numbers | None = None,
    row_ids: Numbers | None = None,
    columns: Sequence[str] | None = None,
    blob_handling: str = BYTES,
) -> pa.Table:
    """Return rows in the requested order; see `Dataset.take`."""
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
    """Return the addresses of rows by their positions or row ids.

    Raises:
        NotFoundError: A row does not exist.
        InvalidInputError: Neither or both of the arguments are passed; or not whole numbers.
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
        numbers = numbers.to_numpy(zero_copy_only=False)
    array = np.asarray(numbers)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InvalidInputError(f"{name} must be a list of whole numbers")
    if len(array) and int(array.min()) < 0:
        raise InvalidInputError(f"{name} must not be negative, but {int(array.min())} is")
    return array.astype(np.uint64)


def _addresses_at(table: TableVersion, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the addresses of rows by their positions among the live rows, in scan order."""
    fragments, counts = table.manifest.fragments, table.row_counts.live
    stops = counts.cumsum()
    num_rows = int(stops[-1]) if len(stops) else 0
    if len(positions) and int(positions.max()) >= num_rows:
        raise NotFoundError(
            f"row {int(positions.max())} does not exist: version {table.version} has {num_rows} "
            "rows"
        )
    # The fragment of each row, and the row's number among the live rows of the fragment.
    offsets = positions.astype(np.int64)
    indices = stops.searchsorted(offsets, side="right")
    offsets -= (stops - counts)[indices]
    numbers = fragments.numbers
    has_rows = np.zeros(len(stops), np.bool_)
    has_rows[indices] = True
    for index in np.flatnonzero(numbers.has_deletion_file & has_rows).tolist():
        deleted = table.deleted_offsets(fragments[index]).astype(np.int64)
        rows = np.flatnonzero(indices == index)
        # A row's offset is its number plus the number of deleted rows before it.
        live_before = deleted - np.arange(len(deleted))  # live rows before each deleted row
        offsets[rows] += np.searchsorted(live_before, offsets[rows], side="right")
    return pack_addresses(numbers.ids[indices], offsets)


def _addresses_of_ids(
    table: TableVersion, row_ids: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    if not table.has_stable_row_ids:
        addresses, exists = row_ids, _are_live(table, row_ids)
    elif _should_index(table, len(row_ids)):
        addresses, exists = table.row_id_index.find(row_ids)
    else:
        addresses, exists = find_rows(table, row_ids)
    if not bool(exists.all()):
        missing = row_ids[~exists]
        examples = ", ".join(map(str, missing[:_MAX_EXAMPLES].tolist()))
        raise NotFoundError(
            f"version {table.version} has no rows with {len(missing)} of the row ids, for example "
            f"{examples}"
        )
    return addresses


def _should_index(table: TableVersion, num_ids: int) -> bool:
    """Return whether to look up ids in an index of all rows, which later calls can reuse.

    The index has every row in memory, and building it reads all deletion files. So it is not built
    for a large table whose row ids are mostly one range per fragment; nor for a few ids if each
    read is a request.
    """
    if "row_id_index" in table.__dict__:
        return True
    fragments, rows = table.manifest.fragments, table.row_counts.physical
    is_far = table.store.num_readers > NUM_READERS
    if is_far and num_ids <= FEW_IDS and fragments.has_deletion_files:
        return False
    num_rows = int(rows.sum())
    if len(fragments) <= FEW_FRAGMENTS and num_rows <= MAX_INDEXED_ROWS:
        return True
    num_listed = int(rows[~fragments.lineage.first_row_ids.is_constant].sum())
    return num_listed > MAX_INDEXED_ROWS and num_rows <= MAX_MATERIALIZED


def _are_live(table: TableVersion, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which addresses, which are the row ids without stable ones, belong to live rows."""
    fragment_ids, offsets = unpack_addresses(addresses)
    is_live = np.zeros(len(addresses), np.bool_)
    for fragment_id in np.unique(fragment_ids).tolist():
        fragment = table.manifest.fragments.by_id(fragment_id)
        if fragment is not None:
            rows = np.flatnonzero(fragment_ids == fragment_id)
            is_live[rows] = (offsets[rows] < table.physical_rows(fragment)) & ~np.isin(
                offsets[rows], table.deleted_offsets(fragment)
            )
    return is_live
