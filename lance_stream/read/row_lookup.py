"""Finds rows by their stable ids without an index: in the fragments that may have them.

Most fragments have one range of ids, and which of them contain one of the ids is found for all at
once (`table.lineage.constant_lineage`). The ids of the others are decoded. A deletion file is read
only if its fragment has an id: a row that was moved has its id in two fragments, and is live in
one.
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
        table: The version; it has stable row ids.
        row_ids: (n,) in any order; an id may occur more than once.

    Raises:
        CorruptDataError: Two live rows have one of the ids; or the ids of a fragment are damaged.
    """
    row_id_set = distinct(row_ids)
    addresses = np.full(len(row_id_set), NO_ADDRESS)
    fragments = table.manifest.fragments
    hits = [hit for hit in _hits(table, row_id_set) if len(hit[1])]
    deleted_by_fragment = table.deleted_offsets_of([fragments[index] for index, _, _ in hits])
    for (index, some, offsets), deleted in zip(hits, deleted_by_fragment, strict=True):
        is_live = ~are_among(offsets, deleted)
        some, offsets = some[is_live], offsets[is_live]
        twice = some[addresses[some] != NO_ADDRESS]
        if len(twice):
            raise CorruptDataError(
                f"{len(twice)} row ids belong to two live rows each, for example "
                f"{int(row_id_set[twice[0]])}: an older writer may have used a next_row_id that "
                "was too low"
            )
        addresses[some] = pack_addresses(fragments.ids[index], offsets)
    addresses = addresses[np.searchsorted(row_id_set, row_ids)] if len(row_id_set) else addresses
    return addresses, addresses != NO_ADDRESS


def _hits(table: TableVersion, row_ids: RowIds) -> Iterator[tuple[int, Positions, Positions]]:
    """Yield the positions of fragments; which of the rows they have, deleted or live; and where."""
    fragments = table.manifest.fragments
    ranges = fragments.lineage.first_row_ids
    begins, ends = fragments.lineage.ids_within(row_ids)
    for index in np.flatnonzero(begins < ends).tolist():
        some = np.arange(begins[index], ends[index])
        yield index, some, (row_ids[some] - ranges.values[index]).astype(np.int64)
    for index in np.flatnonzero(~ranges.is_constant).tolist() if len(row_ids) else ():
        yield index, *_matches_in(table.row_ids(fragments[index]), row_ids)


def _matches_in(sequence: RowIdSequence, row_ids: RowIds) -> tuple[Positions, Positions]:
    """Return which of some ascending ids a sequence has, and at which offsets."""
    if len(row_ids) < len(sequence):
        offsets = sequence.find(row_ids)
        some = np.flatnonzero(offsets >= 0)
        return some, offsets[some]
    ids = sequence.to_array()
    offsets = np.flatnonzero(are_among(ids, row_ids))
    return np.searchsorted(row_ids, ids[offsets]), offsets
