"""Spark's side: a sink for streams, and a source of tables and of their changes.

    from lance_stream.spark import lance_sink, register

Read `sink` first (the way in: a micro-batch becomes one version), then `sources` and the two
modules that it chooses from, `table_source` (a table at a version) and `changes_source` (the
change feed, as a batch and as a stream). Beside them: `options` (every option, once),
`spark_types` (columns of Arrow and of Spark), `arrow_jobs` (how Spark runs a function over Arrow
batches), `work_units` (how work is spread over tasks), `table_changes` (the SQL function).

May import: everything of the package. The only package that imports pyspark.
"""

from lance_stream.spark.sink import LanceSink, SinkCommit, lance_sink
from lance_stream.spark.sources import LanceSource, register

__all__ = ["LanceSink", "LanceSource", "SinkCommit", "lance_sink", "register"]
