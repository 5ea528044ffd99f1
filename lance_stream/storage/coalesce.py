"""Combines nearby byte ranges into fewer requests.

A request costs about as much as reading `max_gap_bytes` additional bytes, so two ranges that are
closer together are cheaper to read as one. A combined request has at most `max_request_bytes`. A
single range may be longer: it is read by one request, so that its bytes are in one buffer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lance_stream.byte_ranges import Buffer, ByteRange


class Request(NamedTuple):
    """One request, and the ranges that it covers.

    Attributes:
        start: First byte.
        stop: One past the last.
        indices: Indices of the ranges that it covers.
    """

    start: int
    stop: int
    indices: tuple[int, ...]


class Joining(NamedTuple):
    """A store's rules for combining ranges; see `plan_requests`.

    Attributes:
        max_gap_bytes: Ranges with a gap of at most this size are combined.
        max_request_bytes: Maximum length of a combined request.
        alignment: Every request starts at a multiple of it.
    """

    max_gap_bytes: int
    max_request_bytes: int
    alignment: int = 1

    def plan(self, ranges: Sequence[ByteRange]) -> list[Request]:
        """Return the requests for some ranges."""
        return plan_requests(
            ranges,
            max_gap_bytes=self.max_gap_bytes,
            max_request_bytes=self.max_request_bytes,
            alignment=self.alignment,
        )


def plan_requests(
    ranges: Sequence[ByteRange], *, max_gap_bytes: int, max_request_bytes: int, alignment: int = 1
) -> list[Request]:
    """Return the requests that together cover all ranges that are not empty, in file order.

    Args:
        ranges: The ranges to read.
        max_gap_bytes: Ranges with a gap of at most this size are combined.
        max_request_bytes: Maximum length of a combined request.
        alignment: Every request starts at a multiple of it.
    """
    order = [(r.start, r.stop, index) for index, r in enumerate(ranges) if r.stop > r.start]
    order.sort()
    requests: list[Request] = []
    indices: list[int] = []
    start = stop = 0
    for range_start, range_stop, index in order:
        joined_stop = max(stop, range_stop)
        if (
            indices
            and range_start - stop <= max_gap_bytes
            and (joined_stop - start <= max_request_bytes or range_stop <= stop)
        ):
            stop = joined_stop
            indices.append(index)
            continue
        if indices:
            requests.append(Request(start, stop, tuple(indices)))
        start, stop, indices = range_start - range_start % alignment, range_stop, [index]
    if indices:
        requests.append(Request(start, stop, tuple(indices)))
    return requests


def split_responses(
    ranges: Sequence[ByteRange], requests: Sequence[Request], responses: Sequence[Buffer]
) -> list[Buffer]:
    """Return the bytes of each range from the responses to the requests.

    Args:
        ranges: The ranges to read.
        requests: The result of `plan_requests` for them.
        responses: The bytes of each request; shorter if the file ends before the request.

    Returns:
        One view per range, short or empty if its response is.
    """
    empty = memoryview(b"")
    buffers = [empty] * len(ranges)
    for request, response in zip(requests, responses, strict=True):
        for index in request.indices:
            start, stop = ranges[index]
            buffers[index] = response[start - request.start : stop - request.start]
    return buffers
