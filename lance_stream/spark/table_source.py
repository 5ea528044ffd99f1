"""Reading a table at a version with Spark: one batch, distributed over tasks by data files.

The version is fixed when the DataFrame or view is created, so that every action on it sees the same
rows, and every work unit carries it. It cannot change between actions: Spark, 4.1 to 4.3, requests
the partitions of a Python source at the first action and reuses them in later ones. So a view shows
rows inserted through it only after it is created again, and if its version is cleaned up, the error
says so. Filters and columns are options and not pushed down: Spark 4.3 passes the filters of one
DataFrame to another that was loaded by the same call, and does not tell Python sources which
columns a query needs.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_stream.errors import NotFoundError
from lance_stream.read.scan import check_filter, names_of, plan_scan
from lance_stream.read.units import READABLE_SYSTEM_COLUMNS, output_schema
from lance_stream.schema.projections import project
from lance_stream.schema.system_columns import (
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.snapshot.opening import open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.options import SourceOptions
from lance_stream.spark.plain_errors import plainly
from lance_stream.spark.portions import PortionReader
from lance_stream.spark.rows_ahead import AnyPortion, with_rows
from lance_stream.spark.table_rows import TableRows
from lance_stream.spark.work_units import divide
from lance_stream.spark.worker_archives import forget_archives

AS_IT_WAS_MADE: Final = (
    "A DataFrame or view stays at the version that was the newest when it was created, here "
    "version {}, which has been cleaned up since: create it again. A tag protects a version from "
    "cleanup"
)


def open_asked(asked: SourceOptions) -> TableVersion:
    """Return the version that a user requested."""
    return open_table(asked.uri, asked.version, asked.storage_options)


def schema_of_table(table: TableVersion, asked: SourceOptions) -> pa.Schema:
    """Return the columns that a user requested, with the table's types.

    Raises:
        NotFoundError: The table has no such column.
        InvalidInputError: The filter is invalid.
    """
    if asked.filter is not None:
        check_filter(table, asked.filter)
    own, system = split_columns(table, asked)
    return output_schema(project(table.schema, own), system)


def split_columns(
    table: TableVersion, asked: SourceOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the requested columns of the table, and the requested system columns."""
    columns = names_of(table, asked.columns)
    own = tuple(name for name in columns if name not in READABLE_SYSTEM_COLUMNS)
    wanted = {*(asked.columns or ()), *row_columns(asked)}
    return own, tuple(name for name in READABLE_SYSTEM_COLUMNS if name in wanted)


def row_columns(asked: SourceOptions) -> tuple[str, ...]:
    """Return the system columns that options of their own request."""
    versions = (ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)
    return ((ROW_ID,) if asked.with_row_id else ()) + (versions if asked.with_row_versions else ())


class TableReader(DataSourceReader):
    """Reads one version of a table.

    Args:
        asked: The user's options.
        version: The version that was requested, or was the newest, when the schema was read.
        carried: The schema of the batches that Spark expects.
    """

    def __init__(self, asked: SourceOptions, version: int | None, carried: pa.Schema) -> None:
        self.asked = asked
        self.version = version
        self.carried = carried

    def __reduce__(self) -> tuple[type[PortionReader], tuple[()]]:
        """Pickle as what a worker needs: nothing that portions do not carry."""
        return PortionReader, ()

    @plainly
    def partitions(self) -> list[AnyPortion]:
        """Plan the scan; called once per loaded DataFrame."""
        asked = self.asked
        version = asked.version if self.version is None else self.version
        try:
            table = open_table(asked.uri, version, asked.storage_options)
        except NotFoundError as error:
            if asked.version is None and version is not None:
                error.add_note(AS_IT_WAS_MADE.format(version))
            raise
        own, system = split_columns(table, asked)
        units = plan_scan(table, own, asked.filter, system_columns=system)
        reading = TableRows(self.carried)
        portions = divide(units, lambda each: each, lambda _, part: part, reading)
        forget_archives()
        return with_rows(portions, only_by_tasks=asked.only_by_tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        return PortionReader().read(partition)
