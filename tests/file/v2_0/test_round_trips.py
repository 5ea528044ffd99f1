"""Round trips of any rows, in any pages and batches."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.file.column_metadata import columns_of

NUM_ROWS = 40


def sometimes(rate: int, value: Any, row: int) -> Any:
    """Null in every `rate`-th row."""
    return None if rate and row % rate == 0 else value


def rows_of(rate: int) -> pa.Table:
    def column(make: Any, arrow: pa.DataType) -> pa.Array:
        return pa.array([sometimes(rate, make(n), n) for n in range(NUM_ROWS)], arrow)

    inner = pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string()))])
    return pa.table(
        {
            "number": column(lambda n: n * n, pa.int64()),
            "flag": column(lambda n: n % 3 == 0, pa.bool_()),
            "text": column(lambda n: "é" * (n % 4), pa.string()),
            "bytes": column(lambda n: bytes(n % 5), pa.large_binary()),
            "three": column(lambda n: b"%03d" % n, pa.binary(3)),
            "vector": column(lambda n: [n, sometimes(rate, n, n + 1)], pa.list_(pa.float32(), 2)),
            "flags": column(lambda n: [n % 2 == 0, True, None], pa.list_(pa.bool_(), 3)),
            "code": column(lambda n: f"{n % 4}", pa.dictionary(pa.int8(), pa.string())),
            "nothing": column(lambda _: None, pa.null()),
            "list": column(lambda n: [n] * (n % 3), pa.list_(pa.int32())),
            "lists": column(lambda n: [[n], None, []][: n % 4], pa.large_list(pa.list_(pa.int8()))),
            "structs": column(lambda n: [{"a": n, "b": ["x", None]}] * (n % 3), pa.list_(inner)),
            "struct": pa.array([{"a": sometimes(rate, n, n), "b": []} for n in range(40)], inner),
        }
    )


TABLES = {rate: rows_of(rate) for rate in (0, 1, 2, 5)}


@pytest.mark.parametrize("rate", TABLES)
@pytest.mark.parametrize("max_page_bytes", [1, 30, 1 << 20])
def test_all_rows_read_as_written(files: Any, rate: int, max_page_bytes: int) -> None:
    """Pages of a few rows show mistakes at their edges for every type."""
    table = TABLES[rate]
    opened = files.written(table, max_page_bytes=max_page_bytes)
    for name, array in zip(table.column_names, opened.read(0, NUM_ROWS), strict=True):
        array.validate(full=True)
        assert array.type == table[name].type
        assert array.to_pylist() == table[name].to_pylist(), name


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_rows_across_pages_round_trip(files: Any, data: st.DataObject) -> None:
    """Ranges that begin or end inside pages are where rows get lost."""
    table = TABLES[data.draw(st.sampled_from(sorted(TABLES)), "null in every")]
    cuts = sorted(data.draw(st.lists(st.integers(0, NUM_ROWS), max_size=4), "cuts"))
    batches = [
        batch
        for start, stop in pairwise([0, *cuts, NUM_ROWS])
        for batch in table.slice(start, stop - start).to_batches()
    ]
    max_page_bytes = data.draw(st.sampled_from([1, 10, 40, 100, 1000]), "page")
    opened = files.written(
        pa.Table.from_batches(batches, table.schema), max_page_bytes=max_page_bytes
    )
    start = data.draw(st.integers(0, NUM_ROWS), "start")
    stop = data.draw(st.integers(start, NUM_ROWS), "stop")
    for name, array in zip(table.column_names, opened.read(start, stop), strict=True):
        array.validate(full=True)
        assert array.to_pylist() == table[name][start:stop].to_pylist(), name
    offsets = sorted(data.draw(st.sets(st.integers(0, NUM_ROWS - 1)), "offsets"))
    for name, array in zip(table.column_names, opened.take(offsets), strict=True):
        array.validate(full=True)
        assert array.to_pylist() == table[name].take(pa.array(offsets, pa.int64())).to_pylist()


@pytest.mark.floors
def test_an_empty_file_keeps_its_types(files: Any) -> None:
    """A column without pages must still have its type."""
    table = TABLES[0].slice(0, 0)
    opened = files.written(table)
    arrays = opened.read(0, 0)
    assert [array.type for array in arrays] == table.schema.types
    assert all(len(array) == 0 for array in arrays)
    assert [len(value) for value in opened.take([])] == [0] * table.num_columns


def test_only_pages_with_nulls_store_bitmaps(files: Any) -> None:
    """Most columns have no nulls and should not pay for them."""

    def size(values: list[int | None]) -> int:
        opened = files.written(pa.table({"a": pa.array(values, pa.int64())}))
        (column,) = columns_of(opened.reader, [0], opened.read_ranges)
        return sum(buffer.size_bytes for page in column.pages for buffer in page.buffers)

    assert size([1] * 80) == 640
    assert size([1] * 79 + [None]) == 640 + 10
    assert size([None] * 80) == 0
