"""Reads many small pieces of a file without an object per piece.

Tens of thousands of scattered rows of a column are tens of thousands of pieces. A request for each
takes several times the time and memory of reading the bytes between them. So pieces that are close
to each other are requested as one range, and gathered from its bytes at once.

    MAX_GAP_BYTES        two pieces nearer than this are requested together
    MAX_JOINED_BYTES     a joined range does not cross a multiple of this, so that memory is
    allocated
                         in windows of one size, which are reused
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Bytes, Positions
from lance_stream.byte_ranges import Buffer, ByteRange, ByteRequests
from lance_stream.file.blocks.data_blocks import INT32, INT64, Offsets

MAX_GAP_BYTES: Final = 32 << 10
MAX_JOINED_BYTES: Final = 1 << 20

MAX_GAP_SHARE: Final = 1 / 2
"""Chunks are read as one range if at most this fraction of its bytes is between them, because this
costs less than concatenating several ranges."""

_MAX_INT32: Final = 2**31 - 1


def read_slices(starts: Positions, stops: Positions) -> ByteRequests[Bytes]:
    """Return pieces of a file, concatenated: one round.

    Args:
        starts: (num_pieces,) their first bytes, ascending.
        stops: (num_pieces,) one past their last; pieces do not overlap.
    """
    if len(starts) == 0:
        return np.zeros(0, np.uint8)
    heads = _first_pieces(starts, stops)
    ends = np.append(heads[1:], len(starts))
    begins, finishes = starts[heads], stops[ends - 1]
    buffers = yield [
        ByteRange(start, stop)
        for start, stop in zip(begins.tolist(), finishes.tolist(), strict=True)
    ]
    pieces = [
        np.frombuffer(buffer, np.uint8)
        if end - head == 1
        else _pieces_of(buffer, starts[head:end] - begin, stops[head:end] - begin)
        for buffer, head, end, begin in zip(
            buffers, heads.tolist(), ends.tolist(), begins.tolist(), strict=True
        )
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def read_joined(starts: Positions, stops: Positions) -> ByteRequests[tuple[Bytes, Positions]]:
    """Return pieces of a file, and the bytes between pieces that are close together: one round.

    Nothing is copied if all pieces are close together, or make up most of their span. This is for
    large pieces, such as chunks, most of which are needed.

    Args:
        starts: (num_pieces,) their first bytes, ascending; at least one piece.
        stops: (num_pieces,) one past their last; pieces do not overlap.

    Returns:
        Bytes, and (num_pieces,) the start of each piece in them.
    """
    gaps = starts[1:] - stops[:-1]
    heads = np.zeros(1, np.intp)
    if int(gaps.sum()) > MAX_GAP_SHARE * int(stops[-1] - starts[0]):
        heads = np.append(heads, np.flatnonzero(gaps > MAX_GAP_BYTES) + 1)
    begins = starts[heads]
    sizes = stops[np.append(heads[1:], len(starts)) - 1] - begins
    buffers = yield [
        ByteRange(start, start + size)
        for start, size in zip(begins.tolist(), sizes.tolist(), strict=True)
    ]
    parts = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    ends = sizes.cumsum()
    counts = np.diff(np.append(heads, len(starts)))
    positions = starts + np.repeat(ends - sizes - begins, counts)
    return parts[0] if len(parts) == 1 else np.concatenate(parts), positions


def gather(data: Bytes, starts: Positions, stops: Positions) -> tuple[Offsets, Bytes]:
    """Return concatenated slices of bytes, and the offsets between them.

    The slices ascend and do not overlap: together with the bytes between them they form a binary
    array of which every second value is needed, and Arrow copies those.
    """
    if len(starts) == 0:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    wide = len(data) > _MAX_INT32
    word = INT64 if wide else INT32
    bounds = np.empty(2 * len(starts), word)
    bounds[0::2], bounds[1::2] = starts, stops
    every = pa.Array.from_buffers(
        pa.large_binary() if wide else pa.binary(),
        len(bounds) - 1,
        [None, pa.py_buffer(bounds), pa.py_buffer(data)],
    )
    second_values = np.arange(0, len(bounds), 2, dtype=np.int64)  # `pa.array` would load pandas
    selected = every.take(
        pa.Array.from_buffers(pa.int64(), len(starts), [None, pa.py_buffer(second_values)])
    )
    buffers = selected.buffers()
    offsets = np.frombuffer(buffers[1], word)[: len(starts) + 1]
    values = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.zeros(0, np.uint8)
    return offsets, values[: int(offsets[-1])]


def _first_pieces(starts: Positions, stops: Positions) -> npt.NDArray[np.intp]:
    """Return the first piece of each range."""
    gaps = starts[1:] - stops[:-1]
    windows = starts // MAX_JOINED_BYTES
    is_apart = (gaps > MAX_GAP_BYTES) | ((gaps > 0) & (windows[1:] != windows[:-1]))
    return np.concatenate((np.zeros(1, np.intp), np.flatnonzero(is_apart) + 1))


def _pieces_of(buffer: Buffer, starts: Positions, stops: Positions) -> Bytes:
    data = np.frombuffer(buffer, np.uint8)
    if bool((starts[1:] == stops[:-1]).all()):
        return data
    return gather(data, starts, stops)[1]
