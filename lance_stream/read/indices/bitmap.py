"""BITMAP index: each distinct value of a column, with the rows that have it.

    bitmap_page_lookup.lance    one row per value
        keys                    the value, or null
        bitmaps                 its rows: u32 num_parts, then for each part, ascending
            u32 high            upper half of the row ids
            u32 num_bytes       0 for all possible rows
            num_bytes           roaring bitmap of the lower halves

Row ids are row addresses in tables without stable row ids.

A condition is evaluated on the keys, by the same rules as on rows.

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
from lance_stream.read.indices.index_file import IndexFile, IndexFolder
from lance_stream.table.fragments.deletion_vectors import decode_bitmap_up_to

LOOKUP: Final = "bitmap_page_lookup.lance"

MAX_KEYS: Final = 1 << 17
"""The maximum number of keys; a column with more values is not suitable for this index."""

MAX_KEY_BYTES: Final = 64 << 20
"""The maximum size of the keys in memory."""

BITMAP_READ_BYTES: Final = 16 << 20
"""The approximate size of the bitmaps that are read at once; the search may end after each read."""

_U32: Final = struct.Struct("<I")
_PART: Final = struct.Struct("<II")


class Bitmap:
    """An open BITMAP index; has no reference to a store, so that the process can cache it.

    Args:
        keys: (num_keys,) the distinct values.
        file: The file with the bitmaps.
    """

    def __init__(self, keys: pa.Array, file: IndexFile) -> None:
        self._keys = keys
        self._file = file

    @property
    def num_keys(self) -> int:
        """The number of distinct values."""
        return len(self._keys)

    @property
    def logical_type(self) -> str:
        """The logical type of its values."""
        return self._file.fields["keys"].logical_type

    @property
    def cached_bytes(self) -> int:
        """The approximate size in memory."""
        return int(self._keys.nbytes) + self._file.cached_bytes + 1024

    def plan(self, condition: ColumnCondition, num_rows: int) -> tuple[Positions, int]:
        """Return the indices of the keys that match, and the estimated number of their rows."""
        positions = np.flatnonzero(where_true(condition, self._keys))
        return positions, num_rows * len(positions) // max(len(self._keys), 1)

    def search(self, positions: Positions, part: IndexFolder, max_ids: int) -> RowIds | None:
        """Return the ids of the rows that have the keys; None if there are more than `max_ids`.

        Args:
            positions: The indices of the keys, from `plan`.
            part: The files of the index.
            max_ids: The maximum number of ids.

        Raises:
            BadDataError: A bitmap is damaged.
        """
        matches: list[RowIds] = [np.empty(0, np.uint64)]
        num_ids = 0
        groups = self._file.groups(part.ranges_of(LOOKUP), positions, BITMAP_READ_BYTES, "bitmaps")
        for bitmap in (bitmap for (bitmaps,) in groups for bitmap in bitmaps):
            ids = decode_row_set(bitmap.as_py(), max_ids - num_ids)
            if ids is None:
                return None
            num_ids += len(ids)
            matches.append(ids)
        return np.concatenate(matches)


def decode_row_set(data: bytes | None, max_ids: int) -> RowIds | None:
    """Decode the bitmap of a key.

    Returns:
        The row ids, ascending; None if there are more than `max_ids`, in which case the remaining
        parts are not decoded.

    Raises:
        CorruptDataError: The bitmap is damaged.
        UnsupportedFeatureError: The bitmap contains all possible rows of a part.
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
                raise UnsupportedFeatureError(
                    "a bitmap of an index contains all rows of a fragment"
                )
            if position + num_bytes > len(data):
                raise CorruptDataError("a bitmap of an index is truncated")
            low = decode_bitmap_up_to(data[position : position + num_bytes], max_ids - num_ids)
            if low is None:
                return None
            num_ids += len(low)
            ids.append(low.astype(np.uint64) | np.uint64(high << 32))
            position += num_bytes
            last = high
    except struct.error:
        raise CorruptDataError("a bitmap of an index is truncated") from None
    if position != len(data):
        raise CorruptDataError(f"a bitmap of an index ends at byte {position} of {len(data)}")
    return np.concatenate(ids)


def open_bitmap(part: IndexFolder) -> Bitmap:
    """Open a BITMAP index.

    Args:
        part: The files of the index.

    Raises:
        BadDataError: The index is damaged, or of an unknown form.
        NotFoundError: The file is missing.
    """
    file = part.open(LOOKUP, {"keys": None, "bitmaps": "binary"})
    if file.num_rows > MAX_KEYS:
        raise UnsupportedFeatureError(f"the index has {file.num_rows} keys, more than {MAX_KEYS}")
    (keys,) = file.whole(part.ranges_of(LOOKUP), MAX_KEY_BYTES, "keys")
    return Bitmap(keys, file)
