"""Column metadata: for each column of a file its pages, for each page its buffers.

After the buffers, before the footer, there is one message per column:

    ColumnMetadata
        encoding            of the whole column: always "values" in files that we read, possibly
        with
                            a zone map
        pages
            buffers         (offset, size) in the file, 64-byte aligned
            length          rows; in 2.0 items, if the column holds the items of lists
            encoding        how the buffers hold the values: an Any around the version's own message
            priority        first row of the page; 2.0 writers leave it 0
        buffers             of the column as a whole

Source:  file2.proto, message ColumnMetadata.
Differs: In the proto, an encoding can be stored elsewhere in the file ("indirect"). No known writer
         does that, and the reference does not read it; neither do we.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError, Message

from lance_stream._proto import encodings_v2_0_pb2, file2_pb2
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field

M = TypeVar("M", bound=Message)

MAX_ITEMS = 2**63 - 1
"""The largest length of an Arrow array."""


@dataclass(frozen=True, slots=True)
class Page:
    """A run of rows of one column that is encoded separately.

    Attributes:
        buffers: The page's buffers in the file; the encoding refers to them by index.
        length: Number of rows (items, for the inner columns of 2.0 lists).
        encoding: A serialized google.protobuf.Any around the version's own encoding message.
        priority: First row of the page within the file; 0 throughout in 2.0.
    """

    buffers: tuple[ByteRange, ...]
    length: int
    encoding: bytes
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ColumnMetadata:
    """One column of a file.

    Attributes:
        pages: The pages in row order.
        encoding: A serialized google.protobuf.Any for the whole column.
        buffers: Buffers of the column that belong to no page.
    """

    pages: tuple[Page, ...]
    encoding: bytes
    buffers: tuple[ByteRange, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPage:
    """A page from a field's writer that is not yet in a file.

    Attributes:
        column: The page's column among the field's own columns, counted depth first: every
            field of the tree has one in 2.0, only the leaves have one from 2.1 on.
        buffers: The page's buffers, each in consecutive parts without gaps.
            The writer of the file aligns the start of each buffer.
        length: As in `Page`.
        encoding: As in `Page`.
        first_row: The priority of the page; 0 in 2.0.
    """

    column: int
    buffers: tuple[tuple[memoryview, ...], ...]
    length: int
    encoding: bytes
    first_row: int = 0


def decode_column_metadata(data: bytes | memoryview, data_stop: int) -> ColumnMetadata:
    """Return the column that a message describes, after checking every stored range.

    Args:
        data: The serialized message.
        data_stop: The end of the file's buffers; no range may exceed it.

    Raises:
        CorruptDataError: The message is malformed, a buffer is outside of the file, or a length
            is impossible.
        UnsupportedFeatureError: An encoding is stored elsewhere in the file.
    """
    message = file2_pb2.ColumnMetadata()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise CorruptDataError(f"the metadata of a column is malformed: {error}") from None
    return ColumnMetadata(
        pages=tuple(_page_from_proto(page, data_stop) for page in message.pages),
        encoding=_direct_encoding(message.encoding),
        buffers=_buffers_from_proto(message.buffer_offsets, message.buffer_sizes, data_stop),
    )


def encode_column_metadata(column: ColumnMetadata) -> bytes:
    """Return the message of a column."""
    message = file2_pb2.ColumnMetadata(
        encoding=_encoding_to_proto(column.encoding),
        pages=[
            file2_pb2.ColumnMetadata.Page(
                buffer_offsets=[buffer.start for buffer in page.buffers],
                buffer_sizes=[buffer.size_bytes for buffer in page.buffers],
                length=page.length,
                encoding=_encoding_to_proto(page.encoding),
                priority=page.priority,
            )
            for page in column.pages
        ],
        buffer_offsets=[buffer.start for buffer in column.buffers],
        buffer_sizes=[buffer.size_bytes for buffer in column.buffers],
    )
    return message.SerializeToString()


def fields_with_column(field: Field, version: FileVersion) -> Iterator[Field]:
    """Yield the fields of a top-level field's tree that have a column, in column order.

    In 2.0 every field has one, parents too, except the parts of a packed struct; from 2.1 on only
    the leaves have one.
    """
    return _with_parents(field) if version is FileVersion.V2_0 else field.leaves()


def holds_blobs(column: ColumnMetadata) -> bool:
    """Return whether a column's pages contain descriptions of blobs, in files of version 2.0.

    A zone map may accompany the values: it is an index of them, and is not needed.

    Raises:
        UnsupportedFeatureError: The column contains neither values nor descriptions of blobs.
    """
    if not column.encoding:
        return False
    message = unpack_encoding(column.encoding, encodings_v2_0_pb2.ColumnEncoding)
    kind = message.WhichOneof("column_encoding")
    has_blobs = False
    while kind in {"zone_index", "blob"}:
        has_blobs = has_blobs or kind == "blob"
        message = message.blob.inner if kind == "blob" else message.zone_index.inner
        kind = message.WhichOneof("column_encoding")
    if kind not in {None, "values"}:
        raise UnsupportedFeatureError(f"columns with the encoding {kind!r} are not supported yet")
    return has_blobs


def pack_encoding(message: Message) -> bytes:
    """Return an encoding message in an Any, as pages and columns store it."""
    return Any(
        type_url=f"/{message.DESCRIPTOR.full_name}",
        value=message.SerializeToString(),
    ).SerializeToString()


def unpack_encoding(encoding: bytes, kind: type[M]) -> M:
    """Return the message in an Any.

    Raises:
        UnsupportedFeatureError: It contains another message.
        CorruptDataError: The Any or the message is malformed.
    """
    wrapped = Any()
    message = kind()
    try:
        wrapped.ParseFromString(encoding)
        name = wrapped.type_url.rpartition("/")[2]
        if name != kind.DESCRIPTOR.full_name:
            raise UnsupportedFeatureError(
                f"expected an encoding of the kind {kind.DESCRIPTOR.full_name!r}, but found "
                f"{name!r}"
            )
        message.ParseFromString(wrapped.value)
    except DecodeError as error:
        raise CorruptDataError(f"an encoding message is malformed: {error}") from None
    return message


def _with_parents(field: Field) -> Iterator[Field]:
    """Yield the fields of a tree down to its leaves, parents first."""
    yield field
    if not field.is_leaf:
        for child in field.children:
            yield from _with_parents(child)


def _page_from_proto(page: file2_pb2.ColumnMetadata.Page, data_stop: int) -> Page:
    if page.length > MAX_ITEMS:
        raise CorruptDataError(f"a page claims to have {page.length} rows")
    return Page(
        buffers=_buffers_from_proto(page.buffer_offsets, page.buffer_sizes, data_stop),
        length=page.length,
        encoding=_direct_encoding(page.encoding),
        priority=page.priority,
    )


def _buffers_from_proto(
    offsets: Sequence[int], sizes: Sequence[int], data_stop: int
) -> tuple[ByteRange, ...]:
    if len(offsets) != len(sizes):
        raise CorruptDataError(f"{len(offsets)} buffers start, but {len(sizes)} have a size")
    ranges = tuple(
        ByteRange(start, start + size) for start, size in zip(offsets, sizes, strict=True)
    )
    for span in ranges:
        if span.stop > data_stop:
            raise CorruptDataError(
                f"a buffer extends from byte {span.start} to {span.stop}, but the file's "
                f"buffers end at {data_stop}"
            )
    return ranges


def _direct_encoding(encoding: file2_pb2.Encoding) -> bytes:
    where = encoding.WhichOneof("location")
    if where == "indirect":
        raise UnsupportedFeatureError("encodings stored elsewhere in the file are not supported")
    return encoding.direct.encoding if where == "direct" else b""


@lru_cache
def _encoding_to_proto(encoding: bytes) -> file2_pb2.Encoding:
    return file2_pb2.Encoding(direct=file2_pb2.DirectEncoding(encoding=encoding))
