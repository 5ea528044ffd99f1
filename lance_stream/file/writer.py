"""Writes a data file: batches in, bytes to append out.

    write       the buffers of pages that became full, each aligned to 64 bytes
    finish      the rest of the pages, the file descriptor, column metadata, tables and footer

The caller appends the results to the file in order. Values are not copied: the buffers are views of
the batches' memory.

Source: file format document, "Writing a file"; files that the reference wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.errors import InvalidInputError
from lance_stream.file.blobs import (
    BlobFieldWriter,
    FieldWriter,
    check_blob_column,
    column_encoding,
    describe,
    stored_schema,
)
from lance_stream.file.encoding_options import check_encoding_options
from lance_stream.file.metadata.columns import (
    ColumnMetadata,
    EncodedPage,
    Page,
    encode_column_metadata,
    fields_with_column,
)
from lance_stream.file.metadata.footer import (
    MAX_ROWS,
    Footer,
    encode_file_descriptor,
    encode_footer,
    encode_position_table,
    padding_to_alignment,
)
from lance_stream.file.type_support import check_types
from lance_stream.file.v0_1.writer import V01FileWriter
from lance_stream.file.v2_0 import write_fields as v2_0_fields
from lance_stream.file.v2_1.layouts import write_fields as structural_fields
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.schema.blobs import PREPARED_V2, check_blobs, description_of
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.types.logical_types import MAP, STRUCT

MAX_PAGE_BYTES: Final = 8 << 20
"""The approximate number of bytes of a column that form a page, as in the reference."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """The properties of a finished file that a manifest needs.

    Attributes:
        num_rows: Its rows.
        size_bytes: Its size.
        field_ids: The fields that have a column in it.
        column_indices: The column of each of them; none in version 0.1.
        version: The file's version.
    """

    num_rows: int
    size_bytes: int
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    version: FileVersion


class FileWriter:
    """Produces the bytes of one file.

    Args:
        schema: The columns, with field ids.
        version: The file's version.
        max_page_bytes: The approximate number of bytes of a column that form a page.
        dictionaries: The table's dictionaries, by field id; only version 0.1 has them.

    Raises:
        UnsupportedFeatureError: Files of this version are not supported.
        InvalidInputError: A column's metadata requests an unknown encoding, or files of the
            version do not support its type.
    """

    def __init__(
        self,
        schema: Schema,
        version: FileVersion,
        *,
        max_page_bytes: int = MAX_PAGE_BYTES,
        dictionaries: Mapping[int, pa.Array] | None = None,
    ) -> None:
        version.check_supported()
        check_types(schema.fields, version)
        check_blobs(schema)
        for field in schema.fields:
            check_encoding_options(field)
            if field.is_blob:
                check_blob_column(field, version)
        self._schema = schema
        self._arrow_schema = to_arrow(schema)
        self._version = version
        self._first: V01FileWriter | None = None
        if version is FileVersion.V0_1:
            self._first = V01FileWriter(schema, dictionaries or {}, max_page_bytes)
            return
        self._writers = [_field_writer(field, version, max_page_bytes) for field in schema.fields]
        self._first_columns: list[int] = []
        self._column_fields: list[Field] = []
        for field in schema.fields:
            self._first_columns.append(len(self._column_fields))
            self._column_fields += fields_with_column(field, version)
        self._pages: list[list[Page]] = [[] for _ in self._column_fields]
        self._num_rows = 0
        self._position = 0

    def write(self, batch: pa.RecordBatch) -> list[Buffer]:
        """Add a batch, and return the bytes to append, of pages that became full.

        Args:
            batch: Rows with exactly the Arrow schema of the file's schema.

        Raises:
            InvalidInputError: The batch has another schema, a forbidden null, or values that files
                of this version cannot store.
        """
        if not self._accepts(batch.schema):
            raise InvalidInputError(
                f"a batch has the schema {batch.schema.to_string()}, but the file has "
                f"{self._arrow_schema.to_string()}"
            )
        for field, array in zip(self._schema.fields, batch.columns, strict=True):
            check_nulls(field, array)
        if self._first is not None:
            return self._first.write(batch)
        if self._num_rows + batch.num_rows > MAX_ROWS:
            raise InvalidInputError(f"a file can have at most {MAX_ROWS} rows; start another file")
        self._num_rows += batch.num_rows
        appended: list[Buffer] = []
        for index, (field, array) in enumerate(
            zip(self._schema.fields, batch.columns, strict=True)
        ):
            if field.is_blob:
                array = self._append_blobs(field, array, appended)
            self._append_pages(index, self._writers[index].append(array), appended)
        return appended

    def finish(self) -> tuple[list[Buffer], WrittenFile]:
        """Return the last bytes to append, and the properties of the file for the manifest."""
        if self._first is not None:
            buffers, num_rows, size_bytes = self._first.finish()
            # columns are found by field id, which count from the first of them
            field_ids = tuple(sorted(field.id for field in self._schema.walk()))
            return buffers, WrittenFile(num_rows, size_bytes, field_ids, (), self._version)
        appended: list[Buffer] = []
        for index, writer in enumerate(self._writers):
            self._append_pages(index, writer.finish(), appended)
        self._append_metadata(appended)
        return appended, WrittenFile(
            num_rows=self._num_rows,
            size_bytes=self._position,
            field_ids=tuple(column_field.id for column_field in self._column_fields),
            column_indices=tuple(range(len(self._column_fields))),
            version=self._version,
        )

    def _accepts(self, schema: pa.Schema) -> bool:
        """Return whether a batch has the file's schema, or differs only in stored blobs."""
        if schema.equals(self._arrow_schema):
            return True
        return schema.names == self._arrow_schema.names and all(
            one.type == other.type or (field.is_blob_v2 and one.type == PREPARED_V2)
            for one, other, field in zip(
                schema, self._arrow_schema, self._schema.fields, strict=True
            )
        )

    def _append_blobs(self, field: Field, array: pa.Array, appended: list[Buffer]) -> pa.Array:
        """Append the bytes of blobs, and return their descriptions."""
        self._append([memoryview(bytes(padding_to_alignment(self._position)))], appended)
        described = describe(field, array, self._position, self._version)
        self._append([described.data], appended)
        return described.descriptions

    def _append_pages(
        self, field: int, pages: Sequence[EncodedPage], appended: list[Buffer]
    ) -> None:
        for page in pages:
            ranges = tuple(self._append_aligned(parts, appended) for parts in page.buffers)
            self._pages[self._first_columns[field] + page.column].append(
                Page(ranges, page.length, page.encoding, page.first_row)
            )

    def _append_metadata(self, appended: list[Buffer]) -> None:
        descriptor = encode_file_descriptor(stored_schema(self._schema), self._num_rows)
        global_ranges = [self._append_aligned([memoryview(descriptor)], appended)]
        metadata_start = self._position
        column_ranges = [
            self._append([memoryview(encode_column_metadata(column))], appended)
            for column in self._column_metadata()
        ]
        footer = Footer(
            metadata_start=metadata_start,
            column_table=self._append([memoryview(encode_position_table(column_ranges))], appended),
            global_table=self._append([memoryview(encode_position_table(global_ranges))], appended),
            version=self._version,
        )
        self._append([memoryview(encode_footer(footer))], appended)

    def _column_metadata(self) -> list[ColumnMetadata]:
        return [
            ColumnMetadata(tuple(pages), column_encoding(field, self._version))
            for field, pages in zip(self._column_fields, self._pages, strict=True)
        ]

    def _append_aligned(self, parts: Sequence[memoryview], appended: list[Buffer]) -> ByteRange:
        self._append([memoryview(bytes(padding_to_alignment(self._position)))], appended)
        return self._append(parts, appended)

    def _append(self, parts: Sequence[memoryview], appended: list[Buffer]) -> ByteRange:
        start = self._position
        for part in parts:
            if part.nbytes:
                appended.append(part)
                self._position += part.nbytes
        return ByteRange(start, self._position)


def check_nulls(field: Field, array: pa.Array) -> None:
    """Check that an array of a non-nullable field has no null.

    Nulls within null structs and null lists are ignored.

    Raises:
        InvalidInputError: The array has a null; the message names the column.
    """
    if field.nullable and (
        not field.children or all(descendant.nullable for descendant in field.walk())
    ):
        return
    if not field.nullable and array.null_count:
        raise InvalidInputError(
            f"the column {field.name!r} may not be null, but {array.null_count} of "
            f"{len(array)} values are"
        )
    if field.is_blob:
        return
    if field.logical_type == STRUCT:
        if array.null_count:
            array = array.filter(array.is_valid())
        parts = [array.field(index) for index in range(len(field.children))]
    elif field.logical_type == MAP:
        array = array.drop_null()
        first, last = (array.offsets[index].as_py() for index in (0, len(array)))
        parts = [array.values.slice(first, last - first)]
    else:
        parts = [array.flatten() for _ in field.children]
    for child, part in zip(field.children, parts, strict=True):
        check_nulls(child, part)


def _field_writer(field: Field, version: FileVersion, max_page_bytes: int) -> FieldWriter:
    if field.is_blob:
        inner = _plain_writer(description_of(field), version, max_page_bytes)
        return BlobFieldWriter(field, inner, version)
    return _plain_writer(field, version, max_page_bytes)


def _plain_writer(field: Field, version: FileVersion, max_page_bytes: int) -> FieldWriter:
    if version is FileVersion.V2_0:
        return v2_0_fields.FieldWriter(field, max_page_bytes)
    return structural_fields.FieldWriter(field, version, max_page_bytes)
