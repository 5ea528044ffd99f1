"""Chunks of several buffers are put side by side, whatever their sizes and gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.file.blocks.chunked_buffers import (
    ChunkedBuffer,
    concatenate_chunks,
    joined,
    slices_joined,
)

chunks = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6)
regular = st.integers(1, 6).map(lambda count: [(2, 5)] * count)


@given(st.lists(chunks | regular, min_size=1, max_size=4))
def test_chunks_of_buffers_are_joined(gaps_and_sizes):
    """Chunks of several pages are decoded at once, whatever gaps lie between them."""
    buffers = []
    for number, value in enumerate(gaps_and_sizes):
        bounds = np.cumsum(np.array(value, np.int64).reshape(-1))
        data = np.arange(100 * number, 100 * number + 99).astype(np.uint8)
        buffers.append(ChunkedBuffer(data, bounds[0::2], bounds[1::2] - bounds[0::2]))
    read_together = concatenate_chunks(buffers)
    pieces = [
        buffer.data[start : start + size].tobytes()
        for buffer in buffers
        for start, size in zip(buffer.starts, buffer.sizes, strict=True)
    ]
    assert joined(read_together).tobytes() == b"".join(pieces)
    assert read_together.sizes.tolist() == [len(piece) for piece in pieces]


@given(st.data())
def test_slices_are_joined_in_any_order(data):
    """Slices that ascend are copied at once, and all others one by one."""
    source = np.arange(200, dtype=np.uint8)
    bounds = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(sorted)
    slices = data.draw(st.lists(bounds, max_size=8))
    if data.draw(st.booleans()):  # ascending, without overlaps
        points = sorted(point for pair in slices for point in pair)
        slices = list(zip(points[0::2], points[1::2], strict=True))
    starts, stops = (np.array([pair[end] for pair in slices], np.int64) for end in (0, 1))
    expected = b"".join(source[start:stop].tobytes() for start, stop in slices)
    assert slices_joined(source, starts, stops).tobytes() == expected


def test_slices_outside_their_bytes_are_refused():
    """Arrow would read the memory behind the bytes of a damaged file."""
    starts = np.array([0, 3, 5, 9], np.int64)
    with pytest.raises(ValueError, match="structure"):
        slices_joined(np.zeros(10, np.uint8), starts, starts + np.array([1, 1, 2, 500]))
