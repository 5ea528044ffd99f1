"""A table as a source of Ray Data: `ray.data.read_datasource(version_source(uri))`.

    version_source    the rows of one version; its arguments are those of `VersionRead`
    change_source     the changes of an interval of versions; those of `ChangesRead`

Creating a source opens the table and fixes its versions, so Ray reads the same rows again if it
repeats a task. To continue later, read the changes after `source.version`.

Needs Ray Data, which `lance-stream[ray]` installs; nothing else in the package imports it.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask as RayTask

from lance_stream.distributed.reads import (
    ChangesRead,
    DistributedRead,
    ReadTask,
    VersionRead,
    source_factory,
)


class LanceSource(Datasource):
    """A read whose tasks Ray distributes.

    Attributes:
        uri: The table's location.
        version: The version that is read, or the last one of the interval.
    """

    def __init__(self, read: DistributedRead) -> None:
        super().__init__()
        self._read = read
        self.uri, self.version = read.uri, read.version

    def get_name(self) -> str:
        """Return the name of the read in Ray's plans."""
        return f"Lance({self.uri})"

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the approximate size in bytes of the rows in files; None if unknown."""
        return self._read.num_bytes

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,  # noqa: ARG002  # Ray passes it by name
    ) -> list[RayTask]:
        """Return Ray's tasks, in the order of a scan or of the feed."""
        return [
            RayTask(
                partial(_read_blocks, task),
                BlockMetadata(
                    num_rows=None, size_bytes=task.num_bytes, input_files=None, exec_stats=None
                ),
                schema=task.schema,
                per_task_row_limit=per_task_row_limit,
            )
            for task in self._read.tasks(parallelism) or [self._no_rows()]
        ]

    def _no_rows(self) -> ReadTask:
        """Return a task without rows, from which Ray gets the columns."""
        return ReadTask(self._read.schema, 0, partial(iter, ()))


def _read_blocks(task: ReadTask) -> Iterator[pa.Table]:
    """Yield the rows of a task as Ray's blocks."""
    return (pa.Table.from_batches([batch]) for batch in task.read())


version_source = source_factory(LanceSource, VersionRead)
change_source = source_factory(LanceSource, ChangesRead)
