"""Joining near byte ranges into fewer requests.

A request costs about as much as reading `max_gap_bytes` more bytes does; two ranges that lie
nearer to each other than that are cheaper read as one. A joined request is never longer than
`max_request_bytes`, unless one range alone is: then it is read as it is, so that its bytes stand
in one buffer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lance_stream.byte_ranges import Buffer, ByteRange


class Request(NamedTuple):
    """One request, and which of the ranges it answers.

    Attributes:
        start: First byte.
        stop: One past the last.
        places: Indices of the ranges that lie within it.
    """

    start: int
    stop: int
    places: tuple[int, ...]


def plan_requests(
    ranges: Sequence[ByteRange], *, max_gap_bytes: int, max_request_bytes: int, alignment: int = 1
) -> list[Request]:
    """Return the requests that together cover all ranges that are not empty, in file order.

    Args:
        ranges: What is wanted.
        max_gap_bytes: Ranges that lie nearer to each other are joined.
        max_request_bytes: As long as the request they become is not longer than this.
        alignment: Every request starts at a multiple of it.
    """
    order = sorted((r.start, r.stop, place) for place, r in enumerate(ranges) if r.stop > r.start)
    requests: list[Request] = []
    places: list[int] = []
    start = stop = 0
    for range_start, range_stop, place in order:
        joined_stop = max(stop, range_stop)
        if (
            places
            and range_start - stop <= max_gap_bytes
            and (joined_stop - start <= max_request_bytes or range_stop <= stop)
        ):
            stop = joined_stop
            places.append(place)
            continue
        if places:
            requests.append(Request(start, stop, tuple(places)))
        start, stop, places = range_start - range_start % alignment, range_stop, [place]
    if places:
        requests.append(Request(start, stop, tuple(places)))
    return requests


def cut_answers(
    ranges: Sequence[ByteRange], requests: Sequence[Request], answers: Sequence[Buffer]
) -> list[Buffer]:
    """Return the bytes of each range out of the answers to the requests.

    Args:
        ranges: What was asked for.
        requests: What `plan_requests` made of it.
        answers: The bytes of each request; short where the file ends before the request does.

    Returns:
        One view for each range, short or empty where its answer is.
    """
    empty = memoryview(b"")
    buffers = [empty] * len(ranges)
    for request, answer in zip(requests, answers, strict=True):
        for place in request.places:
            start, stop = ranges[place]
            buffers[place] = answer[start - request.start : stop - request.start]
    return buffers
