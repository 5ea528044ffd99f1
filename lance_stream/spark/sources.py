"""The format "lance": chooses the reader or writer, and its schema.

spark.read                                   table_source.TableReader
spark.read, readChangeFeed                   feed.batch_reader
spark.readStream, readChangeFeed             feed.stream_reader, the change feed as a stream
spark.readStream                             feed.stream_reader, the appended rows as a stream
df.write, INSERT into a temporary view       writers.BatchWriter
writeStream                                  writers.StreamWriter
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.functions import udtf
from pyspark.sql.types import StructType

from lance_stream.errors import InvalidInputError, LanceStreamError, NotFoundError
from lance_stream.snapshot.opening import open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arrow_jobs import forget_archives
from lance_stream.spark.checked_rows import Job, RowChecks, plan_checks
from lance_stream.spark.column_names import settle_columns, settle_filter
from lance_stream.spark.feed.batch_reader import ChangesReader
from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes
from lance_stream.spark.feed.stream_reader import FailedStream, make_stream_reader
from lance_stream.spark.feed.table_function import changes_function
from lance_stream.spark.options import (
    SourceOptions,
    WriteOptions,
    check_for_batch,
    check_for_stream,
    parse_options,
    parse_write_options,
)
from lance_stream.spark.plain_errors import plainly
from lance_stream.spark.session_settings import (
    SessionOptions,
    is_case_sensitive,
    read_hadoop_settings,
)
from lance_stream.spark.spark_types import carrier_schema, spark_schema, stored_schema
from lance_stream.spark.table_functions import table_functions
from lance_stream.spark.table_source import TableReader, open_asked, schema_of_table
from lance_stream.spark.user_schemas import check_user_schema
from lance_stream.spark.worker_python import check_workers_python
from lance_stream.spark.writers import BatchWriter, StreamWriter, check_mode, plan
from lance_stream.storage.options.names import as_options
from lance_stream.write.micro_batches import MicroBatch

DEFAULT_NAME = "lance"


def register(
    spark: SparkSession,
    name: str = DEFAULT_NAME,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Register the format and its SQL functions in a session; call it once per session.

    The functions are `lance_changes`, `lance_table`, `lance_history`, `lance_fragments` and
    `lance_consumers`, or `<name>_changes` and so on if the format has another name:
    `SELECT * FROM lance_changes('data/events.lance', 4, 9)`.

    Args:
        spark: The session.
        name: Another name for the format, for example if a JVM connector is also called "lance",
            or for a second registration with other storage options.
        storage_options: Settings of the store for every table that this format reads or writes;
            those of a load take precedence. If none of them give credentials or an endpoint, the
            session's current settings apply (`spark.hadoop.fs.s3a.access.key` and so on): call
            this again when they have changed. Spark shows neither in plans, its UI or event logs.

    Raises:
        InvalidInputError: The name is empty, the first argument is not a session, or Spark's
            workers on this machine would run a Python that cannot import this package.
    """
    if not hasattr(spark, "dataSource"):
        raise InvalidInputError(
            f"register() needs the session first, register(spark), not {spark!r:.200}"
        )
    if not isinstance(name, str) or not name.strip():
        raise InvalidInputError(f"the name of a format must be a non-empty string, not {name!r}")
    check_workers_python(spark)
    session = SessionOptions(
        as_options(storage_options), read_hadoop_settings(spark), is_case_sensitive(spark)
    )
    spark.dataSource.register(_source(name, session))
    function: Any = udtf(changes_function(session), useArrow=False)  # otherwise it requires pandas
    spark.udtf.register(f"{name}_changes", function)
    for suffix, handler in table_functions(session).items():
        shown: Any = udtf(handler, useArrow=False)
        spark.udtf.register(f"{name}_{suffix}", shown)


def _source(format_name: str, session: SessionOptions) -> type["LanceSource"]:
    """Return a class that Spark pickles by value, so other processes get the session's options."""

    class SessionSource(LanceSource):
        session_options = session

        @classmethod
        def name(cls) -> str:
            return format_name

    return SessionSource


class LanceSource(DataSource):
    """A Lance table as a source and a target of Spark.

    Spark creates an object per load, requests its schema, and pickles it from process to process,
    so the readers know what `schema` found out. For a writer Spark does not request the schema.

    Args:
        options: The user's options.

    Attributes:
        session_options: The session's settings of stores, used where the user gives none.
    """

    session_options: ClassVar[SessionOptions] = SessionOptions()

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._version: int | None = None
        self._uri: str | None = None
        self._settled: Mapping[str, Any] = {}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return DEFAULT_NAME

    @plainly
    def schema(self) -> StructType:
        """Return the schema of the rows to read, and fix the version that it belongs to."""
        read = self._look()
        forget_archives()
        return spark_schema(carrier_schema(read))

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        asked = self._asked()
        check_for_batch(asked)
        if self._version is None:  # Spark did not request the schema: the user specified one
            check_user_schema(schema, self._look(), asked.uri)
            asked = self._asked()
        carried = _carried(schema)
        if asked.read_change_feed:
            return ChangesReader(asked, self._version, carried)
        # a tag may name a version of another branch than the given one
        return TableReader(replace(asked, uri=self._uri or asked.uri), self._version, carried)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream.

        PySpark hides an error raised here behind one of its own, an UnboundLocalError; so the
        reader raises it, at the first call.
        """
        try:
            return self._stream_reader(schema)
        except LanceStreamError as error:
            return FailedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        asked = self._asked()
        check_for_stream(asked)
        if asked.wait_for_table:
            find_table = partial(self._find_table, schema)
            return make_stream_reader(asked, _carried(schema), self._version, find_table)
        if self._version is None:
            check_user_schema(schema, self._look(), asked.uri)
            asked = self._asked()
        return make_stream_reader(asked, _carried(schema), self._version)

    def _find_table(self, schema: StructType) -> SourceOptions | None:
        """Return the options of a stream once its table and the version to start at are there."""
        asked = self._asked()
        try:
            newest = open_table(asked.uri, None, asked.storage_options).version
        except NotFoundError:
            return None
        first = asked.starting_version
        if isinstance(first, int) and first > newest + 1:
            return None
        if self._version is None:
            check_user_schema(schema, self._look(), asked.uri)
        return self._asked()

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch, with the plan of its tasks."""
        asked = self._asked_to_write(streaming=False)
        check_mode(asked, streaming=False, overwrite=overwrite)
        job, checks = self._plan(asked, schema, overwrite)
        if asked.txn_app_id is None or asked.txn_version is None:
            return BatchWriter(job, None, checks)
        may_differ = asked.replays_may_differ
        numbered = MicroBatch(asked.txn_app_id, asked.txn_version, may_differ=may_differ)
        return BatchWriter(job, numbered, checks)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a micro-batch; Spark requests one to write and one to commit."""
        asked = self._asked_to_write(streaming=True)
        check_mode(asked, streaming=True, overwrite=overwrite)
        overwrite = overwrite if asked.mode is None else asked.mode == "overwrite"
        job, checks = self._plan(asked, schema, overwrite)
        return StreamWriter(job, asked.app_id, may_differ=asked.replays_may_differ, checks=checks)

    def _plan(
        self, asked: WriteOptions, schema: StructType, overwrite: bool
    ) -> tuple[Job, RowChecks | None]:
        is_exact = self.session_options.case_sensitive
        job = plan(asked, schema, overwrite, case_sensitive=is_exact)
        return job, plan_checks(asked, job, schema, case_sensitive=is_exact)

    def _asked(self) -> SourceOptions:
        asked = parse_options(self.options)
        options = self.session_options.options_for(asked.uri, asked.storage_options)
        return replace(asked, storage_options=options, **self._settled)

    def _look(self) -> pa.Schema:
        """Return the schema of the rows to read, and fix the version of a batch."""
        asked = self._asked()
        try:
            table = open_for_changes(asked) if asked.read_change_feed else open_asked(asked)
        except NotFoundError as error:
            if asked.wait_for_table:
                error.add_note(
                    "Spark asks for the columns of a stream that waits for its table at once: name "
                    "them, spark.readStream.schema(...)"
                )
            raise
        self._settle(table, asked)
        self._version, self._uri = table.version, table.uri
        of_what = schema_of_changes if asked.read_change_feed else schema_of_table
        return of_what(table, self._asked())

    def _settle(self, table: TableVersion, asked: SourceOptions) -> None:
        """Replace column names in the options by the table's own spelling."""
        schema, is_exact = table.arrow_schema, self.session_options.case_sensitive
        self._settled = {
            "columns": settle_columns(asked.columns, schema, case_sensitive=is_exact),
            "filter": settle_filter(asked.filter, schema, case_sensitive=is_exact),
        }

    def _asked_to_write(self, *, streaming: bool) -> WriteOptions:
        asked = parse_write_options(self.options, streaming=streaming)
        options = self.session_options.options_for(asked.uri, asked.storage_options)
        return replace(asked, storage_options=options)


def _carried(schema: StructType) -> pa.Schema:
    """Return the schema of the batches that Spark expects."""
    return carrier_schema(stored_schema(schema))
