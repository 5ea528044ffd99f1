"""What Spark is told of the change feed before it reads: columns, and tasks between two places.

Planning walks from version to version, compares manifests, and gives work units; the workers read
the rows. Nothing is kept between two batches of a stream, so a batch that a checkpoint names can be
made again, whatever happened.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from lance_stream.dataset.feed.change_units import (
    INSERT,
    STAMPS,
    ChangeUnit,
    feed_schema,
    read_changes,
)
from lance_stream.dataset.feed.changes import plan_changes
from lance_stream.dataset.feed.intervals import first_version_since, last_version_until
from lance_stream.dataset.feed.rules import FeedRules
from lance_stream.dataset.feed.steps import check_has_feed
from lance_stream.dataset.opening import checkout, open_table
from lance_stream.dataset.predicates import evaluate_predicate, parse_expression, parse_predicate
from lance_stream.dataset.read_fragment import WorkUnit, output_schema
from lance_stream.dataset.scan import names_of, plan_scan
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import InvalidInputError
from lance_stream.schema.projections import project, split_path
from lance_stream.spark.feed.offsets import FeedOffset
from lance_stream.spark.options import SourceOptions
from lance_stream.spark.spark_types import to_spark
from lance_stream.spark.work_units import Portion, divide


def open_for_changes(asked: SourceOptions) -> TableVersion:
    """Return the last version of what a user asked for, whose columns the feed has.

    Raises:
        InvalidInputError: The interval begins or ends after the newest version.
    """
    newest = open_table(asked.uri, None, asked.storage_options)
    for name, version in (
        ("startingVersion", asked.starting_version),
        ("endingVersion", asked.ending_version),
    ):
        # a stream may wait for the version that comes next
        may_wait = name == "startingVersion" and asked.ending_version is None
        if isinstance(version, int) and version > newest.version + may_wait:
            raise InvalidInputError(
                f"{name} is {version}, but the newest version of {asked.uri} is {newest.version}"
            )
    if asked.ending_timestamp is not None:
        return checkout(newest, last_version_until(newest, asked.ending_timestamp))
    return newest if asked.ending_version is None else checkout(newest, asked.ending_version)


def first_version(table: TableVersion, asked: SourceOptions) -> int | None:
    """Return the first version whose changes are asked for; None if no version is named.

    Raises:
        InvalidInputError: Nothing has been committed since the moment that is named.
    """
    moment = asked.starting_timestamp
    if moment is None:
        return asked.starting_version if isinstance(asked.starting_version, int) else None
    return first_version_since(table, moment)


def rules_of(asked: SourceOptions, columns: Sequence[str] | None) -> FeedRules:
    """Return what a user asked of the feed, with the columns that have to be read."""
    return FeedRules(columns, asked.deduplication_mode, asked.pre_images, asked.compute_updates)


def schema_of_changes(table: TableVersion, asked: SourceOptions) -> pa.Schema:
    """Return the columns of the change feed, or of a stream of appended rows.

    Raises:
        NotFoundError: The table has no such column.
        InvalidInputError: The filter is not understood.
    """
    own = output_schema(project(table.schema, names_of(table, asked.columns)), ())
    if asked.filter is not None:
        parse_predicate(asked.filter, feed_schema(output_schema(table.schema, ())))
    return feed_schema(own) if asked.read_change_feed else own


def plan_feed(
    asked: SourceOptions, start: FeedOffset, end: FeedOffset, carried: pa.Schema
) -> list[Portion[ChangeUnit]]:
    """Return the tasks that read what lies between two offsets.

    Args:
        asked: What the user set.
        start: Everything up to here has been read.
        end: Everything up to here is to be read.
        carried: The columns that Spark was told of. Those that the table no longer has are null.

    Raises:
        NotFoundError: A version is gone.
        UnsupportedFeatureError: The table has no stable row ids.
        InvalidInputError: A stream of appended rows meets a version that updates or deletes.
    """
    if start == end:
        return []
    table = open_table(asked.uri, end.version, asked.storage_options)
    columns = columns_to_read(table, asked, carried)
    if start.snapshot:
        units = _plan_snapshot(table, columns)
    else:
        rules = rules_of(asked, columns)
        units = list(plan_changes(table, start.version, end.version, rules).units)
        if not asked.read_change_feed:
            units = _only_appended(units, asked)
    return tasks_of(units)


def tasks_of(units: Sequence[ChangeUnit]) -> list[Portion[ChangeUnit]]:
    """Return Spark's tasks for some work units: small ones together, large ones cut."""
    return divide(units, lambda each: each.unit, _with_unit)


def read_portion(
    partition: InputPartition, asked: SourceOptions, carried: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield what one task reads."""
    predicate = None if asked.filter is None else parse_expression(asked.filter)
    for batch in read_changes(getattr(partition, "units", ())):
        chosen = batch
        if predicate is not None:
            chosen = batch.filter(evaluate_predicate(predicate, batch))
        if chosen.num_rows:
            yield to_spark(chosen, carried)


def _with_unit(change: ChangeUnit, unit: WorkUnit) -> ChangeUnit:
    return replace(change, unit=unit)


def columns_to_read(
    table: TableVersion, asked: SourceOptions, carried: pa.Schema
) -> list[str] | None:
    """Return the table's own columns that Spark or the filter needs."""
    wanted = list(asked.columns or carried.names)
    if asked.filter is not None:
        wanted += parse_expression(asked.filter).columns
    by_path: dict[tuple[str, ...], str] = {}
    for column in wanted:
        path = (column,) if column in table.schema.names else split_path(column)
        if path[0] in table.schema.names:
            by_path.setdefault(path, column)
    return list(by_path.values()) or None


def _plan_snapshot(table: TableVersion, columns: Sequence[str] | None) -> list[ChangeUnit]:
    """Return the work units that give a version's rows as inserts."""
    check_has_feed(table)
    own = output_schema(project(table.schema, names_of(table, columns)), ())
    return [
        ChangeUnit(
            unit=unit,
            change_type=INSERT,
            commit_version=table.version,
            commit_timestamp=table.timestamp or datetime.fromtimestamp(0, UTC),
            sources=tuple(own.names),
            arrow_schema=own,
        )
        for unit in plan_scan(table, columns, system_columns=STAMPS)
    ]


def _only_appended(units: Sequence[ChangeUnit], asked: SourceOptions) -> list[ChangeUnit]:
    changing = {each.commit_version: each for each in units if each.change_type != INSERT}
    if changing and not asked.skip_change_commits:
        version = min(changing)
        raise InvalidInputError(
            f"version {version} of {asked.uri} changes rows that were there before (it has a row "
            f"to {changing[version].change_type.split('_')[0]}), but this stream gives appended "
            "rows only. Read all changes with the option readChangeFeed; or pass over such "
            "versions with skipChangeCommits, which leaves out the rows that they insert, too"
        )
    return [each for each in units if each.commit_version not in changing]
