"""Ranges of a file that have been read, so that they are not requested again."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

from lance_stream.byte_ranges import Buffer, ByteRange, ByteRequests

T = TypeVar("T")


class CachedRanges:
    """Ranges of a file that have been read.

    Args:
        ranges: The ranges.
        buffers: The bytes of each range.
    """

    def __init__(self, ranges: Sequence[ByteRange], buffers: Sequence[Buffer]) -> None:
        self._cached = sorted(zip(ranges, buffers, strict=True), key=lambda pair: pair[0].start)
        self._starts = [span.start for span, _ in self._cached]

    def extended(self, ranges: Sequence[ByteRange], buffers: Sequence[Buffer]) -> "CachedRanges":
        """Return these ranges with more ranges added."""
        more = [
            (span, data)
            for span, data in zip(ranges, buffers, strict=True)
            if self._find(span) is None
        ]
        if not more:
            return self
        pairs = [*self._cached, *more]
        return CachedRanges([span for span, _ in pairs], [data for _, data in pairs])

    def serve(self, requests: ByteRequests[T]) -> ByteRequests[T]:
        """Run a generator that requests bytes, and pass on only requests for other ranges."""
        if not self._cached:
            return (yield from requests)
        try:
            ranges = next(requests)
            while True:
                cached = [self._find(span) for span in ranges]
                missing = [span for span, hit in zip(ranges, cached, strict=True) if hit is None]
                fetched = iter((yield missing) if missing else ())
                ranges = requests.send([next(fetched) if hit is None else hit for hit in cached])
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            requests.close()

    def _find(self, target: ByteRange) -> Buffer | None:
        if target.size_bytes == 0:
            return memoryview(b"")
        index = bisect_right(self._starts, target.start) - 1
        if index < 0 or self._cached[index][0].stop < target.stop:
            return None
        span, data = self._cached[index]
        return data[target.start - span.start : target.stop - span.start]


NO_CACHED_RANGES = CachedRanges((), ())
