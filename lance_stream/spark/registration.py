"""Registers the format "lance" and its SQL functions in a session.

Their modules are imported by `register` alone: they need classes of PySpark 4.0.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf

from lance_stream.errors import InvalidInputError
from lance_stream.spark.pipelines import ignore_metrics, is_in_pipeline
from lance_stream.spark.session.python_check import check_workers_python
from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.session.session_settings import (
    check_session,
    is_case_sensitive,
    is_cluster,
    read_hadoop_settings,
    read_namespace,
)
from lance_stream.spark.versions import check_data_sources
from lance_stream.spark.writer.refused_calls import check_writers_of
from lance_stream.storage.options.names import as_options


def register(
    spark: SparkSession,
    name: str = "lance",
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
        UnsupportedFeatureError: PySpark is older than 4.0.
    """
    check_session(spark, "register(spark)")
    if not isinstance(name, str) or not name.strip():
        raise InvalidInputError(f"the name of a format must be a non-empty string, not {name!r}")
    check_data_sources()
    from lance_stream.spark.feed.table_function import changes_function
    from lance_stream.spark.source.table_functions import table_functions

    check_workers_python(spark)
    if is_in_pipeline():
        ignore_metrics(spark)
    session = SessionOptions(
        as_options(storage_options),
        read_hadoop_settings(spark),
        read_namespace(spark),
        is_case_sensitive(spark),
        is_cluster(spark),
    )
    spark.dataSource.register(_source(name, session))
    check_writers_of(name)
    function: Any = udtf(changes_function(session), useArrow=False)  # otherwise it requires pandas
    spark.udtf.register(f"{name}_changes", function)
    for suffix, handler in table_functions(session).items():
        handler_udtf: Any = udtf(handler, useArrow=False)
        spark.udtf.register(f"{name}_{suffix}", handler_udtf)


def _source(format_name: str, session: SessionOptions) -> Any:
    """Return a class that Spark pickles by value, so other processes get the session's options."""
    from lance_stream.spark.source.lance_source import LanceSource

    class SessionSource(LanceSource):
        session_options = session

        @classmethod
        def name(cls) -> str:
            return format_name

    return SessionSource
