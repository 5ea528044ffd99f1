"""Reading a table at a version with Spark: one batch, spread over tasks by data files.

The version is fixed when the DataFrame is made, so that every action on it sees the same rows, and
every work unit carries it. Filters and columns are options, not pushed down: Spark 4.3 hands the
filters of one DataFrame to another that was loaded by the same call, and tells Python sources
nothing of the columns that a query needs.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_stream.dataset.opening import open_table
from lance_stream.dataset.read_fragment import (
    READABLE_SYSTEM_COLUMNS,
    WorkUnit,
    output_schema,
)
from lance_stream.dataset.scan import names_of, plan_scan, read_units
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.schema.projections import project
from lance_stream.spark.arrow_jobs import forget_archives, then_forget_archives
from lance_stream.spark.options import SourceOptions
from lance_stream.spark.spark_types import to_spark
from lance_stream.spark.work_units import Portion, divide


def open_asked(asked: SourceOptions) -> TableVersion:
    """Return the version that a user asked to read."""
    return open_table(asked.uri, asked.version, asked.storage_options)


def schema_of_table(table: TableVersion, asked: SourceOptions) -> pa.Schema:
    """Return the columns that a user asked for, as the table has them.

    Raises:
        NotFoundError: The table has no such column.
    """
    own, system = split_columns(table, asked.columns)
    return output_schema(project(table.schema, own), system)


def split_columns(
    table: TableVersion, columns: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the table's own columns, and the system columns, among those asked for."""
    own = tuple(name for name in names_of(table, columns) if name not in READABLE_SYSTEM_COLUMNS)
    asked = columns or ()
    return own, tuple(name for name in READABLE_SYSTEM_COLUMNS if name in asked)


class TableReader(DataSourceReader):
    """Reads one version of a table.

    Args:
        asked: What the user set.
        version: The version that was the newest, or was asked for, when the schema was made.
        carried: The schema of the batches that Spark expects.
    """

    def __init__(self, asked: SourceOptions, version: int | None, carried: pa.Schema) -> None:
        self.asked = asked
        self.version = version
        self.carried = carried

    def partitions(self) -> list[Portion[WorkUnit]]:
        """Plan the scan; called once for each DataFrame that is loaded."""
        asked = self.asked
        version = asked.version if self.version is None else self.version
        table = open_table(asked.uri, version, asked.storage_options)
        own, system = split_columns(table, asked.columns)
        units = plan_scan(table, own, asked.filter, system_columns=system)
        forget_archives()
        return divide(units, lambda each: each, lambda _, part: part) or [Portion(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the units of one task."""
        batches = read_units(getattr(partition, "units", ()))
        yield from then_forget_archives(to_spark(each, self.carried) for each in batches)
