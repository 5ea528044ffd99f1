"""The page table: the position of the page of each field and batch.

    for each field id from the file's smallest to its largest
        for each batch
            i64 position | i64 length

A field id that is not in the file, and a struct, has a run of zeros. The length of a page counts
its
values: rows; for the ends of lists one more; for their items all items of the batch.

Source: file.proto, message Metadata; files that the reference wrote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Positions
from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import CorruptDataError

ENTRY_BYTES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class FieldPages:
    """The pages of one field.

    Attributes:
        position: (num_batches,) the position of each.
        length: (num_batches,) the number of values of each.
    """

    position: Positions
    length: Positions


def range_of_column(start: int, num_batches: int, column: int, limit: int) -> ByteRange:
    """Return the range of one column in a page table.

    Args:
        start: Position of the table.
        num_batches: The batches of the file.
        column: The field's row in the table: its id minus the smallest one.
        limit: The end of the bytes that the table can occupy.

    Raises:
        CorruptDataError: The range is outside of the file.
    """
    size = num_batches * ENTRY_BYTES
    first = start + column * size
    if column < 0 or first + size > limit:
        raise CorruptDataError(
            f"the page table of {num_batches} batches starts at byte {start}; column "
            f"{column} would extend beyond byte {limit}"
        )
    return ByteRange(first, first + size)


def decode_pages(entries: Buffer, limit: int) -> FieldPages:
    """Return the pages of one field.

    Raises:
        CorruptDataError: A position or a length is outside of the file.
    """
    table = np.frombuffer(entries, "<i8").reshape(-1, 2)
    position, length = table[:, 0].copy(), table[:, 1].copy()
    # a page of a null column has a length, but no bytes
    if bool(((position < 0) | (position > limit) | (length < 0) | (length >> 31 > 0)).any()):
        raise CorruptDataError(f"a page exceeds the file's {limit} bytes")
    return FieldPages(position, length)


def encode_page_table(columns: Sequence[npt.NDArray[np.int64]]) -> bytes:
    """Return the table of some columns, each as (num_batches, 2) positions and lengths."""
    return np.stack(columns).astype("<i8").tobytes() if columns else b""
