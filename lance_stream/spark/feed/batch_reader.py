"""The change feed as a batch of Spark: the changes of an interval of versions, or of moments."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_stream.dataset.feed.change_units import ChangeUnit
from lance_stream.dataset.feed.changes import plan_changes
from lance_stream.dataset.opening import open_table
from lance_stream.errors import InvalidInputError
from lance_stream.spark.feed.planning import (
    columns_to_read,
    first_version,
    open_for_changes,
    read_portion,
    rules_of,
    tasks_of,
)
from lance_stream.spark.options import SourceOptions
from lance_stream.spark.work_units import Portion


class ChangesReader(DataSourceReader):
    """Reads the changes of an interval of versions.

    Args:
        asked: What the user set.
        version: The interval's last version, as it was when the schema was made.
        carried: The schema of the batches that Spark expects.
    """

    def __init__(self, asked: SourceOptions, version: int | None, carried: pa.Schema) -> None:
        self.asked = asked
        self.version = version
        self.carried = carried

    def partitions(self) -> list[Portion[ChangeUnit]]:
        """Plan the interval; called once for each DataFrame that is loaded."""
        asked = self.asked
        last = self.version or open_for_changes(asked).version
        table = open_table(asked.uri, last, asked.storage_options)
        first = first_version(table, asked)
        if first is None or first > last:
            raise InvalidInputError(
                f"the changes asked for begin at version {first}, but the last version of "
                f"{asked.uri} among them is {last}"
            )
        rules = rules_of(asked, columns_to_read(table, asked, self.carried))
        units = plan_changes(table, max(first - 1, 0), last, rules).units
        return tasks_of(units) or [Portion(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of one task."""
        return read_portion(partition, self.asked, self.carried)
