"""Spark's side: a sink for streams, and the format, which reads tables and changes, and writes.

    from lance_stream.spark import lance_sink, register

Read `sink` first (the way in: a micro-batch becomes one version), then `sources` and the three
modules that it chooses from, `table_source` (a table at a version), `changes_source` (the change
feed, as a batch and as a stream) and `writers` (the way in without upserts: batches, INSERT, and
streams). Beside them: `options` (every option, once),
`spark_types` (columns of Arrow and of Spark), `arrow_jobs` (how Spark runs a function over Arrow
batches), `work_units` (how work is spread over tasks), `table_changes` (the SQL function).

May import: everything of the package. The only package that imports pyspark.
"""

from lance_stream.spark.sink import LanceSink, SinkCommit, lance_sink
from lance_stream.spark.sources import LanceSource, register

__all__ = ["LanceSink", "LanceSource", "SinkCommit", "lance_sink", "register"]
