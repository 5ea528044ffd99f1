"""Spark's side: a sink for streams, and the format, which reads tables and changes, and writes.

    from lance_stream.spark import lance_sink, register

Read `sink` first (the way in: a micro-batch becomes one version), then `sources` and the three
rooms that it chooses from, `table_source` (a table at a version), `feed` (the change feed, as a
batch, as a stream and as a SQL function) and `writers` (the way in without upserts: batches,
INSERT, and streams). Beside them: `options` (every option, once),
`spark_types` (columns of Arrow and of Spark), `arrow_jobs` (how Spark runs a function over Arrow
batches), `work_units` (how work is spread over tasks).

May import: everything of the package. The only package that imports pyspark.
"""

from lance_stream.spark.sink import LanceSink, SinkCommit, lance_sink
from lance_stream.spark.sources import LanceSource, register

__all__ = ["LanceSink", "LanceSource", "SinkCommit", "lance_sink", "register"]
