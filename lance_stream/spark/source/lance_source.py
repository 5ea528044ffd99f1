"""The data source of the format "lance", which Spark passes between its processes.

spark.read                                   source.table_reader
spark.read, readChangeFeed                   feed.batch_reader
spark.readStream, readChangeFeed             feed.stream_reader, the change feed as a stream
spark.readStream                             feed.stream_reader, the appended rows as a stream
df.write, INSERT into a temporary view       writer.lance_writer.BatchWriter
writeStream                                  writer.lance_writer.StreamWriter

`reader_factory` chooses the reader and its schema, `writer_factory` the writer. Spark sends this
class with every task, but tasks use neither, so only the processes that plan import them.
"""

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from lance_stream.spark.session.source_state import SourceState

if TYPE_CHECKING:  # PySpark 3.5 has none of them
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class LanceSource(SourceState):
    """A Lance table as a source and a sink of Spark.

    Spark creates an instance per load, requests its schema, and pickles it from process to process,
    so a reader has the version that `schema` has pinned. Spark does not request the schema for a
    writer.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lance"

    def schema(self) -> StructType:
        """Return the schema of the rows to read, and pin the version that it belongs to."""
        from lance_stream.spark.source import reader_factory

        return reader_factory.schema_of(self)

    def reader(self, schema: StructType) -> "DataSourceReader":
        """Return the reader of a batch."""
        from lance_stream.spark.source import reader_factory

        return reader_factory.batch_reader(self, schema)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
        """Return the reader of a stream.

        PySpark replaces an error that is raised here with an UnboundLocalError, so the reader
        raises it at its first call.
        """
        from lance_stream.spark.source import reader_factory

        return reader_factory.stream_reader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        """Return the writer of a batch, with the plan of its tasks."""
        from lance_stream.spark.writer import writer_factory

        return writer_factory.batch_writer(self, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":
        """Return the writer of a micro-batch; Spark requests one to write and one to commit."""
        from lance_stream.spark.writer import writer_factory

        return writer_factory.stream_writer(self, schema, overwrite)
