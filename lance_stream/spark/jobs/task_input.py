"""The input of a task: everything that a Spark worker needs to read a table or its change feed.

Spark pickles a reader for every worker, and a `TaskInput` for every task. A reader pickles itself
as a `TaskReader`, and a `TaskInput` knows how its rows are shown. So a worker imports neither
options nor planning, and if the input carries its rows, not even what reads files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from lance_stream.spark.session.worker_archives import then_forget_archives
from lance_stream.spark.versions import DataSourceReader, InputPartition

U = TypeVar("U")
V_contra = TypeVar("V_contra", contravariant=True)


class Reading(Protocol[V_contra]):
    """How the rows of work units become the batches that Spark expects; picklable."""

    def read(self, units: tuple[V_contra, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some units."""
        ...


class TaskInput(InputPartition, Generic[U]):
    """The rows of one task, as work units.

    Args:
        units: The units, in the order of reading.
        reading: How they are read.
        num_bytes: About how many bytes its rows have in files; None if that is unknown, or if it
            is not the only task.
    """

    def __init__(self, units: tuple[U, ...], reading: Reading[U], num_bytes: int | None) -> None:
        super().__init__(None)
        self.units = units
        self.reading = reading
        self.num_bytes = num_bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        return self.reading.read(self.units)


class EagerInput(InputPartition):
    """The rows of one task, which the process that plans has read.

    Args:
        rows: In Arrow's format of streams; empty if there are none.
    """

    def __init__(self, rows: bytes) -> None:
        super().__init__(None)
        self.rows = rows

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        if self.rows:
            yield from pa.ipc.open_stream(self.rows)


@dataclass(frozen=True)
class TaskReader(DataSourceReader):
    """The reader of a worker: each `TaskInput` knows how it is read."""

    def partitions(self) -> list[Any]:
        """Return nothing: a worker does not plan."""
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        # Spark adds an empty partition if a reader has planned none
        rows = partition.read() if isinstance(partition, TaskInput | EagerInput) else iter(())
        return then_forget_archives(rows)
