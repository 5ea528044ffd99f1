"""The streaming query that a batch belongs to, as an object of Spark's JVM.

Spark keeps its running queries in a map of the shared state, by id, and passes the id to the
thread that runs foreachBatch. This is not a public interface of Spark's. It works in PySpark 4.1
to 4.3.
"""

from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame


def running_query(df: DataFrame, query_id: str | None) -> Any:
    """Return the JVM's object of a running query; None if Spark does not report it.

    Args:
        df: A batch of the query.
        query_id: The query's id, which is the same in all of its runs; None or empty if it is
            unknown (Spark Connect, a thread of the user's own, a call outside of a query).
    """
    if not query_id:
        return None
    with suppress(Exception):
        spark: Any = df.sparkSession
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        return queries.get(spark._jvm.java.util.UUID.fromString(query_id))
    return None


def run_of(query: Any) -> str:
    """Return the id of a query's run; empty if Spark does not report it.

    Args:
        query: The result of `running_query`.
    """
    with suppress(Exception):
        return str(query.runId().toString())
    return ""
