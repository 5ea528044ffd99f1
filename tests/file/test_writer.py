from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids
from tests.file.column_metadata import columns_of


def writer_of(schema: pa.Schema, **options: Any) -> FileWriter:
    return FileWriter(assign_ids(from_arrow(schema)), FileVersion.V2_0, **options)


def test_the_writer_describes_its_file(files: Any) -> None:
    """The manifest needs rows, size, field ids, column indices and the file version."""
    table = pa.table({"a": [1, 2], "s": [{"b": "x", "c": [1.0]}] * 2})
    data, written = files.write(table)
    assert written.num_rows == 2
    assert written.size_bytes == len(data)
    assert written.field_ids == (0, 1, 2, 3, 4)
    assert written.column_indices == (0, 1, 2, 3, 4)
    assert written.version is FileVersion.V2_0


def test_buffers_are_aligned_to_64_bytes(files: Any) -> None:
    """Lance requires it, and readers map buffers without a copy."""
    table = pa.table({"a": [1, None, 3], "t": ["x", "yy", None], "f": [True, None, False]})
    opened = files.written(table, max_page_bytes=1)
    ranges = opened.rounds[0]
    assert len(ranges) == 1
    starts = [
        buffer.start
        for column in _columns(opened)
        for page in column.pages
        for buffer in page.buffers
    ]
    assert len(starts) > 6
    assert all(start % 64 == 0 for start in starts)


def test_values_are_written_without_a_copy() -> None:
    """Copies would double the memory and time of each write."""
    array = pa.array(np.arange(1000))
    batch = pa.record_batch({"a": array}).slice(100, 500)
    (part,) = writer_of(batch.schema, max_page_bytes=4000).write(batch)
    assert pa.py_buffer(part).address == array.buffers()[1].address + 800
    assert part.nbytes == 4000


@pytest.mark.parametrize("rows_of_batch", [1, 100, 10_000])
def test_pages_have_about_the_requested_size(files: Any, rows_of_batch: int) -> None:
    """Pages of many small batches must be joined, and those of large ones split."""
    table = pa.table({"a": np.arange(10_000), "b": np.arange(10_000, dtype=np.int8)})
    table = pa.Table.from_batches(table.to_batches(max_chunksize=rows_of_batch))
    opened = files.written(table, max_page_bytes=8000)
    wide, narrow = _columns(opened)
    assert [page.length for page in wide.pages] == [1000] * 10
    assert sum(page.length for page in narrow.pages) == 10_000
    assert len(narrow.pages) == 2


def test_batches_with_another_schema_are_refused() -> None:
    """The columns would be stored under types that they do not have."""
    writer = writer_of(pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidInputError, match="a: int32"):
        writer.write(pa.record_batch({"a": pa.array([1], pa.int32())}))


def test_unsupported_versions_cannot_be_written() -> None:
    """Version 2.3 is not stable, and its files could become unreadable."""
    with pytest.raises(UnsupportedFeatureError, match=r"2\.3"):
        FileWriter(assign_ids(from_arrow(pa.schema([("a", pa.int64())]))), FileVersion.V2_3)


def test_a_null_names_the_required_column() -> None:
    """Readers rely on the schema and would fail far from the cause."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(InvalidInputError, match="'a' may not be null, but 1 of 2"):
        writer_of(schema).write(pa.record_batch([pa.array([1, None])], schema=schema))


def test_nested_required_fields_refuse_nulls() -> None:
    """A null list above the field is allowed."""
    inner = pa.struct([pa.field("strict", pa.int64(), nullable=False)])
    schema = pa.schema([("lists", pa.list_(inner))])

    def batch(lists: list[Any]) -> pa.RecordBatch:
        return pa.record_batch([pa.array(lists, pa.list_(inner))], schema=schema)

    writer_of(schema).write(batch([None, [], [{"strict": 1}]]))
    with pytest.raises(InvalidInputError, match="'strict' may not be null"):
        writer_of(schema).write(batch([[{"strict": None}]]))


def test_version_2_0_refuses_null_structs() -> None:
    """The message names the file versions that can store null structs."""
    batch = pa.record_batch({"s": pa.array([{"a": 1}, None])})
    with pytest.raises(InvalidInputError, match=r"'s' is null in 1 rows.*2\.1 and newer"):
        writer_of(batch.schema).write(batch)


def test_full_dictionaries_refuse_nulls() -> None:
    """Version 2.0 needs one more index for null."""
    indices = pa.array([*range(128), None], pa.int8())
    items = pa.array([str(n) for n in range(128)])
    batch = pa.record_batch({"d": pa.DictionaryArray.from_arrays(indices, items)})
    writer = writer_of(batch.schema)
    writer.write(batch)
    with pytest.raises(InvalidInputError, match="wider index type"):
        writer.finish()


def test_dictionaries_beyond_their_index_start_pages(files: Any) -> None:
    """Dictionaries that together exceed the index type are written as separate pages."""
    batches = [
        pa.record_batch(
            {
                "d": pa.DictionaryArray.from_arrays(
                    pa.array(range(100), pa.int8()), pa.array([f"{n} of {k}" for n in range(100)])
                )
            }
        )
        for k in range(3)
    ]
    opened = files.written(pa.Table.from_batches(batches))
    (column,) = _columns(opened)
    assert [page.length for page in column.pages] == [100, 100, 100]
    for index in range(3):
        (array,) = opened.read(100 * index, 100 * index + 100)
        assert array.to_pylist() == batches[index]["d"].to_pylist()
    with pytest.raises(InvalidInputError, match="fewer rows"):
        opened.read(0, 300)


@pytest.mark.floors
@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int64()])
def test_dictionaries_with_null_items_are_joined(files: Any, index: pa.DataType) -> None:
    """A null item means a null value, and must not be merged into another item."""
    batches = [
        pa.record_batch(
            {
                "d": pa.DictionaryArray.from_arrays(
                    pa.array([3, 1, 0, None, 2], index), pa.array([None, f"{n}", None, "z"])
                )
            }
        )
        for n in range(3)
    ]
    pages = [files.written(pa.Table.from_batches([batch])) for batch in batches]
    read = [opened.read(0, 5)[0] for opened in pages]
    assert pa.concat_arrays(read).to_pylist() == [
        value for n in range(3) for value in ["z", f"{n}", None, None, None]
    ]
    assert [value.dictionary.null_count for value in read] == [0, 0, 0]


@pytest.mark.floors
def test_values_under_null_lists_are_dropped(files: Any) -> None:
    """Invisible values would cost space and could reveal what was masked."""
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 5], pa.int32()),
        pa.array([1, 2, 7, 7, 3]),
        mask=pa.array([False, True, False]),
    )
    opened = files.written(pa.table({"l": lists}))
    (array,) = opened.read(0, 3)
    assert array.to_pylist() == [[1, 2], None, [3]]
    assert array.values.to_pylist() == [1, 2, 3]


def _columns(opened: Any) -> list[Any]:

    count = len(opened.reader.metadata.column_ranges)
    return list(columns_of(opened.reader, range(count), opened.read_ranges))


def test_writing_does_not_change_the_batch() -> None:
    """The caller's arrays are shared, and bit-level encoders could write into them."""
    bitmap, bits = bytearray(b"\x55\xaa"), bytearray(b"\xf0\xf0")
    flags = pa.Array.from_buffers(pa.bool_(), 16, [pa.py_buffer(bitmap), pa.py_buffer(bits)])
    batch = pa.record_batch({"whole": flags.slice(0, 13), "part": flags.slice(3, 13)})
    writer = writer_of(batch.schema)
    writer.write(batch)
    writer.finish()
    assert (bitmap, bits) == (b"\x55\xaa", b"\xf0\xf0")


def test_mismatched_child_types_are_refused() -> None:
    # As pyarrow itself makes it from Python values, where it widens a dictionary's indices only.
    """The array claims one type; the array inside it has another."""
    codes = pa.DictionaryArray.from_arrays(
        pa.array(range(200), pa.uint16()), pa.array(range(200), pa.int32())
    )
    inner = pa.ListArray.from_arrays(pa.array(range(201), pa.int32()), codes)
    arrow = pa.list_(pa.list_(pa.dictionary(pa.uint8(), pa.int32())))
    offsets = pa.array(range(201), pa.int32()).buffers()[1]
    grown = pa.Array.from_buffers(arrow, 200, [None, offsets], children=[inner])
    assert grown.type == arrow
    assert grown.values.values.type.index_type == pa.uint16()
    batch = pa.record_batch({"codes": grown})
    with pytest.raises(InvalidInputError, match="uint16"):
        writer_of(batch.schema).write(batch)
