"""What a codec gets: the buffers of a page, and a way to decode the encodings inside of its own.

An encoding refers to a buffer of its page, of its column or of the file (the global buffers); the
latter two are shared by pages. No known writer makes them, but the reference reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import Asking, ByteRange
from lance_stream.errors import CorruptDataError
from lance_stream.file.known_ranges import NOTHING_KNOWN, KnownRanges
from lance_stream.file.rows import Rows


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
