"""Reads the fields of a 2.1 or 2.2 file; caches the metadata of its columns."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from lance_stream.byte_ranges import ByteRequests
from lance_stream.file.metadata.column_table import ColumnTable
from lance_stream.file.metadata.columns import fields_with_column
from lance_stream.file.metadata.file_metadata import FileMetadata
from lance_stream.file.rows import Rows
from lance_stream.file.v2_1.layouts.pages import PagesOfColumn
from lance_stream.file.v2_1.layouts.read_fields import read_field, take_field
from lance_stream.schema.fields import Field


class FieldReader:
    """Reads fields of one file.

    Args:
        metadata: Those of the file.
        columns: Its columns.
    """

    def __init__(self, metadata: FileMetadata, columns: ColumnTable) -> None:
        self._metadata = metadata
        self._columns = columns
        self._pages_of_column: dict[int, PagesOfColumn] = {}

    def fields_with_column(self, field: Field) -> Iterable[Field]:
        """Return the fields, among a field and those below it, that have a column."""
        return fields_with_column(field, self._metadata.version)

    def load_ahead(
        self,
        fields: Sequence[Field],  # noqa: ARG002  # 2.0 needs them
        columns: Sequence[Mapping[int, int]],  # noqa: ARG002  # 2.0 needs them
    ) -> ByteRequests[None]:
        """Load nothing: the fields' own columns are sufficient."""
        yield from ()

    def read(self, field: Field, columns: Mapping[int, int], rows: Rows) -> ByteRequests[pa.Array]:
        """Return rows of a field.

        Args:
            field: The field, with all parts of packed structs.
            columns: The columns of its leaves, by field id; all are loaded.
            rows: The requested rows.

        Raises:
            BadDataError: The file is damaged, or has unsupported features.
            InvalidInputError: The values are too large for one array.
        """
        pages_of_leaf = {field_id: self._pages(index) for field_id, index in columns.items()}
        if rows.offsets is None:
            return read_field(field, pages_of_leaf, rows.start, rows.stop)
        return take_field(field, pages_of_leaf, rows.offsets.astype(np.uint64))

    def _pages(self, index: int) -> PagesOfColumn:
        if index not in self._pages_of_column:
            self._pages_of_column[index] = PagesOfColumn(self._columns[index].pages)
        return self._pages_of_column[index]
