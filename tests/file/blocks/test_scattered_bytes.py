"""Nearby pieces of a file share a request, and are returned one after the other."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.byte_ranges import ByteRange, answer
from lance_stream.file.blocks import scattered_bytes
from lance_stream.file.blocks.scattered_bytes import (
    MAX_GAP_BYTES,
    MAX_JOINED_BYTES,
    gather,
    read_joined,
    read_slices,
)

FILE = np.random.default_rng(0).integers(0, 256, 3 * MAX_JOINED_BYTES, dtype=np.uint8)


def read(starts: Sequence[int], stops: Sequence[int]) -> tuple[bytes, list[ByteRange]]:
    """Return the pieces, one after the other, and the ranges that were requested."""
    requests: list[ByteRange] = []

    def read_ranges(ranges: Sequence[ByteRange]) -> list[memoryview]:
        requests.extend(ranges)
        return [FILE.data[span.start : span.stop] for span in ranges]

    pieces = read_slices(np.array(starts, np.int64), np.array(stops, np.int64))
    return answer(pieces, read_ranges).tobytes(), requests


def test_nearby_pieces_share_a_request() -> None:
    """A request costs more than the bytes of a small gap."""
    far = 70 + MAX_GAP_BYTES + 1
    pieces, requests = read([10, 50, far], [20, 70, far + 5])
    assert requests == [ByteRange(10, 70), ByteRange(far, far + 5)]
    assert pieces == b"".join(
        FILE[start:stop].tobytes() for start, stop in [(10, 20), (50, 70), (far, far + 5)]
    )


def test_joined_ranges_are_bounded() -> None:
    """A single piece is never split, however large it is."""
    starts = list(range(0, 2 * MAX_JOINED_BYTES, 1000))
    _, requests = read(starts, [start + 8 for start in starts])
    assert len(requests) == 2
    long = ByteRange(5, 2 * MAX_JOINED_BYTES)
    _, requests = read([long.start], [long.stop])
    assert requests == [long]
    middle = MAX_JOINED_BYTES // 2  # touching pieces are one
    _, requests = read([0, middle], [middle, 2 * MAX_JOINED_BYTES])
    assert requests == [ByteRange(0, 2 * MAX_JOINED_BYTES)]


def test_nearby_chunks_include_the_gap_between() -> None:
    """The positions must account for the gap, or each later chunk is shifted."""
    far = 70 + MAX_GAP_BYTES + 1
    starts, stops = np.array([10, 50, far]), np.array([20, 70, far + 5])
    requests = read_joined(starts, stops)
    assert next(requests) == [ByteRange(10, 70), ByteRange(far, far + 5)]
    with pytest.raises(StopIteration) as result:
        requests.send([FILE.data[10:70], FILE.data[far : far + 5]])
    data, positions = result.value.value
    assert positions.tolist() == [0, 40, 60]
    for start, stop, position in zip(starts, stops, positions, strict=True):
        assert data[position : position + stop - start].tobytes() == FILE[start:stop].tobytes()


@pytest.mark.parametrize("gap_bytes", [MAX_GAP_BYTES + 1, 3 * MAX_GAP_BYTES + 1])
def test_dense_spans_share_a_request(gap_bytes: int) -> None:
    """A large gap is worth reading only if the wanted bytes around it are larger."""
    starts = np.arange(3) * (2 * MAX_GAP_BYTES + gap_bytes)
    stops = starts + 2 * MAX_GAP_BYTES
    whole = [ByteRange(0, int(stops[-1]))]
    apart = [ByteRange(*value) for value in zip(starts.tolist(), stops.tolist(), strict=True)]
    assert next(read_joined(starts, stops)) == (whole if gap_bytes < 2 * MAX_GAP_BYTES else apart)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=60))
def test_gathered_pieces_match_the_file(distances: list[tuple[int, int]]) -> None:
    """Random distances show whether joined requests are cut at the right bytes."""
    bounds = np.cumsum(np.array(distances).reshape(-1))
    starts, stops = bounds[0::2], bounds[1::2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scattered_bytes, "MAX_GAP_BYTES", 20)
        patch.setattr(scattered_bytes, "MAX_JOINED_BYTES", 128)
        pieces, requests = read(starts.tolist(), stops.tolist())
    slices = [FILE[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)]
    assert pieces == b"".join(slices)
    assert all(one.stop < two.start for one, two in pairwise(requests))
    offsets, values = gather(FILE[: int(stops[-1])], starts, stops)
    assert values.tobytes() == pieces
    assert np.diff(offsets).tolist() == [len(value) for value in slices]
