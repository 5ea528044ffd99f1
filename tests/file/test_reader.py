"""What reading requests: the number of rounds and of bytes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.byte_ranges import answer, read_from
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from lance_stream.file import reader as reader_module
from lance_stream.file.reader import TAIL_BYTES, open_file
from lance_stream.schema.fields import Field

MANY = 200_000


def small_table() -> pa.Table:
    return pa.table(
        {
            "id": [1, 2, 3],
            "name": ["a", None, "c"],
            "lists": [[["x"], []], None, [["y", None]]],
            "vector": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
        }
    )


def large_table() -> pa.Table:
    numbers = np.arange(MANY)
    return pa.table(
        {
            "id": numbers,
            "x": numbers * 0.5,
            "name": pa.array([f"name {n:07d}" for n in range(MANY)]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4.0 * MANY)), 4),
        }
    )


def test_a_small_file_takes_one_request(files: Any) -> None:
    """Tables from streams have many small files, where requests are the whole cost."""
    table = small_table()
    opened = files.written(table)
    arrays = opened.read(0, 3) + opened.take([0, 2])
    assert [array.to_pylist() for array in arrays[:4]] == [value.to_pylist() for value in table]
    assert len(opened.rounds) == 1


def test_large_files_open_by_their_tail(files: Any) -> None:
    """Footer and metadata lie at the end, so one request suffices to open."""
    opened = files.written(large_table())
    assert [[span.size_bytes for span in ranges] for ranges in opened.rounds] == [[TAIL_BYTES]]


def test_wide_files_open_in_three_requests(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata larger than the tail needs further requests, but not one per column."""
    monkeypatch.setattr(reader_module, "TAIL_BYTES", 1000)
    opened = files.written(pa.table({f"column {n}": [n] for n in range(100)}))
    assert len(opened.rounds) == 3
    opened.rounds.clear()
    (array,) = opened.read(0, 1, ["column 3"])
    assert array.to_pylist() == [3]
    assert len(opened.rounds) == 1


def test_large_metadata_is_read_per_column(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a limit, only the metadata of the requested columns is read."""
    monkeypatch.setattr(reader_module, "TAIL_BYTES", 1000)
    monkeypatch.setattr(reader_module, "EAGER_METADATA_BYTES", 100)
    opened = files.written(pa.table({f"column {n}": [n] for n in range(100)}))
    before = opened.bytes_read
    opened.rounds.clear()
    (array,) = opened.read(0, 1, ["column 3"])
    assert array.to_pylist() == [3]
    assert len(opened.rounds) == 2
    assert opened.bytes_read < 300 < before
    opened.rounds.clear()
    opened.read(0, 1, ["column 3"])
    assert len(opened.rounds) == 1, "metadata are read once"


def test_only_requested_columns_are_read(files: Any) -> None:
    """The columnar format pays off only if other columns cost no bytes."""
    opened = files.written(large_table())
    opened.rounds.clear()
    (array,) = opened.read(0, MANY, ["x"])
    assert array.to_numpy()[-1] == (MANY - 1) * 0.5
    assert len(opened.rounds) == 1
    assert opened.bytes_read == 8 * MANY


def test_only_requested_rows_are_read(files: Any) -> None:
    """Flat pages allow a range of rows to be read to the byte."""
    opened = files.written(large_table())
    opened.rounds.clear()
    arrays = opened.read(70_000, 70_100)
    assert arrays[2].to_pylist() == [f"name {n:07d}" for n in range(70_000, 70_100)]
    assert arrays[3].to_pylist()[0] == [280_000.0, 280_001.0, 280_002.0, 280_003.0]
    # int64, double, 4 doubles; end offsets with the one before; 12 letters
    assert opened.bytes_read == 100 * (8 + 8 + 32) + 101 * 8 + 100 * 12
    assert len(opened.rounds) == 2, "offsets of strings first, then their bytes"


def test_columns_are_read_in_one_round(files: Any) -> None:
    """Latency of a store must be paid once, not per column."""
    opened = files.written(large_table())
    opened.rounds.clear()
    opened.read(0, MANY)
    assert len(opened.rounds) == 1


def test_taking_rows_reads_only_their_bytes(files: Any) -> None:
    """Random access in flat pages needs no more than the row's bytes and offsets."""
    opened = files.written(large_table())
    opened.rounds.clear()
    arrays = opened.take([123_456])
    assert [array.to_pylist() for array in arrays] == [
        [123_456],
        [61_728.0],
        ["name 0123456"],
        [[493_824.0, 493_825.0, 493_826.0, 493_827.0]],
    ]
    assert len(opened.rounds) == 2
    assert opened.bytes_read == 8 + 8 + 32 + 2 * 8 + 12


def test_nearby_rows_are_fetched_together(
    files: Any,
) -> None:
    """One request covers nearby rows; the bytes between distant ones are skipped."""
    opened = files.written(large_table())
    opened.rounds.clear()
    (array,) = opened.take([5, 9, 100_000, 100_003], ["id"])
    assert array.to_pylist() == [5, 9, 100_000, 100_003]
    (ranges,) = opened.rounds
    assert [span.size_bytes for span in ranges] == [5 * 8, 4 * 8]


def test_a_struct_field_is_read_alone(files: Any) -> None:
    """Spark prunes fields of structs, and their siblings may be large."""
    parts = [{"small": n, "large": f"{n:01000}", "more": [n]} for n in range(2000)]
    # The part asked for stands first in the file, far from its end, which is read at once.
    arrow = pa.struct(
        [("small", pa.int64()), ("large", pa.string()), ("more", pa.list_(pa.int64()))]
    )
    opened = files.written(pa.table({"s": pa.array(parts, arrow)}))
    opened.rounds.clear()
    (array,) = opened.read(0, 2000, ["s.small"])
    assert array.type == pa.struct([("small", pa.int64())])
    assert array.to_pylist()[7] == {"small": 7}
    assert opened.bytes_read == 8 * 2000


@pytest.mark.floors
def test_missing_struct_fields_read_as_null(files: Any) -> None:
    """Files from before a field was added stay valid."""
    opened = files.written(pa.table({"s": [{"a": 1}, {"a": 2}]}))
    (field,) = opened.schema.fields
    wider = replace(field, children=(*field.children, Field("later", "string", id=99)))
    (array,) = answer(opened.reader.read([wider], opened.column_of(), 0, 2), opened.read_ranges)
    assert array.to_pylist() == [{"a": 1, "later": None}, {"a": 2, "later": None}]


def test_a_missing_column_is_not_found(files: Any) -> None:
    """A column without a file must not be confused with a damaged one."""
    opened = files.written(small_table())
    with pytest.raises(NotFoundError, match="unheard"):
        answer(
            opened.reader.read([Field("unheard", "int8", id=99)], opened.column_of(), 0, 1),
            opened.read_ranges,
        )


def test_an_invalid_column_index_is_corrupt(files: Any) -> None:
    """The manifest states the index, which must not raise an IndexError."""
    opened = files.written(small_table())
    with pytest.raises(CorruptDataError, match="column 77"):
        answer(opened.reader.read(opened.schema.fields[:1], {0: 77}, 0, 1), opened.read_ranges)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4)])
def test_rows_out_of_range_are_refused(files: Any, start: int, stop: int) -> None:
    """Slices of Python would silently return fewer rows."""
    with pytest.raises(InvalidInputError, match="rows 0 to 3"):
        files.written(small_table()).read(start, stop)


@pytest.mark.parametrize("offsets", [[3], [2, 1], [1, 1], [2**64 - 1], [2**64 - 1, 0]])
def test_unsorted_or_invalid_offsets_are_refused(files: Any, offsets: list[int]) -> None:
    """Decoders rely on ascending offsets and would return wrong rows."""
    with pytest.raises(InvalidInputError):
        files.written(small_table()).take(offsets)


def test_errors_name_the_column(files: Any) -> None:
    """In a wide table, damage without the name of its column cannot be repaired."""
    data, _ = files.write(pa.table({"good": ["fine"], "bad": ["ill-fated"]}))
    opened = files.open(data.replace(b"ill-fated", b"ill\xfffated"))
    with pytest.raises(CorruptDataError, match="UTF-8") as raised:
        opened.read(0, 1)
    assert raised.value.__notes__ == ["column: 'bad'"]


def test_a_wrong_file_size_is_corrupt(files: Any) -> None:
    """The reader finds the footer by the size."""
    data, _ = files.write(small_table())
    with pytest.raises(CorruptDataError, match="does not end"):
        answer(open_file(len(data) - 1), read_from(data))
    with pytest.raises(CorruptDataError, match="were requested"):
        answer(open_file(len(data) + 1), read_from(data))


def test_a_small_file_is_opened_whole(files: Any) -> None:
    """A file of at most `whole_below` bytes is read by the request that opens it."""
    table = large_table().slice(0, 20_000)
    data, _ = files.write(table)
    rounds: list[int] = []

    def read(ranges: Any) -> Any:
        rounds.append(sum(span.size_bytes for span in ranges))
        return read_from(data)(ranges)

    assert len(data) > TAIL_BYTES
    reader = answer(open_file(len(data), whole_below=len(data)), read)
    fields = reader.metadata.schema.fields[:1]
    (array,) = answer(reader.read(fields, {fields[0].id: 0}, 0, 20_000), read)
    assert array.to_pylist() == table["id"].to_pylist()
    assert rounds == [len(data)]
