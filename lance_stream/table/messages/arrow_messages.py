"""Reads small Arrow files of a table without trusting the sizes in them.

An Arrow file is a stream of messages between two magic words. A message is a flatbuffer, which has
the lengths of the buffers of the body, and the body. A compressed buffer begins with its
uncompressed size in bytes, i64, and Arrow allocates this size before it decompresses the buffer. So
the header of a batch is parsed here first, and its sizes are compared with the allowed ones.

    flatbuffer      u32 position of the root table
    table           i32 distance back to its vtable; values
    vtable          u16 size of the vtable, u16 size of the table, then u16 per field: the
                    position of its value in the table, 0 for a field without a value
    Message         fields: version, header_type, header, bodyLength
    RecordBatch     fields: length i64, nodes, buffers (of i64 offset, i64 length), compression

Source:  Arrow's columnar format, "Serialization and Interprocess Communication"; Message.fbs.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from lance_stream.errors import CorruptDataError

_MAGIC: Final = b"ARROW1\0\0"
_U16, _I32, _U32, _I64 = (struct.Struct(f"<{code}") for code in "HiIq")
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3
_BUFFER_BYTES: Final = 16
_MAX_PADDED_MAGIC: Final = 256
_PADDING_BYTES: Final = 64
"""The maximum padding of a buffer."""

_PLAIN: Final = -1
"""The uncompressed size of a buffer in a compressed batch that is not compressed."""

_ERRORS = (
    StopIteration,
    pa.ArrowException,
    OSError,
    MemoryError,
    ValueError,
    OverflowError,
    struct.error,
)


class BatchHeader(NamedTuple):
    """The header of a batch.

    Attributes:
        num_rows: The number of rows.
        buffers: The position and the size in bytes of each buffer in the body.
        is_compressed: Whether buffers may be compressed.
    """

    num_rows: int
    buffers: list[tuple[int, int]]
    is_compressed: bool


def read_only_batch(
    data: bytes, schema: pa.Schema | None, max_rows: int, bytes_per_row: int = 0
) -> pa.RecordBatch:
    """Return the batch of an Arrow file, or stream, of one batch.

    Args:
        data: The whole file.
        schema: The required schema; None for any.
        max_rows: The maximum number of rows.
        bytes_per_row: The maximum number of decompressed bytes per row; 0 if buffers may not be
            compressed.

    Raises:
        CorruptDataError: The file is not such a file, has another schema or too many rows, or its
            buffers claim too many bytes.
    """
    try:
        reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(_stream_of(data)))
        first, *batches = _messages_of(reader)
        stored_schema = pa.ipc.read_schema(first)
        if len(batches) != 1 or (schema is not None and stored_schema != schema):
            raise CorruptDataError(
                f"it has {len(batches)} batches of {str(stored_schema)!r:.200} instead of "
                f"one{'' if schema is None else f' of {str(schema)!r}'}"
            )
        (message,) = batches
        header = parse_batch_header(bytes(message.metadata))
        _check_claims(header, message.body, max_rows, bytes_per_row)
        batch = pa.ipc.read_record_batch(message, stored_schema)
        batch.validate(full=True)
        _check_names(stored_schema)
    except CorruptDataError:
        raise
    except _ERRORS as error:
        raise CorruptDataError(f"it is not an Arrow file of one batch: {error}") from error
    return batch


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Access every name: Arrow raises a ValueError if one is not UTF-8."""
    for field in fields:
        _ = field.name
        _check_names(field.type.field(index) for index in range(field.type.num_fields))


def _stream_of(data: bytes) -> pa.Buffer:
    """Return the messages after the magic word, which the reference pads to 64 bytes."""
    start = 0
    if data[: len(_MAGIC)] == _MAGIC:
        if not data.endswith(_MAGIC.rstrip(b"\0")):
            raise CorruptDataError(
                "it is truncated: the magic word at the end of an Arrow file is missing"
            )
        start = next(
            position
            for position in range(8, _MAX_PADDED_MAGIC, 8)
            if any(data[position : position + 8])
        )
    return pa.py_buffer(data).slice(start)


def _messages_of(reader: pa.ipc.MessageReader) -> list[pa.Message]:
    """Return the messages of a stream, at most three."""
    messages: list[pa.Message] = []
    while len(messages) < 3:
        try:
            messages.append(reader.read_next_message())
        except StopIteration:
            break
    return messages


def parse_batch_header(metadata: bytes) -> BatchHeader:
    """Parse the flatbuffer of a batch's message.

    Raises:
        CorruptDataError: The flatbuffer is invalid or truncated.
    """
    try:
        message = _U32.unpack_from(metadata, 0)[0]
        batch = _pointer(metadata, message, _HEADER)
        if batch is None:
            raise CorruptDataError("a message of an Arrow file has no header")
        position = _value_position(metadata, batch, _LENGTH)
        num_rows = 0 if position is None else _I64.unpack_from(metadata, position)[0]
        start = _pointer(metadata, batch, _BUFFERS)
        count = 0 if start is None else _U32.unpack_from(metadata, start)[0]
        if start is None or start + _U32.size + count * _BUFFER_BYTES > len(metadata):
            raise CorruptDataError(f"a batch of an Arrow file claims {count} buffers")
        pairs = struct.iter_unpack("<qq", metadata[start + _U32.size :][: count * _BUFFER_BYTES])
        is_compressed = _value_position(metadata, batch, _COMPRESSION) is not None
        return BatchHeader(num_rows, list(pairs), is_compressed)
    except struct.error as error:
        raise CorruptDataError(f"the header of an Arrow batch is truncated: {error}") from error


def _value_position(data: bytes, table: int, field: int) -> int | None:
    """Return the position of a field's value in a table; None if it has no value."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise CorruptDataError("the header of an Arrow batch points before its beginning")
    (size,) = _U16.unpack_from(data, vtable)
    slot = 4 + 2 * field
    if slot + 2 > size:
        return None
    (offset,) = _U16.unpack_from(data, vtable + slot)
    return table + offset if offset else None


def _pointer(data: bytes, table: int, field: int) -> int | None:
    """Return the position that a field of a table points to."""
    position = _value_position(data, table, field)
    return None if position is None else position + _U32.unpack_from(data, position)[0]


def _check_claims(header: BatchHeader, body: pa.Buffer, max_rows: int, per_row: int) -> None:
    if not 0 <= header.num_rows <= max_rows:
        raise CorruptDataError(f"it has {header.num_rows} rows, but may have at most {max_rows}")
    if not header.is_compressed:
        return
    remaining_bytes = (
        header.num_rows * per_row + _PADDING_BYTES * len(header.buffers) if per_row else 0
    )
    view = memoryview(body)
    for position, size in header.buffers:
        if not 0 <= position <= position + size <= len(view):
            raise CorruptDataError(
                f"a buffer of {size} bytes at byte {position} is outside of the body"
            )
        if size == 0:
            continue
        (claimed,) = _I64.unpack_from(view, position)
        remaining_bytes -= size if claimed == _PLAIN else claimed
        if claimed < _PLAIN or remaining_bytes < 0:
            raise CorruptDataError(
                f"its {header.num_rows} rows claim to decompress to more bytes than they can have"
            )
