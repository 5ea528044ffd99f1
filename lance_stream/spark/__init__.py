"""The integration with Spark: a sink for streams, the format "lance", and distributed maintenance.

    from lance_stream.spark import auto_cdc_sink, lance_sink, lance_sinks, read_changes, register
    from lance_stream.spark import cleanup_table, compact_table, derive

The folders, in the order in which they build on each other:

    session      the settings of a Spark session: stores, types, names
    arguments    the user's arguments and options
    jobs         work for Spark's tasks, and maintenance jobs
    writer       the format "lance" as a writer
    feed         the change feed: batch, stream, SQL function, DataFrame
    source       the format "lance" itself, and a table at a version
    sink         the function for foreachBatch: a micro-batch becomes one version

`registration` makes the format known to a session. Start with `sink`.

The only package that imports pyspark.

Its names are imported when they are first used: every worker of Spark imports this package, and
needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_stream.spark.feed.changes_frame import read_changes
    from lance_stream.spark.jobs.derived_columns import derive
    from lance_stream.spark.jobs.maintenance import cleanup_table, compact_table
    from lance_stream.spark.registration import register
    from lance_stream.spark.sink.auto_cdc_sink import auto_cdc_sink
    from lance_stream.spark.sink.lance_sink import LanceSink, lance_sink
    from lance_stream.spark.sink.reports import SinkCommit
    from lance_stream.spark.sink.several import LanceSinks, lance_sinks
    from lance_stream.spark.source.lance_source import LanceSource

__all__ = [
    "LanceSink",
    "LanceSinks",
    "LanceSource",
    "SinkCommit",
    "auto_cdc_sink",
    "cleanup_table",
    "compact_table",
    "derive",
    "lance_sink",
    "lance_sinks",
    "read_changes",
    "register",
]

if not TYPE_CHECKING:  # a type checker takes the imports above as they stand
    _MODULE_OF = {
        "LanceSink": "lance_stream.spark.sink.lance_sink",
        "LanceSinks": "lance_stream.spark.sink.several",
        "LanceSource": "lance_stream.spark.source.lance_source",
        "SinkCommit": "lance_stream.spark.sink.reports",
        "auto_cdc_sink": "lance_stream.spark.sink.auto_cdc_sink",
        "cleanup_table": "lance_stream.spark.jobs.maintenance",
        "compact_table": "lance_stream.spark.jobs.maintenance",
        "derive": "lance_stream.spark.jobs.derived_columns",
        "lance_sink": "lance_stream.spark.sink.lance_sink",
        "lance_sinks": "lance_stream.spark.sink.several",
        "read_changes": "lance_stream.spark.feed.changes_frame",
        "register": "lance_stream.spark.registration",
    }

    _USED = []

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if not _USED:
            _USED.append(name)
            import_module("lance_stream.spark.session.python_check").warn_without_java()
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
