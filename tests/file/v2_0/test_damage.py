"""Damaged files read right or raise `BadDataError`: cut short, bits flipped, numbers made extreme.

A flipped bit inside a value cannot be noticed; but no damage may end in another error, in a broken
array, or take much time or memory.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream._proto import file2_pb2
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import BadDataError
from lance_stream.file.metadata.columns import pack_encoding, unpack_encoding
from lance_stream.file.metadata.footer import (
    FOOTER_BYTES,
    decode_footer,
    decode_position_table,
    encode_footer,
    encode_position_table,
)

EXTREMES = [0, 1, 2, 3, 7, 63, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
SECONDS = 2.0


def all_kinds() -> pa.Table:
    words = ["one", None, "three", "fünf"] * 30
    return pa.table(
        {
            "number": pa.array([1, None, 3, 4] * 30),
            "flag": pa.array([True, None, False, True] * 30),
            "word": pa.array(words),
            "plain": pa.array(["x"] * 120),
            "list": pa.array([[1, None], None, [], [2]] * 30, pa.list_(pa.int32())),
            "lists": pa.array([[["a"], []], None, [None], []] * 30),
            "structs": pa.array([[{"a": 1, "b": "x"}], [], None, []] * 30),
            "vector": pa.array([[1, 2], None, [3, None], [4, 5]] * 30, pa.list_(pa.float32(), 2)),
            "raw": pa.array([[1, 2]] * 120, pa.list_(pa.int16(), 2)),
            "code": pa.array(words).dictionary_encode(),
            "none": pa.nulls(120, pa.int64()),
            "nothing": pa.nulls(120),
        }
    )


def all_choices() -> pa.Table:
    """What is encoded differently on request, or because it saves space."""
    words = [f"https://example.org/{n}" for n in range(150)]
    columns = {"few": ({}, pa.array(["one", None, "three"] * 50))}
    for scheme in ("zstd", "lz4", "fsst"):
        columns[scheme] = ({"lance-encoding:compression": scheme}, pa.array(words))
    points = pa.array([{"x": n, "y": [n, -n]} for n in range(150)], POINT)
    columns["packed"] = ({"lance-encoding:packed": "true"}, points)
    columns["texts"] = ({}, pa.array([words[: n % 4] for n in range(150)]))
    schema = pa.schema(
        [pa.field(name, array.type, metadata=extra) for name, (extra, array) in columns.items()]
    )
    return pa.table([array for _, array in columns.values()], schema=schema)


POINT = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int16(), 2))])


@pytest.fixture(scope="module", params=["kinds", "choices"])
def sound(files: Any, request: pytest.FixtureRequest) -> bytes:
    if request.param == "kinds":
        data: bytes = files.write(all_kinds(), max_page_bytes=300)[0]
    else:
        data = files.write(all_choices())[0]
    return data


def read_everything(files: Any, data: bytes) -> bool:
    """Read a file in every way; return whether it could be read."""
    begun = time.process_time()
    try:
        opened = files.open(data)
        arrays = opened.read(0, opened.num_rows) + opened.take(range(0, opened.num_rows, 7))
        for array in arrays:
            array.validate(full=True)
    except BadDataError:
        return False
    finally:
        assert time.process_time() - begun < SECONDS
    return True


@pytest.mark.floors
def test_the_undamaged_file_is_readable(files: Any, sound: bytes) -> None:
    """If it were not, the refusals below would prove nothing."""
    assert read_everything(files, sound)


def test_a_truncated_file_is_corrupt(files: Any, sound: bytes) -> None:
    """An interrupted upload must never read as fewer rows."""
    assert not any(read_everything(files, sound[:size]) for size in range(0, len(sound), 23))


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bits_do_no_harm(files: Any, sound: bytes, seed: int) -> None:
    """Stored bytes are not trusted: damage may change values, but never raise a foreign error."""
    chance = random.Random(seed)
    metadata_start = decode_footer(sound[-FOOTER_BYTES:], len(sound)).metadata_start
    refused = 0
    for _ in range(150):
        damaged = bytearray(sound)
        for _ in range(chance.choice([1, 1, 1, 3])):
            first = metadata_start if chance.random() < 0.7 else 0
            damaged[chance.randrange(first, len(damaged))] ^= 1 << chance.randrange(8)
        refused += not read_everything(files, bytes(damaged))
    assert refused > 30


def test_extreme_stored_numbers_do_no_harm(files: Any, sound: bytes) -> None:
    """Random flips rarely give the numbers at which sizes overflow."""
    chance = random.Random(0)
    tried = refused = 0
    for damaged in files_with_extreme_numbers(sound, chance):
        tried += 1
        refused += not read_everything(files, damaged)
    assert tried > 100
    assert refused > tried / 2


def files_with_extreme_numbers(sound: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield files in which one number of the metadata is replaced."""
    footer = decode_footer(sound[-FOOTER_BYTES:], len(sound))
    table = sound[footer.column_table.start : footer.column_table.stop]
    columns = [
        sound[value.start : value.stop] for value in decode_position_table(table, len(sound))
    ]
    for index, stored in enumerate(columns):
        for damaged in damaged_columns(stored, chance):
            others = [*columns[:index], damaged, *columns[index + 1 :]]
            yield with_column_metadata(sound, others)


def damaged_columns(stored: bytes, chance: random.Random) -> Iterator[bytes]:
    message = file2_pb2.ColumnMetadata.FromString(stored)
    # One page is enough of many alike.
    page = chance.randrange(len(message.pages))
    for change in changes_of(message.pages[page], chance):
        copy = file2_pb2.ColumnMetadata()
        copy.CopyFrom(message)
        change(copy.pages[page])
        yield copy.SerializeToString()
    encoding = unpack_encoding(message.pages[page].encoding.direct.encoding, pb.ArrayEncoding)
    for change in changes_of(encoding, chance):
        changed = pb.ArrayEncoding()
        changed.CopyFrom(encoding)
        change(changed)
        copy = file2_pb2.ColumnMetadata()
        copy.CopyFrom(message)
        copy.pages[page].encoding.direct.encoding = pack_encoding(changed)
        yield copy.SerializeToString()


def changes_of(message: Message, chance: random.Random) -> Iterator[Callable[[Any], None]]:
    """Yield functions that each change one number of a message of this shape, at any depth."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.cpp_type in {field.CPPTYPE_UINT32, field.CPPTYPE_UINT64}:
            largest = 2**32 - 1 if field.cpp_type == field.CPPTYPE_UINT32 else 2**64 - 1
            numbers = chance.sample([extreme for extreme in EXTREMES if extreme <= largest], 4)
            yield from (changing(field.name, number, chance.random()) for number in numbers)
        elif isinstance(value, Message) and message.HasField(field.name):
            for change in changes_of(value, chance):
                yield changing_inside(field.name, change)


def changing(name: str, number: int, where: float) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        value = getattr(message, name)
        if isinstance(value, int):
            setattr(message, name, number)
        elif len(value):
            value[int(where * len(value))] = number

    return change


def changing_inside(name: str, change: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda message: change(getattr(message, name))


def with_column_metadata(sound: bytes, columns: list[bytes]) -> bytes:
    """Return the file with other column metadata, and matching tables and footer."""
    footer = decode_footer(sound[-FOOTER_BYTES:], len(sound))
    global_table = sound[footer.global_table.start : footer.global_table.stop]
    data = sound[: footer.metadata_start]
    ranges = []
    for column in columns:
        ranges.append(ByteRange(len(data), len(data) + len(column)))
        data += column
    column_start = len(data)
    data += encode_position_table(ranges)
    global_start = len(data)
    data += global_table
    moved = type(footer)(
        footer.metadata_start,
        ByteRange(column_start, global_start),
        ByteRange(global_start, len(data)),
        footer.version,
    )
    return data + encode_footer(moved)
