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


def test_rows_of_small_inputs_are_read() -> None:
    """Small results travel with the plan, which saves the start of a task."""
    assert rows_of([TaskInput((), Counting(), 800)], 800) == [ROWS]


@pytest.mark.parametrize("num_bytes", [801, None])
def test_planner_begins_only_small_work(num_bytes: int | None) -> None:
    """The planner must not begin work that is large or of unknown size, since the task would read
    its first rows again.
    """
    reading = Counting()
    assert rows_of([TaskInput((), reading, num_bytes)], 800) is None
    assert rows_of([TaskInput((), reading, 1)] * 2, 800) is None
    assert rows_of([], 800) is None
    assert reading.num_reads == 0


def test_unexpectedly_large_rows_wait_for_tasks() -> None:
    """The estimate may be too small, and the driver's memory must not depend on it."""
    assert rows_of([TaskInput((), Counting(), 10)], 799) is None


def test_eager_read_errors_wait_for_tasks() -> None:
    """A task is repeated after a transient error, while an error of the planner would end the
    query.
    """
    assert rows_of([TaskInput((), Counting(OSError("lost")), 10)], 800) is None


def test_task_inputs_estimate_their_bytes(tmp_path: Path) -> None:
    """The estimate decides whether the driver reads the rows, so it has to be close to the size of
    the decoded values.
    """
    rows = pa.table({"x": np.random.default_rng(1).random(1000)})
    ds = lance_stream.create_dataset(tmp_path / "t", rows)
    units = plan_scan(open_newest(ds.uri), ("x",))
    (task_input,) = divide(units, lambda unit: unit, lambda _, part: part, Counting())
    assert task_input.num_bytes is not None
    assert 8000 <= task_input.num_bytes <= 16_000


def test_the_size_of_blobs_is_unknown(tmp_path: Path) -> None:
    """Files store only descriptions of blobs in the column, so an estimate from them would let the
    driver read gigabytes.
    """
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([blob]))
    ds = ds.append(pa.table({"b": pa.array([b"1"], pa.large_binary())}))
    units = plan_scan(open_newest(ds.uri), ("b",))
    (task_input,) = divide(units, lambda unit: unit, lambda _, part: part, Counting())
    assert task_input.num_bytes is None
