"""Chooses the reader of the format "lance", and the schema of its rows."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from lance_stream.errors import LanceStreamError, NotFoundError
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.reader_options import (
    ReaderOptions,
    check_for_batch,
    check_for_stream,
    parse_reader_options,
)
from lance_stream.spark.feed.batch_reader import ChangesReader
from lance_stream.spark.feed.planning import (
    open_for_changes,
    schema_of_changes,
    selectable_columns,
)
from lance_stream.spark.feed.stream_reader import FailedStream, make_stream_reader
from lance_stream.spark.session.column_names import resolve_columns, resolve_filter
from lance_stream.spark.session.source_state import PinnedVersion, SourceState
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema, stored_schema
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.spark.session.worker_archives import forget_archives
from lance_stream.spark.source.table_reader import TableReader, open_requested, schema_of_table
from lance_stream.spark.source.user_schemas import check_user_schema
from lance_stream.table.version_marks import mark_of


@without_traceback
def schema_of(source: SourceState) -> StructType:
    """Return the schema of the rows to read, and pin the version that it belongs to."""
    schema = _pin_version(source)
    forget_archives()
    return spark_schema(carrier_schema(schema))


@without_traceback
def batch_reader(source: SourceState, schema: StructType) -> DataSourceReader:
    """Return the reader of a batch."""
    options = _options_of(source)
    check_for_batch(options)
    if source.pinned is None:  # Spark did not request the schema: the user specified one
        check_user_schema(schema, _pin_version(source), options.uri)
        options = _options_of(source)
    assert source.pinned is not None
    pinned, carried = source.pinned, _carried(schema)
    if options.read_change_feed:
        return ChangesReader(options, pinned.version, carried, pinned.mark)
    # A tag may refer to a version of another branch.
    options = replace(options, uri=pinned.uri or options.uri)
    return TableReader(options, pinned.version, carried, pinned.mark)


def stream_reader(source: SourceState, schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a stream, or one that raises the error at its first call."""
    try:
        return _stream_reader(source, schema)
    except LanceStreamError as error:
        return FailedStream(error)


def _stream_reader(source: SourceState, schema: StructType) -> DataSourceStreamReader:
    options = _options_of(source)
    check_for_stream(options)
    if options.wait_for_table:
        find_table = partial(_find_table, source, schema)
        return make_stream_reader(options, _carried(schema), _version(source), find_table)
    if source.pinned is None:
        check_user_schema(schema, _pin_version(source), options.uri)
        options = _options_of(source)
    return make_stream_reader(options, _carried(schema), _version(source))


def _version(source: SourceState) -> int | None:
    return None if source.pinned is None else source.pinned.version


def _find_table(source: SourceState, schema: StructType) -> ReaderOptions | None:
    """Return the options of a stream once its table and its first version exist; otherwise None."""
    options = _options_of(source)
    try:
        newest = open_newest(options.uri, options.storage_options).version
    except NotFoundError:
        return None
    first = options.starting_version
    if isinstance(first, int) and first > newest + 1:
        return None
    if source.pinned is None:
        check_user_schema(schema, _pin_version(source), options.uri)
    return _options_of(source)


def _options_of(source: SourceState) -> ReaderOptions:
    session = source.session_options
    options = parse_reader_options(source.options, session.namespace)
    resolved_names = {} if source.pinned is None else source.pinned.options
    return replace(
        options,
        storage_options=session.options_for(options.uri, options.storage_options),
        only_by_tasks=session.is_cluster,
        **resolved_names,
    )


def _pin_version(source: SourceState) -> pa.Schema:
    """Return the schema of the rows to read, and pin the version of a batch."""
    options = _options_of(source)
    try:
        table = open_for_changes(options) if options.read_change_feed else open_requested(options)
    except NotFoundError as error:
        if options.wait_for_table:
            error.add_note(
                "Spark needs the columns of a stream immediately, even if the stream waits for its "
                "table: declare them with spark.readStream.schema(...)"
            )
        raise
    names, mark = _resolve_names(source, table, options), mark_of(table.manifest)
    source.pinned = PinnedVersion(table.version, table.uri, names, mark)
    schema_of_rows = schema_of_changes if options.read_change_feed else schema_of_table
    return schema_of_rows(table, _options_of(source))


def _resolve_names(
    source: SourceState, table: TableVersion, options: ReaderOptions
) -> Mapping[str, Any]:
    """Return the options that contain column names, with the names as in the table."""
    schema, is_exact = selectable_columns(table, options), source.session_options.case_sensitive
    return {
        "columns": resolve_columns(options.columns, schema, case_sensitive=is_exact),
        "filter": resolve_filter(options.filter, schema, case_sensitive=is_exact),
    }


def _carried(schema: StructType) -> pa.Schema:
    """Return the schema of the batches that Spark expects."""
    return carrier_schema(stored_schema(schema))
