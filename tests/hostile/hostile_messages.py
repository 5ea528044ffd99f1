"""Messages of the format with values that were chosen to do harm: numbers, texts, lists."""

import random
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from lance_stream._proto import rowids_pb2

_NUMBERS: Final = (
    0, 1, 2, 5, 63, 64, 255, 65_535, 1 << 20, 1 << 28, (1 << 29) - 1, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    -1, -2, -3, -(1 << 31), -(1 << 63),
)  # fmt: skip
_TEXTS: Final = (
    "", ".", "..", "../x", "../../../../etc/passwd", "/etc/passwd", "/dev/zero", "~/.ssh/id_rsa",
    "a/../../b", "a\\..\\b", "C:/x", "file:///etc/passwd", "memory://elsewhere/t", "x.tmp",
    "s3://evil.example/t", "gs://theirs/t", "az://theirs/t", "webhdfs://{canary}/t",
    "abfss://c@{canary}/t", "http://{canary}/t", "s3+ddb://b/t?ddbTableName=T", "dbfs:/t",
    "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "a\nb", "x" * 300, "y" * 70_000, "1" * 5000,
    "id", "n", "name", "main", "v", "lance", "2.0", "2.1", "0.1", "true", "-1", "1e999", "null",
    "int64", "string", "struct", "list", "dict:string:int8:false",
    "fixed_size_list:int8:2147483647",
    "fixed_size_binary:2147483647", "decimal:128:38:-99", "timestamp:ns:Nowhere/City",
    "blob", "extension<x>", "map", "{", "[" * 2000, '{"a": ' * 500, "\ud7ff", "\u0000",
)  # fmt: skip


class Attacker:
    """Chooses what to change, always the same for a seed.

    Args:
        dice: Its chance.
        canary: The host and port of a server that must get no request.
    """

    def __init__(self, dice: random.Random, canary: str) -> None:
        self.dice = dice
        self._canary = canary

    def text(self) -> str:
        return self.dice.choice(_TEXTS).replace("{canary}", self._canary)

    def change(self, message: Message, maximum: int = 2) -> str:
        """Change one or more fields of a message, or of those in it; say which."""
        return ", ".join(self._change(message) for _ in range(self.dice.randint(1, maximum)))

    def _change(self, message: Any) -> str:
        at, where = message, ""
        while True:
            field = self.dice.choice(at.DESCRIPTOR.fields)
            where += f".{field.name}"
            if field.message_type is None or self._is_map(field):
                return f"{where} = {self._put(at, field)}"
            if field.is_repeated:
                items = getattr(at, field.name)
                if not items or self.dice.random() < 0.15:
                    return f"{where} {self._put_many(items)}"
                at = self.dice.choice(items)
            else:
                at = getattr(at, field.name)
                at.SetInParent()
            if not at.DESCRIPTOR.fields:
                return where

    def _is_map(self, field: FieldDescriptor) -> bool:
        return field.message_type is not None and field.message_type.GetOptions().map_entry

    def _put(self, message: Any, field: FieldDescriptor) -> str:
        if self._is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            entries = getattr(message, field.name)
            of_key = field.message_type.fields_by_name["key"]
            is_text = of_key.type == FieldDescriptor.TYPE_STRING
            others = [*KEYS, self.text()] if is_text else [self.value(of_key)]
            entry = self.dice.choice([*entries, *others])
            value = self.value(of_value)
            if value is None:
                entries[entry].SetInParent()
            else:
                entries[entry] = value
            return f"{{{entry!r:.40}: {value!r:.60}}}"
        value = self.value(field)
        if not field.is_repeated:
            setattr(message, field.name, value)
            return repr(value)[:80]
        items = getattr(message, field.name)
        kind = self.dice.randrange(4)
        if kind == 0 or not items:
            items.extend([value] * self.dice.choice([1, 2, 1000]))
        elif kind == 1:
            del items[self.dice.randrange(len(items)) :]
        else:
            items[self.dice.randrange(len(items))] = value
        return f"{len(items)} of them, {value!r:.60}"

    def _put_many(self, items: Any) -> str:
        if items and self.dice.random() < 0.5:
            one = type(items[0])()
            one.CopyFrom(self.dice.choice(items))
        else:
            one = items.add()
        count = self.dice.choice([1, 2, 300])
        items.extend([one] * count)
        return f"{count} more"

    def value(self, field: FieldDescriptor) -> Any:
        """Return a value of a field's type."""
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.text()
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._bytes()
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.dice.random() < 0.5
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self.dice.choice([0, 1, 2, 3, 99])
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            return None
        low, high = _RANGES[field.type]
        return self.dice.choice([number for number in _NUMBERS if low <= number <= high])

    def _bytes(self) -> bytes:
        return self.dice.choice(
            [
                b"",
                b"\0",
                b"\xff" * 16,
                b"\0" * 5000,
                self.text().encode("utf-8", "replace"),
                self.dice.randbytes(self.dice.randrange(200)),
                self.dice.choice([b"arrow.json", b"arrow.uuid", b"arrow.fixed_shape_tensor"]),
                *self._sequences(),
                _BITMAP_OF_ALL,
            ]
        )

    def _sequences(self) -> Sequence[bytes]:
        """Row ids and row versions that promise many rows."""
        length = self.dice.choice([5, 1 << 22, 1 << 28, (1 << 32) - 1, 1 << 61])
        start = self.dice.choice([0, 1, 1 << 40, (1 << 63) - 5])
        stop = min(start + length, (1 << 64) - 1)
        ids = rowids_pb2.RowIdSequence()
        span = ids.segments.add().range
        span.start, span.end = start, stop
        versions = rowids_pb2.RowDatasetVersionSequence()
        run = versions.runs.add(version=self.dice.choice([0, 1, 2, (1 << 64) - 1]))
        run.span.range.start, run.span.range.end = start, stop
        holes = rowids_pb2.RowIdSequence()
        mapped = holes.segments.add().range_with_holes
        mapped.start, mapped.end = start, stop
        mapped.holes.u64_array.values = b"\0" * 8
        return [value.SerializeToString() for value in (ids, versions, holes)]

    def damage(self, data: bytes) -> bytes:
        """Change some bytes, cut some off or add some."""
        damaged = bytearray(data)
        for _ in range(self.dice.randint(1, 4)):
            if damaged:
                damaged[self.dice.randrange(len(damaged))] = self.dice.choice(
                    [0, 1, 0x7F, 0x80, 0xFF, self.dice.randrange(256)]
                )
        if self.dice.random() < 0.2:
            del damaged[self.dice.randrange(len(damaged) + 1) :]
        if self.dice.random() < 0.1:
            damaged += self.dice.randbytes(50)
        return bytes(damaged)


_BITMAP_OF_ALL: Final = (
    # runs of all 2^32 numbers in half a megabyte
    ((65_535 << 16) | 12_347).to_bytes(4, "little")
    + b"\xff" * 8192
    + b"".join(key.to_bytes(2, "little") + b"\xff\xff" for key in range(1 << 16))
    + b"\0\0\0\0" * (1 << 16)
    + b"\x01\0\0\0\xff\xff" * (1 << 16)
)
_RANGES: Final = {
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
}
KEYS: Final = (
    "lance_stream.tombstones", "lance_stream.manifest_store", "lance-encoding:packed",
    "lance-encoding:blob", "lance-encoding:compression", "lance-encoding:structural-encoding",
    "lance_stream.ledger.x", "ARROW:extension:name", "ARROW:extension:metadata",
    "lance.auto_cleanup.interval", "storage_options", "endpoint_url", "trusted_locations",
)  # fmt: skip
