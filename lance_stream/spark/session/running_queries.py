"""The streaming query that a batch belongs to, as an object of Spark's JVM.

Spark keeps its running queries in a map of the shared state, by id, and passes the id to the
thread that runs foreachBatch. This is no public interface of Spark; it works in PySpark 4.1 to 4.3.

Each call to the JVM is a round trip, and finding a query takes seven. So a run of a query is looked
up once, and cached while it is active.
"""

from contextlib import suppress
from typing import Any, Final

from pyspark.sql import DataFrame

from lance_stream.caches import Cache, IdentityCache

_QUERIES: Final[Cache[tuple[int, str], Any]] = Cache(100)
"""The newest run of each query, by Spark's gateway and the query's id."""


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
        key = id(spark._jvm), query_id
        cached = _QUERIES.get(key)
        if cached is not None and _is_active(cached):
            return cached
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        query = queries.get(spark._jvm.java.util.UUID.fromString(query_id))
        if query is not None:
            _QUERIES.put(key, query)
        return query
    return None


def _is_active(query: Any) -> bool:
    with suppress(Exception):  # its JVM may have ended
        return bool(query.isActive())
    return False


def run_of(query: Any) -> str:
    """Return the id of a query's run; empty if Spark does not report it.

    Args:
        query: The result of `running_query`.
    """
    with suppress(Exception):
        return _RUN_IDS.of(query)
    return ""


def output_mode_of(query: Any) -> str:
    """Return the output mode of a query: "append", "update" or "complete".

    Args:
        query: The result of `running_query`, but not None.
    """
    return _OUTPUT_MODES.of(query)


_RUN_IDS: Final = IdentityCache[str](lambda query: str(query.runId().toString()))
_OUTPUT_MODES: Final = IdentityCache[str](lambda query: str(query.outputMode().toString()).lower())
