"""Divides work units among tasks that other processes run, such as those of Spark.

A Python task of Spark costs 50 to 150 ms before it reads anything (on PySpark 4.1 twice as much),
as long as reading 100 MB. So many small units share a task, a large unit is split by rows, and each
core gets one task until that is work for half a second. More work gives each core the same number
of several tasks, so that no core waits for another.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeVar

from lance_stream.read.units import WorkUnit, size_of, sizes_of

U = TypeVar("U")

SMALL_TASK_BYTES: Final = 32 << 20
"""The minimum size of work for a separate task."""

LARGE_TASK_BYTES: Final = 512 << 20
"""A task gets no more than this, however few cores the driver has: executors may have more."""

MIN_ROWS_IN_A_PART: Final = 65_536
"""Units are not split into smaller parts: pages would be read twice."""

MIN_SCATTERED_ROWS_IN_A_PART: Final = 1024
"""Scattered rows share few pages."""

SCATTERED_ROW_BYTES: Final = 16 << 10
"""About how many bytes are read in addition for an isolated row: the surrounding bytes in its
columns, at most the rows up to the next one."""


def cost_of(unit: WorkUnit) -> int:
    """Return about how many bytes have to be read for a unit's rows.

    Scattered rows cost more than their own bytes, but no more than all rows from the first to the
    last of them.
    """
    return _cost(unit, *size_of(unit))


def costs_of(units: Sequence[WorkUnit]) -> list[int]:
    """Return the cost of each unit; decodes no fragment."""
    return list(map(_cost, units, *zip(*sizes_of(units), strict=True))) if units else []


def _cost(unit: WorkUnit, num_rows: int, num_bytes: int) -> int:
    if unit.offsets is None or num_rows == 0:
        return num_bytes
    span = int(unit.offsets[-1]) - int(unit.offsets[0]) + 1
    return min(num_bytes * span // num_rows, num_bytes + num_rows * SCATTERED_ROW_BYTES)


def cut(unit: WorkUnit, num_parts: int) -> list[WorkUnit]:
    """Split a unit into several that read its rows in order."""
    num_rows, num_bytes = size_of(unit)
    is_scattered = cost_of(unit) > 2 * num_bytes
    min_rows = MIN_SCATTERED_ROWS_IN_A_PART if is_scattered else MIN_ROWS_IN_A_PART
    num_parts = max(1, min(num_parts, num_rows // min_rows))
    if num_parts == 1:
        return [unit]
    bounds = [num_rows * part // num_parts for part in range(num_parts + 1)]
    if unit.offsets is not None:
        return [replace(unit, offsets=unit.offsets[first:last]) for first, last in pairwise(bounds)]
    return [
        replace(unit, start=unit.start + first, stop=unit.start + last)
        for first, last in pairwise(bounds)
    ]


def number_of_tasks(total_bytes: int, cores: int | None = None) -> int:
    """Return the best number of tasks for some work.

    Args:
        total_bytes: About how many bytes are read.
        cores: How many tasks run at once; None for the driver's number of cores, since Spark does
            not report the executors' number to a source.
    """
    cores = cores or os.cpu_count() or 1
    many = -(-total_bytes // LARGE_TASK_BYTES)
    if many > cores:
        return -(-many // cores) * cores
    return max(1, min(cores, -(-total_bytes // SMALL_TASK_BYTES)))


def pack(units: Iterable[tuple[U, int]], num_tasks: int) -> list[tuple[U, ...]]:
    """Return the units in order, one pack for each task, all of about the same size.

    Args:
        units: Each with its size.
        num_tasks: Maximum number of packs.
    """
    sized = list(units)
    total = sum(size for _, size in sized) or 1
    packs: list[list[U]] = [[] for _ in range(num_tasks)]
    position = 0
    for unit, size in sized:
        # by the middle of the unit, so that a large unit at the end does not attract small ones
        packs[min(num_tasks - 1, (2 * position + size) * num_tasks // (2 * total))].append(unit)
        position += size
    return [tuple(group) for group in packs if group]


def divide(
    units: Sequence[U],
    inner: Callable[[U], WorkUnit],
    with_inner: Callable[[U, WorkUnit], U],
    num_tasks: int | None = None,
) -> list[tuple[U, ...]]:
    """Return the units of each task: small ones combined, large ones split by rows.

    Args:
        units: In the preferred order of reading.
        inner: Returns the work unit of one.
        with_inner: Returns one with another work unit.
        num_tasks: The maximum number of tasks; None for the best one for this machine's cores.
    """
    costs = costs_of([inner(unit) for unit in units])
    total = sum(costs)
    num_tasks = num_tasks or number_of_tasks(total)
    share = max(total // num_tasks, 1)
    parts: list[tuple[U, int]] = []
    for unit, size in zip(units, costs, strict=True):
        if size <= share:
            parts.append((unit, size))
            continue
        pieces = cut(inner(unit), -(-size // share))
        parts += [(with_inner(unit, piece), size // len(pieces)) for piece in pieces]
    return pack(parts, num_tasks)


def bytes_of(units: Sequence[WorkUnit]) -> int | None:
    """Return about how many bytes the rows of some units have; None if that is unknown."""
    schemas = {id(unit.schema): unit.schema for unit in units}
    if any(field.is_blob for schema in schemas.values() for field in schema.walk()):
        return None  # a blob's size is known only when it is read
    return sum(num_bytes for _, num_bytes in sizes_of(units))
