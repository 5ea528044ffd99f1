"""A column of a 2.0 file, with cached metadata of its pages."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import CorruptDataError
from lance_stream.file.cached_ranges import NO_CACHED_RANGES, CachedRanges
from lance_stream.file.metadata.columns import ColumnMetadata, unpack_encoding
from lance_stream.file.rows import MAX_POSITION, Rows
from lance_stream.file.v2_0.encodings.lists import list_encoding
from lance_stream.file.v2_0.pages import PageBuffers
from lance_stream.schema.fields import Field


class PagedColumn:
    """One column; encodings are parsed when a page is first read.

    Args:
        metadata: The column.
        of_file: The buffers that belong to the file as a whole.
        stored: The whole field in the file's own schema; None if unknown.

    Attributes:
        row_starts: (num_pages + 1,) int64, first row of each page, then the number of rows.
        stored: As above.
        bytes_of_strings: For a column of strings that an early writer stored as lists of bytes:
            the next column, which contains the bytes.
    """

    def __init__(
        self,
        metadata: ColumnMetadata,
        of_file: tuple[ByteRange, ...],
        stored: Field | None = None,
    ) -> None:
        self._pages = metadata.pages
        self._of_column = metadata.buffers
        self._of_file = of_file
        self.stored = stored
        self.bytes_of_strings: PagedColumn | None = None
        self._encodings: dict[int, pb.ArrayEncoding] = {}
        self.row_starts = _starts([page.length for page in metadata.pages])

    @property
    def num_rows(self) -> int:
        """Rows of all pages; items, if the column contains the items of lists."""
        return int(self.row_starts[-1])

    @cached_property
    def item_starts(self) -> npt.NDArray[np.int64]:
        """(num_pages + 1,) int64, first item of each page of lists, then the number of items.

        Raises:
            CorruptDataError: It is not a column of lists.
        """
        return _starts([list_encoding(self.encoding(i)).num_items for i in range(self.num_pages)])

    @property
    def num_pages(self) -> int:
        """The number of pages."""
        return len(self._pages)

    def encoding(self, page: int) -> pb.ArrayEncoding:
        """Return the encoding of a page.

        Raises:
            BadDataError: The message is malformed, or of another kind.
        """
        if page not in self._encodings:
            self._encodings[page] = unpack_encoding(self._pages[page].encoding, pb.ArrayEncoding)
        return self._encodings[page]

    def buffers(self, page: int, cached: CachedRanges = NO_CACHED_RANGES) -> PageBuffers:
        """Return the ranges of a page's buffers, and the parts that were already read."""
        return PageBuffers(self._pages[page].buffers, self._of_column, self._of_file, cached)

    @cached_property
    def kind(self) -> str | None:
        """Return the encoding of the first page, by the name of its message; None without pages.

        Raises:
            BadDataError: The message is malformed, or of another kind.
        """
        return self.encoding(0).WhichOneof("array_encoding") if self._pages else None

    def split(self, rows: Rows) -> list[tuple[int, Rows]]:
        """Return the pages that contain some rows, each with those rows counted from its first."""
        first = int(np.searchsorted(self.row_starts, rows.start, "right")) - 1
        last = int(np.searchsorted(self.row_starts, rows.stop, "left"))
        parts = [
            (page, rows.within(int(self.row_starts[page]), int(self.row_starts[page + 1])))
            for page in range(max(first, 0), min(last, self.num_pages))
        ]
        return [(page, part) for page, part in parts if len(part)]

    def check_num_rows(self, expected: int) -> None:
        """Check that the pages contain the number of rows of the file, or of the lists above.

        Raises:
            CorruptDataError: They contain more or fewer.
        """
        if self.num_rows != expected:
            raise CorruptDataError(
                f"the pages of a column have {self.num_rows} rows instead of {expected}"
            )


def _starts(lengths: list[int]) -> npt.NDArray[np.int64]:
    if sum(lengths) > MAX_POSITION:
        raise CorruptDataError(f"the pages of a column claim to have {sum(lengths)} rows")
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.array(lengths, np.int64), out=starts[1:])
    return starts
