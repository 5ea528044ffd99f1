"""Reads small Arrow files of a table without trusting the sizes that they state.

An Arrow file is a stream of messages between two magic words. A message is a flatbuffer, which
states the lengths of the buffers of its body, and the body. Buffers may be compressed: then each
begins with its uncompressed number of bytes, i64, and Arrow allocates that many before it reads the
rest. So the header of a batch is read here first, and its sizes are compared with the allowed ones.

    flatbuffer      u32 position of the root table
    table           i32 distance back to its vtable; values
    vtable          u16 its own size, u16 size of the table, then u16 per field: the place of its
                    value in the table, 0 for a field without one
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
_MOST_PADDED: Final = 256
_ROOM_BYTES: Final = 64
"""How much longer than its values a buffer may be, for padding."""

_PLAIN: Final = -1
"""Stands in a compressed batch before a buffer that is not compressed."""

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
        num_rows: How many rows there are.
        buffers: The place and the size of each buffer in the body.
        is_compressed: Whether buffers may be compressed.
    """

    num_rows: int
    buffers: list[tuple[int, int]]
    is_compressed: bool


def read_only_batch(
    data: bytes, schema: pa.Schema | None, most_rows: int, bytes_per_row: int = 0
) -> pa.RecordBatch:
    """Return the batch of an Arrow file, or stream, that has only one.

    Args:
        data: The whole file.
        schema: The required schema; None for any.
        most_rows: Maximum number of rows.
        bytes_per_row: Maximum number of decompressed bytes per row; 0 if buffers may not be
            compressed.

    Raises:
        CorruptDataError: It is not such a file, has another schema or too many rows, or its
            buffers claim too many bytes.
    """
    try:
        reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(_stream_of(data)))
        first, *batches = _messages_of(reader)
        stored_schema = pa.ipc.read_schema(first)
        if len(batches) != 1 or (schema is not None and stored_schema != schema):
            raise CorruptDataError(
                f"it has {len(batches)} batches of {str(stored_schema)!r:.200}; expected is one of "
                f"{'them' if schema is None else repr(str(schema))}"
            )
        (message,) = batches
        header = parse_batch_header(bytes(message.metadata))
        _check_claims(header, message.body, most_rows, bytes_per_row)
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
        _check_names(field.type.field(at) for at in range(field.type.num_fields))


def _stream_of(data: bytes) -> pa.Buffer:
    """Return the messages, which begin after the magic word; the reference pads it to 64 bytes."""
    start = 0
    if data[: len(_MAGIC)] == _MAGIC:
        if not data.endswith(_MAGIC.rstrip(b"\0")):
            raise CorruptDataError(
                "it is cut short: the magic word at an Arrow file's end is missing"
            )
        start = next(at for at in range(8, _MOST_PADDED, 8) if any(data[at : at + 8] or b"1"))
    return pa.py_buffer(data).slice(start)


def _messages_of(reader: pa.ipc.MessageReader) -> list[pa.Message]:
    """Return the messages up to the end of the stream, and no more than three."""
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
        CorruptDataError: It is invalid or cut short.
    """
    try:
        message = _U32.unpack_from(metadata, 0)[0]
        batch = _pointer(metadata, message, _HEADER)
        if batch is None:
            raise CorruptDataError("a message of an Arrow file has no header")
        at = _value_position(metadata, batch, _LENGTH)
        num_rows = 0 if at is None else _I64.unpack_from(metadata, at)[0]
        start = _pointer(metadata, batch, _BUFFERS)
        count = 0 if start is None else _U32.unpack_from(metadata, start)[0]
        if start is None or count * _BUFFER_BYTES > len(metadata):
            raise CorruptDataError(f"a batch of an Arrow file claims {count} buffers")
        pairs = struct.iter_unpack("<qq", metadata[start + 4 : start + 4 + count * _BUFFER_BYTES])
        is_compressed = _value_position(metadata, batch, _COMPRESSION) is not None
        return BatchHeader(num_rows, list(pairs), is_compressed)
    except struct.error as error:
        raise CorruptDataError(f"the header of an Arrow batch is cut short: {error}") from error


def _value_position(data: bytes, table: int, field: int) -> int | None:
    """Return where the value of a table's field is; None if it has none."""
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
    """Return the place that a field of a table points to."""
    at = _value_position(data, table, field)
    return None if at is None else at + _U32.unpack_from(data, at)[0]


def _check_claims(header: BatchHeader, body: pa.Buffer, most_rows: int, per_row: int) -> None:
    if not 0 <= header.num_rows <= most_rows:
        raise CorruptDataError(f"it holds {header.num_rows} rows, but may have {most_rows}")
    if not header.is_compressed:
        return
    room = header.num_rows * per_row + _ROOM_BYTES * len(header.buffers) if per_row else 0
    view = memoryview(body)
    for position, size in header.buffers:
        if not 0 <= position <= position + size <= len(view):
            raise CorruptDataError(f"a buffer of {size} bytes would begin at byte {position}")
        if size == 0:
            continue
        (claimed,) = _I64.unpack_from(view, position)
        room -= size if claimed == _PLAIN else claimed
        if claimed < _PLAIN or room < 0:
            raise CorruptDataError(
                f"its {header.num_rows} rows claim to decompress to more bytes than they can have"
            )
