"""Reads the rows of small work during planning, so that no task has to.

A Python task takes 50 to 150 ms before it reads anything; a new worker also imports the code that
reads files. The planning process has just opened the table, with its metadata in memory. So if
there is a single task with few bytes to read, this process reads the rows and sends them along. On
a cluster it does not: the driver may serve many streams, and reads no data files.

Spark warns about tasks above 1000 KiB, so the rows of a batch stay below that. A stream sends its
rows differently (`feed.sent_rows`), and may send more.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from lance_stream.arrow_streams import encode_batches
from lance_stream.spark.arguments.reader_options import ReaderOptions
from lance_stream.spark.jobs.task_input import EagerInput, TaskInput, TaskReader
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.spark.session.worker_archives import forget_archives
from lance_stream.spark.versions import DataSourceReader, InputPartition

AnyInput: TypeAlias = TaskInput[Any] | EagerInput

MAX_BYTES_IN_A_TASK: Final = 512 << 10
"""Arrow bytes of rows that are sent along with a task."""

_log = logging.getLogger("lance_stream.spark.eager_rows")


class PlannedReader(DataSourceReader):
    """A reader whose work is planned at once, and not again: one per loaded DataFrame.

    Args:
        options: The user's options.
        version: The version that was read when the schema was; None if the options name it.
        carried: The schema of the batches that Spark expects.
        mark: The mark of that version; empty to accept any table.
    """

    def __init__(
        self, options: ReaderOptions, version: int | None, carried: pa.Schema, mark: str = ""
    ) -> None:
        self.options = options
        self.version = version
        self.carried = carried
        self.mark = mark

    def __reduce__(self) -> tuple[type[TaskReader], tuple[()]]:
        """Pickle as what a worker needs: what a `TaskInput` does not carry."""
        return TaskReader, ()

    @without_traceback
    def partitions(self) -> list[AnyInput]:
        """Plan the work; called once per loaded DataFrame."""
        inputs = with_rows(self.plan(), only_by_tasks=self.options.only_by_tasks)
        forget_archives()
        return inputs

    @abstractmethod
    def plan(self) -> Sequence[TaskInput[Any]]:
        """Return the work."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        return TaskReader().read(partition)


def with_rows(inputs: Sequence[TaskInput[Any]], *, only_by_tasks: bool = False) -> list[AnyInput]:
    """Return the inputs of a batch's tasks; the rows themselves in place of a single small one.

    Args:
        inputs: The work.
        only_by_tasks: Whether rows are left to tasks, however few.

    Returns:
        At least one: otherwise Spark adds an empty one.
    """
    if not inputs:
        return [EagerInput(b"")]
    rows = None if only_by_tasks else rows_of(inputs, MAX_BYTES_IN_A_TASK)
    return list(inputs) if rows is None else [EagerInput(_as_stream(rows))]


def rows_of(inputs: Sequence[TaskInput[Any]], max_bytes: int) -> list[pa.RecordBatch] | None:
    """Return the rows of a single small task; None if there are more tasks, or more rows.

    An error is left to the task, which Spark runs again, and whose errors it reports.

    Args:
        inputs: The work.
        max_bytes: Limit of their bytes in files, as far as known, and in Arrow.
    """
    if len(inputs) != 1:
        return None
    expected = inputs[0].num_bytes
    if expected is None or expected > max_bytes:
        return None
    rows: list[pa.RecordBatch] = []
    num_bytes = 0
    try:
        for batch in inputs[0].read():
            num_bytes += batch.nbytes
            if num_bytes > max_bytes:
                return None
            rows.append(batch)
    except Exception:
        _log.debug(
            "a task reads these rows, because reading them while planning failed", exc_info=True
        )
        return None
    return rows


def _as_stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    return encode_batches(batches[0].schema, batches) if batches else b""
