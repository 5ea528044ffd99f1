"""Bytes of a file that were already read and need no second request."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

from lance_stream.byte_ranges import Asking, Buffer, ByteRange

T = TypeVar("T")


class KnownRanges:
    """Ranges of a file that were already read and need no second request.

    Args:
        ranges: The ranges.
        buffers: The bytes of each.
    """

    def __init__(self, ranges: Sequence[ByteRange], buffers: Sequence[Buffer]) -> None:
        self._known = sorted(zip(ranges, buffers, strict=True), key=lambda each: each[0].start)
        self._starts = [span.start for span, _ in self._known]

    def and_also(self, ranges: Sequence[ByteRange], buffers: Sequence[Buffer]) -> "KnownRanges":
        """Return these ranges and some more."""
        more = [
            (span, data)
            for span, data in zip(ranges, buffers, strict=True)
            if self._find(span) is None
        ]
        if not more:
            return self
        known = [*self._known, *more]
        return KnownRanges([span for span, _ in known], [data for _, data in known])

    def answering(self, asking: Asking[T]) -> Asking[T]:
        """Run a generator that requests bytes, and pass on only requests for unknown ranges."""
        if not self._known:
            return (yield from asking)
        try:
            asked = next(asking)
            while True:
                found = [self._find(span) for span in asked]
                missing = [span for span, one in zip(asked, found, strict=True) if one is None]
                fetched = iter((yield missing) if missing else ())
                asked = asking.send([next(fetched) if one is None else one for one in found])
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            asking.close()

    def _find(self, wanted: ByteRange) -> Buffer | None:
        if wanted.size_bytes == 0:
            return memoryview(b"")
        place = bisect_right(self._starts, wanted.start) - 1
        if place < 0 or self._known[place][0].stop < wanted.stop:
            return None
        known, data = self._known[place]
        return data[wanted.start - known.start : wanted.stop - known.start]


NOTHING_KNOWN = KnownRanges((), ())
