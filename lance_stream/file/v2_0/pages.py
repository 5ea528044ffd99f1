"""What a codec gets: the buffers of a page, and a way to decode the encodings inside of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import Asking, ByteRange
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.v2_0.rows import Rows


@dataclass(frozen=True, slots=True)
class PageBuffers:
    """The buffers of a page, by place."""

    ranges: tuple[ByteRange, ...]

    def find(self, buffer: pb.Buffer) -> ByteRange:
        """Return where a buffer stands that an encoding refers to.

        Raises:
            CorruptDataError: The page has fewer buffers.
            UnsupportedFeatureError: The buffer belongs to the column or to the file.
        """
        if buffer.buffer_type != pb.Buffer.page:
            raise UnsupportedFeatureError("buffers that belong to no page are not supported yet")
        if buffer.buffer_index >= len(self.ranges):
            raise CorruptDataError(
                f"buffer {buffer.buffer_index} is referred to, but the page has "
                f"{len(self.ranges)} buffers"
            )
        return self.ranges[buffer.buffer_index]


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
