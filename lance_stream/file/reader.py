"""Reads a data file: its metadata once, then rows of the requested columns.

Everything here is pure: it requests byte ranges and receives buffers (see `byte_ranges`). The first
request reads the last 64 KiB of a file, which are cached, so that one request reads a small file.

    opening     1 request: the last 64 KiB
                up to 2 more, if the tables or the schema are not in them
    reading     what the columns' version needs; plus 1 request if the metadata of the columns
                were not among what opening has read

Source: file format document, "Reading a file".
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ByteRange, ByteRequests
from lance_stream.errors import InvalidInputError
from lance_stream.file.cached_ranges import CachedRanges
from lance_stream.file.metadata.file_metadata import FileMetadata
from lance_stream.file.metadata.footer import (
    FOOTER_BYTES,
    Footer,
    decode_file_descriptor,
    decode_footer,
    decode_footer_version,
    decode_position_table,
)
from lance_stream.file.metadata.stored_pages import StoredPage
from lance_stream.file.paged_file import PagedFile
from lance_stream.file.rows import Rows
from lance_stream.file.v0_1.file_tail import FOOTER_BYTES as FIRST_FOOTER_BYTES
from lance_stream.file.v0_1.file_tail import FileTail
from lance_stream.file.v0_1.statistics import PageBounds
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field

TAIL_BYTES: Final = 64 << 10
"""Bytes at the end of a file that the first request reads."""

EAGER_METADATA_BYTES: Final = 1 << 20
"""Column metadata up to this size are read when a file is opened."""


class FileContent(Protocol):
    """Reads the rows of a file of one version; see `FileReader`."""

    def read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], rows: Rows
    ) -> ByteRequests[list[pa.Array]]:
        """Return rows of some fields."""
        ...

    def page_starts(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> ByteRequests[npt.NDArray[np.int64]]:
        """Return the page starts of the column with the most pages."""
        ...

    def stored_pages(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> ByteRequests[list[list[StoredPage]]]:
        """Return the locations of the pages of some columns, column by column."""
        ...

    def page_bounds(self, fields: Sequence[Field]) -> ByteRequests[PageBounds | None]:
        """Return the bounds of the values of each page."""
        ...


class FileReader:
    """Reads rows of one file; caches what it learns about columns and pages.

    Created by `open_file`.
    """

    def __init__(self, metadata: FileMetadata, content: FileContent, cached: CachedRanges) -> None:
        self.metadata = metadata
        self._content = content
        self._cached = cached

    def read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], start: int, stop: int
    ) -> ByteRequests[list[pa.Array]]:
        """Return the rows from `start` up to but not including `stop`.

        Args:
            fields: Top-level fields of the table, possibly without some children.
            column_of: The column of each field in the file, by field id.
            start: First row offset.
            stop: One past the last; at most the file's number of rows.

        Returns:
            For each field an array of `stop - start` rows, of exactly the field's Arrow type.

        Raises:
            InvalidInputError: The rows do not exist, or are too large for one array.
            NotFoundError: A field has no column in this file.
            BadDataError: The file is damaged, or has unsupported features.
        """
        if not 0 <= start <= stop <= self.metadata.num_rows:
            raise InvalidInputError(
                f"rows {start} to {stop} were requested, but the file has the rows 0 to "
                f"{self.metadata.num_rows}"
            )
        return self._cached.serve(self._content.read(fields, column_of, Rows(start, stop)))

    def take(
        self,
        fields: Sequence[Field],
        column_of: Mapping[int, int],
        offsets: npt.NDArray[np.uint64],
    ) -> ByteRequests[list[pa.Array]]:
        """Return the rows at some offsets, reading little more than their bytes.

        Args:
            fields: As in `read`.
            column_of: As in `read`.
            offsets: (num_rows,) row offsets, ascending, without duplicates.

        Returns:
            For each field an array of these rows, in the same order.

        Raises:
            InvalidInputError: The offsets are not ascending, or past the file's rows.
            NotFoundError: A field has no column in this file.
            BadDataError: The file is damaged, or has unsupported features.
        """
        if len(offsets) and int(offsets[-1]) >= self.metadata.num_rows:
            raise InvalidInputError(
                f"row offset {int(offsets[-1])} was requested, but the file has "
                f"{self.metadata.num_rows} rows"
            )
        positions = offsets.astype(np.int64)
        if len(positions) and (
            int(positions[0]) < 0 or not bool((positions[1:] > positions[:-1]).all())
        ):
            raise InvalidInputError("row offsets must be ascending and without duplicates")
        return self._cached.serve(self._content.read(fields, column_of, Rows.of(positions)))

    def page_starts(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> ByteRequests[npt.NDArray[np.int64]]:
        """Return the page starts of the column with the most pages.

        Reads that end there do not join pages of that column.

        Args:
            fields: As in `read`; those without a column in this file are ignored.
            column_of: As in `read`.

        Returns:
            (num_pages + 1,) row offsets, ascending from 0 to the file's number of rows.

        Raises:
            BadDataError: The file is damaged.
        """
        return self._cached.serve(self._content.page_starts(fields, column_of))

    def stored_pages(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> ByteRequests[list[list[StoredPage]]]:
        """Return the locations of the pages of some columns.

        Args:
            fields: As in `read`; those without a column in this file are ignored.
            column_of: As in `read`.

        Returns:
            The pages of each column; empty if the version does not state where a page ends.

        Raises:
            BadDataError: The file is damaged.
        """
        return self._cached.serve(self._content.stored_pages(fields, column_of))

    def page_bounds(self, fields: Sequence[Field]) -> ByteRequests[PageBounds | None]:
        """Return the bounds of the values of each page; None if they are unknown.

        Args:
            fields: Leaves outside of lists.

        Raises:
            BadDataError: The file is damaged.
        """
        return self._cached.serve(self._content.page_bounds(fields))


def open_file(size_bytes: int, whole_below: int = 0) -> ByteRequests[FileReader]:
    """Return a reader of a file: one request for its end, and at most two more if that is large.

    Args:
        size_bytes: The size of the file.
        whole_below: Up to this size the first request reads the whole file, and caches it.

    Raises:
        CorruptDataError: It is not a Lance data file, or it is damaged.
        UnsupportedFeatureError: Its version is not supported; the message names it.
    """
    tail_start = 0 if size_bytes <= whole_below else max(0, size_bytes - TAIL_BYTES)
    (tail,) = yield [ByteRange(tail_start, size_bytes)]
    cached = CachedRanges([ByteRange(tail_start, size_bytes)], [tail])
    if decode_footer_version(tail[-FOOTER_BYTES:], size_bytes) is FileVersion.V0_1:
        from lance_stream.file.v0_1.reader import open_v01_file  # few files need it

        first = yield from cached.serve(open_v01_file(tail[-FIRST_FOOTER_BYTES:], size_bytes))
        return FileReader(_metadata_of(first.tail, size_bytes), first, cached)
    footer = decode_footer(tail[-FOOTER_BYTES:], size_bytes)
    return (yield from cached.serve(_open(size_bytes, footer, cached)))


def _open(size_bytes: int, footer: Footer, cached: CachedRanges) -> ByteRequests[FileReader]:
    column_table, global_table = yield [footer.column_table, footer.global_table]
    column_ranges = decode_position_table(column_table, size_bytes)
    buffer_ranges = decode_position_table(global_table, size_bytes)
    eager = sum(column_span.size_bytes for column_span in column_ranges) <= EAGER_METADATA_BYTES
    descriptor, *columns = yield [buffer_ranges[0], *(column_ranges if eager else ())]
    schema, num_rows = decode_file_descriptor(descriptor)
    metadata = FileMetadata(
        footer.version, num_rows, schema, column_ranges, buffer_ranges, size_bytes
    )
    if eager:
        cached = cached.extended(column_ranges, columns)
    return FileReader(metadata, PagedFile(metadata, footer.metadata_start), cached)


def _metadata_of(tail: FileTail, size_bytes: int) -> FileMetadata:
    return FileMetadata(FileVersion.V0_1, tail.num_rows, tail.schema, (), (), size_bytes)
