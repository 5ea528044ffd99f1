"""Plans the change feed for Spark: its columns, and the tasks between two positions.

Planning compares the manifests of consecutive versions and returns work units, whose rows the
workers read. A stream keeps no state between two batches, so a batch whose ends are in a checkpoint
can always be planned again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from lance_stream.distributed.dividing import bytes_of
from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import parse_expression, parse_predicate
from lance_stream.feed.change_units import ChangeUnit, check_names, feed_schema
from lance_stream.feed.columns_of_versions import (
    FeedColumns,
    columns_of_query,
    split_change_columns,
)
from lance_stream.feed.expected_columns import check_columns
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.positions import Position
from lance_stream.feed.following.resumed_columns import resumed_columns
from lance_stream.feed.intervals import (
    first_version_since,
    last_version_until,
    version_of_interval,
)
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
from lance_stream.spark.jobs.work_units import divide
from lance_stream.spark.session.spark_types import carrier

_RESTART: Final = (
    "Restart the query with the same checkpoint: it resumes at its position, with the table's "
    "current columns"
)


def open_for_changes(options: ReaderOptions) -> TableVersion:
    """Return the last version of the requested interval, which determines the feed's columns.

    Raises:
        InvalidInputError: The interval starts or ends after the newest version.
    """
    newest = open_newest(options.uri, options.storage_options)
    for name, version in (
        ("startingVersion", options.starting_version),
        ("endingVersion", options.ending_version),
    ):
        # A stream may wait for the next version; with `waitForTable`, for any version.
        may_wait = name == "startingVersion" and options.ending_version is None
        if options.wait_for_table and may_wait:
            continue
        if isinstance(version, int) and version > newest.version + may_wait:
            raise InvalidInputError(
                f"{name} is {version}, but the newest version of {options.uri} is {newest.version}"
            )
    if options.ending_timestamp is not None:
        return checkout(newest, last_version_until(newest, options.ending_timestamp))
    if options.ending_version is None:
        return newest
    through = options.ending_version
    after = max((first_version(newest, options) or through) - 1, 0)
    return version_of_interval(newest, through, after, through)


def selectable_columns(table: TableVersion, options: ReaderOptions) -> pa.Schema:
    """Return the columns that the options `columns` and `filter` can name."""
    schema = table.arrow_schema
    return feed_schema(schema) if options.read_change_feed else schema


def first_version(table: TableVersion, options: ReaderOptions) -> int | None:
    """Return the first version of the requested interval; None if no start is set."""
    moment = options.starting_timestamp
    if moment is None:
        return options.starting_version if isinstance(options.starting_version, int) else None
    return first_version_since(table, moment)


def rules_of(options: ReaderOptions, columns: Sequence[str] | None) -> FeedRules:
    """Return the settings of the feed, with the columns to read."""
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
        NotFoundError: A column does not exist.
        InvalidInputError: The filter is invalid.
    """
    columns: Sequence[str] | None = options.columns
    if options.read_change_feed:
        columns, change_columns = split_change_columns(table, columns)
    table_fields = output_schema(project(table.schema, names_of(table, columns)), ())
    if options.filter is not None:
        all_fields = output_schema(table.schema, ())
        names = {path[0] for path in parse_expression(options.filter).paths}
        check_names(pa.schema([field for field in all_fields if field.name in names]))
        parse_predicate(options.filter, feed_schema(all_fields), exact=True)
    if not options.read_change_feed:
        row_fields = [field for field in CHANGE_COLUMNS if field.name in options.row_columns]
        if row_fields:
            check_names(table_fields)
        return pa.schema([*table_fields, *row_fields])
    check_names(table_fields)
    return feed_schema(table_fields, change_columns)


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
        start: The end of the previous batch.
        end: The end of this batch.
        columns: The columns that Spark determined at the start of the query.
        options: The user's options.
        carried: The schema of the batches that Spark expects.

    Raises:
        NotFoundError: A version is missing.
        UnsupportedFeatureError: The table has no stable row ids.
        InvalidInputError: The table no longer has these columns; or a version in a stream of
            appended rows updates or deletes.
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
    """Return the columns of a stream in one run of its query.

    Args:
        last_table: The version from which Spark determined the columns at the start of the query.
        options: The user's options.
        carried: The columns that Spark expects.
        resumed: The version after which the stream resumes; None for a new stream.
        names: From the checkpoint: the columns in that version.

    Raises:
        NotFoundError: A column does not exist.
    """
    columns = columns_to_read(last_table, options, carried)
    if resumed is None or names is None:
        return FeedColumns(last_table, columns)
    return resumed_columns(last_table, columns, resumed, names)


def follower_rules(options: ReaderOptions) -> FollowerRules:
    """Return the settings of the follower of a stream."""
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
    """Return Spark's tasks for work units: small units are combined, large ones split."""
    return divide(
        units, lambda change_unit: change_unit.unit, _with_unit, _reading(options, carried)
    )


def as_one_task(
    units: Sequence[ChangeUnit], options: ReaderOptions, carried: pa.Schema
) -> TaskInput[ChangeUnit]:
    """Return one `TaskInput` for all work units, to be read by the calling process."""
    num_bytes = bytes_of([unit.unit for unit in units])
    return TaskInput(tuple(units), _reading(options, carried), num_bytes)


def _reading(options: ReaderOptions, carried: pa.Schema) -> ChangeRows:
    keeps = options.read_change_feed or bool(options.row_columns)
    return ChangeRows(carried, options.filter, keeps)


def _with_unit(change: ChangeUnit, unit: WorkUnit) -> ChangeUnit:
    return replace(change, unit=unit)


def columns_to_read(table: TableVersion, options: ReaderOptions, carried: pa.Schema) -> list[str]:
    """Return the table's columns that Spark or the filter needs."""
    condition = None if options.filter is None else parse_expression(options.filter)
    return columns_of_query(table, options.columns or carried.names, condition)
