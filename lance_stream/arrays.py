"""Types of numpy arrays, one definition each.

Rows are identified in three ways: a *row offset* is a position in a fragment, a *row address* is
the fragment's id and the offset, and a *row id* stays with a row when it moves.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

Mask: TypeAlias = npt.NDArray[np.bool_]
"""Which of some values, rows or files are meant."""

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
