"""Full-zip pages, byte by byte, and what reading a part of them requests."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.file.blocks import scattered_bytes
from lance_stream.file.encoding_options import PREFIX
from lance_stream.file.v2_1.layouts.full_zip import row_index
from lance_stream.file.versions import FileVersion

LONG = "x" * 5000
AS_THEY_ARE = {PREFIX + "structural-encoding": "fullzip", PREFIX + "compression": "none"}


def test_plain_values_are_not_copied(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is the values."""
    monkeypatch.setattr(scattered_bytes, "MAX_GAP_BYTES", 0)
    values = pa.array(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000))
    column = columns.write(values)
    assert column.layouts() == ["full_zip_layout"]
    assert column.data == values.buffers()[1].to_pybytes()[:8000]
    column.read(10, 20)
    column.take([1, 2, 500])
    assert [[span.size_bytes for span in ranges] for ranges in column.rounds] == [[80], [16, 8]]


def test_nullable_wide_values_have_control_words(columns: Any) -> None:
    """Other readers expect the level in front of each value."""
    values = pa.array([b"a" * 300, None, b"c" * 300], pa.binary(300))
    column = columns.write(values)
    assert len(column.data) == 3 * 301
    assert [column.data[position] for position in (0, 301, 602)] == [0, 1, 0]
    assert column.read(0, 3).equals(values)
    assert column.take([0, 2]).equals(values.take([0, 2]))


def test_long_strings_follow_their_length(columns: Any) -> None:
    """A null is a control word alone."""
    values = pa.array([LONG, None, "ab"])
    column = columns.write(values, metadata=AS_THEY_ARE)
    items = b"\0" + struct.pack("<I", 5000) + LONG.encode() + b"\1" + b"\0\2\0\0\0ab"
    assert column.buffer(0) == items
    assert column.buffer(1) == struct.pack("<HHHH", 0, 5005, 5006, 5013)
    assert column.read(0, 3).equals(values)
    assert column.read(1, 3).equals(values[1:3])


def test_non_null_strings_omit_control_words(columns: Any) -> None:
    """Without levels a control word would have zero bytes, and readers expect only the length."""
    column = columns.write(pa.array([LONG, "ab"], pa.large_string()), metadata=AS_THEY_ARE)
    assert (
        column.buffer(0) == struct.pack("<Q", 5000) + LONG.encode() + struct.pack("<Q", 2) + b"ab"
    )


@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2])
@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.list_(pa.string()),
        pa.list_(pa.binary(300)),
        pa.list_(pa.list_(pa.large_binary())),
        pa.struct([("a", pa.list_(pa.string())), ("b", pa.binary(300))]),
    ],
    ids=str,
)
def test_row_index_locates_wide_lists(
    columns: Any, version: FileVersion, arrow_type: pa.DataType
) -> None:
    """The row index needs a round of its own before the bytes of the rows."""
    wide = b"z" * 300 if "300" in str(arrow_type) else LONG
    rows: list[Any] = [[wide, None, wide], [], None, [None], [wide]]
    if arrow_type == pa.list_(pa.list_(pa.large_binary())):
        rows = [[row, [], None] for row in rows] + [None, []]
    if pa.types.is_struct(arrow_type):
        rows = [{"a": [LONG, None], "b": b"z" * 300}, {"a": None, "b": None}, None, {"a": []}]
    values = pa.array(rows * 40, arrow_type)
    column = columns.write(values, version=version)
    assert set(column.layouts()) == {"full_zip_layout"}
    assert column.read(0, len(values)).equals(values)
    for start, stop in [(0, 1), (1, 4), (3, 77), (len(values) - 1, len(values))]:
        column.forget()
        assert column.read(start, stop).equals(values[start:stop])
        assert len(column.rounds) == 2
    offsets = [0, 1, 2, 17, 60, len(values) - 1]
    assert column.take(offsets).equals(values.take(offsets))


@pytest.mark.floors
def test_row_index_is_read_partially(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a large page must not be fetched for one row."""
    monkeypatch.setattr(row_index, "MAX_INDEX_BYTES", 10)
    monkeypatch.setattr(scattered_bytes, "MAX_GAP_BYTES", 0)
    values = pa.array([LONG if n % 10 == 0 else f"short {n}" for n in range(100)])
    values = pa.concat_arrays([values, pa.array([LONG * 20])])
    column = columns.write(values, metadata=AS_THEY_ARE)
    width = column.pages[0][0].buffers[1].size_bytes // 102
    assert width == 4
    assert column.take([3, 4, 50]).equals(values.take([3, 4, 50]))
    assert [file.size_bytes for file in column.rounds[0]] == [3 * width, 2 * width]
    assert column.read(20, 30).equals(values[20:30])
    assert [file.size_bytes for file in column.rounds[2]] == [11 * width]


@pytest.mark.floors
def test_unusually_long_rows_are_read_whole(columns: Any) -> None:
    """Buffers that are sized by typical rows would cut it off."""
    rows: list[Any] = [[LONG]] * 100 + [[str(n) for n in range(3000)]] + [[None, LONG], []]
    values = pa.array(rows)
    column = columns.write(values, metadata=AS_THEY_ARE)
    assert column.layouts() == ["full_zip_layout"]
    assert column.read(0, len(rows)).equals(values)
    assert column.take([100, 101]).equals(values.take([100, 101]))


def changed(column: Any, **fields: int) -> Any:
    layout = column.layout()
    for name, value in fields.items():
        setattr(layout.full_zip_layout, name, value)
    return column.with_layout(layout)


@pytest.mark.parametrize(
    "fields",
    [
        {"bits_def": 0},
        {"bits_def": 17},
        {"bits_rep": 1},
        {"bits_per_offset": 64},
        {"bits_per_offset": 16},
        {"bits_per_value": 32},
        {"num_items": 7},
    ],
    ids=str,
)
def test_a_contradictory_layout_is_corrupt(columns: Any, fields: Any) -> None:
    """Layout and buffers are stored apart, and must be checked against each other."""
    column = changed(columns.write(pa.array([LONG, None, "ab"])), **fields)
    with pytest.raises(BadDataError):
        column.read(0, 3)


@pytest.mark.parametrize(
    "index",
    [(0, 5005, 5006, 5014), (1, 5005, 5006, 5013), (0, 5007, 5006, 5013), (0, 5006, 5006, 5013)],
    ids=str,
)
def test_a_mismatched_row_index_is_corrupt(columns: Any, index: Any) -> None:
    """A wrong position would begin inside another value."""
    column = columns.write(pa.array([LONG, None, "ab"]))
    broken = column.with_buffers(column.buffer(0), struct.pack("<HHHH", *index))
    with pytest.raises(CorruptDataError):
        broken.read(0, 3)


def test_lengths_past_the_end_are_corrupt(columns: Any) -> None:
    """No memory is allocated for it."""
    column = columns.write(pa.array([[LONG, "ab"]]))
    items = bytearray(column.buffer(0))
    items[1:5] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptDataError, match="longer than its row"):
        column.with_buffers(bytes(items), column.buffer(1)).read(0, 1)


def test_absurd_row_counts_are_refused(columns: Any) -> None:
    """The count decides how much memory is allocated."""
    column = columns.write(pa.array(np.arange(10)))
    layout = column.layout()
    layout.full_zip_layout.num_items = 2**31
    with pytest.raises(CorruptDataError, match="cannot be 80 bytes"):
        column.with_layout(layout, length=2**31).read(0, 2**31)


@pytest.mark.floors
def test_booleans_in_bytes_are_read(columns: Any) -> None:
    """Full-zip pages have whole bytes, so other writers widen booleans."""
    message = pb.FullZipLayout(
        bits_per_value=8,
        num_items=3,
        num_visible_items=3,
        value_compression=pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=8)),
        layers=[pb.REPDEF_ALL_VALID_ITEM],
    )
    layout = pb.PageLayout(full_zip_layout=message)
    column = columns.from_buffers(pa.bool_(), layout, 3, bytes([1, 0, 1]))
    assert column.read(0, 3).to_pylist() == [True, False, True]
