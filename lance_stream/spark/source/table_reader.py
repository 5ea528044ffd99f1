"""Reads a version of a table with Spark: one batch, distributed over tasks by data files.

Creating a DataFrame or view pins the version, so that every action on it sees the same rows. The
version cannot change between actions: Spark 4.1 to 4.3 requests the partitions of a Python source
at the first action and reuses them later. So a view shows rows that were inserted through it only
after it is created again. If its version is cleaned up, the error explains that.

Filters and columns are options and are not pushed down: Spark 4.3 passes the filters of one
DataFrame to another one that was loaded by the same call, and does not pass the columns of a query
to Python sources.
"""

from typing import Final

import pyarrow as pa

from lance_stream.errors import NotFoundError
from lance_stream.read.scan import check_filter, names_of, plan_scan
from lance_stream.read.units import READABLE_SYSTEM_COLUMNS, WorkUnit, output_schema
from lance_stream.schema.projections import project
from lance_stream.snapshot.resolving import open_version
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.reader_options import ReaderOptions
from lance_stream.spark.jobs.eager_rows import PlannedReader
from lance_stream.spark.jobs.task_input import TaskInput
from lance_stream.spark.jobs.work_units import divide
from lance_stream.spark.session.source_state import check_is_same_table
from lance_stream.spark.source.table_rows import TableRows

VERSION_REMOVED: Final = (
    "A DataFrame or view stays at the version that was the newest when it was created. That was "
    "version {}, which a cleanup has removed: create the DataFrame or view again. A tag protects a "
    "version from cleanup"
)


def open_requested(options: ReaderOptions) -> TableVersion:
    """Return the version that a user requested."""
    return open_version(options.uri, options.version, options.storage_options)


def schema_of_table(table: TableVersion, options: ReaderOptions) -> pa.Schema:
    """Return the columns that a user requested, with the table's types.

    Raises:
        NotFoundError: A column does not exist.
        InvalidInputError: The filter is invalid.
    """
    if options.filter is not None:
        check_filter(table, options.filter)
    stored, system = split_columns(table, options)
    return output_schema(project(table.schema, stored), system)


def split_columns(
    table: TableVersion, options: ReaderOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the requested columns of the table, and the requested system columns."""
    columns = names_of(table, options.columns)
    stored = tuple(name for name in columns if name not in READABLE_SYSTEM_COLUMNS)
    requested = {*(options.columns or ()), *options.row_columns}
    return stored, tuple(name for name in READABLE_SYSTEM_COLUMNS if name in requested)


class TableReader(PlannedReader):
    """Reads one version of a table."""

    def plan(self) -> list[TaskInput[WorkUnit]]:
        """Return the tasks of the scan."""
        options = self.options
        version = options.version if self.version is None else self.version
        try:
            table = open_version(options.uri, version, options.storage_options)
        except NotFoundError as error:
            if options.version is None and version is not None:
                error.add_note(VERSION_REMOVED.format(version))
            raise
        check_is_same_table(table, self.mark)
        stored, system = split_columns(table, options)
        units = plan_scan(table, stored, options.filter, system_columns=system)
        return divide(units, lambda unit: unit, lambda _, part: part, TableRows(self.carried))
