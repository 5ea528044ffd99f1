"""How work units are spread over tasks."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.spark.work_units import (
    LARGE_TASK_BYTES,
    SMALL_TASK_BYTES,
    number_of_tasks,
    pack,
)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_each_unit_is_in_one_portion_and_the_order_is_kept(sizes: list[int], tasks: int) -> None:
    portions = pack([(place, size) for place, size in enumerate(sizes)], tasks)
    assert [unit for portion in portions for unit in portion.units] == list(range(len(sizes)))
    assert len(portions) <= tasks
    assert all(portion.units for portion in portions)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_no_portion_is_larger_than_its_share_and_one_unit(sizes: list[int], tasks: int) -> None:
    portions = pack([(size, size) for size in sizes], tasks)
    assert max(sum(portion.units) for portion in portions) <= sum(sizes) / tasks + max(sizes)


@pytest.mark.parametrize(
    ("total_bytes", "tasks"),
    [
        (0, 1),
        (SMALL_TASK_BYTES, 1),
        (2 * SMALL_TASK_BYTES, 2),
        (100 * SMALL_TASK_BYTES, 6),
        (50 * LARGE_TASK_BYTES, 50),
    ],
)
def test_little_work_takes_few_tasks_and_much_work_many(total_bytes: int, tasks: int) -> None:
    assert number_of_tasks(total_bytes, cores=2) == tasks


def test_a_portion_travels_to_a_worker() -> None:
    (portion,) = pack([("a", 1), ("b", 2)], 1)
    assert pickle.loads(pickle.dumps(portion)).units == ("a", "b")
