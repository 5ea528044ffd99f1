"""A table as a source of Daft: `version_source(uri).read()` is a DataFrame.

    version_source    the rows of one version; its arguments are those of `VersionRead`
    change_source     the changes of an interval of versions; those of `ChangesRead`

Creating a source opens the table and fixes its versions, so Daft reads the same rows again if it
repeats a task. To continue later, read the changes after `source.version`.

Needs Daft, which `lance-stream[daft]` installs; nothing else in the package imports it.
"""

import asyncio
from collections.abc import AsyncIterator

from daft.io.pushdowns import Pushdowns
from daft.io.source import DataSource, DataSourceTask
from daft.recordbatch import RecordBatch
from daft.schema import Schema

from lance_stream.distributed.reads import (
    ChangesRead,
    DistributedRead,
    ReadTask,
    VersionRead,
    source_factory,
)


class _Task(DataSourceTask):
    """A task that Daft distributes."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task

    @property
    def schema(self) -> Schema:
        """The columns of the rows."""
        return Schema.from_pyarrow_schema(self._task.schema)

    async def read(self) -> AsyncIterator[RecordBatch]:
        """Yield the rows."""
        batches = self._task.read()
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield RecordBatch.from_arrow_record_batches([batch], batch.schema)


class LanceSource(DataSource):
    """A read whose tasks Daft distributes.

    Attributes:
        uri: The table's location.
        version: The version that is read, or the last one of the interval.
    """

    def __init__(self, read: DistributedRead) -> None:
        self._read = read
        self.uri, self.version = read.uri, read.version

    @property
    def name(self) -> str:
        """The name of the read in Daft's plans."""
        return f"Lance({self.uri})"

    @property
    def schema(self) -> Schema:
        """The columns of the rows."""
        return Schema.from_pyarrow_schema(self._read.schema)

    async def get_tasks(self, pushdowns: Pushdowns) -> AsyncIterator[DataSourceTask]:
        """Yield Daft's tasks, in the order of a scan or of the feed."""
        names = pushdowns.columns
        if names is not None:  # Daft filters the rows of the tasks
            # the public method raises for conditions with functions
            required = pushdowns._to_pypushdowns().filter_required_column_names()
            names = list({*names, *(required or ())})
        for task in await asyncio.to_thread(self._read.tasks, None, names):
            yield _Task(task)


version_source = source_factory(LanceSource, VersionRead)
change_source = source_factory(LanceSource, ChangesRead)
