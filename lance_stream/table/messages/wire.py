"""Splits a protobuf message into its fields without knowing its definition.

A protobuf message is a sequence of fields, each

    tag      varint         field number << 3 | wire type
    body     by wire type   0: varint · 1: 8 bytes · 5: 4 bytes · 2: varint n, then n bytes

in any order, and without an end mark. So messages can be joined as bytes; a later occurrence of a
field replaces an earlier one, or is appended if the field is repeated. Therefore 20,000 fragments
can be copied to the next version without decoding them, and unknown fields can be kept unchanged.

Source:  the protobuf encoding guide.
Differs: groups (wire types 3 and 4) are refused; no message of the format has any.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from lance_stream.errors import CorruptDataError

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5

MAX_FIELD_NUMBER = (1 << 29) - 1
MAX_VARINT_BYTES = 10

M = TypeVar("M", bound=Message)


class WireField(NamedTuple):
    """The position of one field in the bytes of a message.

    Attributes:
        number: The field's number.
        wire_type: 0, 1, 2 or 5.
        start: The position of the tag.
        value_start: The position of the value: after the tag, and after the length if there is one.
        stop: One past the last byte.
    """

    number: int
    wire_type: int
    start: int
    value_start: int
    stop: int


def split_message(data: bytes) -> list[WireField]:
    """Return the positions of the top-level fields of a message, in order.

    Raises:
        CorruptDataError: As `iterate_fields`.
    """
    return list(iterate_fields(data, 0, len(data)))


def iterate_fields(data: bytes, position: int, end: int) -> Iterator[WireField]:
    """Yield the positions of the top-level fields of a message, in order.

    Args:
        data: Bytes that contain the message.
        position: The position of the message.
        end: One past the last byte of the message.

    Raises:
        CorruptDataError: The bytes end within a field, a varint is longer than 10 bytes, or a tag
            has field number 0 or a wire type that the format does not use.
    """
    while position < end:
        start = position
        tag = data[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= MAX_FIELD_NUMBER:
            raise CorruptDataError(f"a message has the field number {number} at byte {start}")
        if wire_type == LENGTH_DELIMITED:
            if position < end and data[position] < 0x80:
                value_start = position + 1
                position = value_start + data[position]
            else:
                size, value_start = read_varint(data, position)
                position = value_start + size
        elif wire_type == VARINT:
            value_start = position
            _, position = read_varint(data, position)
        elif wire_type == FIXED64:
            value_start = position
            position += 8
        elif wire_type == FIXED32:
            value_start = position
            position += 4
        else:
            raise CorruptDataError(f"a message has the wire type {wire_type} at byte {start}")
        if position > end:
            raise CorruptDataError(
                f"field {number} of a message needs bytes up to {position}, but there are "
                f"only {end}"
            )
        yield WireField(number, wire_type, start, value_start, position)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it.

    Raises:
        CorruptDataError: The bytes end within the varint, or it does not fit in 64 bits.
    """
    end = len(data)
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    for index in range(position, min(position + MAX_VARINT_BYTES, end)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, index + 1
        shift += 7
    raise CorruptDataError(f"the varint at byte {position} of a message is damaged or truncated")


def encode_varint(value: int) -> bytes:
    """Return a u64 as a varint."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def frame(number: int, body: bytes) -> bytes:
    """Return a length-delimited field: tag, length, body."""
    return frame_start(number, len(body)) + body


def frame_start(number: int, size: int) -> bytes:
    """Return the start of a length-delimited field, before the body: tag and length."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(size)


def join_frames(number: int, bodies: Collection[bytes]) -> bytes:
    """Return one length-delimited field per body, joined in order."""
    return b"".join(frame_parts(number, bodies))


def frame_parts(number: int, bodies: Collection[bytes]) -> list[bytes]:
    """Return the parts that `join_frames` joins, without copying the bodies."""
    tag = encode_varint(number << 3 | LENGTH_DELIMITED)
    parts: list[bytes] = []
    for body in bodies:
        size = len(body)
        parts += (tag, bytes((size,)) if size < 0x80 else encode_varint(size), body)
    return parts


def parse_message(message_class: type[M], data: bytes) -> M:
    """Decode a message.

    Raises:
        CorruptDataError: The bytes are not a message of this class.
    """
    try:
        return message_class.FromString(data)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise CorruptDataError(
            f"{len(data)} bytes are not a {message_class.DESCRIPTOR.name} message: {error}"
        ) from error


def serialize(message: Message) -> bytes:
    """Return the bytes of a message; they are equal for equal messages.

    Raises:
        ValueError: The message is larger than 2 GiB, the limit of protobuf.
    """
    return message.SerializeToString(deterministic=True)


def unknown_fields(message: Message, also: Collection[int] = ()) -> bytes:
    """Return the bytes of a message's fields that are not in its definition.

    Args:
        message: The message.
        also: The numbers of defined fields that also count as unknown.

    Returns:
        The unchanged fields, joined; empty for almost all messages.

    Raises:
        CorruptDataError: A defined field has another wire type.
    """
    has_more = any(number in also for number in _set_fields(message)) if also else False
    unknown = UnknownFieldSet(message)
    if not has_more and not len(unknown):
        return b""
    named = message.DESCRIPTOR.fields_by_number
    for byte in (unknown[index] for index in range(len(unknown))):
        if byte.field_number in named:
            raise CorruptDataError(
                f"field {byte.field_number} of a {message.DESCRIPTOR.name} message has the wrong "
                f"wire type {byte.wire_type}"
            )
    data = message.SerializeToString()
    numbers = set(named) - set(also)
    return b"".join(
        data[field.start : field.stop]
        for field in split_message(data)
        if field.number not in numbers
    )


def _set_fields(message: Message) -> list[int]:
    return [descriptor.number for descriptor, _ in message.ListFields()]
