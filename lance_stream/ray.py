"""A table as a source of Ray Data: `ray.data.read_datasource(VersionSource(uri))`.

    VersionSource    the rows of one version
    ChangeSource     the changes of an interval of versions

Creating a source opens the table and fixes its versions, so Ray reads the same rows again if it
repeats a task. To continue later, read the changes after `source.version`.

Needs Ray Data, which `lance-stream[ray]` installs; nothing else in the package imports it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask as RayTask

from lance_stream.distributed.reads import ChangesRead, DistributedRead, ReadTask, VersionRead
from lance_stream.feed.rules import NO_DEDUPLICATION, FeedRules
from lance_stream.snapshot.resolving import VersionSpec


class _Source(Datasource):
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
        """Return about how many bytes the rows have in files; None if unknown."""
        return _sum_of([task.num_bytes for task in self._read.tasks(1)])

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
            for task in self._read.tasks(parallelism)
        ]


def _read_blocks(task: ReadTask) -> Iterator[pa.Table]:
    """Yield the rows of a task as Ray's blocks."""
    return (pa.Table.from_batches([batch]) for batch in task.read())


def _sum_of(sizes: Sequence[int | None]) -> int | None:
    return None if None in sizes else sum(filter(None, sizes))


class VersionSource(_Source):
    """The rows of one version.

    Args:
        uri: The table's location, which all of Ray's workers can reach.
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
        uri: The table's location, which all of Ray's workers can reach.
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
