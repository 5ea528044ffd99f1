"""Damage to a data file: to its bytes, and to the messages that describe them.

    bytes       cut short, bits flipped, eight bytes made huge or zero, a stretch moved elsewhere
    messages    a number or kind changed, an encoding nested in itself or copied from another file,
                overlapping buffers, a bomb of compressed zeros

If messages were changed, the tables and the footer of the file are recomputed, so that readers
reach the change.

Source: file format document, "Reading a file".
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from lance_stream._proto import encodings_v2_0_pb2, encodings_v2_1_pb2, file2_pb2, file_pb2
from lance_stream.byte_ranges import ByteRange
from lance_stream.file.metadata.footer import (
    FOOTER_BYTES,
    Footer,
    decode_footer,
    decode_position_table,
    encode_footer,
    encode_position_table,
)

Chance = random.Random

NUMBERS: Final = [
    *(0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256),
    *(1023, 1024, 1025, 4096, 65_535, 65_536, 2**20, 2**24, 2**30),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1),
]
LOGICAL_TYPES: Final = [
    *("", "int8", "int64", "bool", "string", "large_binary", "null", "struct", "list", "map"),
    *("list.struct", "large_list", "fixed_size_list:float:4", "fixed_size_list:bool:3"),
    *("fixed_size_list:float:2147483647", "fixed_size_list:struct:2", "decimal:128:38:5"),
    *("decimal:256:76:0", "fixed_size_binary:2147483647", "fixed_size_binary:5"),
    *("dict:string:int8:false", "dict:int64:uint64:false", "timestamp:us:-", "blob", "json"),
    *("fixed_size_list:fixed_size_list:float:3:2", "date64:ms", "dict:dict:int8:int8:false:int8"),
]
MESSAGES: Final = {
    kind.DESCRIPTOR.full_name: kind
    for kind in (
        encodings_v2_0_pb2.ArrayEncoding,
        encodings_v2_0_pb2.ColumnEncoding,
        encodings_v2_1_pb2.PageLayout,
    )
}


@dataclass
class Parts:
    """The parts of a file.

    Attributes:
        data: The buffers, up to the start of the metadata.
        columns: A message for each column.
        descriptor: The schema and the number of rows.
        footer: The decoded footer.
    """

    data: bytes
    columns: list[file2_pb2.ColumnMetadata]
    descriptor: file_pb2.FileDescriptor
    footer: Footer

    @classmethod
    def of(cls, whole: bytes) -> "Parts":
        """Take a sound file apart."""
        footer = decode_footer(whole[-FOOTER_BYTES:], len(whole))

        def table(where: ByteRange) -> list[bytes]:
            listed = decode_position_table(whole[where.start : where.stop], len(whole))
            return [whole[file.start : file.stop] for file in listed]

        return cls(
            data=whole[: footer.metadata_start],
            columns=[
                file2_pb2.ColumnMetadata.FromString(value) for value in table(footer.column_table)
            ],
            descriptor=file_pb2.FileDescriptor.FromString(table(footer.global_table)[0]),
            footer=footer,
        )

    def joined(self) -> bytes:
        """Return the file of these parts."""
        whole = bytearray(self.data)

        def placed(data: bytes) -> ByteRange:
            start = len(whole)
            whole.extend(data)
            return ByteRange(start, len(whole))

        descriptor = placed(self.descriptor.SerializeToString())
        metadata_start = len(whole)
        columns = [placed(column.SerializeToString()) for column in self.columns]
        column_table = placed(encode_position_table(columns))
        global_table = placed(encode_position_table([descriptor]))
        version = self.footer.version
        return bytes(whole) + encode_footer(
            Footer(metadata_start, column_table, global_table, version)
        )


@dataclass
class Damager:
    """Damages files; remembers the messages that it has seen, to put them into others.

    Attributes:
        chance: Where all decisions come from.
    """

    chance: Chance
    _seen: dict[str, list[bytes]] = field(default_factory=dict)

    def damaged(self, whole: bytes) -> bytes:
        """Return a damaged file."""
        if self.chance.random() < 0.35:
            return damaged_bytes(whole, self.chance)
        parts = Parts.of(whole)
        for _ in range(self.chance.choice([1, 1, 1, 2, 4])):
            self._damage_parts(parts)
        joined = parts.joined()
        return damaged_bytes(joined, self.chance) if self.chance.random() < 0.1 else joined

    def _damage_parts(self, parts: Parts) -> None:
        kind = self.chance.choices(["encoding", "column", "buffer", "descriptor"], [12, 3, 3, 2])[0]
        with_pages = [column for column in parts.columns if column.pages]
        if kind == "descriptor" or not with_pages:
            self._mutate(parts.descriptor)
        elif kind == "column":
            self._mutate(self.chance.choice(parts.columns))
        elif kind == "buffer":
            self._exchange_buffer(parts, self.chance.choice(with_pages))
        else:
            column = self.chance.choice(with_pages)
            page = self.chance.choice(list(column.pages))
            target = page if self.chance.random() < 0.95 else column
            target.encoding.direct.encoding = self._damaged_encoding(
                target.encoding.direct.encoding
            )

    def _damaged_encoding(self, packed: bytes) -> bytes:
        wrapped = AnyMessage()
        try:
            wrapped.ParseFromString(packed)
            kind = MESSAGES.get(wrapped.type_url.rpartition("/")[2])
            if kind is None:
                return packed
            message = kind.FromString(wrapped.value)
        except DecodeError:
            return packed
        for value in _messages_in(message):
            examples = self._seen.setdefault(value.DESCRIPTOR.full_name, [])
            if len(examples) < 200:
                examples.append(value.SerializeToString())
            else:
                examples[self.chance.randrange(200)] = value.SerializeToString()
        self._mutate(message)
        wrapped.value = message.SerializeToString()
        return wrapped.SerializeToString()

    def _exchange_buffer(self, parts: Parts, column: file2_pb2.ColumnMetadata) -> None:
        """Point a page at other bytes: a bomb, a neighbour's, or a few that are made here."""
        page = self.chance.choice(list(column.pages))
        if not page.buffer_offsets or len(page.buffer_offsets) != len(page.buffer_sizes):
            return
        index = self.chance.randrange(len(page.buffer_offsets))
        start, size = page.buffer_offsets[index], page.buffer_sizes[index]
        data = parts.data[start : start + size]
        choice = self.chance.randrange(4)
        if choice == 0:
            data = self.chance.choice(bombs())
        elif choice == 1:
            data = damaged_bytes(data, self.chance) if data else b"\1"
        elif choice == 2 and data:
            # Where a compressed block begins is not known: anywhere is tried.
            at = self.chance.choice([0, 8, self.chance.randrange(len(data))])
            data = data[:at] + self.chance.choice(bombs()) + data[at:]
        else:
            other = self.chance.choice(list(self.chance.choice(parts.columns).pages) or [page])
            if 0 < len(other.buffer_offsets) == len(other.buffer_sizes):
                at = self.chance.randrange(len(other.buffer_offsets))
                page.buffer_offsets[index] = other.buffer_offsets[at]
                page.buffer_sizes[index] = other.buffer_sizes[at]
            return
        parts.data += bytes(-len(parts.data) % 64)
        page.buffer_offsets[index] = len(parts.data)
        page.buffer_sizes[index] = len(data)
        parts.data += data

    def _mutate(self, message: Message) -> None:
        fields = list(_fields_in(message))
        holder, field = self.chance.choice(fields)
        if field.label == FieldDescriptor.LABEL_REPEATED and not _is_map(field):
            self._mutate_repeated(holder, field)
        elif _is_map(field):
            holder.ClearField(field.name)
        elif field.message_type is not None:
            self._mutate_message(holder, field)
        else:
            setattr(holder, field.name, self._other(field, getattr(holder, field.name)))

    def _mutate_repeated(self, holder: Message, field: FieldDescriptor) -> None:
        values = getattr(holder, field.name)
        choice = self.chance.randrange(4)
        if choice == 0 and len(values):
            del values[self.chance.randrange(len(values))]
        elif field.message_type is not None:
            if len(values):
                copied = values[self.chance.randrange(len(values))]
                times = self.chance.choice([1, 1, 1, 2000])
                values.extend([copied] * times)
            else:
                values.add()
        elif choice == 1 or not len(values):
            some = self._other(field, values[0] if len(values) else _zero(field))
            values.extend([some] * self.chance.choice([1, 1, 1, 2000]))
        else:
            index = self.chance.randrange(len(values))
            values[index] = self._other(field, values[index])

    def _mutate_message(self, holder: Message, field: FieldDescriptor) -> None:
        inner = getattr(holder, field.name)
        choice = self.chance.randrange(4)
        seen = self._seen.get(field.message_type.full_name)
        if choice == 0:
            holder.ClearField(field.name)
        elif choice == 1 and seen:
            inner.ParseFromString(self.chance.choice(seen))
        elif choice == 2:
            self._nest(holder, field)
        else:
            inner.SetInParent()

    def _nest(self, holder: Message, field: FieldDescriptor) -> None:
        """Nest a message in itself repeatedly, by a field that leads back to its type."""
        inner = getattr(holder, field.name)
        ways = list(_ways_back(field.message_type))
        if not ways:
            inner.SetInParent()
            return
        way = self.chance.choice(ways)
        for _ in range(self.chance.choice([1, 2, 20, 90])):
            outer = type(inner)()
            deepest: Any = outer
            for step in way:
                deepest = getattr(deepest, step.name)
                if step.label == FieldDescriptor.LABEL_REPEATED:
                    deepest = deepest.add()
            deepest.CopyFrom(inner)
            try:
                inner.CopyFrom(type(inner).FromString(outer.SerializeToString()))
            except DecodeError:  # deeper than any reader of messages goes
                return

    def _other(self, field: FieldDescriptor, value: Any) -> Any:
        if field.enum_type is not None:
            return self.chance.choice([*field.enum_type.values_by_number, 99])
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return not value
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return damaged_bytes(value, self.chance) if value else b"\1\2\3"
            return self.chance.choice([*LOGICAL_TYPES, value + ":9", value[:-1], value[:4]])
        if field.cpp_type in {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}:
            return float(self.chance.choice(NUMBERS))
        low, high = _limits(field)
        flipped = value ^ (1 << self.chance.randrange(64))
        near = [value - 1, value + 1, value * 2, value // 2, flipped]
        number = self.chance.choice([self.chance.choice(near), self.chance.choice(NUMBERS)])
        return min(max(number, low), high)


def damaged_bytes(whole: bytes, chance: Chance) -> bytes:
    """Cut bytes short, flip bits, put absurd numbers in, or move a stretch elsewhere."""
    if not whole:
        return b"\0"
    kind = chance.choice(["cut", "flip", "flip", "flip", "number", "number", "move"])
    if kind == "cut":
        return whole[: chance.randrange(len(whole))]
    broken = bytearray(whole)
    # The heads of pages and the metadata at the end are where damage does the most harm.
    first = chance.choice([0, 0, max(0, len(whole) - 600)])
    last = chance.choice([len(whole), len(whole), max(first + 1, min(len(whole), 64))])
    for _ in range(chance.choice([1, 1, 2, 5])):
        position = chance.randrange(first, last)
        if kind == "flip":
            broken[position] ^= 1 << chance.randrange(8)
        elif kind == "number":
            code = chance.choice(["<B", "<H", "<I", "<Q"])
            stored = struct.pack(code, chance.choice(NUMBERS) % 256 ** struct.calcsize(code))
            broken[position : position + len(stored)] = stored[: len(broken) - position]
        else:
            size = chance.randrange(1, 65)
            start = chance.randrange(len(broken))
            stretch = broken[start : start + size]
            broken[position : position + len(stretch)] = stretch[: len(broken) - position]
    return bytes(broken)


@cache
def bombs() -> list[bytes]:
    """Small bytes that claim to be, or become, very many."""
    zeros = bytes(64 << 20)
    streams = []
    for claimed in (1000, 64 << 20, 2**31 - 1, 2**40, 2**63 - 1):
        size = struct.pack("<Q", claimed)
        streams.append(size + bytes(pa.compress(zeros, "zstd", asbytes=True)))
        streams.append(size[:4] + bytes(pa.compress(zeros[: 4 << 20], "lz4_raw", asbytes=True)))
    return streams


def _messages_in(message: Message) -> Iterator[Message]:
    yield message
    for entry, value in message.ListFields():
        if entry.message_type is None or _is_map(entry):
            continue
        repeated = entry.label == FieldDescriptor.LABEL_REPEATED
        for inner in list(value)[:20] if repeated else [value]:
            yield from _messages_in(inner)


def _fields_in(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for holder in _messages_in(message):
        for value in holder.DESCRIPTOR.fields:
            yield holder, value


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _ways_back(kind: Any, limit: int = 3) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yield the chains of fields by which a kind of message holds another of its kind."""
    pending: list[tuple[Any, tuple[FieldDescriptor, ...]]] = [(kind, ())]
    while pending:
        at, way = pending.pop()
        for value in at.fields:
            if value.message_type is None or _is_map(value):
                continue
            if value.message_type == kind:
                yield (*way, value)
            elif len(way) + 1 < limit:
                pending.append((value.message_type, (*way, value)))


def _zero(field: FieldDescriptor) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return b"" if field.type == FieldDescriptor.TYPE_BYTES else ""
    return 0


def _limits(field: FieldDescriptor) -> tuple[int, int]:
    return {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[field.cpp_type]
