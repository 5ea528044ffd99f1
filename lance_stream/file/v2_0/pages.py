"""The input of a codec: the buffers of a page, and a function that decodes nested encodings.

An encoding refers to a buffer of its page, of its column or of the file (the global buffers); the
latter two are shared by pages. No known writer uses them, but the reference reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRange, ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.cached_ranges import NO_CACHED_RANGES, CachedRanges
from lance_stream.file.rows import Rows


@dataclass(frozen=True, slots=True)
class PageBuffers:
    """The buffers that the encodings of a page can refer to, by index.

    Attributes:
        ranges: The page's buffers.
        of_column: Its column's buffers.
        of_file: The file's buffers.
        cached: The parts of them that were already read.
    """

    ranges: tuple[ByteRange, ...]
    of_column: tuple[ByteRange, ...] = ()
    of_file: tuple[ByteRange, ...] = ()
    cached: CachedRanges = NO_CACHED_RANGES

    def find(self, buffer: pb.Buffer) -> ByteRange:
        """Return the range of a buffer that an encoding refers to.

        Raises:
            CorruptDataError: The buffer does not exist, or its kind is unknown.
        """
        owners = {
            pb.Buffer.page: ("page", self.ranges),
            pb.Buffer.column: ("column", self.of_column),
            pb.Buffer.file: ("file", self.of_file),
        }
        if buffer.buffer_type not in owners:
            raise CorruptDataError(f"a buffer has the unknown kind {buffer.buffer_type}")
        owner, ranges = owners[buffer.buffer_type]
        if buffer.buffer_index >= len(ranges):
            raise CorruptDataError(
                f"buffer {buffer.buffer_index} is referred to, but the {owner} has "
                f"{len(ranges)} buffers"
            )
        return ranges[buffer.buffer_index]


class Decode(Protocol):
    """Decodes any encoding: codecs call it for nested encodings."""

    def __call__(
        self, encoding: pb.ArrayEncoding, arrow: pa.DataType, page: PageBuffers, rows: Rows
    ) -> ByteRequests[pa.Array]:
        """Return the values at `rows` as an array of type `arrow`."""


@dataclass(slots=True)
class NewPage:
    """The buffers of a page that is being written.

    Attributes:
        buffers: Each in consecutive parts.
    """

    buffers: list[tuple[memoryview, ...]] = field(default_factory=list)

    def add(self, parts: Sequence[memoryview]) -> pb.Buffer:
        """Add a buffer and return an encoding's reference to it."""
        self.buffers.append(tuple(parts))
        return pb.Buffer(buffer_index=len(self.buffers) - 1, buffer_type=pb.Buffer.page)


class Encode(Protocol):
    """Encodes arrays of any type: codecs call it for nested arrays."""

    def __call__(
        self, chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage
    ) -> pb.ArrayEncoding:
        """Add the buffers of some arrays of type `arrow`, in order, to a page."""
