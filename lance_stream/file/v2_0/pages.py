"""What a codec gets: the buffers of a page, and a way to decode the encodings inside of its own.

An encoding refers to a buffer of its page, of its column or of the file (the global buffers); the
latter two are shared by pages. No known writer makes them, but the reference reads them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import Asking, Buffer, ByteRange
from lance_stream.errors import CorruptDataError
from lance_stream.file.v2_0.rows import Rows

T = TypeVar("T")


class KnownRanges:
    """Ranges of a file that were read already, and need no second request.

    Args:
        ranges: The ranges.
        buffers: The bytes of each.
    """

    def __init__(self, ranges: Sequence[ByteRange], buffers: Sequence[Buffer]) -> None:
        self._known = sorted(zip(ranges, buffers, strict=True), key=lambda each: each[0].start)
        self._starts = [each.start for each, _ in self._known]

    def and_also(self, ranges: Sequence[ByteRange], buffers: Sequence[Buffer]) -> "KnownRanges":
        """Return these and some more."""
        if not ranges:
            return self
        held = [each for each, _ in self._known], [each for _, each in self._known]
        return KnownRanges([*held[0], *ranges], [*held[1], *buffers])

    def answering(self, asking: Asking[T]) -> Asking[T]:
        """Run a generator that asks for bytes, and pass on only what is not known."""
        if not self._known:
            return (yield from asking)
        try:
            asked = next(asking)
            while True:
                found = [self._find(each) for each in asked]
                missing = [each for each, one in zip(asked, found, strict=True) if one is None]
                fetched = iter((yield missing) if missing else ())
                asked = asking.send([next(fetched) if one is None else one for one in found])
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            asking.close()

    def _find(self, wanted: ByteRange) -> Buffer | None:
        place = bisect_right(self._starts, wanted.start) - 1
        if place < 0 or self._known[place][0].stop < wanted.stop:
            return None
        known, data = self._known[place]
        return data[wanted.start - known.start : wanted.stop - known.start]


NOTHING_KNOWN = KnownRanges((), ())


@dataclass(frozen=True, slots=True)
class PageBuffers:
    """The buffers that the encodings of a page can refer to, by place.

    Attributes:
        ranges: Those of the page.
        of_column: Those of its column.
        of_file: Those of the file.
        known: What of them was read already.
    """

    ranges: tuple[ByteRange, ...]
    of_column: tuple[ByteRange, ...] = ()
    of_file: tuple[ByteRange, ...] = ()
    known: KnownRanges = NOTHING_KNOWN

    def find(self, buffer: pb.Buffer) -> ByteRange:
        """Return where a buffer stands that an encoding refers to.

        Raises:
            CorruptDataError: There are fewer buffers, or it is a buffer of something unknown.
        """
        owners = {
            pb.Buffer.page: ("page", self.ranges),
            pb.Buffer.column: ("column", self.of_column),
            pb.Buffer.file: ("file", self.of_file),
        }
        if buffer.buffer_type not in owners:
            raise CorruptDataError(f"a buffer is said to be of kind {buffer.buffer_type}")
        owner, ranges = owners[buffer.buffer_type]
        if buffer.buffer_index >= len(ranges):
            raise CorruptDataError(
                f"buffer {buffer.buffer_index} is referred to, but the {owner} has "
                f"{len(ranges)} buffers"
            )
        return ranges[buffer.buffer_index]


class Decode(Protocol):
    """Decodes any encoding: what codecs call for the encodings inside of their own."""

    def __call__(
        self, encoding: pb.ArrayEncoding, arrow: pa.DataType, page: PageBuffers, rows: Rows
    ) -> Asking[pa.Array]:
        """Return the values at `rows` as an array of type `arrow`."""


@dataclass(slots=True)
class NewPage:
    """The buffers of a page that is being written.

    Attributes:
        buffers: Each in parts that stand one after the other.
    """

    buffers: list[tuple[memoryview, ...]] = field(default_factory=list)

    def add(self, parts: Sequence[memoryview]) -> pb.Buffer:
        """Add a buffer and return how an encoding refers to it."""
        self.buffers.append(tuple(parts))
        return pb.Buffer(buffer_index=len(self.buffers) - 1, buffer_type=pb.Buffer.page)


class Encode(Protocol):
    """Encodes arrays of any type: what codecs call for the arrays inside of their own."""

    def __call__(
        self, chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage
    ) -> pb.ArrayEncoding:
        """Add the buffers of some arrays of type `arrow`, one after the other, to a page."""
