"""How work units are spread over tasks."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream.distributed.dividing import (
    LARGE_TASK_BYTES,
    SCATTERED_ROW_BYTES,
    SMALL_TASK_BYTES,
    cost_of,
    cut,
    number_of_tasks,
    pack,
)
from lance_stream.read.units import WorkUnit, size_of, unit_of
from lance_stream.snapshot.opening import open_newest
from lance_stream.spark.jobs.task_input import TaskInput
from lance_stream.spark.source.table_rows import TableRows


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_packing_keeps_every_unit_in_order(sizes: list[int], tasks: int) -> None:
    """A lost unit loses rows, and a changed order would change the order of rows in a DataFrame."""
    task_inputs = pack([(index, size) for index, size in enumerate(sizes)], tasks)
    assert [unit for task_input in task_inputs for unit in task_input] == list(range(len(sizes)))
    assert len(task_inputs) <= tasks
    assert all(task_inputs)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_portions_are_balanced_within_one_unit(sizes: list[int], tasks: int) -> None:
    """The slowest task decides how long a job takes."""
    task_inputs = pack([(size, size) for size in sizes], tasks)
    assert max(map(sum, task_inputs)) <= sum(sizes) / tasks + max(sizes)


@pytest.mark.parametrize(
    ("total_bytes", "tasks"),
    [
        (0, 1),
        (SMALL_TASK_BYTES, 1),
        (2 * SMALL_TASK_BYTES, 2),
        (2 * LARGE_TASK_BYTES, 2),
        (2 * LARGE_TASK_BYTES + 1, 4),
        (50 * LARGE_TASK_BYTES, 50),
    ],
)
def test_number_of_tasks_follows_the_work(total_bytes: int, tasks: int) -> None:
    """A task for little data costs more than it saves, while a few huge tasks leave cores idle."""
    assert number_of_tasks(total_bytes, cores=2) == tasks


def scattered(table: Any, num_rows: int, step: int) -> WorkUnit:
    offsets = np.arange(0, num_rows * step, step, dtype=np.uint32)
    unit: WorkUnit = unit_of(table, 0, columns=("text",), offsets=offsets)
    return unit


def test_scattered_rows_cost_more(tmp_path: Path) -> None:
    """A reader also fetches the bytes around scattered rows, so these units count more and are cut
    into smaller parts.
    """
    rows = pa.table({"text": [f"{n:0>100}" for n in range(40_000)]})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), rows.schema).append(rows)
    table = open_newest(ds.uri)
    whole = unit_of(table, 0, columns=("text",))
    _, all_bytes = size_of(whole)
    assert cost_of(whole) == all_bytes
    read_together, apart, few = (
        scattered(table, *value) for value in ((4000, 1), (4000, 9), (2, 20_000))
    )
    assert size_of(read_together) == size_of(apart) == (4000, all_bytes // 10)
    assert cost_of(read_together) == all_bytes // 10
    assert 8 * cost_of(read_together) < cost_of(apart) <= all_bytes
    assert 2 * SCATTERED_ROW_BYTES < cost_of(few) < 3 * SCATTERED_ROW_BYTES
    assert cut(read_together, 8) == [read_together]
    parts = [value.offsets for value in cut(apart, 8)]
    assert [len(part) for part in parts] == [1333, 1333, 1334]
    assert np.array_equal(np.concatenate(parts), apart.offsets)


def test_task_inputs_can_be_pickled() -> None:
    """Spark sends the input of a task in a pickle to the worker."""
    reading = TableRows(pa.schema([("text", pa.string())]))
    task_input = pickle.loads(pickle.dumps(TaskInput(("a", "b"), reading, 3)))
    assert (task_input.units, task_input.reading, task_input.num_bytes) == (("a", "b"), reading, 3)
