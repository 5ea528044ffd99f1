"""The format "lance": which reader or writer is needed, and with which schema.

spark.read                                   table_source.TableReader
spark.read, readChangeFeed                   feed.batch_reader
spark.readStream, readChangeFeed             feed.stream_reader, the change feed as a stream
spark.readStream                             feed.stream_reader, the rows appended as a stream
df.write, INSERT into a temporary view       writers.BatchWriter
writeStream                                  writers.StreamWriter
"""

from typing import Any

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

from lance_stream.dataset.micro_batches import MicroBatch
from lance_stream.errors import InvalidInputError
from lance_stream.spark.arrow_jobs import forget_archives
from lance_stream.spark.feed.batch_reader import ChangesReader
from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes
from lance_stream.spark.feed.stream_reader import make_stream_reader
from lance_stream.spark.feed.table_function import ChangesFunction
from lance_stream.spark.options import (
    SourceOptions,
    check_for_batch,
    check_for_stream,
    parse_options,
    parse_write_options,
)
from lance_stream.spark.spark_types import carrier_schema, spark_schema, stored_schema
from lance_stream.spark.table_source import TableReader, open_asked, schema_of_table
from lance_stream.spark.writers import BatchWriter, StreamWriter, plan

DEFAULT_NAME = "lance"


def register(spark: SparkSession, name: str = DEFAULT_NAME) -> None:
    """Make the format and the SQL function known to a session; call it once for each.

    The function is `lance_changes`, or with another name of the format `<name>_changes`:
    `SELECT * FROM lance_changes('data/events.lance', 4, 9)`.

    Args:
        spark: The session.
        name: Another name for the format, for example where a connector of the JVM is
            called "lance" as well.

    Raises:
        InvalidInputError: The name is empty.
    """
    if not name.strip():
        raise InvalidInputError("the name of a format is empty")
    spark.dataSource.register(LanceSource if name == DEFAULT_NAME else _named(name))
    function: Any = udtf(ChangesFunction, useArrow=False)  # else it asks for pandas
    spark.udtf.register(f"{name}_changes", function)


def _named(format_name: str) -> type["LanceSource"]:
    class NamedLanceSource(LanceSource):
        @classmethod
        def name(cls) -> str:
            return format_name

    return NamedLanceSource


class LanceSource(DataSource):
    """A Lance table as a source and a target of Spark.

    Spark makes an object for each load, asks it for the schema, and pickles it from process to
    process: what `schema` finds out, the readers know. A writer is asked for without a schema.

    Args:
        options: What the user set.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._version: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return DEFAULT_NAME

    def schema(self) -> StructType:
        """Return the schema of what is read; fixes the version of a batch."""
        asked = self._asked()
        if asked.read_change_feed:
            table = open_for_changes(asked)
            read = schema_of_changes(table, asked)
        else:
            table = open_asked(asked)
            read = schema_of_table(table, asked)
        self._version = table.version
        forget_archives()
        return spark_schema(carrier_schema(read))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        asked = self._asked()
        check_for_batch(asked)
        carried = _carried(schema)
        if asked.read_change_feed:
            return ChangesReader(asked, self._version, carried)
        return TableReader(asked, self._version, carried)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a stream."""
        asked = self._asked()
        check_for_stream(asked)
        return make_stream_reader(asked, _carried(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a batch; fixes what its tasks do."""
        asked = parse_write_options(self.options, streaming=False)
        job = plan(asked, schema, overwrite)
        if asked.txn_app_id is None or asked.txn_version is None:
            return BatchWriter(job, None)
        return BatchWriter(job, MicroBatch(asked.txn_app_id, asked.txn_version))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes a micro-batch, or commits it; Spark asks for one for each."""
        asked = parse_write_options(self.options, streaming=True)
        return StreamWriter(plan(asked, schema, overwrite), asked.app_id)

    def _asked(self) -> SourceOptions:
        return parse_options(self.options)


def _carried(schema: StructType) -> pa.Schema:
    """Return the schema of the batches that Spark expects."""
    return carrier_schema(stored_schema(schema))
