"""The end of a data file: footer, position tables and the file's schema.

    buffers of pages            each 64-byte aligned, 0 padding
    global buffers              64-byte aligned; number 0 is the file descriptor
    column metadata             at A, one message per column, without gaps
    column table                at C, for each column u64 position, u64 size
    global buffer table         at G, for each global buffer u64 position, u64 size
    footer                      the last 40 bytes, little-endian:
        u64 A | u64 C | u64 G | u32 num_globals | u32 num_columns | u16 major | u16 minor | "LANC"

Files of version 0.1 have another footer, but their last 8 bytes have the same form: enough
to determine the version.

Source: file format document, "File structure"; files that the reference wrote.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from lance_stream._proto import file_pb2
from lance_stream.byte_ranges import ByteRange
from lance_stream.caches import IdentityCache
from lance_stream.errors import CorruptDataError
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import (
    UNASSIGNED_ID,
    Schema,
    fields_from_proto,
    fields_to_proto,
)

MAGIC: Final = b"LANC"
FOOTER_BYTES: Final = 40
BUFFER_ALIGNMENT: Final = 64
MAX_ROWS: Final = 2**32
"""The rows of a fragment have u32 offsets."""

_FOOTER: Final = struct.Struct("<QQQIIHH4s")
_VERSION: Final = struct.Struct("<HH4s")
_TABLE_ENTRY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Footer:
    """The positions of the parts of a file.

    Attributes:
        metadata_start: The start of the first column's metadata, and the end of the buffers.
        column_table: The bytes of the column table.
        global_table: The bytes of the global buffer table.
        version: The file's version.
    """

    metadata_start: int
    column_table: ByteRange
    global_table: ByteRange
    version: FileVersion


def decode_footer_version(last_bytes: bytes | memoryview, size_bytes: int) -> FileVersion:
    """Return the version in the last bytes of a file.

    Args:
        last_bytes: The last bytes of the file; at least eight, if it has as many.
        size_bytes: The size of the file.

    Raises:
        CorruptDataError: The file does not end like a Lance file.
        UnsupportedFeatureError: The file's version is unknown or not supported.
    """
    if len(last_bytes) < _VERSION.size or bytes(last_bytes[-4:]) != MAGIC:
        raise CorruptDataError(
            f"the file of {size_bytes} bytes does not end in {MAGIC!r}: it is not a Lance data "
            "file, it is truncated, or its recorded size is wrong"
        )
    major, minor, _ = _VERSION.unpack(last_bytes[-_VERSION.size :])
    version = FileVersion.from_numbers(major, minor)
    version.check_supported()
    return version


def decode_footer(last_bytes: bytes | memoryview, size_bytes: int) -> Footer:
    """Return the contents of a file's last bytes.

    Args:
        last_bytes: The last 40 bytes of the file, or all of them if there are fewer.
        size_bytes: The size of the file.

    Raises:
        CorruptDataError: The file does not end like a Lance file, or a position in its footer is
            outside of it.
        UnsupportedFeatureError: The file's version is unknown or not supported.
    """
    version = decode_footer_version(last_bytes, size_bytes)
    if len(last_bytes) < FOOTER_BYTES:
        raise CorruptDataError(f"a file of {len(last_bytes)} bytes is too short for a footer")
    metadata_start, column_start, global_start, num_globals, num_columns, *_ = _FOOTER.unpack(
        last_bytes[-FOOTER_BYTES:]
    )
    footer = Footer(
        metadata_start=metadata_start,
        column_table=_table(column_start, num_columns),
        global_table=_table(global_start, num_globals),
        version=version,
    )
    end = size_bytes - FOOTER_BYTES
    if metadata_start > end or footer.column_table.stop > end or footer.global_table.stop > end:
        raise CorruptDataError(f"the footer of a file of {size_bytes} bytes points beyond its end")
    if num_globals == 0:
        raise CorruptDataError("the file has no global buffer, and so no schema")
    return footer


def encode_footer(footer: Footer) -> bytes:
    """Return the last 40 bytes of a file."""
    return _FOOTER.pack(
        footer.metadata_start,
        footer.column_table.start,
        footer.global_table.start,
        footer.global_table.size_bytes // _TABLE_ENTRY_BYTES,
        footer.column_table.size_bytes // _TABLE_ENTRY_BYTES,
        *footer.version.footer_numbers,
        MAGIC,
    )


def decode_position_table(table: bytes | memoryview, size_bytes: int) -> tuple[ByteRange, ...]:
    """Return the ranges in a column table or a global buffer table.

    Raises:
        CorruptDataError: A range extends past the footer of a file of `size_bytes`.
    """
    entries = np.frombuffer(table, dtype="<u8").reshape(-1, 2)
    ranges = tuple(ByteRange(start, start + size) for start, size in entries.tolist())
    if any(span.stop > size_bytes - FOOTER_BYTES for span in ranges):
        raise CorruptDataError(f"a table of a file of {size_bytes} bytes points beyond its end")
    return ranges


def encode_position_table(ranges: Sequence[ByteRange]) -> bytes:
    """Return a column table or a global buffer table."""
    return np.array([(span.start, span.size_bytes) for span in ranges], dtype="<u8").tobytes()


def decode_file_descriptor(data: bytes | memoryview) -> tuple[Schema, int]:
    """Return the file's own schema and its number of rows.

    Raises:
        CorruptDataError: The message is malformed, or there are more rows than offsets for them.
    """
    message = file_pb2.FileDescriptor()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise CorruptDataError(f"the file's descriptor is malformed: {error}") from None
    if message.length > MAX_ROWS:
        raise CorruptDataError(
            f"the file claims {message.length} rows, but a file has at most {MAX_ROWS}"
        )
    # The reference assigns no ids to the parts of a blob's description. Nothing can refer to them.
    numbered = [field for field in message.schema.fields if field.id != UNASSIGNED_ID]
    schema = Schema(fields=fields_from_proto(numbered), metadata=dict(message.schema.metadata))
    return schema, message.length


def encode_file_descriptor(schema: Schema, num_rows: int) -> bytes:
    """Return global buffer 0 of a file."""
    return _STORED_SCHEMAS.of(schema) + file_pb2.FileDescriptor(length=num_rows).SerializeToString()


def _encode_schema(schema: Schema) -> bytes:
    """Return the part of a descriptor that is the same in all files of a schema."""
    message = file_pb2.Schema(fields=fields_to_proto(schema.fields), metadata=dict(schema.metadata))
    return file_pb2.FileDescriptor(schema=message).SerializeToString()


_STORED_SCHEMAS: Final = IdentityCache(_encode_schema)


def padding_to_alignment(position: int) -> int:
    """Return the number of zero bytes that align a position for a buffer."""
    return -position % BUFFER_ALIGNMENT


def _table(start: int, num_entries: int) -> ByteRange:
    return ByteRange(start, start + num_entries * _TABLE_ENTRY_BYTES)
