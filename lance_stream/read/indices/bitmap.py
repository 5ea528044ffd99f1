"""A BITMAP: each value of a column once, with the rows that have it.

    bitmap_page_lookup.lance    one row per value
        keys                    the values; null for the rows without one
        bitmaps                 which rows: u32 num_parts, then for each part, ascending
            u32 high            the upper half of their ids
            u32 num_bytes       0 for all possible rows
            num_bytes           a roaring bitmap of the lower halves

The ids are row ids: of rows without stable ones their addresses.

The condition is evaluated on the keys, by the same rules as on rows.

Source: what pylance 14 writes; bitmap.rs of the crate lance-index, RowAddrTreeMap of lance-select.
"""

import struct
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions, RowIds
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.read.indices.column_conditions import ColumnCondition
from lance_stream.read.indices.evaluation import where_true
from lance_stream.read.indices.index_file import IndexFile, PartOfIndex
from lance_stream.table.fragments.deletion_vectors import decode_bitmap_up_to

LOOKUP: Final = "bitmap_page_lookup.lance"

MOST_KEYS: Final = 1 << 17
"""More keys are not read: the column has too many values for this kind of index."""

MOST_KEY_BYTES: Final = 64 << 20
"""Keys that take more memory are not kept."""

BYTES_AT_ONCE: Final = 16 << 20
"""How many bytes of bitmaps are read at once, about; they may end the search."""

_U32: Final = struct.Struct("<I")
_PART: Final = struct.Struct("<II")


class Bitmap:
    """An open BITMAP; holds no store, so that the process can keep it.

    Args:
        keys: (n,) the values.
        file: The file of its bitmaps.
    """

    def __init__(self, keys: pa.Array, file: IndexFile) -> None:
        self._keys = keys
        self._file = file

    @property
    def num_keys(self) -> int:
        """How many values it has."""
        return len(self._keys)

    @property
    def logical_type(self) -> str:
        """The logical type of its values."""
        return self._file.fields["keys"].logical_type

    @property
    def cached_bytes(self) -> int:
        """About how much memory it takes."""
        return int(self._keys.nbytes) + self._file.cached_bytes + 1024

    def plan(self, condition: ColumnCondition, num_rows: int) -> tuple[Positions, int]:
        """Return which keys match, and about how many of some rows have them."""
        positions = np.flatnonzero(where_true(condition, self._keys))
        return positions, num_rows * len(positions) // max(len(self._keys), 1)

    def search(self, positions: Positions, part: PartOfIndex, most: int) -> RowIds | None:
        """Return the ids of the rows that have some keys; None if they are more than `most`.

        Args:
            positions: From `plan`.
            part: Opens the index's files.
            most: How many ids are worth having.

        Raises:
            BadDataError: A bitmap is damaged.
        """
        matches: list[RowIds] = [np.empty(0, np.uint64)]
        num_ids = 0
        groups = self._file.groups(part.ranges_of(LOOKUP), positions, BYTES_AT_ONCE, "bitmaps")
        for bitmap in (bitmap for (bitmaps,) in groups for bitmap in bitmaps):
            ids = decode_row_set(bitmap.as_py(), most - num_ids)
            if ids is None:
                return None
            num_ids += len(ids)
            matches.append(ids)
        return np.concatenate(matches)


def decode_row_set(data: bytes | None, most: int) -> RowIds | None:
    """Return the ids in the bitmap of a key, ascending; None if they are more than `most`.

    What follows the part that makes them too many is not read.

    Raises:
        CorruptDataError: It is damaged.
        UnsupportedFeatureError: It has all possible rows of a part.
    """
    if data is None:
        raise CorruptDataError("a key of an index has no bitmap")
    try:
        (num_parts,) = _U32.unpack_from(data, 0)
        position = _U32.size
        ids: list[RowIds] = [np.empty(0, np.uint64)]
        num_ids, last = 0, -1
        for _ in range(num_parts):
            high, num_bytes = _PART.unpack_from(data, position)
            position += _PART.size
            if high <= last:
                raise CorruptDataError("the parts of a bitmap of an index do not ascend")
            if not num_bytes:
                raise UnsupportedFeatureError("a bitmap of an index has all rows of a fragment")
            if position + num_bytes > len(data):
                raise CorruptDataError("a bitmap of an index is cut short")
            low = decode_bitmap_up_to(data[position : position + num_bytes], most - num_ids)
            if low is None:
                return None
            num_ids += len(low)
            ids.append(low.astype(np.uint64) | np.uint64(high << 32))
            position += num_bytes
            last = high
    except struct.error:
        raise CorruptDataError("a bitmap of an index is cut short") from None
    if position != len(data):
        raise CorruptDataError(f"a bitmap of an index ends at byte {position} of {len(data)}")
    return np.concatenate(ids)


def open_bitmap(part: PartOfIndex) -> Bitmap:
    """Open a BITMAP.

    Args:
        part: Opens its files.

    Raises:
        BadDataError: It is damaged, or of a form that is not known.
        NotFoundError: Its file is missing.
    """
    file = part.open(LOOKUP, {"keys": None, "bitmaps": "binary"})
    if file.num_rows > MOST_KEYS:
        raise UnsupportedFeatureError(f"the index has {file.num_rows} keys, more than {MOST_KEYS}")
    (keys,) = file.whole(part.ranges_of(LOOKUP), MOST_KEY_BYTES, "keys")
    return Bitmap(keys, file)
