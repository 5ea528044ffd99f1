"""A table as a source of Daft: `VersionSource(uri).read()` is a DataFrame.

    VersionSource    the rows of one version
    ChangeSource     the changes of an interval of versions

Creating a source opens the table and fixes its versions, so Daft reads the same rows again if it
repeats a task. To continue later, read the changes after `source.version`.

Needs Daft, which `lance-stream[daft]` installs; nothing else in the package imports it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from daft.io.pushdowns import Pushdowns
from daft.io.source import DataSource, DataSourceTask
from daft.recordbatch import RecordBatch
from daft.schema import Schema

from lance_stream.distributed.reads import ChangesRead, DistributedRead, ReadTask, VersionRead
from lance_stream.feed.rules import NO_DEDUPLICATION, FeedRules
from lance_stream.snapshot.resolving import VersionSpec


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


class _Source(DataSource):
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
            names = list({*names, *pushdowns.filter_required_column_names()})
        for task in await asyncio.to_thread(self._read.tasks, None, names):
            yield _Task(task)


class VersionSource(_Source):
    """The rows of one version.

    Args:
        uri: The table's location, which all of Daft's workers can reach.
        version: A version, tag or time; None for the newest, which is fixed by this call.
        columns: As in `Dataset.scan`.
        filter: As in `Dataset.scan`.
        storage_options: Settings of the store.

    Raises:
        NotFoundError: There is no such table, version or column.
        InvalidInputError: An argument is invalid.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        version: VersionSpec = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(VersionRead(uri, version, columns, filter, storage_options))


class ChangeSource(_Source):
    """The changes of an interval of versions, with the rows of `Dataset.changes`.

    Args:
        uri: The table's location, which all of Daft's workers can reach.
        after: The interval starts after this version; 0 is before the first.
        through: Its last version, as a version, tag or time; None for the newest, which is fixed
            by this call.
        columns: As in `Dataset.follow`.
        filter: As in `Dataset.follow`.
        deduplication_mode: As in `Dataset.changes`.
        pre_images: As in `Dataset.changes`.
        storage_options: Settings of the store.

    Raises:
        NotFoundError: There is no such table or column, or a version of the interval has been
            cleaned up.
        InvalidInputError: An argument is invalid.
        UnsupportedFeatureError: The table has no stable row ids.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        after: int,
        through: VersionSpec = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        deduplication_mode: str = NO_DEDUPLICATION,
        pre_images: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        rules = FeedRules(None, deduplication_mode, pre_images)
        super().__init__(ChangesRead(uri, after, through, columns, filter, rules, storage_options))
