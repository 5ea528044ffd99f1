"""One column in memory: its pages written and read without a file around them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.byte_ranges import ByteRange, answer
from lance_stream.file.metadata.columns import EncodedPage, Page, pack_encoding, unpack_encoding
from lance_stream.file.v2_1.layouts import FieldWriter, PagesOfColumn, read_field, take_field
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import field_from_arrow, field_to_arrow
from lance_stream.schema.fields import Field, Schema, assign_ids


class Column:
    """The pages of a field, their bytes, and the requests for these.

    Attributes:
        pages: The pages of each leaf.
        rounds: The ranges of each round of requests.
    """

    def __init__(self, field: Field, pages: Sequence[Sequence[Page]], data: bytes) -> None:
        self.field = field
        self.pages = [list(page) for page in pages]
        self.data = data
        self.forget()

    def forget(self) -> None:
        """Return to the state after opening."""
        self.rounds: list[list[ByteRange]] = []
        leaves = list(self.field.leaves())
        self.pages_of_leaf = {
            leaf.id: PagesOfColumn(pages) for leaf, pages in zip(leaves, self.pages, strict=True)
        }

    @property
    def bytes_read(self) -> int:
        return sum(span.size_bytes for ranges in self.rounds for span in ranges)

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.rounds.append(list(ranges))
        return [memoryview(self.data)[span.start : span.stop] for span in ranges]

    def read(self, start: int, stop: int) -> pa.Array:
        return answer(read_field(self.field, self.pages_of_leaf, start, stop), self.read_ranges)

    def take(self, offsets: Iterable[int]) -> pa.Array:
        row_offsets = np.array(list(offsets), np.uint64)
        return answer(take_field(self.field, self.pages_of_leaf, row_offsets), self.read_ranges)

    def layout(self, leaf: int = 0, page: int = 0) -> pb.PageLayout:
        return unpack_encoding(self.pages[leaf][page].encoding, pb.PageLayout)

    def layouts(self) -> list[str | None]:
        return [
            self.layout(leaf, page).WhichOneof("layout")
            for leaf, pages in enumerate(self.pages)
            for page in range(len(pages))
        ]

    def buffer(self, index: int) -> bytes:
        """A buffer of the first page."""
        where = self.pages[0][0].buffers[index]
        return self.data[where.start : where.stop]

    def with_layout(self, message: pb.PageLayout, *, length: int | None = None) -> "Column":
        """The same bytes, under another layout."""
        page = self.pages[0][0]
        changed = replace(
            page,
            encoding=pack_encoding(message),
            length=page.length if length is None else length,
        )
        return Column(self.field, [[changed], *self.pages[1:]], self.data)

    def with_buffers(self, *buffers: bytes) -> "Column":
        """The same layout, over other bytes."""
        ranges, start = [], 0
        for buffer in buffers:
            ranges.append(ByteRange(start, start + len(buffer)))
            start += len(buffer)
        page = replace(self.pages[0][0], buffers=tuple(ranges))
        return Column(self.field, [[page], *self.pages[1:]], b"".join(buffers))


class Columns:
    """The fixture of the tests of layouts."""

    def field(self, arrow_type: pa.DataType, metadata: dict[str, str] | None = None) -> Field:
        arrow = pa.field("c", arrow_type, metadata=metadata)
        (field,) = assign_ids(Schema((field_from_arrow(arrow),))).fields
        return field

    def write(
        self,
        *arrays: pa.Array,
        version: FileVersion = FileVersion.V2_2,
        max_page_bytes: int = 8 << 20,
        metadata: dict[str, str] | None = None,
    ) -> Column:
        field = self.field(arrays[0].type, metadata)
        writer = FieldWriter(field, version, max_page_bytes)
        arrow_type = field_to_arrow(field).type
        encoded: list[EncodedPage] = []
        for array in arrays:
            encoded += writer.append(array if array.type == arrow_type else array.cast(arrow_type))
        encoded += writer.finish()
        pages: list[list[Page]] = [[] for _ in field.leaves()]
        parts: list[bytes] = []
        start = 0
        for page in encoded:
            ranges = []
            for buffer in page.buffers:
                data = b"".join(buffer)
                ranges.append(ByteRange(start, start + len(data)))
                parts.append(data)
                start += len(data)
            pages[page.column].append(
                Page(tuple(ranges), page.length, page.encoding, page.first_row)
            )
        return Column(field, pages, b"".join(parts))

    def from_buffers(
        self, arrow_type: pa.DataType, message: pb.PageLayout, length: int, *buffers: bytes
    ) -> Column:
        """A column of one page whose bytes are given."""
        empty = Column(self.field(arrow_type), [[Page((), length, pack_encoding(message))]], b"")
        return empty.with_buffers(*buffers)


@pytest.fixture(scope="session")
def columns() -> Columns:
    return Columns()
