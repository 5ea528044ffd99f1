"""Reads the fields of a 2.0 file; caches the metadata of its columns."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.metadata.column_table import ColumnTable
from lance_stream.file.metadata.columns import ColumnMetadata, holds_blobs
from lance_stream.file.metadata.file_metadata import FileMetadata
from lance_stream.file.nested_arrays import map_blobs
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.paged_columns import PagedColumn
from lance_stream.file.v2_0.read_fields import read_field
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
        self._stored_fields = {field.id: field for field in metadata.schema.walk()}
        self._paged_columns: dict[tuple[int, int], PagedColumn] = {}

    def fields_with_column(self, field: Field) -> Iterable[Field]:
        """Return the fields, among a field and those below it, that may have a column.

        Only the file shows whether a struct is packed, so that its parts have none.
        """
        return field.walk()

    def load_ahead(
        self, fields: Sequence[Field], columns: Sequence[Mapping[int, int]]
    ) -> ByteRequests[None]:
        """Load the columns after those whose strings an early writer stored as lists of bytes."""
        leaves = {
            below[leaf.id]: self._paged_column(below[leaf.id], leaf.id)
            for field, below in zip(fields, columns, strict=True)
            for leaf in field.leaves()
            if leaf.id in below
        }
        as_lists = {
            index: leaf
            for index, leaf in leaves.items()
            if leaf.bytes_of_strings is None and leaf.kind == "list"
        }
        loaded = yield from self._columns.load([index + 1 for index in as_lists])
        for leaf, next_column in zip(as_lists.values(), loaded, strict=True):
            leaf.bytes_of_strings = PagedColumn(next_column, self._metadata.buffer_ranges)

    def read(self, field: Field, columns: Mapping[int, int], rows: Rows) -> ByteRequests[pa.Array]:
        """Return rows of a field.

        Args:
            field: The field, with all parts of packed structs.
            columns: The columns of the field and of those below it, by field id; all are loaded.
            rows: The requested rows.

        Raises:
            BadDataError: The file is damaged, or has unsupported features.
            InvalidInputError: The values are too large for one array.
        """
        for descendant in field.walk():
            if descendant.id in columns:
                _check_descriptions(descendant, self._columns[columns[descendant.id]])
        paged = {
            field_id: self._paged_column(index, field_id) for field_id, index in columns.items()
        }
        array = yield from read_field(field, paged, self._metadata.num_rows, rows)
        return map_blobs(field, array, _with_nulls)

    def _paged_column(self, index: int, field_id: int) -> PagedColumn:
        # Another field may name the same column, in a manifest that is forged or damaged.
        key = (index, field_id)
        if key not in self._paged_columns:
            self._paged_columns[key] = PagedColumn(
                self._columns[index], self._metadata.buffer_ranges, self._stored_field(field_id)
            )
        return self._paged_columns[key]

    def _stored_field(self, field_id: int) -> Field | None:
        stored = self._stored_fields.get(field_id)
        # The file's own schema has the blobs, not their descriptions.
        return None if stored is None or stored.is_blob else stored


def _check_descriptions(field: Field, column: ColumnMetadata) -> None:
    """Check that a column contains blobs if and only if the table does.

    Raises:
        CorruptDataError: The file and the table disagree.
    """
    if holds_blobs(column) != field.is_blob:
        raise CorruptDataError(
            f"the column {field.name!r} {'has' if field.is_blob else 'has no'} blobs in the table, "
            "but the file disagrees"
        )


def _with_nulls(_: Field, descriptions: pa.Array) -> pa.Array:
    """Return the descriptions, with those of nulls set to null."""
    positions, sizes = (descriptions.field(index) for index in (0, 1))
    missing = pc.and_(pc.equal(sizes, 0), pc.not_equal(positions, 0))
    if not pc.any(missing).as_py():
        return descriptions
    return pa.StructArray.from_arrays(
        [positions, sizes], fields=list(descriptions.type), mask=missing
    )
