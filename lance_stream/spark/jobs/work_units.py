"""Distributes work units over Spark's tasks."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from lance_stream.distributed import dividing
from lance_stream.read.units import WorkUnit
from lance_stream.spark.jobs.task_input import Reading, TaskInput

U = TypeVar("U")


def divide(
    units: Sequence[U],
    inner: Callable[[U], WorkUnit],
    with_inner: Callable[[U, WorkUnit], U],
    reading: Reading[U],
) -> list[TaskInput[U]]:
    """Return units as Spark's tasks; see `dividing.divide`.

    Args:
        units: In the preferred order of reading.
        inner: Returns the work unit of one.
        with_inner: Returns one with another work unit.
        reading: How units are read.
    """
    groups = dividing.divide(units, inner, with_inner)
    num_bytes = dividing.bytes_of(list(map(inner, units))) if len(groups) == 1 else None
    return [TaskInput(group, reading, num_bytes) for group in groups]
