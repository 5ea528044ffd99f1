"""Chooses the reader of the format "lance", and the schema of its rows."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from lance_stream.errors import LanceStreamError, NotFoundError
from lance_stream.snapshot.opening import open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.reader_options import (
    ReaderOptions,
    check_for_batch,
    check_for_stream,
    parse_reader_options,
)
from lance_stream.spark.feed.batch_reader import ChangesReader
from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes
from lance_stream.spark.feed.stream_reader import FailedStream, make_stream_reader
from lance_stream.spark.session.column_names import settle_columns, settle_filter
from lance_stream.spark.session.source_state import PinnedVersion, SourceState
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema, stored_schema
from lance_stream.spark.session.user_errors import plainly
from lance_stream.spark.session.worker_archives import forget_archives
from lance_stream.spark.source.table_reader import TableReader, open_asked, schema_of_table
from lance_stream.spark.source.user_schemas import check_user_schema


@plainly
def schema_of(source: SourceState) -> StructType:
    """Return the schema of the rows to read, and pin the version that it belongs to."""
    schema = _pin_version(source)
    forget_archives()
    return spark_schema(carrier_schema(schema))


@plainly
def batch_reader(source: SourceState, schema: StructType) -> DataSourceReader:
    """Return the reader of a batch."""
    asked = _asked(source)
    check_for_batch(asked)
    if source.pinned is None:  # Spark did not request the schema: the user specified one
        check_user_schema(schema, _pin_version(source), asked.uri)
        asked = _asked(source)
    assert source.pinned is not None
    version, uri, _ = source.pinned
    carried = _carried(schema)
    if asked.read_change_feed:
        return ChangesReader(asked, version, carried)
    # a tag may name a version of another branch than the given one
    return TableReader(replace(asked, uri=uri or asked.uri), version, carried)


def stream_reader(source: SourceState, schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a stream, or one that raises why there is none."""
    try:
        return _stream_reader(source, schema)
    except LanceStreamError as error:
        return FailedStream(error)


def _stream_reader(source: SourceState, schema: StructType) -> DataSourceStreamReader:
    asked = _asked(source)
    check_for_stream(asked)
    if asked.wait_for_table:
        find_table = partial(_find_table, source, schema)
        return make_stream_reader(asked, _carried(schema), _version(source), find_table)
    if source.pinned is None:
        check_user_schema(schema, _pin_version(source), asked.uri)
        asked = _asked(source)
    return make_stream_reader(asked, _carried(schema), _version(source))


def _version(source: SourceState) -> int | None:
    return None if source.pinned is None else source.pinned.version


def _find_table(source: SourceState, schema: StructType) -> ReaderOptions | None:
    """Return the options of a stream once its table and the version to start at are there."""
    asked = _asked(source)
    try:
        newest = open_table(asked.uri, None, asked.storage_options).version
    except NotFoundError:
        return None
    first = asked.starting_version
    if isinstance(first, int) and first > newest + 1:
        return None
    if source.pinned is None:
        check_user_schema(schema, _pin_version(source), asked.uri)
    return _asked(source)


def _asked(source: SourceState) -> ReaderOptions:
    asked, session = parse_reader_options(source.options), source.session_options
    options = session.options_for(asked.uri, asked.storage_options)
    named = {} if source.pinned is None else source.pinned.options
    return replace(asked, storage_options=options, only_by_tasks=session.is_cluster, **named)


def _pin_version(source: SourceState) -> pa.Schema:
    """Return the schema of the rows to read, and pin the version of a batch."""
    asked = _asked(source)
    try:
        table = open_for_changes(asked) if asked.read_change_feed else open_asked(asked)
    except NotFoundError as error:
        if asked.wait_for_table:
            error.add_note(
                "Spark asks for the columns of a stream that waits for its table at once: name "
                "them, spark.readStream.schema(...)"
            )
        raise
    source.pinned = PinnedVersion(table.version, table.uri, _named(source, table, asked))
    of_what = schema_of_changes if asked.read_change_feed else schema_of_table
    return of_what(table, _asked(source))


def _named(source: SourceState, table: TableVersion, asked: ReaderOptions) -> Mapping[str, Any]:
    """Return the options with column names in the table's own spelling."""
    schema, is_exact = table.arrow_schema, source.session_options.case_sensitive
    return {
        "columns": settle_columns(asked.columns, schema, case_sensitive=is_exact),
        "filter": settle_filter(asked.filter, schema, case_sensitive=is_exact),
    }


def _carried(schema: StructType) -> pa.Schema:
    """Return the schema of the batches that Spark expects."""
    return carrier_schema(stored_schema(schema))
