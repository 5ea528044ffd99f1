"""Files of version 0.1 in memory: round trips, and what reading costs."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.file.v0_1.writer import MAX_BATCH_ROWS
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field

V0_1 = FileVersion.V0_1


def table_of(num_rows: int) -> pa.Table:
    numbers = np.arange(num_rows)
    lengths = numbers % 4
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    items = np.arange(int(offsets[-1]))
    return pa.table(
        {
            "id": numbers,
            "flag": numbers % 3 == 0,
            "name": pa.array([None if n % 5 == 2 else f"name {n}" for n in range(num_rows)]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3 * num_rows) / 2), 3),
            "flags": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(5 * num_rows) % 3 > 0), 5
            ),
            "list": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(items)),
            "bits": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(items % 7 < 3)),
            "words": pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), pa.array([f"w{n}" for n in items])
            ),
            "part": pa.StructArray.from_arrays(
                [pa.array(numbers / 4), pa.array([f"p{n}" for n in numbers])], ["a", "b"]
            ),
            "nothing": pa.nulls(num_rows),
            "code": pa.array([f"c{n % 6}" for n in numbers]).dictionary_encode(),
        }
    )


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return table_of(2500)


@pytest.fixture(scope="module")
def data(files: Any, table: pa.Table) -> bytes:
    """Four batches of at most 700 rows."""
    row_bytes = table.nbytes // table.num_rows
    written: bytes = files.write(table, version=V0_1, max_page_bytes=700 * row_bytes)[0]
    return written


def arrays_of(table: pa.Table) -> list[Any]:
    return [column.to_pylist() for column in table.columns]


def lists_of(arrays: list[pa.Array]) -> list[Any]:
    for array in arrays:
        array.validate(full=True)
    return [array.to_pylist() for array in arrays]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_ranges_and_rows_round_trip(
    files: Any, data: bytes, table: pa.Table, drawn: st.DataObject
) -> None:
    """Ranges that begin or end inside batches are where rows get lost."""
    opened = files.open(data)
    start = drawn.draw(st.integers(0, 2500))
    stop = drawn.draw(st.integers(start, 2500))
    assert lists_of(opened.read(start, stop)) == arrays_of(table.slice(start, stop - start))
    offsets = sorted(drawn.draw(st.sets(st.integers(0, 2499), max_size=40)))
    assert lists_of(opened.take(offsets)) == arrays_of(table.take(pa.array(offsets, pa.int64())))


def test_arrays_have_exactly_the_fields_types(files: Any, data: bytes, table: pa.Table) -> None:
    """Batches of one scan are concatenated, which needs equal types."""
    arrays = files.open(data).read(0, 2500)
    assert [array.type for array in arrays] == table.schema.types


def test_batches_have_equal_sizes(files: Any, data: bytes) -> None:
    """Only the last batch may be smaller."""
    starts = files.open(data).reader._content.tail.batch_offsets
    sizes = np.diff(starts)
    assert len(sizes) > 2
    assert len(set(sizes[:-1].tolist())) == 1
    narrow = files.written(pa.table({"n": np.arange(20_000)}), version=V0_1)
    assert narrow.reader._content.tail.batch_offsets.tolist() == [
        0,
        MAX_BATCH_ROWS,
        2 * MAX_BATCH_ROWS,
        20_000,
    ]


@pytest.mark.floors
def test_a_small_file_takes_one_request(files: Any) -> None:
    """Old tables have many small files, where requests are the whole cost."""
    opened = files.written(table_of(20), version=V0_1)
    opened.read(0, 20)
    assert len(opened.rounds) == 1


@pytest.fixture(scope="module")
def wide_file(files: Any) -> bytes:
    numbers = np.arange(200_000)
    offsets = pa.array(np.arange(0, 400_001, 2), pa.int32())
    table = pa.table(
        {
            "id": numbers,
            "wide": numbers / 3,
            "text": pa.array(numbers).cast(pa.string()),
            "flag": numbers % 2 == 0,
            "list": pa.ListArray.from_arrays(offsets, pa.array(np.arange(400_000))),
        }
    )
    written: bytes = files.write(table, version=V0_1)[0]
    return written


@pytest.mark.parametrize(
    ("column", "rounds", "max_bytes"),
    [("id", 1, 24), ("flag", 1, 3), ("text", 2, 200), ("list", 2, 200)],
)
def test_rows_cost_at_most_two_rounds(
    files: Any, wide_file: bytes, column: str, rounds: int, max_bytes: int
) -> None:
    """Offsets come first and bytes second, and no kind of column needs more."""
    opened = files.open(wide_file)
    opened.take([0], [column])  # the page table is known from here on
    before, opened.rounds = opened.bytes_read, []
    assert before < 100_000
    (array,) = opened.take([5, 77_777, 150_000], [column])
    assert len(array) == 3
    assert len(opened.rounds) == rounds
    assert opened.bytes_read <= max_bytes


def test_one_column_reads_only_its_bytes(files: Any, wide_file: bytes) -> None:
    """The columnar format pays off only if other columns cost no bytes."""
    opened = files.open(wide_file)
    opened.rounds.clear()
    opened.read(0, 200_000, ["wide"])
    assert opened.bytes_read <= 8 * 200_000 + 16 * 25


def test_a_missing_column_is_named(files: Any, data: bytes) -> None:
    """A column without a file must not be confused with a damaged one."""
    opened = files.open(data)
    with pytest.raises(NotFoundError, match="'unheard'"):
        opened.reader.read([Field("unheard", "int8", id=99)], opened.column_of(), 0, 1).send(None)


@pytest.mark.floors
def test_an_empty_file_is_readable(files: Any) -> None:
    """A file without batches has an empty page table."""
    opened = files.written(table_of(5).slice(0, 0), version=V0_1)
    assert opened.num_rows == 0
    assert [len(value) for value in opened.read(0, 0)] == [0] * 11


@pytest.mark.floors
def test_dictionaries_of_a_file_grow_together(files: Any) -> None:
    """Version 0.1 stores one dictionary per column and file."""
    chunks = [["a", "b"], ["b", None, "c"], ["d", "a"]]
    table = pa.table({"d": pa.chunked_array([pa.array(c).dictionary_encode() for c in chunks])})
    (array,) = files.written(table, version=V0_1).read(0, 7)
    assert array.to_pylist() == ["a", "b", "b", None, "c", "d", "a"]


def test_dictionaries_beyond_their_index_are_refused(files: Any) -> None:
    """Wrapped indices would point to other items."""
    arrow = pa.dictionary(pa.int8(), pa.string())
    chunks = [
        pa.DictionaryArray.from_arrays(
            pa.array(range(100), pa.int8()), [f"{start + n}" for n in range(100)]
        )
        for start in (0, 100)
    ]
    table = pa.table({"d": pa.chunked_array(chunks, arrow)})
    with pytest.raises(InvalidInputError, match="more distinct values"):
        files.write(table, version=V0_1, max_page_bytes=100)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (pa.array([1, None]), "'x' has 1 nulls"),
        (pa.array([[1], None]), "'x' has 1 nulls"),
        (pa.array([[1, None]]), "'item' has 1 nulls"),
        (pa.array([{"a": 1}, None]), "'x' has 1 nulls"),
        (pa.array([[1, None]], pa.list_(pa.int8(), 2)), "1 items"),
        (pa.array(["", "a"]), "'x' has an empty value"),
        (pa.array([b"", b"a"]), "'x' has an empty value"),
        (pa.array(["", "a"]).dictionary_encode(), "'x' has an empty value"),
        (pa.array([1, None]).dictionary_encode(), "'x' has 1 nulls"),
        (pa.array([1.5, 2]).dictionary_encode(), "cannot store a dictionary of double"),
    ],
)
def test_unsupported_values_are_refused(files: Any, array: pa.Array, problem: str) -> None:
    """Version 0.1 cannot store them, and must not store something else instead."""
    with pytest.raises(InvalidInputError, match=problem):
        files.write(pa.table({"x": array}), version=V0_1)
