"""The change feed as a Spark batch: the changes of an interval of versions, or of timestamps."""

import pyarrow as pa

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
from lance_stream.spark.jobs.eager_rows import PlannedReader
from lance_stream.spark.jobs.task_input import TaskInput
from lance_stream.spark.session.source_state import check_is_same_table


def plan_batch(table: TableVersion, options: ReaderOptions, carried: pa.Schema) -> list[ChangeUnit]:
    """Return the work units of the requested interval, in the feed's order.

    The list is empty if nothing was committed in an interval of timestamps, or if the interval
    starts at the version after the newest one.

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
    is_numbered = options.starting_timestamp is None and options.ending_version is not None
    if first == table.version + 1 and not is_numbered:
        return []  # nothing was committed in the interval
    if first is None or first > table.version:
        raise InvalidInputError(
            f"the requested changes start at version {first}, but the last version of "
            f"{options.uri} in the interval is {table.version}"
        )
    rules = rules_of(options, columns_to_read(table, options, carried))
    return list(plan_changes(table, max(first - 1, 0), table.version, rules).units)


class ChangesReader(PlannedReader):
    """Reads the changes of an interval of versions that ends with `version`."""

    def plan(self) -> list[TaskInput[ChangeUnit]]:
        """Return the tasks that read the interval."""
        last = self.version or open_for_changes(self.options).version
        table = open_version(self.options.uri, last, self.options.storage_options)
        check_is_same_table(table, self.mark)
        return tasks_of(plan_batch(table, self.options, self.carried), self.options, self.carried)
