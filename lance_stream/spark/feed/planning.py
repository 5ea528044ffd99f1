"""Plans the change feed for Spark: columns, and tasks between two positions.

Planning compares the manifests of consecutive versions and returns work units; the workers read the
rows. No state is kept between two batches of a stream, so that a batch in a checkpoint can always
be planned again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import parse_expression, parse_predicate
from lance_stream.feed.change_units import ChangeUnit, check_names, feed_schema
from lance_stream.feed.columns_of_versions import FeedColumns, columns_of_query
from lance_stream.feed.expected_columns import check_columns
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.positions import Position
from lance_stream.feed.following.resumed_columns import resumed_columns
from lance_stream.feed.intervals import first_version_since, last_version_until
from lance_stream.feed.rules import FeedRules
from lance_stream.read.scan import names_of
from lance_stream.read.units import WorkUnit, output_schema
from lance_stream.schema.projections import project
from lance_stream.schema.system_columns import CHANGE_COLUMNS
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.resolving import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.reader_options import ReaderOptions
from lance_stream.spark.feed.change_rows import ChangeRows
from lance_stream.spark.jobs.task_input import TaskInput
from lance_stream.spark.jobs.work_units import bytes_of, divide
from lance_stream.spark.session.spark_types import carrier

_RESTART: Final = (
    "Restart the query with the same checkpoint: it resumes at its position, with the table's "
    "current columns"
)


def open_for_changes(options: ReaderOptions) -> TableVersion:
    """Return the last version of the requested interval, which defines the feed's columns.

    Raises:
        InvalidInputError: The interval starts or ends after the newest version.
    """
    newest = open_newest(options.uri, options.storage_options)
    for name, version in (
        ("startingVersion", options.starting_version),
        ("endingVersion", options.ending_version),
    ):
        # a stream may wait for the next version
        may_wait = name == "startingVersion" and options.ending_version is None
        if options.wait_for_table and may_wait:
            continue  # for any version
        if isinstance(version, int) and version > newest.version + may_wait:
            raise InvalidInputError(
                f"{name} is {version}, but the newest version of {options.uri} is {newest.version}"
            )
    if options.ending_timestamp is not None:
        return checkout(newest, last_version_until(newest, options.ending_timestamp))
    return newest if options.ending_version is None else checkout(newest, options.ending_version)


def first_version(table: TableVersion, options: ReaderOptions) -> int | None:
    """Return the first version of the requested interval; None if none is set.

    Raises:
        InvalidInputError: Nothing has been committed since the given time.
    """
    moment = options.starting_timestamp
    if moment is None:
        return options.starting_version if isinstance(options.starting_version, int) else None
    return first_version_since(table, moment)


def rules_of(options: ReaderOptions, columns: Sequence[str] | None) -> FeedRules:
    """Return the user's rules of the feed, with the columns to read."""
    return FeedRules(
        columns,
        options.deduplication_mode,
        options.pre_images,
        options.compute_updates,
        options.column_backfills,
    )


def schema_of_changes(table: TableVersion, options: ReaderOptions) -> pa.Schema:
    """Return the columns of the change feed, or of a stream of appended rows.

    Raises:
        NotFoundError: The table has no such column.
        InvalidInputError: The filter is invalid.
    """
    table_fields = output_schema(project(table.schema, names_of(table, options.columns)), ())
    if options.filter is not None:
        everything = output_schema(table.schema, ())
        named = {path[0] for path in parse_expression(options.filter).paths}
        check_names(pa.schema([field for field in everything if field.name in named]))
        parse_predicate(options.filter, feed_schema(everything), exact=True)
    if not options.read_change_feed:
        of_rows = [
            change_column
            for change_column in CHANGE_COLUMNS
            if change_column.name in options.row_columns
        ]
        if of_rows:
            check_names(table_fields)
        return pa.schema([*table_fields, *of_rows])
    check_names(table_fields)
    return feed_schema(table_fields)


def plan_stream(
    follower: TableFollower,
    start: Position,
    end: Position,
    columns: FeedColumns,
    options: ReaderOptions,
    carried: pa.Schema,
) -> list[TaskInput[ChangeUnit]]:
    """Return the tasks that read the changes between two positions of a stream.

    Args:
        follower: The follower of the table.
        start: Everything up to this position has been read.
        end: Everything up to this position is read.
        columns: The columns that Spark knows from the start of the query.
        options: The user's options.
        carried: The schema of the batches that Spark expects.

    Raises:
        NotFoundError: A version is missing.
        UnsupportedFeatureError: The table has no stable row ids.
        InvalidInputError: The table no longer has these columns; or a stream of appended rows
            meets a version that updates or deletes.
    """

    def columns_of(last: TableVersion) -> FeedColumns:
        check_columns(columns, last, _RESTART, carrier)
        return columns

    return tasks_of(follower.units(start, end, columns_of), options, carried)


def stream_columns(
    last_table: TableVersion,
    options: ReaderOptions,
    carried: pa.Schema,
    resumed: TableVersion | None = None,
    names: Mapping[str, int | None] | None = None,
) -> FeedColumns:
    """Return the columns of a stream, in a run of its query.

    Args:
        last_table: The version that defined Spark's columns at the start of the query.
        options: The user's options.
        carried: The columns that Spark expects.
        resumed: The version after which the stream resumes; None for a new stream.
        names: The columns in that version, from the checkpoint.

    Raises:
        NotFoundError: A column does not exist.
    """
    columns = columns_to_read(last_table, options, carried)
    if resumed is None or names is None:
        return FeedColumns(last_table, columns)
    return resumed_columns(last_table, columns, resumed, names)


def follower_rules(options: ReaderOptions) -> FollowerRules:
    """Return the user's rules of a stream."""
    return FollowerRules(
        rules_of(options, None),
        only_appended=not options.read_change_feed,
        skip_change_commits=options.skip_change_commits,
        fail_on_data_loss=options.fail_on_data_loss,
        is_consumer=options.consumer is not None,
    )


def tasks_of(
    units: Sequence[ChangeUnit], options: ReaderOptions, carried: pa.Schema
) -> list[TaskInput[ChangeUnit]]:
    """Return Spark's tasks for some work units: small ones combined, large ones split."""
    return divide(
        units, lambda change_unit: change_unit.unit, _with_unit, _reading(options, carried)
    )


def as_one_task(
    units: Sequence[ChangeUnit], options: ReaderOptions, carried: pa.Schema
) -> TaskInput[ChangeUnit]:
    """Return all of some work units as one `TaskInput`, for a process that reads them itself."""
    num_bytes = bytes_of([unit.unit for unit in units])
    return TaskInput(tuple(units), _reading(options, carried), num_bytes)


def _reading(options: ReaderOptions, carried: pa.Schema) -> ChangeRows:
    keeps = options.read_change_feed or bool(options.row_columns)
    return ChangeRows(carried, options.filter, keeps)


def _with_unit(change: ChangeUnit, unit: WorkUnit) -> ChangeUnit:
    return replace(change, unit=unit)


def columns_to_read(
    table: TableVersion, options: ReaderOptions, carried: pa.Schema
) -> list[str] | None:
    """Return the table's own columns that Spark or the filter needs."""
    condition = None if options.filter is None else parse_expression(options.filter)
    return columns_of_query(table, options.columns or carried.names, condition) or None
