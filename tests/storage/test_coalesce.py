from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.byte_ranges import ByteRange
from lance_stream.storage.coalesce import Request, plan_requests, split_responses


def plan(*ranges: tuple[int, int], gap: int = 10, longest: int = 100) -> list[tuple[int, int]]:
    requests = plan_requests(
        [ByteRange(*span) for span in ranges], max_gap_bytes=gap, max_request_bytes=longest
    )
    return [(request.start, request.stop) for request in requests]


def test_near_ranges_are_one_request() -> None:
    """Reading a gap of up to `max_gap_bytes` costs less than a second request."""
    assert plan((0, 5), (15, 20)) == [(0, 20)]


def test_distant_ranges_are_two_requests() -> None:
    """One byte beyond the allowed gap, joining would read more than the gap is worth."""
    assert plan((0, 5), (16, 20)) == [(0, 5), (16, 20)]


def test_ranges_are_planned_in_any_order() -> None:
    """Callers pass ranges in the order of columns, not of the file, and must not pay more
    requests for it.
    """
    assert plan((15, 20), (0, 5)) == [(0, 20)]


def test_overlapping_ranges_are_one_request() -> None:
    """Bytes that two ranges share must be read only once."""
    assert plan((0, 50), (10, 20), (40, 60)) == [(0, 60)]


def test_joined_requests_stay_within_limits() -> None:
    """Joining adjacent ranges without a limit would build requests too large to run in parallel."""
    assert plan((0, 60), (60, 120), (120, 180)) == [(0, 60), (60, 120), (120, 180)]


def test_ranges_beyond_the_limit_stay_whole() -> None:
    """The limit restricts joining only: a caller receives each of its ranges as one buffer."""
    assert plan((0, 500), (500, 510)) == [(0, 500), (500, 510)]


def test_ranges_within_longer_ones_cost_nothing() -> None:
    """A range inside one that exceeds the limit is cut from its answer, also at its very end."""
    assert plan((0, 500), (100, 200), (499, 500)) == [(0, 500)]


def test_empty_ranges_are_not_requested() -> None:
    """HTTP cannot express an empty range, and a buffer of size zero is legal in a file."""
    assert plan((7, 7), (900, 900)) == []
    empty = [ByteRange(7, 7)]
    assert split_responses(empty, [], []) == [memoryview(b"")]


def test_requests_list_the_ranges_they_serve() -> None:
    """Answers are matched to ranges by these indices, which must follow the caller's order."""
    requests = plan_requests(
        [ByteRange(90, 95), ByteRange(0, 4), ByteRange(92, 99)],
        max_gap_bytes=0,
        max_request_bytes=50,
    )
    assert requests == [Request(0, 4, (1,)), Request(90, 99, (0, 2))]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), max_size=12),
    st.integers(0, 40),
    st.integers(1, 200),
)
def test_ranges_receive_exactly_their_bytes(
    pairs: list[tuple[int, int]], gap: int, longest: int
) -> None:
    """For arbitrary ranges, gaps and limits, cutting the answers must return every range's bytes
    and serve each range once.
    """
    data = memoryview(bytes(range(256)))
    ranges = [ByteRange(start, start + size) for start, size in pairs]
    requests = plan_requests(ranges, max_gap_bytes=gap, max_request_bytes=longest)
    answers = [data[request.start : request.stop] for request in requests]
    assert split_responses(ranges, requests, answers) == [data[r.start : r.stop] for r in ranges]
    assert sorted(index for request in requests for index in request.indices) == [
        index for index, span in enumerate(ranges) if span.size_bytes
    ]
