"""The integration with Spark: a sink for streams, the format "lance", and upkeep by tasks.

    from lance_stream.spark import cleanup_table, compact_table, lance_sink, register

Start with `sink` (a micro-batch becomes one version), then `sources` and the three modules it
chooses from: `table_source` (a table at a version), `feed` (the change feed as a batch, as a stream
and as a SQL function) and `writers` (writes without upserts: batches, INSERT, and streams). They
use `options` (all options), `spark_types` (columns of Arrow and of Spark), `arrow_jobs` (running a
function over Arrow batches in Spark) and `work_units` (distributing work over tasks).
`maintenance` compacts and cleans up a table by tasks (`rewrite_jobs`, `file_jobs`).

May import: everything in the package. The only package that imports pyspark.
"""

from lance_stream.spark.maintenance import cleanup_table, compact_table
from lance_stream.spark.sink import LanceSink, SinkCommit, lance_sink
from lance_stream.spark.sources import LanceSource, register
from lance_stream.spark.worker_python import warn_without_java

warn_without_java()

__all__ = [
    "LanceSink",
    "LanceSource",
    "SinkCommit",
    "cleanup_table",
    "compact_table",
    "lance_sink",
    "register",
]
