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
from lance_stream.spark.column_names import settle_columns, settle_filter
from lance_stream.spark.feed.batch_reader import ChangesReader
from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes
from lance_stream.spark.feed.stream_reader import FailedStream, make_stream_reader
from lance_stream.spark.options import (
    SourceOptions,
    check_for_batch,
    check_for_stream,
    parse_options,
)
from lance_stream.spark.plain_errors import plainly
from lance_stream.spark.sources import Found, LanceSource
from lance_stream.spark.spark_types import carrier_schema, spark_schema, stored_schema
from lance_stream.spark.table_source import TableReader, open_asked, schema_of_table
from lance_stream.spark.user_schemas import check_user_schema
from lance_stream.spark.worker_archives import forget_archives


@plainly
def schema_of(source: LanceSource) -> StructType:
    """Return the schema of the rows to read, and fix the version that it belongs to."""
    read = _look(source)
    forget_archives()
    return spark_schema(carrier_schema(read))


@plainly
def batch_reader(source: LanceSource, schema: StructType) -> DataSourceReader:
    """Return the reader of a batch."""
    asked = _asked(source)
    check_for_batch(asked)
    if source.found is None:  # Spark did not request the schema: the user specified one
        check_user_schema(schema, _look(source), asked.uri)
        asked = _asked(source)
    assert source.found is not None
    version, uri, _ = source.found
    carried = _carried(schema)
    if asked.read_change_feed:
        return ChangesReader(asked, version, carried)
    # a tag may name a version of another branch than the given one
    return TableReader(replace(asked, uri=uri or asked.uri), version, carried)


def stream_reader(source: LanceSource, schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a stream, or one that raises why there is none."""
    try:
        return _stream_reader(source, schema)
    except LanceStreamError as error:
        return FailedStream(error)


def _stream_reader(source: LanceSource, schema: StructType) -> DataSourceStreamReader:
    asked = _asked(source)
    check_for_stream(asked)
    if asked.wait_for_table:
        find_table = partial(_find_table, source, schema)
        return make_stream_reader(asked, _carried(schema), _version(source), find_table)
    if source.found is None:
        check_user_schema(schema, _look(source), asked.uri)
        asked = _asked(source)
    return make_stream_reader(asked, _carried(schema), _version(source))


def _version(source: LanceSource) -> int | None:
    return None if source.found is None else source.found.version


def _find_table(source: LanceSource, schema: StructType) -> SourceOptions | None:
    """Return the options of a stream once its table and the version to start at are there."""
    asked = _asked(source)
    try:
        newest = open_table(asked.uri, None, asked.storage_options).version
    except NotFoundError:
        return None
    first = asked.starting_version
    if isinstance(first, int) and first > newest + 1:
        return None
    if source.found is None:
        check_user_schema(schema, _look(source), asked.uri)
    return _asked(source)


def _asked(source: LanceSource) -> SourceOptions:
    asked, session = parse_options(source.options), source.session_options
    options = session.options_for(asked.uri, asked.storage_options)
    settled = {} if source.found is None else source.found.settled
    return replace(asked, storage_options=options, only_by_tasks=session.is_cluster, **settled)


def _look(source: LanceSource) -> pa.Schema:
    """Return the schema of the rows to read, and fix the version of a batch."""
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
    source.found = Found(table.version, table.uri, _settled(source, table, asked))
    of_what = schema_of_changes if asked.read_change_feed else schema_of_table
    return of_what(table, _asked(source))


def _settled(source: LanceSource, table: TableVersion, asked: SourceOptions) -> Mapping[str, Any]:
    """Return the options with column names in the table's own spelling."""
    schema, is_exact = table.arrow_schema, source.session_options.case_sensitive
    return {
        "columns": settle_columns(asked.columns, schema, case_sensitive=is_exact),
        "filter": settle_filter(asked.filter, schema, case_sensitive=is_exact),
    }


def _carried(schema: StructType) -> pa.Schema:
    """Return the schema of the batches that Spark expects."""
    return carrier_schema(stored_schema(schema))
