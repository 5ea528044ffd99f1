"""The types of numpy arrays, each defined once; and a function that old versions of numpy lack.

Rows are identified in three ways: a *row offset* is a position in a fragment, a *row address* is
the fragment's id and the offset, and a *row id* stays the same when a row moves.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

Mask: TypeAlias = npt.NDArray[np.bool_]
"""True for selected values, rows or files."""

Counts: TypeAlias = npt.NDArray[np.int64]

Positions: TypeAlias = npt.NDArray[np.int64]
"""Positions in an array, a page, a file or a selection, counted from 0."""

RowOffsets: TypeAlias = npt.NDArray[np.uint32]
"""Positions of rows in their fragment, as deletion files state them."""

RowAddresses: TypeAlias = npt.NDArray[np.uint64]
"""Fragment id << 32 | row offset."""

RowIds: TypeAlias = npt.NDArray[np.uint64]
"""Stable row ids."""

RowVersions: TypeAlias = npt.NDArray[np.uint64]
"""The versions that created or last updated rows."""

U64s: TypeAlias = npt.NDArray[np.uint64]
"""Row ids, row addresses, versions or other numbers."""

_BITS_OF_BYTES: Bytes = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(
    1, np.uint8
)


def count_bits(values: npt.NDArray[Any]) -> Bytes:
    """Return the number of set bits of each value.

    NumPy 2 has the function `bitwise_count`; platforms of PySpark 3.5 have NumPy 1.

    Args:
        values: Integers of at least 0.
    """
    if hasattr(np, "bitwise_count"):
        counts: Bytes = np.bitwise_count(values)
    else:
        single_bytes = np.ascontiguousarray(values)[..., None].view(np.uint8)
        counts = _BITS_OF_BYTES[single_bytes].sum(-1, np.uint8)
    return counts
