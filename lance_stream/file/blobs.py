"""Blobs in a data file: bytes between the pages, and their descriptions in a column.

    write       append the bytes of a batch when they arrive; collect only descriptions into pages,
                so that the memory of a writer does not depend on the blobs
    read        read descriptions, which contain the location of the bytes

Up to 2.1 a description is (position, size); a null has size 0 and a nonzero position. From
2.2 on it also has a kind, and can be null itself (see `schema.blobs`).

Source:  files that the reference wrote.
Differs: The reference aligns each value's bytes to 64; we write those of a batch without gaps.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream._proto import encodings_v2_0_pb2
from lance_stream.errors import InvalidInputError
from lance_stream.file.metadata.columns import EncodedPage, pack_encoding
from lance_stream.file.v2_1.layouts.blob import NULL_POSITION, in_blob_layout
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.blobs import (
    INLINE,
    PREPARED_V2,
    as_v1,
    as_v2,
    check_blobs,
    description_of,
)
from lance_stream.schema.fields import Field, Schema

NULL_POSITION_V2_0 = 1
"""The position of a null in a file of version 2.0."""


class DescribedBlobs(NamedTuple):
    """A batch of blobs, split into bytes and descriptions.

    Attributes:
        data: The bytes to append at the described position.
        descriptions: The contents of the column.
    """

    data: memoryview
    descriptions: pa.Array


class FieldWriter(Protocol):
    """Collects rows into pages, in any version."""

    def append(self, array: pa.Array) -> list[EncodedPage]:
        """Add rows, and return the pages that are full."""
        ...

    def finish(self) -> list[EncodedPage]:
        """Return the pages of the remaining rows."""
        ...


class BlobFieldWriter:
    """Collects descriptions into pages.

    Args:
        field: The blob column.
        inner: Collects descriptions into pages of structs.
        version: The file's version.
    """

    def __init__(self, field: Field, inner: FieldWriter, version: FileVersion) -> None:
        self._in_layout = version is FileVersion.V2_1
        self._nullable = field.nullable
        self._inner = inner

    def append(self, array: pa.Array) -> list[EncodedPage]:
        """Add descriptions, and return the pages that are full."""
        return self._wrapped(self._inner.append(array))

    def finish(self) -> list[EncodedPage]:
        """Return the pages of the descriptions that remain."""
        return self._wrapped(self._inner.finish())

    def _wrapped(self, pages: list[EncodedPage]) -> list[EncodedPage]:
        if not self._in_layout:
            return pages
        return [
            replace(page, encoding=in_blob_layout(page.encoding, nullable=self._nullable))
            for page in pages
        ]


def check_blob_column(field: Field, version: FileVersion) -> None:
    """Check that files of a version support the blobs of a column.

    Raises:
        InvalidInputError: They do not support them.
    """
    is_v2 = version not in (FileVersion.V0_1, FileVersion.V2_0, FileVersion.V2_1)
    if version is FileVersion.V0_1 or field.is_blob_v2 != is_v2:
        raise InvalidInputError(
            f"column {field.name!r}: files of version {version} do not support blobs of this form; "
            "remove the blob metadata of the column, or write the table in another version"
        )


def with_blobs_of(schema: Schema, version: FileVersion) -> Schema:
    """Return a new table's schema, with blob columns in the form of a version.

    Raises:
        InvalidInputError: A column cannot contain blobs, or the version does not support them.
    """
    check_blobs(schema)
    older = version in (FileVersion.V0_1, FileVersion.V2_0, FileVersion.V2_1)
    change = as_v1 if older else as_v2
    fields = tuple(change(field) for field in schema.fields)
    for field in fields:
        if field.is_blob:
            check_blob_column(field, version)
    return replace(schema, fields=fields)


def stored_type(field: Field) -> pa.DataType:
    """Return the type of the descriptions in a blob column's pages."""
    return field_to_arrow(description_of(field)).type


def stored_schema(schema: Schema) -> Schema:
    """Return the schema in a file: from 2.2 on with descriptions instead of blobs."""
    if not any(field.is_blob_v2 for field in schema.fields):
        return schema
    return replace(
        schema,
        fields=tuple(
            description_of(field) if field.is_blob_v2 else field for field in schema.fields
        ),
    )


def describe(field: Field, array: pa.Array, position: int, version: FileVersion) -> DescribedBlobs:
    """Split blobs into bytes and descriptions.

    Args:
        field: The blobs' column.
        array: large_binary; from 2.2 on possibly `schema.blobs.PREPARED_V2`, with some bytes
            already stored elsewhere.
        position: The position in the file at which the bytes will be appended.
        version: The file's version.

    Returns:
        The bytes, without a copy if no null has any, and the descriptions.
    """
    if field.is_blob_v2:
        return _describe_v2(field, array, position)
    starts, sizes, data = _spans(array)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    null_position = NULL_POSITION_V2_0 if version is FileVersion.V2_0 else NULL_POSITION
    positions = np.where(sizes > 0, starts + position, np.where(valid, 0, null_position))
    parts = [pa.array(positions.astype(np.uint64)), pa.array(sizes.astype(np.uint64))]
    return DescribedBlobs(data, _structs(field, parts, None))


def _describe_v2(field: Field, array: pa.Array, position: int) -> DescribedBlobs:
    if array.type != PREPARED_V2:
        starts, sizes, data = _spans(array)
        kinds = np.full(len(array), INLINE, np.uint8)
        positions, ids = starts + position, np.zeros(len(array), np.uint32)
    else:
        starts, sizes, data = _spans(array.field(1))
        kinds, elsewhere, lengths, ids = (
            pc.fill_null(array.field(index), 0).to_numpy(zero_copy_only=False)
            for index in (0, 2, 3, 4)
        )
        inline = kinds == INLINE
        positions = np.where(inline, starts + position, elsewhere)
        sizes = np.where(inline, sizes, lengths)
    parts = [
        pa.array(kinds),
        pa.array(positions.astype(np.uint64)),
        pa.array(sizes.astype(np.uint64)),
        pa.array(ids),
        pa.array([""]).take(pa.array(np.zeros(len(array), np.int8))),
    ]
    return DescribedBlobs(
        data, _structs(field, parts, array.is_null() if array.null_count else None)
    )


def _spans(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], memoryview]:
    """Return the starts of the values among their bytes, their sizes, and the bytes."""
    if len(array) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), memoryview(b"")
    if array.null_count:
        array = pc.fill_null(array, b"")
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = memoryview(array.buffers()[2])[first:last] if last > first else memoryview(b"")
    return offsets[:-1] - first, np.diff(offsets), data


def _structs(field: Field, parts: list[pa.Array], missing: pa.Array | None) -> pa.Array:
    arrow_type = stored_type(field)
    return pa.StructArray.from_arrays(parts, fields=list(arrow_type), mask=missing)


def column_encoding(field: Field, version: FileVersion) -> bytes:
    """Return the encoding of a whole column, for its metadata."""
    return _column_encoding(of_blobs=version is FileVersion.V2_0 and field.is_blob)


@cache
def _column_encoding(*, of_blobs: bool) -> bytes:
    encoding = encodings_v2_0_pb2.ColumnEncoding()
    if of_blobs:
        encoding.blob.inner.values.SetInParent()
    else:
        encoding.values.SetInParent()
    return pack_encoding(encoding)
