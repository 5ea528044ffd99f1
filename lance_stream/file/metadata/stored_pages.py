"""The positions of a file's pages, for readers that prefetch pages."""

from collections.abc import Sequence
from typing import NamedTuple

from lance_stream.byte_ranges import ByteRange
from lance_stream.file.metadata.columns import ColumnMetadata


class StoredPage(NamedTuple):
    """A page's position in its file.

    Attributes:
        buffers: Its buffers that are not empty, in file order.
        first_row: Its first row, counted in the file; estimated for the items of lists.
        stop_row: One past the last.
    """

    buffers: tuple[ByteRange, ...]
    first_row: int
    stop_row: int

    @property
    def start(self) -> int:
        """Its first byte."""
        return self.buffers[0].start

    @property
    def stop(self) -> int:
        """One past its last byte."""
        return max(buffer.stop for buffer in self.buffers)


def pages_of(columns: Sequence[ColumnMetadata], num_rows: int) -> list[list[StoredPage]]:
    """Return the stored pages of each column of a file.

    Columns that count items instead of rows are assumed to have as many in each row.
    """
    return [_pages_of_column(column, num_rows) for column in columns]


def _pages_of_column(column: ColumnMetadata, num_rows: int) -> list[StoredPage]:
    total = max(sum(page.length for page in column.pages), 1)
    pages, position = [], 0
    for page in column.pages:
        first, position = position, position + page.length
        buffers = tuple(sorted(buffer for buffer in page.buffers if buffer.size_bytes))
        if buffers:
            pages.append(
                StoredPage(buffers, first * num_rows // total, -(-position * num_rows // total))
            )
    return pages
