"""Checks that `next_row_id` is greater than every row id of a version.

If it is not, new rows get ids that other rows have, and readers that use ids confuse rows. Versions
that this library wrote follow one that was checked. A version of another program is checked before
the next one is created from it: from the fragments' bytes, without opening a file. Most fragments
have one range of ids; these ranges are read for all of them at once (`constant_lineage`). The
sequences of the others are decoded.

Ids in files (spilled row lineage) are not checked here, but by `verify`.

Source:  table.proto, Manifest.next_row_id.
"""

import numpy as np

from lance_stream.errors import CorruptDataError
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.manifest import Manifest


def check_next_row_id(manifest: Manifest) -> None:
    """Raise unless a version's next row id is greater than all row ids of its fragments.

    Raises:
        CorruptDataError: A row has a larger id, or a sequence of row ids is damaged.
    """
    largest = manifest.fragments.cached(largest_row_id)
    if largest >= manifest.next_row_id:
        raise CorruptDataError(
            f"the manifest of version {manifest.version} has the next row id "
            f"{manifest.next_row_id}, but a row has the id {largest}: new rows would get ids that "
            "others have. Nothing was written; write the rows into a new table, or restore a "
            "version from before the program that wrote this one"
        )


def largest_row_id(fragments: FragmentList) -> int:
    """Return the largest stable row id that is inline in fragments; -1 if there is none.

    Raises:
        CorruptDataError: A sequence is damaged.
    """
    if not len(fragments):
        return -1
    lineage = fragments.lineage
    is_constant = lineage.first_row_ids.is_constant
    # The last row id of every fragment, if its ids are one range.
    last = lineage.first_row_ids.values + lineage.physical_rows - np.uint64(1)
    largest = int(last[is_constant].max()) if is_constant.any() else -1
    for index in np.flatnonzero(~is_constant).tolist():
        stored = fragments[index].row_ids
        if isinstance(stored, bytes):
            largest = max(largest, decode_row_ids(stored).largest)
    return largest
