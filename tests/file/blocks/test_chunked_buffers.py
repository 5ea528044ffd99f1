"""Chunks of several buffers are put side by side, whatever their sizes and gaps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, in_one, joined

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
    read_together = in_one(buffers)
    pieces = [
        buffer.data[start : start + size].tobytes()
        for buffer in buffers
        for start, size in zip(buffer.starts, buffer.sizes, strict=True)
    ]
    assert joined(read_together).tobytes() == b"".join(pieces)
    assert read_together.sizes.tolist() == [len(piece) for piece in pieces]
