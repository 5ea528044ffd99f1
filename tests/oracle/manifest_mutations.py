"""Every field of a manifest's messages set to other values, one at a time."""

import copy
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS: Final = {
    FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.TYPE_UINT64: (1 << 64) - 1,
    FieldDescriptor.TYPE_INT32: (1 << 31) - 1,
    FieldDescriptor.TYPE_INT64: (1 << 63) - 1,
}
"""The types of integers that the messages have, and their largest values."""

ENTRIES: Final = {
    "k": "v",
    "lance-encoding:packed": "true",
    "lance-encoding:blob": "true",
    "lance-schema:storage-class": "blob",
    "lance.row_lineage.spill": "true",
}


def values_of(field: FieldDescriptor) -> list[Any]:
    """Return some values of a field's type."""
    if field.type in INTEGERS:
        is_signed = field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)
        return [0, 1, 2, 3, 5, 7, 64, INTEGERS[field.type], *([-1, -2, -3] if is_signed else [])]
    return {
        FieldDescriptor.TYPE_BOOL: [False, True],
        FieldDescriptor.TYPE_STRING: ["", "x", "../x", "name", "2.0", "true"],
        FieldDescriptor.TYPE_BYTES: [b"", b"\0", b"true"],
        FieldDescriptor.TYPE_ENUM: [0, 1, 2, 3, 4, 9],
    }[field.type]


def mutations(message: Message, path: str = "") -> Iterator[str]:
    """Change a message in place, one field at a time; yield what is changed meanwhile."""
    for field in message.DESCRIPTOR.fields:
        where = f"{path}.{field.name}"
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            yield from _entries(message, field, where)
        elif field.is_repeated:
            yield from _repeated(message, field, where)
        elif kind is not None:
            yield from _message(message, field, where)
        else:
            yield from _scalar(message, field, where)


def _entries(message: Any, field: FieldDescriptor, where: str) -> Iterator[str]:
    entries, before = getattr(message, field.name), dict(getattr(message, field.name))
    is_bytes = field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_BYTES
    for key, value in ENTRIES.items():
        entries[key] = value.encode() if is_bytes else value
        yield f"{where}[{key}]"
        entries.clear()
        entries.update(before)


def _repeated(message: Any, field: FieldDescriptor, where: str) -> Iterator[str]:
    items = [copy.deepcopy(value) for value in getattr(message, field.name)]

    def put(others: list[Any]) -> None:
        message.ClearField(field.name)
        getattr(message, field.name).extend(others)

    ways = {
        "without the first": items[1:],
        "without the last": items[:-1],
        "the first again": [*items, *items[:1]],
        "turned round": items[::-1],
        "none": [],
    }
    for way, others in ways.items():
        if others != items:
            put(others)
            yield f"{where} {way}"
    put(items)
    if field.message_type is not None:
        for index in range(len(items)):
            yield from mutations(getattr(message, field.name)[index], f"{where}[{index}]")
        return
    for index, before in enumerate(items):
        for value in values_of(field):
            if value != before:
                getattr(message, field.name)[index] = value
                yield f"{where}[{index}] = {value!r}"
        getattr(message, field.name)[index] = before


def _message(message: Any, field: FieldDescriptor, where: str) -> Iterator[str]:
    before = copy.deepcopy(message)
    if message.HasField(field.name):
        message.ClearField(field.name)
        yield f"{where} cleared"
        message.CopyFrom(before)
    else:
        getattr(message, field.name).SetInParent()
        yield f"{where} empty"
    if not field.message_type.full_name.startswith("google"):
        yield from mutations(getattr(message, field.name), where)
    message.CopyFrom(before)


def _scalar(message: Any, field: FieldDescriptor, where: str) -> Iterator[str]:
    before = copy.deepcopy(message)
    current = getattr(message, field.name)
    is_there = not field.has_presence or message.HasField(field.name)
    for value in values_of(field):
        if value != current or not is_there:
            setattr(message, field.name, value)
            yield f"{where} = {value!r}"
            message.CopyFrom(before)
    if field.has_presence and is_there:
        message.ClearField(field.name)
        yield f"{where} cleared"
        message.CopyFrom(before)
