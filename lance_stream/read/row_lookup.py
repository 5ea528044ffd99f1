"""Finds rows by their stable ids without an index: in the fragments that may have them.

Most fragments have one range of ids, and which of them contain one of the ids is found for all at
once (`table.uniform_lineage`). The ids of the others are decoded. A deletion file is read only if
its fragment has an id: a row that was moved has its id in two fragments, and is live in one.
"""

import numpy as np
import numpy.typing as npt

from lance_stream.errors import CorruptDataError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.ascending import are_among, distinct
from lance_stream.table.row_addresses import NO_ADDRESS, pack_addresses


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
    wanted = distinct(row_ids)
    found = np.full(len(wanted), NO_ADDRESS)
    fragments = table.manifest.fragments
    hits: list[tuple[int, npt.NDArray[np.intp], npt.NDArray[np.int64]]] = []
    for place in np.flatnonzero(fragments.lineage.may_have(wanted)).tolist():
        offsets = table.row_ids(fragments[place]).find(wanted)
        some = np.flatnonzero(offsets >= 0)
        if len(some):
            hits.append((place, some, offsets[some]))
    dead = table.dead_offsets_of([fragments[place] for place, _, _ in hits])
    for (place, some, offsets), gone in zip(hits, dead, strict=True):
        is_live = ~are_among(offsets, gone)
        some, offsets = some[is_live], offsets[is_live]
        twice = some[found[some] != NO_ADDRESS]
        if len(twice):
            raise CorruptDataError(
                f"{len(twice)} row ids belong to two live rows each, for example "
                f"{int(wanted[twice[0]])}: an older writer may have used a next_row_id that was "
                "too low"
            )
        found[some] = pack_addresses(fragments.ids[place], offsets)
    addresses = found[np.searchsorted(wanted, row_ids)] if len(wanted) else found
    return addresses, addresses != NO_ADDRESS
