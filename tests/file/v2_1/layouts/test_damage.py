"""Damaged pages: they read or raise BadDataError, whatever the damage."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as Any_

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import BadDataError
from lance_stream.file.versions import FileVersion

LONG = "x" * 5000
SHAPES = {
    "numbers": pa.array(np.arange(40)),
    "nulls": pa.array([None, 1, 2] * 500),
    "booleans": pa.array([True, False, None] * 9),
    "strings": pa.array(["a", "", "üé", None] * 30),
    "vectors": pa.array([[1.0, None], None, [3.0, 4.0]] * 9, pa.list_(pa.float32(), 2)),
    "codes": pa.array(["a", None, "b"] * 9).dictionary_encode(),
    "lists": pa.array([[1, None], [], None, list(range(600))] * 9),
    "structs": pa.array([{"a": [{"b": "x", "c": None}, None]}, None, {"a": []}] * 9),
    "long": pa.array([LONG, None, "ab"]),
    "long lists": pa.array([[LONG, None], [], None, ["ab"]]),
    "wide": pa.array([b"z" * 300, None] * 3, pa.binary(300)),
    "wide lists": pa.array([[b"z" * 300, None], [], None] * 3, pa.list_(pa.binary(300))),
    "one": pa.array(["one"] * 9),
    "empty lists": pa.array([[], None] * 9, pa.list_(pa.int8())),
    "none": pa.nulls(9, pa.int64()),
}

WITH_BUFFERS = [name for name in SHAPES if name != "none"]


def assert_reads_or_is_bad(column: Any, num_rows: int) -> int:
    """Check that rows are read or refused as bad; return how many of three reads gave rows."""
    num_read = 0
    for read, expected in (
        (lambda: column.read(0, num_rows), num_rows),
        (lambda: column.read(1, num_rows // 2), max(num_rows // 2 - 1, 0)),
        (lambda: column.take([0, num_rows - 1]), 2),
    ):
        column.forget()
        try:
            array = read()
        except BadDataError:
            continue
        array.validate(full=True)
        assert len(array) == expected
        num_read += 1
    return num_read


@pytest.mark.parametrize("name", WITH_BUFFERS)
def test_truncated_buffers_are_corrupt(columns: Any, name: str) -> None:
    """A shorter buffer may be read only if the missing bytes are not needed."""
    values = SHAPES[name]
    column = columns.write(values)
    random = np.random.default_rng(1)
    num_cuts = 0
    for leaf, pages in enumerate(column.pages):
        page = pages[0]
        for index, buffer in enumerate(page.buffers):
            sizes = random.integers(0, buffer.size_bytes, min(buffer.size_bytes, 12))
            for size in {0, buffer.size_bytes - 1, *sizes.tolist()} if buffer.size_bytes else ():
                num_cuts += 1
                cut = list(page.buffers)
                cut[index] = ByteRange(buffer.start, buffer.start + size)
                column.pages[leaf] = [replace(page, buffers=tuple(cut))]
                column.forget()
                try:
                    array = column.read(0, len(values))
                except BadDataError:
                    continue
                assert array.equals(values), (index, size)
        column.pages[leaf] = pages
    assert num_cuts > 10


@pytest.mark.floors
@pytest.mark.parametrize("name", WITH_BUFFERS)
@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2])
def test_flipped_bits_do_no_harm(columns: Any, name: str, version: FileVersion) -> None:
    """Stored bytes are not trusted: damage may change values, but never raise a foreign error."""
    column = columns.write(SHAPES[name], version=version)
    sound, random = column.data, np.random.default_rng(2)
    num_read = 0
    for _ in range(40):
        data = bytearray(sound)
        for _ in range(random.integers(1, 4)):
            # The heads of chunks and items are where a flip does the most harm.
            last = len(data) if random.random() < 0.5 else min(len(data), 64)
            data[random.integers(0, last)] ^= 1 << random.integers(0, 8)
        column.data = bytes(data)
        num_read += assert_reads_or_is_bad(column, len(SHAPES[name]))
    assert num_read or name == "empty lists"


@pytest.mark.parametrize("name", SHAPES)
def test_damaged_layouts_do_no_harm(columns: Any, name: str) -> None:
    """The layout decides how all other bytes are interpreted."""
    column = columns.write(SHAPES[name])
    random = np.random.default_rng(3)
    sound = column.pages[0][0]
    for _ in range(60):
        packed = Any_.FromString(sound.encoding)
        layout = bytearray(packed.value)
        layout[random.integers(0, len(layout))] ^= 1 << random.integers(0, 8)
        packed.value = bytes(layout)
        column.pages[0] = [replace(sound, encoding=packed.SerializeToString())]
        assert_reads_or_is_bad(column, len(SHAPES[name]))


@pytest.mark.floors
def test_wrong_page_lengths_do_no_harm(columns: Any) -> None:
    """The length is stored apart from the layout and decides what is allocated."""
    for values in SHAPES.values():
        column = columns.write(values)
        sound = column.pages[0][0]
        for length in (1, len(values) - 1, len(values) + 1, 2**20, 2**40, 2**61):
            column.pages[0] = [replace(sound, length=length)]
            column.forget()
            assert_reads_or_is_bad(column, min(length, len(values)))
