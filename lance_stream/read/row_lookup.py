"""Finds rows by their stable ids without an index, in the fragments that may have them.

The ids of most fragments are one range; all of these are compared with the requested ids at once
(`table.lineage.constant_lineage`). The ids of other fragments are decoded. A deletion file is read
only if its fragment has a requested id: the id of a moved row is in two fragments, but the row is
live in only one of them.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Positions, RowIds
from lance_stream.errors import CorruptDataError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.lineage.ascending import are_among, distinct
from lance_stream.table.lineage.row_addresses import NO_ADDRESS, pack_addresses
from lance_stream.table.lineage.row_ids import RowIdSequence


def find_rows(
    table: TableVersion, row_ids: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return the addresses of live rows; see `RowIdIndex.find`.

    Args:
        table: The version, which has stable row ids.
        row_ids: (n,) in any order; an id may occur more than once.

    Returns:
        (n,) row addresses, `NO_ADDRESS` for ids without a live row; and (n,) whether there is one.

    Raises:
        CorruptDataError: Two live rows have the same id; or the ids of a fragment are damaged.
    """
    row_id_set = distinct(row_ids)
    addresses = np.full(len(row_id_set), NO_ADDRESS)
    fragments = table.manifest.fragments
    matches = [match for match in _matches_by_fragment(table, row_id_set) if len(match[1])]
    deleted_by_fragment = table.deleted_offsets_of([fragments[index] for index, _, _ in matches])
    for (index, indices, offsets), deleted in zip(matches, deleted_by_fragment, strict=True):
        is_live = ~are_among(offsets, deleted)
        indices, offsets = indices[is_live], offsets[is_live]
        duplicates = indices[addresses[indices] != NO_ADDRESS]
        if len(duplicates):
            raise CorruptDataError(
                f"{len(duplicates)} row ids belong to two live rows each, for example "
                f"{int(row_id_set[duplicates[0]])}: an older writer may have used a next_row_id "
                "that was too low"
            )
        addresses[indices] = pack_addresses(fragments.ids[index], offsets)
    addresses = addresses[np.searchsorted(row_id_set, row_ids)] if len(row_id_set) else addresses
    return addresses, addresses != NO_ADDRESS


def _matches_by_fragment(
    table: TableVersion, row_ids: RowIds
) -> Iterator[tuple[int, Positions, Positions]]:
    """Yield fragments that have requested rows, deleted or live.

    Yields:
        The fragment's index; the indices in `row_ids` of its rows; and their row offsets.
    """
    fragments = table.manifest.fragments
    ranges = fragments.lineage.first_row_ids
    starts, stops = fragments.lineage.ids_within(row_ids)
    for index in np.flatnonzero(starts < stops).tolist():
        indices = np.arange(starts[index], stops[index])
        yield index, indices, (row_ids[indices] - ranges.values[index]).astype(np.int64)
    for index in np.flatnonzero(~ranges.is_constant).tolist() if len(row_ids) else ():
        yield index, *_matches_in(table.row_ids(fragments[index]), row_ids)


def _matches_in(sequence: RowIdSequence, row_ids: RowIds) -> tuple[Positions, Positions]:
    """Return the indices of the ascending ids that a sequence contains, and their row offsets."""
    if len(row_ids) < len(sequence):
        offsets = sequence.find(row_ids)
        indices = np.flatnonzero(offsets >= 0)
        return indices, offsets[indices]
    ids = sequence.to_array()
    offsets = np.flatnonzero(are_among(ids, row_ids))
    return np.searchsorted(row_ids, ids[offsets]), offsets
