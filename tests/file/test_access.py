"""What a few rows cost: at most two rounds of requests, and only the bytes of their columns."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import LanceStreamError
from lance_stream.file import reader
from lance_stream.file.versions import FileVersion
from tests.file.whole_files import Reading, written_by_us
from tests.oracle.type_cases import COLUMNS, SHAPES, Shape

VERSIONS = (FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2)
SHAPES_READ = ("no nulls", "few distinct", "long runs", "constant", "wide")
MAX_ROUNDS = 2


def max_rounds(arrow: pa.DataType, version: FileVersion) -> int:
    """Two, but lists of 2.0 have the offsets of the next level in a column of their own."""
    levels = list_levels(arrow) if version is FileVersion.V2_0 else 0
    return max(MAX_ROUNDS, levels + 1)


def list_levels(arrow: pa.DataType) -> int:
    if pa.types.is_struct(arrow):
        return max(list_levels(array.type) for array in arrow)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return 1 + list_levels(arrow.value_type)
    return 0


@pytest.fixture
def short_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are small here, so opening them should read little more than the footer."""
    monkeypatch.setattr(reader, "TAIL_BYTES", 64)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.floors
@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.name in SHAPES_READ], ids=str)
def test_rows_cost_at_most_two_rounds(version: FileVersion, shape: Shape) -> None:
    """Random access is the purpose of the format: one round for positions and one for bytes."""
    counted, too_many = 0, []
    for column in COLUMNS.values():
        if not column.suits(shape):
            continue
        array = column.array(shape, np.random.default_rng(1))
        schema = pa.schema([column.field])
        half = len(array) // 2
        batches = [
            pa.record_batch([array.slice(start, stop - start)], schema=schema)
            for start, stop in pairwise([0, half, len(array)])
        ]
        try:
            data = written_by_us(batches, version, schema, max_page_bytes=2000)
        except LanceStreamError:
            continue  # what files of the version cannot hold
        for offsets in ([half + 3], [1, half - 1, len(array) - 1]):
            reading = Reading(data)
            opened = len(reading.rounds)
            (taken,) = reading.take([column.name], offsets)
            assert len(taken) == len(offsets)
            counted += 1
            rounds = len(reading.rounds) - opened
            if rounds > max_rounds(column.arrow, version):
                too_many.append(f"{column.name}: {rounds}")
    assert counted > 30
    assert not too_many


@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("name", ["int64", "string", "list<int32>", "fsl<float, 100>"])
def test_one_column_reads_only_its_bytes(version: FileVersion, name: str) -> None:
    """A projection of one column in a hundred must cost a hundredth."""
    shape = next(shape for shape in SHAPES if shape.name == "some nulls")
    array = COLUMNS[name].array(shape, np.random.default_rng(1))
    batch = pa.record_batch([array] * 100, names=[f"column {number}" for number in range(100)])
    reading = Reading(written_by_us([batch], version, batch.schema))
    opened = reading.bytes_read
    (read,) = reading.read(["column 42"], 0, len(array))
    one = reading.bytes_read - opened
    assert read.null_count == array.null_count
    reading.read(batch.schema.names, 0, len(array))
    rest = reading.bytes_read - opened - one
    assert 0 < one <= rest / 100 * 1.1


@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_one_row_reads_few_bytes(version: FileVersion) -> None:
    """Reading a whole page for one row would make random access useless."""
    random = np.random.default_rng(1)
    count = 100_000
    names = pa.array([f"{number:012x}" for number in random.integers(0, 2**48, count).tolist()])
    vectors = pa.FixedSizeListArray.from_arrays(random.random(count * 4, np.float32), 4)
    ends = pa.array(np.arange(0, count + 1), pa.int32())
    lists = pa.ListArray.from_arrays(ends, random.integers(0, 2**62, count))
    batch = pa.record_batch([random.random(count), names, vectors, lists], names=list("abcd"))
    data = written_by_us([batch], version, batch.schema)
    for name in batch.schema.names:
        reading = Reading(data)
        opened = reading.bytes_read
        (taken,) = reading.take([name], [54_321])
        assert taken.equals(batch[name][54_321:54_322])
        column_bytes = batch[name].nbytes
        assert reading.bytes_read - opened < column_bytes / 10
