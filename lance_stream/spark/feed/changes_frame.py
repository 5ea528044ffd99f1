"""The change feed of an interval as a DataFrame, planned by the calling process.

Spark requests the columns and the tasks of a Python source in two separate processes, which it
starts for each session, and it starts a worker for each task. Here, the calling process opens the
table and plans the tasks. On a local master, it also reads up to `MAX_LOCAL_BYTES` of rows and
passes them to Spark as Arrow data, so that no Python worker is started. Larger results, and all
results on a cluster, are read by tasks, with the same `TaskInput`s and the same code.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_stream.errors import InvalidInputError
from lance_stream.feed.change_units import ChangeUnit
from lance_stream.spark.arguments.reader_options import (
    ReaderOptions,
    check_for_batch,
    parse_reader_options,
)
from lance_stream.spark.feed.batch_reader import plan_batch
from lance_stream.spark.feed.planning import (
    as_one_task,
    open_for_changes,
    schema_of_changes,
    selectable_columns,
    tasks_of,
)
from lance_stream.spark.jobs.arrow_jobs import create_frame, driver_is_alone, map_in_arrow
from lance_stream.spark.jobs.eager_rows import rows_of
from lance_stream.spark.jobs.task_input import TaskInput
from lance_stream.spark.session.column_names import resolve_columns, resolve_filter
from lance_stream.spark.session.python_check import check_workers_python
from lance_stream.spark.session.session_settings import (
    check_session,
    is_case_sensitive,
    locate_in_session,
    options_in_session,
)
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.session.user_errors import without_our_frames
from lance_stream.spark.versions import HAS_ARROW_FRAMES
from lance_stream.storage.locations import text_of
from lance_stream.storage.namespaces.locating import TableId
from lance_stream.storage.options.names import as_options

MAX_LOCAL_BYTES: Final = 32 << 20
"""The maximum size of Arrow data that the calling process reads and passes to Spark."""


@without_our_frames
def read_changes(
    spark: SparkSession,
    uri: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the changes of an interval of versions as a DataFrame.

    The rows, columns and options are those of the format:

        spark.read.format("lance").option("readChangeFeed", True).options(**options).load(uri)

    This function is faster for small reads, especially for the first read of a session: the calling
    process opens the table and plans, whereas the format starts two processes for that. With a
    local master, the calling process also reads up to 32 MB of rows immediately. On a cluster it
    reads manifests and deletion files, and tasks read the rows. `register` is not needed.

    Args:
        spark: The session.
        uri: The table's location, which this process and all workers can reach.
        storage_options: Settings of the store. If they contain neither credentials nor an endpoint,
            Spark's settings apply, as for `lance_sink`.
        table_id: The table's name in a Lance namespace, instead of `uri`; see `lance_sink`.
        namespace: The namespace.
        options: The options of the format for a batch of the change feed: `startingVersion` or
            `startingTimestamp`, and others such as `endingVersion`, `columns` or `preImages`.
            Options that are None are ignored.

    Returns:
        The changes. This call determines the interval, whatever is committed later.

    Raises:
        InvalidInputError: An option is unknown or invalid, the interval starts after the newest
            version, or the workers cannot run this package.
        NotFoundError: The table does not exist, or a version of the interval was cleaned up.
        UnsupportedFeatureError: The table has no stable row ids.
    """
    check_session(spark, "read_changes(spark, uri)")
    check_workers_python(spark, only_tasks=True)
    uri, storage_options = locate_in_session(spark, uri, storage_options, table_id, namespace)
    reader_options = _reader_options(spark, text_of(uri), as_options(storage_options), options)
    table = open_for_changes(reader_options)
    schema, is_exact = selectable_columns(table, reader_options), is_case_sensitive(spark)
    reader_options = replace(
        reader_options,
        columns=resolve_columns(reader_options.columns, schema, case_sensitive=is_exact),
        filter=resolve_filter(reader_options.filter, schema, case_sensitive=is_exact),
    )
    carried = carrier_schema(schema_of_changes(table, reader_options))
    units = plan_batch(table, reader_options, carried)
    if driver_is_alone(spark) and HAS_ARROW_FRAMES:
        rows = rows_of([as_one_task(units, reader_options, carried)], MAX_LOCAL_BYTES)
        if rows is not None:
            if not rows:  # Spark cannot convert a table without rows
                return spark.createDataFrame([], spark_schema(carried))
            return create_frame(spark, pa.Table.from_batches(rows, carried), spark_schema(carried))
    return _read_with_tasks(spark, tasks_of(units, reader_options, carried), carried)


def _read_with_tasks(
    spark: SparkSession, inputs: Sequence[TaskInput[ChangeUnit]], carried: pa.Schema
) -> DataFrame:
    """Return a DataFrame whose rows are read by Spark's tasks."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from inputs[index].read()

    task_numbers = spark.range(0, len(inputs), 1, max(1, len(inputs)))
    return map_in_arrow(task_numbers, read, spark_schema(carried))


def _reader_options(
    spark: SparkSession, uri: str, storage_options: Mapping[str, Any], options: Mapping[str, Any]
) -> ReaderOptions:
    """Parse the user's options, and add the session's settings of the store."""
    texts = {name: _text(value) for name, value in options.items() if value is not None}
    _check_options(texts, uri)
    reserved = {"path": uri, "readChangeFeed": "true"}
    others = {name: text for name, text in texts.items() if name.lower() != "readchangefeed"}
    reader_options = parse_reader_options({**others, **reserved})
    check_for_batch(reader_options)
    stored_options = {**reader_options.storage_options, **storage_options}
    return replace(
        reader_options,
        storage_options=options_in_session(spark, reader_options.uri, stored_options),
    )


def _check_options(options: Mapping[str, str], uri: str) -> None:
    """Reject options of the format that name another table, or request rows instead of changes."""
    for name, text in options.items():
        if name.lower() == "path":
            raise InvalidInputError(
                f"read_changes does not accept the option {name!r}: the table's location is its "
                f"second argument, here {uri!r}"
            )
        if name.lower() == "readchangefeed" and text.lower() != "true":
            raise InvalidInputError(
                f"read_changes returns the change feed, so {name} cannot be {text!r}; "
                'spark.read.format("lance") reads the rows of a version'
            )


def _text(value: object) -> str:
    """Return an option's value as the text that Spark would pass to the format."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(list(value)) if isinstance(value, list | tuple) else str(value)
