"""Buffers that are split into pieces and processed together, like the chunks of a mini-block page.

The chunks of a page are consecutive, each with a header and padding between its buffers.
A codec gets one buffer of all chosen chunks, so that it can process them at once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.data_blocks import Words
from lance_stream.file.blocks.scattered_bytes import gather

MIN_BYTES_FOR_HUGE_PAGES = 1 << 25
"""Buffers of at least this size are allocated by the system; numpy requests huge pages for them,
Arrow does not."""

MAX_CHUNK_COUNT = (1 << 16) - 1
"""A chunk's number of values is stored as its logarithm in 4 bits, that of its levels in 16."""


class ChunkedBuffer(NamedTuple):
    """The bytes that one value buffer has in each of the chosen chunks.

    Args:
        data: Bytes that contain them all, with gaps of any content.
        starts: (num_chunks,) the start of each chunk's bytes in `data`.
        sizes: (num_chunks,) their number.
    """

    data: Bytes
    starts: Counts
    sizes: Counts


def check_chunks(buffers: Iterable[ChunkedBuffer], num_values: Counts) -> None:
    """Check that chunks are inside their bytes, and have as many entries as `num_values`.

    Raises:
        CorruptDataError: A check fails.
    """
    if (_unsigned(num_values) > MAX_CHUNK_COUNT).any():
        raise CorruptDataError(
            f"a chunk has {num_values.min()} to {num_values.max()} values; "
            f"0 to {MAX_CHUNK_COUNT} are possible"
        )
    for buffer in buffers:
        size_bytes = len(buffer.data)
        if not len(buffer.starts) == len(buffer.sizes) == len(num_values):
            raise CorruptDataError(
                f"{len(num_values)} chunks have {len(buffer.starts)} starts and "
                f"{len(buffer.sizes)} sizes of buffers"
            )
        starts, room = _unsigned(buffer.starts), np.uint64(size_bytes)
        if (starts > room).any() or (_unsigned(buffer.sizes) > room - starts).any():
            raise CorruptDataError(f"a chunk's buffer exceeds the {size_bytes} available bytes")


def _unsigned(numbers: Counts) -> npt.NDArray[np.uint64]:
    """Return the numbers as u64, so that a negative one exceeds any number of bytes."""
    return numbers.astype(np.int64, copy=False).view(np.uint64)


def select_chunks(buffer: ChunkedBuffer, positions: npt.NDArray[np.intp]) -> ChunkedBuffer:
    """Return some of the chunks."""
    return ChunkedBuffer(buffer.data, buffer.starts[positions], buffer.sizes[positions])


def single_chunks(buffer: ChunkedBuffer) -> list[ChunkedBuffer]:
    """Return a buffer for each chunk."""
    return [
        ChunkedBuffer(
            buffer.data, buffer.starts[index : index + 1], buffer.sizes[index : index + 1]
        )
        for index in range(len(buffer.sizes))
    ]


def locate_values(num_values: Counts, positions: Counts) -> tuple[Counts, Counts]:
    """Return the chunk that contains each value, and the value's position in the chunk.

    Args:
        num_values: (num_chunks,) the number of values of each chunk.
        positions: The values' positions, counted over all chunks.
    """
    firsts = starts_of(num_values)
    chunks: Counts = firsts.searchsorted(positions, side="right") - 1
    return chunks, positions - firsts[chunks]


def words_at(data: Bytes, starts: Counts, word: np.dtype[np.unsignedinteger]) -> Words:
    """Return the words that start at some byte positions, aligned or not.

    Args:
        data: Bytes.
        starts: The starts of the words; they end inside of `data`.
        word: Their type.
    """
    if len(starts) == 0:
        return np.empty(0, word)
    unaligned_words: Words = np.ndarray((len(data) - word.itemsize + 1,), word, data.data, 0, (1,))
    return unaligned_words[starts]


def joined(buffer: ChunkedBuffer) -> Bytes:
    """Return the bytes of all chunks, concatenated; a view if they are adjacent."""
    return slices_joined(buffer.data, buffer.starts, buffer.starts + buffer.sizes)


def slices_joined(data: Bytes, starts: Counts, stops: Counts) -> Bytes:
    """Return slices of bytes, concatenated; a view if they are adjacent.

    Args:
        data: The bytes that contain them.
        starts: (num_slices,) their first bytes.
        stops: (num_slices,) one past their last.
    """
    if len(starts) == 0:
        return data[:0]
    if (starts[1:] == stops[:-1]).all():
        return data[int(starts[0]) : int(stops[-1])]
    sizes = stops - starts
    num_bytes = int(sizes.sum())
    num_regular = _num_regular(starts, sizes)
    ascends = bool((starts[1:] >= stops[:-1]).all() and (sizes >= 0).all())
    is_inside = int(starts[0]) >= 0 and int(stops[-1]) <= len(data)
    if (
        ascends
        and is_inside
        and num_regular < len(starts) // 2
        and num_bytes < MIN_BYTES_FOR_HUGE_PAGES
    ):
        return gather(data, starts, stops)[1]
    whole = np.empty(num_bytes, dtype=np.uint8)
    _fill(whole, data, starts, stops, num_regular)
    return whole


def concatenate_chunks(buffers: Sequence[ChunkedBuffer]) -> ChunkedBuffer:
    """Return the chunks of several buffers in one buffer; bytes are copied once.

    Args:
        buffers: At least one; their chunks are inside their bytes.
    """
    if len(buffers) == 1:
        return buffers[0]
    sizes = np.concatenate([buffer.sizes for buffer in buffers])
    whole = np.empty(int(sizes.sum()), dtype=np.uint8)
    num_copied = 0
    for buffer in buffers:
        stop = num_copied + int(buffer.sizes.sum())
        num_regular = _num_regular(buffer.starts, buffer.sizes)
        _fill(
            whole[num_copied:stop],
            buffer.data,
            buffer.starts,
            buffer.starts + buffer.sizes,
            num_regular,
        )
        num_copied = stop
    return consecutive(whole, sizes)


def _fill(target: Bytes, data: Bytes, starts: Counts, stops: Counts, num_regular: int) -> None:
    """Concatenate slices of bytes in `target`; the regular ones are copied at once."""
    num_copied = 0
    if num_regular > 1:
        size, stride = int(stops[0] - starts[0]), int(starts[1] - starts[0])
        num_copied = num_regular * size
        regular = as_strided(
            data[int(starts[0]) :], (num_regular, size), (stride, 1), writeable=False
        )
        np.copyto(target[:num_copied].reshape(num_regular, size), regular)
        starts, stops = starts[num_regular:], stops[num_regular:]
    source, destination = data.data, target.data
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        destination[num_copied : num_copied + stop - start] = source[start:stop]
        num_copied += stop - start


def _num_regular(starts: Counts, sizes: Counts) -> int:
    """Return the number of first slices that have equal sizes and distances and do not overlap.

    A single slice counts as 0.
    """
    if len(starts) < 2:
        return 0
    distances = np.diff(starts)
    if distances[0] < sizes[0]:
        return 1
    differs = (sizes[1:] != sizes[0]) | (distances != distances[0])
    return 1 + int(np.argmax(differs)) if differs.any() else len(sizes)


def consecutive(data: Bytes, sizes: Counts) -> ChunkedBuffer:
    """Return adjacent chunks of these sizes, starting at the first byte."""
    return ChunkedBuffer(data, starts_of(sizes), sizes)


def starts_of(sizes: Counts) -> Counts:
    """Return the starts of adjacent items of these sizes, beginning at 0."""
    starts = np.zeros(len(sizes), dtype=np.int64)
    sizes[:-1].cumsum(out=starts[1:])
    return starts
