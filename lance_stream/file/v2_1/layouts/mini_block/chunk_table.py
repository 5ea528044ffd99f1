"""The chunks of a mini-block page: their positions, values and rows.

    chunk table   a word for each chunk, u16, or u32 if has_large_chunk (2.2):
                  (bytes of the chunk / 8 - 1) << 4 | log2 of its values;
                  0 instead of the logarithm means: all remaining values
    row index     with repetition levels: (u64, u64) for each chunk: rows that end in it,
                  entries after the last end (0: the last row ends with the chunk)

Source:  encodings21.MiniBlockLayout in the proto.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Bytes, Positions, count_bits
from lance_stream.errors import CorruptDataError
from lance_stream.file.v2_1.layouts.leaf_rows import RowSelection, first_of, last_of, spread
from lance_stream.file.v2_1.layouts.levels import Levels

MAX_LOG_VALUES = 15
"""A chunk's number of values is stored as a logarithm in 4 bits."""

ALIGNMENT = 8
"""Chunks, and the buffers in them, start at multiples of this many bytes."""

_NO_POSITIONS: Final[Positions] = np.zeros(0, np.int64)


class Chunks(NamedTuple):
    """The positions and contents of the chunks of a page.

    Attributes:
        starts: (num_chunks + 1,) bytes, from the start of the buffer.
        values: (num_chunks + 1,) values before each.
        rows: (num_chunks + 1,) rows that start before each.
        continues: Whether the last row of each chunk continues in the next; None if no row does.
    """

    starts: Positions
    values: Positions
    rows: Positions
    continues: npt.NDArray[np.bool_] | None

    def containing(self, rows: RowSelection) -> tuple[Positions, Positions]:
        """Return the chunks that contain some rows.

        Returns:
            (num_chosen,) the chunks, ascending; and (num_rows,) the index among them of the chunk
            in which each row starts, empty for a range.
        """
        if self.continues is None:
            if isinstance(rows, range):
                ends = _chunks_of_rows(self.rows, np.array([rows.start, rows.stop - 1]))
                return np.arange(ends[0], ends[1] + 1), _NO_POSITIONS
            firsts = _chunks_of_rows(self.rows, rows)
            is_first = _differs_from_previous(firsts)
            return firsts[is_first], is_first.cumsum() - 1
        first = int(_chunks_of_rows(self.rows, np.array([first_of(rows)]))[0])
        positions = np.array([last_of(rows)]) if isinstance(rows, range) else rows
        firsts = _chunks_of_rows(self.rows, positions)
        # A continued row ends where another one starts, or where none continues.
        ends = np.flatnonzero((np.diff(self.rows) > 0) | ~self.continues)
        continues = self.continues[firsts] & (positions == self.rows[firsts + 1] - 1)
        after = np.minimum(np.searchsorted(ends, firsts, side="right"), len(ends) - 1)
        lasts = np.where(continues, ends[after], firsts)
        if isinstance(rows, range):
            return np.arange(first, int(lasts[-1]) + 1), _NO_POSITIONS
        chosen = spread(firsts, lasts + 1)
        chosen = chosen[_differs_from_previous(chosen)]
        return chosen, np.searchsorted(chosen, firsts)


def word_bytes(*, has_large_chunk: bool) -> int:
    """Return the bytes of a chunk's word in the chunk table."""
    return 4 if has_large_chunk else 2


def parse_chunk_table(
    table: Bytes, *, num_values: int, size_bytes: int, has_large_chunk: bool
) -> tuple[Positions, Positions]:
    """Return the starts of chunks, and the number of values before each.

    Args:
        table: The words.
        num_values: The values of all chunks.
        size_bytes: The bytes of all chunks.
        has_large_chunk: Whether words are u32.

    Returns:
        (num_chunks + 1,) bytes, and (num_chunks + 1,) values.

    Raises:
        CorruptDataError: The words contradict one of the numbers.
    """
    width = word_bytes(has_large_chunk=has_large_chunk)
    if len(table) % width or len(table) == 0:
        raise CorruptDataError(f"a chunk table of {len(table)} bytes does not have whole words")
    words = table.view(f"<u{width}").astype(np.int64)
    starts = np.zeros(len(words) + 1, np.int64)
    (((words >> 4) + 1) * ALIGNMENT).cumsum(out=starts[1:])
    if starts[-1] != size_bytes:
        raise CorruptDataError(
            f"the chunk table states {starts[-1]} bytes, but the chunks have {size_bytes}"
        )
    logs = words & MAX_LOG_VALUES
    values = np.zeros(len(words) + 1, np.int64)
    (np.int64(1) << logs[:-1]).cumsum(out=values[1:-1])
    num_last = num_values - int(values[-2])
    if (logs[:-1] == 0).any() or not 0 <= num_last <= 1 << MAX_LOG_VALUES:
        raise CorruptDataError(
            f"the chunk table states {values[-2]} values before the last chunk, but the page "
            f"has {num_values}"
        )
    values[-1] = num_values
    if logs[-1] and num_last != 1 << int(logs[-1]):
        raise CorruptDataError(
            f"the last chunk claims to have {1 << int(logs[-1])} values, but {num_last} remain"
        )
    return starts, values


def parse_row_index(
    index: Bytes, *, depth: int, num_chunks: int, num_rows: int
) -> tuple[Positions, npt.NDArray[np.bool_]]:
    """Return the rows that start before each chunk, and whether its last one continues in the next.

    Args:
        index: The words.
        depth: Words of each chunk, less one.
        num_chunks: The number of chunks.
        num_rows: The rows of the page.

    Returns:
        (num_chunks + 1,) rows, and (num_chunks,) flags.

    Raises:
        CorruptDataError: The words contradict one of the numbers.
    """
    stride = depth + 1
    if len(index) != num_chunks * stride * 8:
        raise CorruptDataError(
            f"the row index of {num_chunks} chunks with {stride} words each has {len(index)} bytes"
        )
    words = index.view("<u8").reshape(num_chunks, stride)
    if (words[:, 0] > num_rows).any():
        raise CorruptDataError(f"{words[:, 0].max()} rows claim to end in one chunk")
    continues = words[:, 1] > 0
    # A continued row starts here and ends later; the one continued from before started earlier.
    started = words[:, 0].astype(np.int64) + continues
    started[1:] -= continues[:-1]
    rows = np.zeros(num_chunks + 1, np.int64)
    np.cumsum(started, out=rows[1:])
    if (started < 0).any() or continues[-1] or rows[-1] != num_rows:
        raise CorruptDataError(
            f"the chunks claim to have {rows[-1]} rows, but the page has {num_rows}"
        )
    return rows, continues


def encode_chunk_table(
    sizes: Positions, num_values: Positions, *, has_large_chunk: bool
) -> npt.NDArray[Any]:
    """Return the words of chunks, given the bytes and values of each."""
    logs = np.zeros(len(sizes), np.int64)
    # A power of two below 2**16 is one more than the mask of the bits below it.
    logs[:-1] = count_bits(num_values[:-1] - 1)
    words = (sizes // ALIGNMENT - 1) << 4 | logs
    return words.astype("<u4" if has_large_chunk else "<u2")


def encode_row_index(levels: Levels, starts: Positions) -> npt.NDArray[Any]:
    """Return, for each chunk, the rows that end in it and the entries after the last of them."""
    row_starts = levels.row_starts()
    row_stops = np.append(row_starts[1:], levels.num_levels)
    stops = np.append(starts[1:], levels.num_levels)
    rows_before = np.searchsorted(row_stops, np.append(0, stops), side="right")
    last_stop = np.append(0, row_stops)[rows_before[1:]]
    num_remaining = stops - np.maximum(last_stop, starts)
    return np.stack([np.diff(rows_before), num_remaining], axis=1).astype("<u8")


def _chunks_of_rows(rows: Positions, positions: Positions) -> Positions:
    """Return the chunk in which each row starts, given the rows that start before each chunk."""
    holders: Positions = rows.searchsorted(positions, side="right") - 1
    return holders


def _differs_from_previous(positions: Positions) -> npt.NDArray[np.bool_]:
    """Return which positions differ from the previous one; the first one does."""
    differs = np.ones(len(positions), np.bool_)
    np.not_equal(positions[1:], positions[:-1], out=differs[1:])
    return differs
