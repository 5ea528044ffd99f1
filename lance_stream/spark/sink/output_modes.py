"""Which results of a streaming query a sink's mode takes: the table `REFUSALS`.

What a trigger's rows mean depends on the query's output mode, and Spark passes them to foreachBatch
without it:

    output mode   query                  the rows of a trigger
    append        any                    new rows
    update        without aggregation    new rows
    update        with aggregation       the groups that changed, each with its new value
    complete      (always aggregates)    all groups, again

    sink mode       new rows    changed groups    all groups
    append          yes         no                no
    upsert          yes         yes               yes, unless groups can leave the result
    apply_changes   yes         no                no
    overwrite       no          no                yes

Spark keeps its running queries in a map of the shared state, by id; the thread that runs
foreachBatch is told the id. Where neither is known (Spark Connect, a thread of the user's own, a
call outside of a streaming query) nothing is checked.

A plan with other nodes than projections above the aggregation (a filter, a limit) can give fewer
groups at a later trigger, whose rows an upsert would leave in the table.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from pyspark.sql import DataFrame

from lance_stream.errors import InvalidInputError


class Results(Enum):
    """What the rows of a trigger are."""

    NEW_ROWS = "only new rows"
    CHANGED_GROUPS = "every group that changed, with its new value"
    ALL_GROUPS = "all groups again"
    SOME_GROUPS = "all groups that pass a filter or a limit, again"


_OVERWRITE: Final = "use outputMode('complete') with lance_sink(mode='overwrite')"
_UPSERT: Final = (
    "use outputMode('update') with lance_sink(mode='upsert', on=[the grouping columns])"
)
_WATERMARK: Final = (
    "use outputMode('append') with a watermark, which gives each group once, when it is final"
)

REFUSALS: Final[Mapping[tuple[str, Results], str]] = {
    ("append", Results.CHANGED_GROUPS): f"a group would be stored once for each change. To keep "
    f"the newest value of each group, {_UPSERT}; or {_WATERMARK}",
    ("append", Results.ALL_GROUPS): f"every group would be stored again by each trigger. {_UPSERT} "
    f"or {_OVERWRITE}",
    ("append", Results.SOME_GROUPS): f"every group would be stored again by each trigger. "
    f"{_OVERWRITE}",
    ("upsert", Results.SOME_GROUPS): "a group that no longer passes would stay in the table. "
    f"{_OVERWRITE}",
    ("apply_changes", Results.CHANGED_GROUPS): "an aggregate is not a change feed. Apply the feed "
    "itself, in outputMode('append')",
    ("apply_changes", Results.ALL_GROUPS): "an aggregate is not a change feed. Apply the feed "
    "itself, in outputMode('append')",
    ("apply_changes", Results.SOME_GROUPS): "an aggregate is not a change feed. Apply the feed "
    "itself, in outputMode('append')",
    ("overwrite", Results.NEW_ROWS): "only the rows of the last trigger would stay. To keep all "
    "rows, use lance_sink(mode='append')",
    ("overwrite", Results.CHANGED_GROUPS): "only the groups of the last trigger would stay. "
    f"{_OVERWRITE}, or {_UPSERT}",
}
"""Why a mode does not take certain results, and what is right instead."""


def check_output_mode(df: DataFrame, query_id: str | None, mode: str) -> None:
    """Refuse the batch of a query whose results the sink's mode would store wrongly.

    Args:
        df: The batch.
        query_id: The streaming query's id; None or empty where Spark does not tell it.
        mode: The sink's.

    Raises:
        InvalidInputError: The message says what is right instead.
    """
    results = results_of(df, query_id)
    why = None if results is None else REFUSALS.get((mode, results))
    if results is not None and why is not None:
        raise InvalidInputError(
            f"lance_sink(mode={mode!r}) does not fit the query's output mode: each trigger gives "
            f"{results.value}, so {why}. Nothing was written. If this is what you want, set "
            "lance_sink(any_output_mode=True)"
        )


def results_of(df: DataFrame, query_id: str | None) -> Results | None:
    """Return what the rows of a trigger are; None where Spark does not tell.

    Args:
        df: A batch of the query.
        query_id: The streaming query's id.
    """
    if not query_id:
        return None
    with suppress(Exception):  # none of this is a public interface of Spark's
        spark: Any = df.sparkSession
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        query = queries.get(spark._jvm.java.util.UUID.fromString(query_id))
        mode = query.outputMode().toString().lower()
        if mode == "append":
            return Results.NEW_ROWS
        above = list(_nodes_above_aggregation(query.logicalPlan()))
        if mode == "complete":
            return Results.ALL_GROUPS if _KEEPS_ROWS.issuperset(above) else Results.SOME_GROUPS
        return Results.CHANGED_GROUPS if above[-1] == _AGGREGATION else Results.NEW_ROWS
    return None


_AGGREGATION: Final = "Aggregate"
_KEEPS_ROWS: Final = frozenset(
    {
        _AGGREGATION,
        "WriteToMicroBatchDataSource",
        "WriteToMicroBatchDataSourceV1",
        "Project",
        "Sort",
        "SubqueryAlias",
        "View",
        "CollectMetrics",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
    }
)
"""Nodes of a logical plan that give a row for each row they get; and the aggregation itself."""


def _nodes_above_aggregation(plan: Any) -> Iterator[str]:
    """Yield the names of a plan's streaming nodes down to the first aggregation, which is last.

    Without a streaming aggregation the last name is another one.
    """
    pending = [plan]
    while pending:
        node = pending.pop(0)
        if not node.isStreaming() and node is not plan:
            continue
        yield node.nodeName()
        if node.nodeName() == _AGGREGATION:
            return
        children = node.children()
        pending += [children.apply(place) for place in range(children.size())]
