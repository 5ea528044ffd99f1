"""Constant pages in all their forms."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.file.versions import FileVersion


def layout(*layers: int, **fields: Any) -> pb.PageLayout:
    return pb.PageLayout(constant_layout=pb.ConstantLayout(layers=layers, **fields))


def u16(*levels: int) -> bytes:
    return np.array(levels, np.uint16).tobytes()


NULLABLE = pb.REPDEF_NULLABLE_ITEM
VALID = pb.REPDEF_ALL_VALID_ITEM
LISTS = pb.REPDEF_NULL_AND_EMPTY_LIST
STRING = struct.pack("<IIIii", 2, 8, 2, 0, 2) + b"ab"


@pytest.mark.parametrize(
    ("arrow_type", "message", "buffers", "rows"),
    [
        (pa.int16(), layout(VALID, inline_value=b"\7\0"), [], [7, 7, 7]),
        (pa.bool_(), layout(VALID, inline_value=b"\1"), [], [True] * 3),
        (pa.int16(), layout(NULLABLE), [], [None] * 3),
        (pa.string(), layout(VALID), [STRING], ["ab"] * 3),
        (
            pa.int16(),
            layout(NULLABLE, inline_value=b"\7\0"),
            [b"", u16(0, 1, 0)],
            [7, None, 7],
        ),
        (pa.string(), layout(NULLABLE), [STRING, b"", u16(1, 0, 0)], [None, "ab", "ab"]),
        (
            pa.list_(pa.int8()),
            layout(NULLABLE, LISTS, inline_value=b"\7"),
            [u16(1, 0, 0, 1, 1), u16(0, 1, 0, 2, 3)],
            [[7, None, 7], None, []],
        ),
        (
            pa.list_(pa.int8()),
            layout(NULLABLE, LISTS),
            [u16(1, 1, 1, 0), u16(2, 3, 1, 1)],
            [None, [], [None, None]],
        ),
        (
            pa.list_(pa.string()),
            layout(VALID, LISTS),
            [STRING, u16(1, 0, 1, 1), u16(0, 0, 2, 1)],
            [["ab", "ab"], [], None],
        ),
    ],
    ids=str,
)
def test_constant_forms_are_distinguished(
    columns: Any, arrow_type: pa.DataType, message: Any, buffers: list[bytes], rows: list[Any]
) -> None:
    """Only the inline value and the number of buffers tell the forms apart."""
    column = columns.from_buffers(arrow_type, message, 3, *buffers)
    assert column.read(0, 3).to_pylist() == rows
    assert column.read(1, 2).to_pylist() == rows[1:2]
    assert column.take([0, 2]).to_pylist() == [rows[0], rows[2]]
    assert len(column.rounds) <= 1


def test_null_levels_decode_run_lengths(columns: Any) -> None:
    """Lance compresses the levels of pages that have no values."""
    runs = pb.CompressiveEncoding(
        rle=pb.Rle(
            values=pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=16)),
            run_lengths=pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=8)),
        )
    )
    message = layout(
        NULLABLE,
        pb.REPDEF_NULLABLE_LIST,
        rep_compression=runs,
        def_compression=runs,
        num_rep_values=250,
        num_def_values=250,
    )
    repetition = struct.pack("<QHB", 2, 1, 250)
    definition = struct.pack("<QHB", 2, 2, 250)
    column = columns.from_buffers(pa.list_(pa.int8()), message, 250, repetition, definition)
    assert column.read(0, 250).to_pylist() == [None] * 250


@pytest.mark.parametrize(
    ("values", "version", "num_buffers"),
    [
        (pa.array([5] * 100), FileVersion.V2_2, 0),
        (pa.array([False] * 100), FileVersion.V2_2, 0),
        (pa.array(["same"] * 100), FileVersion.V2_2, 1),
        (pa.array([b"x" * 33] * 100, pa.binary(33)), FileVersion.V2_2, 1),
        (pa.array([""] * 100, pa.large_string()), FileVersion.V2_2, 1),
        (pa.nulls(100, pa.int64()), FileVersion.V2_1, 0),
        (pa.nulls(100), FileVersion.V2_1, 0),
        (pa.nulls(100, pa.list_(pa.int8(), 3)), FileVersion.V2_1, 0),
        (pa.array([[]] * 50 + [None] * 50, pa.list_(pa.int8())), FileVersion.V2_1, 2),
        (pa.array([{"a": None}] * 50 + [None] * 50), FileVersion.V2_2, 2),
    ],
    ids=str,
)
def test_pages_of_one_value_are_constant(
    columns: Any, values: pa.Array, version: FileVersion, num_buffers: int
) -> None:
    """A column of one value should cost a few bytes, also with nulls and lists around it."""
    column = columns.write(values, version=version)
    assert column.layouts() == ["constant_layout"]
    assert len(column.pages[0][0].buffers) == num_buffers
    assert column.read(0, 100).equals(values)
    assert column.read(49, 51).equals(values[49:51])


def test_version_2_1_inlines_no_values(columns: Any) -> None:
    """Readers of 2.1 cannot decode an inline value."""
    values = pa.array([5] * 100)
    column = columns.write(values, version=FileVersion.V2_1)
    assert column.layouts() == ["mini_block_layout"]
    assert column.read(0, 100).equals(values)


def test_a_rare_value_between_samples_survives(columns: Any) -> None:
    """A page that looks constant in a sample may not be, and a value would be lost."""
    numbers = np.zeros(100_000, np.int64)
    numbers[77_777] = 1
    values = pa.array(numbers)
    assert columns.write(values).read(0, 100_000).equals(values)


@pytest.mark.parametrize(
    ("arrow_type", "message", "buffers"),
    [
        (pa.int16(), layout(VALID), []),  # no value and no null
        (pa.int16(), layout(VALID, inline_value=b"\7"), []),  # a value of another width
        (pa.int16(), layout(VALID, inline_value=b"\7\0"), [b""]),  # a value too many
        (pa.int16(), layout(NULLABLE), [b"", b""]),  # does not say what is null
        (pa.int16(), layout(NULLABLE, inline_value=b"\7\0"), [b"", u16(0, 1)]),  # a level too few
        (pa.int16(), layout(NULLABLE, inline_value=b"\7\0"), [b"", b"123"]),  # half a level
        (pa.int16(), layout(NULLABLE, inline_value=b"\7\0"), [b"", u16(0, 1, 2)]),  # unknown level
        (pa.list_(pa.int8()), layout(NULLABLE, LISTS), [u16(1, 1), u16(2, 3)]),  # a row too few
        (pa.list_(pa.int8()), layout(NULLABLE, LISTS), [b"", u16(2, 3, 3)]),  # no repetition
        (pa.string(), layout(VALID), [STRING[:-1]]),
        (pa.string(), layout(VALID), [struct.pack("<IIIii", 2, 8, 2, 0, 3) + b"ab"]),
        (pa.string(), layout(VALID), [struct.pack("<I", 2**32 - 1)]),
        (pa.string(), layout(VALID), [struct.pack("<IIIii", 2, 8, 2, 0, 2) + b"a\xff"]),
        (pa.list_(pa.int8(), 2), layout(VALID, inline_value=b"\1\2"), []),
    ],
    ids=str,
)
def test_contradictory_pages_are_corrupt(
    columns: Any, arrow_type: pa.DataType, message: Any, buffers: list[bytes]
) -> None:
    """Layout and buffers are stored apart, and must be checked against each other."""
    with pytest.raises(CorruptDataError):
        columns.from_buffers(arrow_type, message, 3, *buffers).read(0, 3)


def test_constant_pages_expand_only_requested_rows(columns: Any) -> None:
    """A page of 2^60 rows is a few bytes, and must not be expanded for two of them."""
    column = columns.from_buffers(pa.int16(), layout(VALID, inline_value=b"\7\0"), 2**60)
    assert column.read(2**59, 2**59 + 2).to_pylist() == [7, 7]
    assert column.take([0, 2**59]).to_pylist() == [7, 7]


def test_an_uncountable_page_is_corrupt(columns: Any) -> None:
    """Sums of page lengths would overflow and give wrong row offsets."""
    with pytest.raises(BadDataError, match="claim to have"):
        columns.from_buffers(pa.int16(), layout(VALID, inline_value=b"\7\0"), 2**63 - 1)
