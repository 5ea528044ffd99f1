"""Damaged files of version 0.1 read right or raise `BadDataError`, in bounded time and memory."""

import random
import struct
import time
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import file_pb2
from lance_stream.byte_ranges import answer
from lance_stream.errors import BadDataError
from lance_stream.file.versions import FileVersion

SECONDS = 2.0
MAX_BYTES = 256 << 20
EXTREMES = [-(2**63), -1, 0, 1, 7, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1]


def all_kinds() -> pa.Table:
    words = ["one", None, "three", "fünf"] * 10
    return pa.table(
        {
            "number": pa.array([1, 2, 3, 4] * 10),
            "flag": pa.array([True, False, False, True] * 10),
            "word": pa.array(words),
            "list": pa.array([[1], [], [3, 4], [2]] * 10, pa.list_(pa.int32())),
            "lists": pa.array([[["a"], []], [], [[None]], []] * 10),
            "structs": pa.array([[{"a": 1, "b": "x"}], [], [], []] * 10),
            "vector": pa.array([[1, 2], [3, 4]] * 20, pa.list_(pa.float32(), 2)),
            "code": pa.array(["a", "b", "c", "d"] * 10).dictionary_encode(),
            "nothing": pa.nulls(40),
        }
    )


@pytest.fixture(scope="module")
def sound(files: Any) -> bytes:
    data: bytes = files.write(all_kinds(), version=FileVersion.V0_1, max_page_bytes=3000)[0]
    return data


def read_everything(files: Any, data: bytes) -> bool:
    """Read a file in every way; return whether it could be read."""
    begun = time.process_time()
    try:
        opened = files.open(data)
        stop = min(opened.num_rows, 100_000)
        arrays = opened.read(0, stop) + opened.take(range(0, stop, 7))
        for array in arrays:
            array.validate(full=True)
        leaves = [field for field in opened.schema.walk() if not field.children]
        bounds = answer(opened.reader.page_bounds(leaves), opened.read_ranges)
        for value in bounds.of_field.values() if bounds else ():
            value.minimum.validate(full=True)
    except BadDataError:
        return False
    finally:
        assert time.process_time() - begun < SECONDS
    return True


def parts_of(data: bytes) -> tuple[int, file_pb2.Metadata]:
    (position,) = struct.unpack("<Q", data[-16:-8])
    (size,) = struct.unpack_from("<I", data, position)
    return position, file_pb2.Metadata.FromString(data[position + 4 : position + 4 + size])


def with_metadata(data: bytes, message: file_pb2.Metadata) -> bytes:
    position, _ = parts_of(data)
    body = message.SerializeToString()
    return data[:position] + struct.pack("<I", len(body)) + body + data[-16:]


def test_the_undamaged_file_is_readable(files: Any, sound: bytes) -> None:
    """If it were not, the refusals below would prove nothing."""
    assert read_everything(files, sound)
    assert read_everything(files, with_metadata(sound, parts_of(sound)[1]))


def test_a_truncated_file_is_corrupt(files: Any, sound: bytes) -> None:
    """An interrupted upload must never read as fewer rows."""
    assert not any(read_everything(files, sound[:size]) for size in range(len(sound)))


@pytest.mark.floors
def test_flipped_bits_do_no_harm(files: Any, sound: bytes) -> None:
    """Stored bytes are not trusted: damage may change values, but never raise a foreign error."""
    chance = random.Random(1)
    refused = 0
    for _ in range(200):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(sound))] ^= 1 << chance.randrange(8)
        refused += not read_everything(files, bytes(damaged))
    assert refused > 20


@pytest.mark.parametrize("number", EXTREMES)
def test_absurd_page_tables_are_refused(files: Any, sound: bytes, number: int) -> None:
    """Positions and lengths of pages decide how much memory is allocated."""
    _, message = parts_of(sound)
    num_columns = 15
    stop = message.page_table_position + num_columns * 16 * (len(message.batch_offsets) - 1)
    tracemalloc.start()
    refused = 0
    positions = range(message.page_table_position, stop, 8)
    for position in positions:
        damaged = bytearray(sound)
        struct.pack_into("<q", damaged, position, number)
        refused += not read_everything(files, bytes(damaged))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MAX_BYTES
    if number < 0 or number > 7:
        assert refused > len(positions) / 3


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 2**31 - 1],
        [5, 40],
        [0, 40, 10],
        [0, -1],
        [0] * 5000 + [40],
        list(range(0, 2**31 - 1, 2**20)),
        [0, 1, 2, 3, 4, 40],
    ],
)
def test_absurd_batches_are_refused(files: Any, sound: bytes, offsets: list[int]) -> None:
    """Row offsets are computed from these numbers."""
    _, message = parts_of(sound)
    del message.batch_offsets[:]
    message.batch_offsets.extend(offsets)
    assert not read_everything(files, with_metadata(sound, message))


@pytest.mark.parametrize("field", ["page_table_position", "manifest_position"])
@pytest.mark.parametrize("number", [2**31, 2**63, 2**64 - 1])
def test_an_absurd_position_is_refused(files: Any, sound: bytes, field: str, number: int) -> None:
    """A position past the end would become a request that the store rejects."""
    _, message = parts_of(sound)
    setattr(message, field, number)
    assert not read_everything(files, with_metadata(sound, message))


def test_invalid_statistics_positions_are_refused(files: Any, sound: bytes) -> None:
    """Bounds read from other bytes would exclude pages with matches."""
    _, message = parts_of(sound)
    before = message.statistics.page_table_position
    for number in (before - 8, 2**40, 2**64 - 1):
        message.statistics.page_table_position = number
        assert not read_everything(files, with_metadata(sound, message))


def test_descending_end_offsets_are_refused(files: Any) -> None:
    """A negative length would shift the strings after it."""
    table = pa.table({"s": ["aaaa", "bbbb", "cccc"]})
    data = files.write(table, version=FileVersion.V0_1)[0]
    ends = data.index(np.array([0, 4, 8, 12]).astype("<i8").tobytes())
    damaged = bytearray(data)
    struct.pack_into("<q", damaged, ends + 8, 11)
    struct.pack_into("<q", damaged, ends + 16, 5)
    assert not read_everything(files, bytes(damaged))
