"""The change feed as a Spark batch: the changes of an interval of versions, or of timestamps."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_stream.errors import InvalidInputError
from lance_stream.feed.change_units import ChangeUnit
from lance_stream.feed.changes import plan_changes
from lance_stream.snapshot.resolving import open_version
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.reader_options import ReaderOptions
from lance_stream.spark.feed.planning import (
    columns_to_read,
    first_version,
    open_for_changes,
    rules_of,
    tasks_of,
)
from lance_stream.spark.jobs.eager_rows import AnyInput, with_rows
from lance_stream.spark.jobs.task_input import TaskReader
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.spark.session.worker_archives import forget_archives


def plan_batch(table: TableVersion, options: ReaderOptions, carried: pa.Schema) -> list[ChangeUnit]:
    """Return the work units of the requested interval, in the feed's order.

    There are none if nothing was committed between two timestamps, or since one, or if the interval
    starts with the version after the newest.

    Args:
        table: The interval's last version.
        options: The user's options.
        carried: The columns that Spark expects.

    Raises:
        InvalidInputError: The interval starts after its last version.
        NotFoundError: A version is missing.
        UnsupportedFeatureError: The table has no stable row ids.
    """
    first = first_version(table, options)
    if options.starting_timestamp is not None and (first is None or first > table.version):
        return []  # nothing was committed between the timestamps
    if options.ending_version is None and first == table.version + 1:
        return []  # as after the newest version: all that there is has been read
    if first is None or first > table.version:
        raise InvalidInputError(
            f"the requested changes start at version {first}, but the last version of "
            f"{options.uri} in the interval is {table.version}"
        )
    rules = rules_of(options, columns_to_read(table, options, carried))
    return list(plan_changes(table, max(first - 1, 0), table.version, rules).units)


class ChangesReader(DataSourceReader):
    """Reads the changes of an interval of versions.

    Args:
        options: The user's options.
        version: The interval's last version at the time when the schema was read.
        carried: The schema of the batches that Spark expects.
    """

    def __init__(self, options: ReaderOptions, version: int | None, carried: pa.Schema) -> None:
        self.options = options
        self.version = version
        self.carried = carried

    def __reduce__(self) -> tuple[type[TaskReader], tuple[()]]:
        """Pickle as what a worker needs: what a `TaskInput` does not carry."""
        return TaskReader, ()

    @without_traceback
    def partitions(self) -> list[AnyInput]:
        """Plan the interval; called once per loaded DataFrame."""
        last = self.version or open_for_changes(self.options).version
        table = open_version(self.options.uri, last, self.options.storage_options)
        units = plan_batch(table, self.options, self.carried)
        tasks = tasks_of(units, self.options, self.carried)
        inputs = with_rows(tasks, only_by_tasks=self.options.only_by_tasks)
        forget_archives()
        return inputs

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of one task."""
        return TaskReader().read(partition)
