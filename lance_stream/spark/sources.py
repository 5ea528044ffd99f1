"""The format "lance", as Spark's processes pickle it among themselves.

spark.read                                   table_source.TableReader
spark.read, readChangeFeed                   feed.batch_reader
spark.readStream, readChangeFeed             feed.stream_reader, the change feed as a stream
spark.readStream                             feed.stream_reader, the appended rows as a stream
df.write, INSERT into a temporary view       writers.BatchWriter
writeStream                                  writers.StreamWriter

`loads` chooses the reader and its schema, `saves` the writer. Spark sends this class with every
task, and a task needs nothing of it; so both are imported by the processes that plan.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from lance_stream.spark.session_options import SessionOptions

DEFAULT_NAME = "lance"


class Found(NamedTuple):
    """What was found when the schema was read; pickled with the source.

    Attributes:
        version: The version that the schema belongs to.
        uri: Where it is.
        settled: Options with column names in the table's own spelling.
    """

    version: int
    uri: str
    settled: Mapping[str, Any]


class LanceSource(DataSource):
    """A Lance table as a source and a target of Spark.

    Spark creates an object per load, requests its schema, and pickles it from process to process,
    so the readers know what `schema` found out. For a writer Spark does not request the schema.

    Args:
        options: The user's options.

    Attributes:
        session_options: The session's settings of stores, used where the user gives none.
        found: What `schema` found out.
    """

    session_options: ClassVar[SessionOptions] = SessionOptions()

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.found: Found | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return DEFAULT_NAME

    def schema(self) -> StructType:
        """Return the schema of the rows to read, and fix the version that it belongs to."""
        from lance_stream.spark import loads

        return loads.schema_of(self)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from lance_stream.spark import loads

        return loads.batch_reader(self, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream.

        PySpark hides an error raised here behind one of its own, an UnboundLocalError; so the
        reader raises it, at the first call.
        """
        from lance_stream.spark import loads

        return loads.stream_reader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch, with the plan of its tasks."""
        from lance_stream.spark import saves

        return saves.batch_writer(self, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a micro-batch; Spark requests one to write and one to commit."""
        from lance_stream.spark import saves

        return saves.stream_writer(self, schema, overwrite)
