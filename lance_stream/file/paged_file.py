"""A file of version 2.x as columns of pages: the common part of these versions.

Each version reads the pages of a column in its own way (`v2_0.field_reader`, `v2_1.field_reader`),
and is imported when the first of its files is opened.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ByteRequests, read_together
from lance_stream.errors import (
    BadDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.file.metadata.column_table import ColumnTable
from lance_stream.file.metadata.file_metadata import FileMetadata
from lance_stream.file.metadata.stored_pages import StoredPage, pages_of
from lance_stream.file.packed_parts import with_whole_structs, without_parts
from lance_stream.file.rows import Rows
from lance_stream.file.type_support import foreign_type
from lance_stream.file.v0_1.statistics import PageBounds
from lance_stream.file.versions import FileVersion
from lance_stream.schema.blobs import is_description
from lance_stream.schema.fields import Field


class FieldReader(Protocol):
    """Reads fields of the files of one version."""

    def fields_with_column(self, field: Field) -> Iterable[Field]:
        """Return the fields, among a field and those below it, that may have a column."""
        ...

    def load_ahead(
        self, fields: Sequence[Field], columns: Sequence[Mapping[int, int]]
    ) -> ByteRequests[None]:
        """Load the data that reading needs beyond the fields' own columns, in joint rounds."""
        ...

    def read(self, field: Field, columns: Mapping[int, int], rows: Rows) -> ByteRequests[pa.Array]:
        """Return rows of a field whose columns are loaded."""
        ...


class PagedFile:
    """Reads rows of one file; caches what it learns about columns and pages.

    Args:
        metadata: The file's metadata.
        data_stop: The end of its pages.
    """

    def __init__(self, metadata: FileMetadata, data_stop: int) -> None:
        self._metadata = metadata
        self._columns = ColumnTable(metadata.column_ranges, data_stop)
        self._reader = _field_reader(metadata, self._columns)

    def read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], rows: Rows
    ) -> ByteRequests[list[pa.Array]]:
        """Return rows of some fields; see `FileReader.read`."""
        columns = [self._columns_below(field, column_of) for field in fields]
        yield from self._columns.load([index for column in columns for index in column.values()])
        yield from self._reader.load_ahead(fields, columns)
        return (
            yield from read_together(
                [
                    _with_column_name(field, self._read_field(field, below, rows))
                    for field, below in zip(fields, columns, strict=True)
                ]
            )
        )

    def page_starts(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> ByteRequests[npt.NDArray[np.int64]]:
        """Return the page starts of the column with the most pages."""
        stored = [
            descendant
            for field in fields
            for descendant in field.walk()
            if descendant.id in column_of
        ]
        columns = yield from self._columns.load([column_of[descendant.id] for descendant in stored])
        lengths = [[page.length for page in column.pages] for column in columns]
        # The items of a 2.0 list are a separate column, which counts items.
        of_rows = [length for length in lengths if sum(length) == self._metadata.num_rows]
        return np.cumsum([0, *max(of_rows, key=len, default=[self._metadata.num_rows])])

    def stored_pages(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> ByteRequests[list[list[StoredPage]]]:
        """Return the locations of the pages of some columns, column by column."""
        stored = [
            descendant
            for field in fields
            for descendant in field.walk()
            if descendant.id in column_of
        ]
        columns = yield from self._columns.load([column_of[descendant.id] for descendant in stored])
        return pages_of(columns, self._metadata.num_rows)

    def page_bounds(self, fields: Sequence[Field]) -> ByteRequests[PageBounds | None]:  # noqa: ARG002  # none are stored
        """Return None: files from 2.0 on have no bounds of pages."""
        yield from ()
        return None

    def _read_field(
        self, field: Field, columns: Mapping[int, int], rows: Rows
    ) -> ByteRequests[pa.Array]:
        foreign = foreign_type(field, self._metadata.version)
        if foreign is not None:
            raise UnsupportedFeatureError(
                f"files of version {self._metadata.version} do not support {foreign}"
            )
        if field.is_blob and not is_description(field):
            raise InvalidInputError(
                f"the bytes of {field.name!r} are stored apart: read their locations, using the "
                "field that `schema.blobs.description_of` returns"
            )
        whole = with_whole_structs(field, self._metadata.schema)
        array = yield from self._reader.read(whole, columns, rows)
        return without_parts(array, whole, field)

    def _columns_below(self, field: Field, column_of: Mapping[int, int]) -> dict[int, int]:
        """Return the columns of a field and of those below it, by field id.

        Parts that were added to a nested column later are missing: they read as nulls.
        """
        columns = {
            stored.id: column_of[stored.id]
            for stored in self._reader.fields_with_column(field)
            if stored.id in column_of
        }
        if not columns:
            raise NotFoundError(f"the column {field.name!r} (field {field.id}) is not in this file")
        return columns


def _field_reader(metadata: FileMetadata, columns: ColumnTable) -> FieldReader:
    if metadata.version is FileVersion.V2_0:
        from lance_stream.file.v2_0 import field_reader as v2_0

        return v2_0.FieldReader(metadata, columns)
    from lance_stream.file.v2_1 import field_reader as v2_1

    return v2_1.FieldReader(metadata, columns)


def _with_column_name(field: Field, requests: ByteRequests[Any]) -> ByteRequests[Any]:
    """Run a generator that reads a column, and add the column's name to its errors."""
    try:
        return (yield from requests)
    except (BadDataError, InvalidInputError) as error:
        error.add_note(f"column: {field.name!r}")
        raise
