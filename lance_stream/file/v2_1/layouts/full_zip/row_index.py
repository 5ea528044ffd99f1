"""The row index of a full-zip page: where each row starts among the items, and where the last ends.

    starts   (num_rows + 1,) u8, u16, u32 or u64, the first 0, the last the bytes of all items

Source:  encodings21.FullZipLayout in the proto.
"""

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Positions
from lance_stream.byte_ranges import ByteRange, ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.scattered_bytes import read_slices
from lance_stream.file.v2_1.layouts.leaf_rows import RowSelection, as_bytes, runs_of

MAX_INDEX_BYTES = 1 << 20
"""A row index up to this size is read as a whole and cached; a larger one in parts."""


class RowIndex:
    """The index of a page, and the part of it that was already read.

    Args:
        buffer: Its range in the file.
        num_rows: The rows of the page.
        items_bytes: The bytes of all items.

    Attributes:
        starts: The whole index, once it was read.

    Raises:
        CorruptDataError: Its size does not match the number of rows.
    """

    def __init__(self, buffer: ByteRange, num_rows: int, items_bytes: int) -> None:
        self._buffer = buffer
        self._num_rows = num_rows
        self._items_bytes = items_bytes
        self._width = self._width_of()
        self.starts: Positions | None = None

    def find(self, rows: RowSelection) -> ByteRequests[tuple[Positions, Positions]]:
        """Return the starts and stops of rows in the page's items."""
        index = self._buffer
        if self.starts is None and index.size_bytes <= MAX_INDEX_BYTES:
            (buffer,) = yield [index]
            self.load(buffer)
        if self.starts is not None:
            if isinstance(rows, range):
                bounds = self.starts[rows.start : rows.stop + 1]
                return bounds[:-1], bounds[1:]
            return self.starts[rows], self.starts[rows + 1]
        width = self._width
        firsts, lasts = runs_of(rows)
        # a run of n rows needs n + 1 words, which belong to no other run
        data = yield from read_slices(
            index.start + firsts * width, index.start + (lasts + 1) * width
        )
        words = self._words(data.data)
        ends = np.cumsum(lasts - firsts + 1)
        starts = np.delete(words, ends - 1)
        stops = np.delete(words, np.append(0, ends[:-1]))
        return self._checked(starts, stops)

    def load(self, buffer: memoryview) -> Positions:
        """Parse the whole index, cache it, and return it."""
        words = self._words(buffer)
        self._checked(words[:-1], words[1:])
        if int(words[0]) != 0 or int(words[-1]) != self._items_bytes:
            raise CorruptDataError(
                f"the row index runs from {words[0]} to {words[-1]}, but the page's items are "
                f"{self._items_bytes} bytes"
            )
        self.starts = words
        return words

    def _width_of(self) -> int:
        width, surplus = divmod(self._buffer.size_bytes, self._num_rows + 1)
        if surplus or width not in (1, 2, 4, 8):
            raise CorruptDataError(
                f"an index of {self._buffer.size_bytes} bytes cannot be that of "
                f"{self._num_rows} rows"
            )
        return width

    def _words(self, buffer: memoryview) -> Positions:
        return as_bytes(buffer).view(f"<u{self._width}").astype(np.int64)

    def _checked(self, starts: Positions, stops: Positions) -> tuple[Positions, Positions]:
        end = self._items_bytes
        if (starts < 0).any() or (stops < starts).any() or (stops > end).any():
            raise CorruptDataError(f"the row index does not ascend from 0 to {end}")
        if (starts[1:] < stops[:-1]).any():
            raise CorruptDataError("the row index does not ascend")
        return starts, stops


def encode_row_starts(starts: Positions) -> npt.NDArray[np.unsignedinteger]:
    """Return the starts of rows in the narrowest possible words."""
    last_start = int(starts[-1])
    width = next(width for width in (1, 2, 4, 8) if last_start < 1 << 8 * width)
    return starts.astype(f"<u{width}")
