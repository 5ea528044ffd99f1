"""Mini-block pages, byte by byte, and what reading a part of them requests."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.errors import BadDataError, CorruptDataError, InvalidInputError
from lance_stream.file.versions import FileVersion

BOTH = [FileVersion.V2_1, FileVersion.V2_2]


def flat(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def test_chunks_have_headers_and_aligned_buffers(columns: Any) -> None:
    """Other readers expect this layout to the byte."""
    column = columns.write(pa.array([1, None, 3], pa.int32()), version=FileVersion.V2_1)
    message = column.layout().mini_block_layout
    assert message.layers == [pb.REPDEF_NULLABLE_ITEM]
    assert message.num_items == 3
    head = struct.pack("<HHH2x", 3, 6, 12)  # levels, bytes of definition, bytes of values
    levels = struct.pack("<HHH2x", 0, 1, 0)
    values = column.buffer(1)[16:]
    assert struct.unpack_from("<i4xi", values) == (1, 3)
    assert column.buffer(1) == head + levels + values
    assert len(values) == 16
    assert column.buffer(0) == struct.pack("<H", (32 // 8 - 1) << 4)


def test_large_chunks_have_32_bit_sizes(columns: Any) -> None:
    """Version 2.2 widened the sizes, and a flag in the layout says so."""
    column = columns.write(pa.array([1, None, 3], pa.int32()), version=FileVersion.V2_2)
    assert column.layout().mini_block_layout.has_large_chunk
    assert column.buffer(1).startswith(struct.pack("<HHI", 3, 6, 12))
    assert column.buffer(0) == struct.pack("<I", (32 // 8 - 1) << 4)


def test_index_states_rows_across_chunks(columns: Any) -> None:
    """A list may begin in one chunk and end in another, which only the index states."""
    rows = pa.array([list(range(3000)), [], list(range(2000)), [7]], pa.list_(pa.int64()))
    column = columns.write(rows)
    index = np.frombuffer(column.buffer(2), np.uint64).reshape(-1, 2)
    sizes = column.layout().mini_block_layout.num_items
    assert sizes == 5001
    assert index[:, 0].sum() == 4
    assert index[0].tolist() == [0, 1024]  # no row ends; 1,024 entries of the first one
    assert index[-1].tolist()[1] == 0
    for start in range(4):
        for stop in range(start, 5):
            column.forget()
            assert column.read(start, stop).equals(rows[start:stop])


def test_a_handmade_page_is_read(columns: Any) -> None:
    """Two chunks of lists: 2 values, then 1; levels flat; the second row spans both."""
    message = pb.MiniBlockLayout(
        rep_compression=flat(16),
        def_compression=flat(16),
        value_compression=flat(8),
        layers=[pb.REPDEF_NULLABLE_ITEM, pb.REPDEF_NULL_AND_EMPTY_LIST],
        num_buffers=1,
        num_items=3,
        repetition_index_depth=1,
    )
    first = struct.pack("<HHHH", 3, 6, 6, 2)
    first += struct.pack("<HHH2x", 1, 1, 1) + struct.pack("<HHH2x", 0, 3, 1)
    first += bytes([5, 99]) + bytes(6)
    second = struct.pack("<HHHH", 2, 4, 4, 1)
    second += struct.pack("<HH4x", 0, 1) + struct.pack("<HH4x", 0, 2)
    second += bytes([6]) + bytes(7)
    table = struct.pack("<HH", (len(first) // 8 - 1) << 4 | 1, (len(second) // 8 - 1) << 4)
    index = struct.pack("<QQQQ", 2, 1, 2, 0)
    column = columns.from_buffers(
        pa.list_(pa.int8()),
        pb.PageLayout(mini_block_layout=message),
        4,
        table,
        first + second,
        index,
    )
    assert column.read(0, 4).to_pylist() == [[5], [], [None, 6], None]
    assert column.take([2]).to_pylist() == [[None, 6]]
    assert column.take([0, 3]).to_pylist() == [[5], None]


def test_parts_of_pages_share_metadata(columns: Any) -> None:
    """A page takes one round, its first part two; later parts reuse the first one's metadata."""
    values = pa.array([None if n % 7 == 0 else n for n in range(20_000)])
    column = columns.write(values)
    assert column.read(0, 20_000).equals(values)
    assert len(column.rounds) == 1
    column.forget()
    assert column.read(5000, 5001).equals(values[5000:5001])
    assert len(column.rounds) == 2
    assert column.take([3, 9000, 19_999]).equals(values.take([3, 9000, 19_999]))
    assert len(column.rounds) == 3


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None if n % 7 == 0 else n for n in range(50_000)]),
        pa.array([f"{n % 50:012d}" for n in range(50_000)]),
        pa.array([[n, None] if n % 3 else [] for n in range(50_000)]),
    ],
    ids=["numbers", "dictionary", "lists"],
)
def test_spread_rows_take_one_round(columns: Any, values: pa.Array) -> None:
    """Tables and chunks are requested together, unless the rows are in few chunks."""
    column = columns.write(values)
    everywhere = np.arange(17, 50_000, 250)
    assert column.take(everywhere).equals(values.take(everywhere))
    assert len(column.rounds) == 1
    column.forget()
    nearby = np.arange(20_000, 20_400, 2)
    assert column.take(nearby).equals(values.take(nearby))
    assert len(column.rounds) == 2


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None if n % 7 == 0 else n for n in range(50_000)]),
        pa.array([f"{n:012d}" for n in range(50_000)]),
        pa.array([[n, None] if n % 3 else [] for n in range(50_000)]),
    ],
    ids=["numbers", "strings", "lists"],
)
def test_a_row_costs_only_its_chunk(columns: Any, values: pa.Array) -> None:
    """Chunks exist so that random access does not read the page."""
    column = columns.write(values)
    column.take([0])  # reads the tables
    column.rounds.clear()
    assert column.take([25_000]).equals(values[25_000:25_001])
    assert len(column.rounds) == 1
    assert column.bytes_read <= 40 << 10


def test_adjacent_chunks_share_a_request(columns: Any) -> None:
    """One request per chunk would be slower than reading the page."""
    values = pa.array([None if n % 7 == 0 else n for n in range(50_000)])
    column = columns.write(values)
    column.take([0])
    column.rounds.clear()
    column.take(range(10_000, 20_000, 3))
    column.take([1, 2, 40_000])
    assert [len(ranges) for ranges in column.rounds] == [1, 2]


def test_dictionaries_are_fetched_once(columns: Any) -> None:
    """A read returns only the items that its rows refer to."""
    values = pa.array(["a", "b", None, "a"] * 5000).dictionary_encode()
    column = columns.write(values)
    assert column.read(1, 3).to_pylist() == ["b", None]
    dictionary = column.pages[0][0].buffers[2]
    assert [dictionary in ranges for ranges in column.rounds] == [True, False]
    column.rounds.clear()
    assert column.read(9999, 10_002).to_pylist() == ["a", "a", "b"]
    assert dictionary not in column.rounds[0]


def test_null_dictionary_items_become_nulls(columns: Any) -> None:
    """Lance's layout has no null items, so the level has to state them."""
    items = pa.array(["x", None, "z"])
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int8()), items)
    assert columns.write(values).read(0, 4).to_pylist() == ["x", None, None, "z"]


@pytest.mark.parametrize("version", BOTH)
def test_skewed_strings_fit_their_chunks(columns: Any, version: FileVersion) -> None:
    """Chunks that are planned by the mean length would exceed their limit of bytes."""
    lengths = [0] * 3000 + [4000] * 20 + [1] * 5000 + [3999, 0, 4000] + [10] * 2000
    values = pa.array([chr(97 + n % 26) * length for n, length in enumerate(lengths)])
    column = columns.write(values, version=version)
    assert column.layouts() == ["mini_block_layout"]
    assert column.read(0, len(lengths)).equals(values)
    assert column.read(2990, 3030).equals(values[2990:3030])


@pytest.mark.floors
@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("items", [[1, 2, 3], [True, False], ["x", None]], ids=str)
def test_sparse_lists_go_full_zip(columns: Any, version: FileVersion, items: list[Any]) -> None:
    """The levels of many empty lists do not fit the chunk of one value."""
    empty: list[Any] = []
    values = pa.array([items, *([empty] * 70_000), items, None])
    column = columns.write(values, version=version)
    assert column.layouts() == ["full_zip_layout"]
    assert column.read(0, len(values)).equals(values)
    assert column.take([0, 500, 70_001, 70_002]).equals(values.take([0, 500, 70_001, 70_002]))


def test_sparse_dictionary_lists_get_smaller_pages(
    columns: Any,
) -> None:
    """Dictionaries exist in mini-block pages only, so the page has to shrink instead."""
    few = pa.array(["a", "b", "a"]).dictionary_encode()
    offsets = np.concatenate([[0], np.full(70_000, 1), np.full(70_000, 2), [3]])
    values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), few)
    column = columns.write(values)
    assert len(column.pages[0]) > 1
    assert column.read(0, len(values)).equals(values)


def test_oversized_dictionary_rows_are_refused(columns: Any) -> None:
    """No chunk can hold the levels of the row."""
    few = pa.array(["a", "b"]).dictionary_encode()
    inner = np.concatenate([[0], np.full(70_000, 1), [2]])
    lists = pa.ListArray.from_arrays(pa.array(inner, pa.int32()), few)
    values = pa.ListArray.from_arrays(pa.array([0, len(lists)], pa.int32()), lists)
    with pytest.raises(InvalidInputError, match="row 0 has more than 65,535"):
        columns.write(values)


def changed_layout(column: Any, **fields: Any) -> Any:
    layout = column.layout()
    for name, value in fields.items():
        if name == "layers":
            del layout.mini_block_layout.layers[:]
            layout.mini_block_layout.layers.extend(value)
        else:
            setattr(layout.mini_block_layout, name, value)
    return column.with_layout(layout)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_items": 2999},
        {"num_items": 2**63},
        {"num_buffers": 2},
        {"has_large_chunk": False},
        {"layers": [pb.REPDEF_ALL_VALID_ITEM]},
        {"layers": [pb.REPDEF_NULLABLE_ITEM, pb.REPDEF_NULLABLE_LIST]},
        {"layers": []},
    ],
    ids=str,
)
def test_a_contradictory_layout_is_corrupt(columns: Any, fields: Any) -> None:
    """Layout and buffers are stored apart, and must be checked against each other."""
    values = pa.array([None if n % 7 == 0 else n for n in range(3000)])
    column = changed_layout(columns.write(values), **fields)
    with pytest.raises(CorruptDataError):
        column.read(0, 3000)


def test_absurd_row_counts_are_refused(columns: Any) -> None:
    """The count decides how much memory is allocated."""
    column = columns.write(pa.array([1, None, 3]))
    layout = column.layout()
    layout.mini_block_layout.num_items = 2**60
    claimed = column.with_layout(layout, length=2**60)
    with pytest.raises(BadDataError):
        claimed.read(0, 2**60)
    with pytest.raises(BadDataError):
        claimed.read(2**59, 2**59 + 1)


@pytest.mark.parametrize("start", [0, 2, 4, 6])
def test_buffers_outside_their_chunk_are_corrupt(columns: Any, start: int) -> None:
    """Bytes of the next chunk would be read as values."""
    column = columns.write(pa.array([1, None, 3], pa.int32()), version=FileVersion.V2_1)
    chunk = bytearray(column.buffer(1))
    struct.pack_into("<H", chunk, start, 0xFFFF)
    if start == 6:
        chunk[:4] = struct.pack("<HH", 3, 40)
    with pytest.raises(CorruptDataError):
        column.with_buffers(column.buffer(0), bytes(chunk)).read(0, 3)


@pytest.mark.parametrize("index", [(4, 0), (0, 0), (2**63, 0), (3, 1), (5, 0)], ids=str)
def test_an_inconsistent_row_index_is_corrupt(columns: Any, index: Any) -> None:
    """A wrong index would assign items to other rows."""
    column = columns.write(pa.array([[1], [2, 3], []]))
    assert struct.unpack("<QQ", column.buffer(2)) == (3, 0)
    broken = column.with_buffers(column.buffer(0), column.buffer(1), struct.pack("<QQ", *index))
    with pytest.raises(CorruptDataError):
        broken.read(0, 3)
