"""Small work is read where it is planned; all other work is not begun there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.read.scan import plan_scan
from lance_stream.snapshot.opening import open_newest
from lance_stream.spark.jobs.eager_rows import rows_of
from lance_stream.spark.jobs.task_input import TaskInput
from lance_stream.spark.jobs.work_units import divide

ROWS = pa.RecordBatch.from_pydict({"x": np.arange(100)})


class Counting:
    """A way of reading that counts how often it is used."""

    def __init__(self, error: Exception | None = None) -> None:
        self.num_reads = 0
        self.error = error

    def read(self, _units: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
        self.num_reads += 1
        yield ROWS
        if self.error is not None:
            raise self.error


def test_the_rows_of_a_small_portion_are_read() -> None:
    assert rows_of([TaskInput((), Counting(), 800)], 800) == [ROWS]


@pytest.mark.parametrize("num_bytes", [801, None])
def test_large_or_unknown_work_is_not_begun(num_bytes: int | None) -> None:
    """Its first rows would be read twice."""
    reading = Counting()
    assert rows_of([TaskInput((), reading, num_bytes)], 800) is None
    assert rows_of([TaskInput((), reading, 1)] * 2, 800) is None
    assert rows_of([], 800) is None
    assert reading.num_reads == 0


def test_rows_that_are_larger_than_expected_are_left_to_the_task() -> None:
    assert rows_of([TaskInput((), Counting(), 10)], 799) is None


def test_an_error_is_left_to_the_task() -> None:
    assert rows_of([TaskInput((), Counting(OSError("lost")), 10)], 800) is None


def test_a_portion_knows_how_many_bytes_its_rows_have(tmp_path: Path) -> None:
    rows = pa.table({"x": np.random.default_rng(1).random(1000)})
    ds = lance_stream.create_dataset(tmp_path / "t", rows)
    units = plan_scan(open_newest(ds.uri), ("x",))
    (portion,) = divide(units, lambda each: each, lambda _, part: part, Counting())
    assert portion.num_bytes is not None
    assert 8000 <= portion.num_bytes <= 16_000


def test_of_blobs_it_does_not_know(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([blob]))
    ds = ds.append(pa.table({"b": pa.array([b"1"], pa.large_binary())}))
    units = plan_scan(open_newest(ds.uri), ("b",))
    (portion,) = divide(units, lambda each: each, lambda _, part: part, Counting())
    assert portion.num_bytes is None
