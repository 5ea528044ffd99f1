"""The output modes of a query that a sink's mode accepts: the table `REFUSALS`.

The meaning of a trigger's rows depends on the query's output mode, which Spark does not pass to
foreachBatch:

    output mode   query                  the rows of a trigger
    append        any                    new rows
    update        without aggregation    new rows
    update        with aggregation       the groups that changed, each with its new value
    complete      (always aggregates)    all groups, again

    sink mode       new rows    changed groups    all groups
    append          yes         no                no
    upsert          yes         yes               yes, unless groups can leave the result
    apply_changes   yes         no                no
    scd1, scd2      yes         yes               yes, unless groups can leave the result
    overwrite       no          no                yes

If the query is unknown (Spark Connect, a thread of the user's own, a call outside of a streaming
query), nothing is checked.

Groups can disappear from the result of the output mode complete if some rows of the aggregation do
not reach the sink: because of a filter, a limit or an inner join, in the query or in foreachBatch.
An upsert would leave their rows in the table. So in both plans, the batch's from its end to the
rows that Spark passed on and the query's from its end to the aggregation, each node must keep
every key. Rows from elsewhere (a checkpoint of the batch, a DataFrame created from collected rows)
do not reveal what was dropped. Session windows disappear in any plan: a late row merges them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from pyspark.sql import DataFrame

from lance_stream.errors import InvalidInputError
from lance_stream.spark.arguments.choices import MODES
from lance_stream.spark.session.running_queries import output_mode_of


class Results(Enum):
    """What the rows of a trigger are."""

    NEW_ROWS = "only new rows"
    CHANGED_GROUPS = "every group that changed, with its new value"
    ALL_GROUPS = "all groups again"
    SOME_GROUPS = (
        "all groups again, except for those that a filter, a limit, a join, a merge of session "
        "windows or the like removes"
    )


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
    (
        "upsert",
        Results.SOME_GROUPS,
    ): f"a group that the query later removes would stay in the table. {_OVERWRITE}",
    **dict.fromkeys(
        (("scd1", Results.SOME_GROUPS), ("scd2", Results.SOME_GROUPS)),
        "a group that the query later removes would stay current. Use outputMode('update'), and a "
        "column that marks the groups to delete (apply_as_deletes)",
    ),
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
"""Why a mode refuses certain results, and what to use instead."""


def check_output_mode(df: DataFrame, query: Any, mode: str, on: Sequence[str]) -> None:
    """Refuse the batch of a query whose results the sink's mode would store wrongly.

    Args:
        df: The batch.
        query: The streaming query, from `running_query`; None if Spark does not report it.
        mode: The sink's.
        on: The key columns of an upsert.

    Raises:
        InvalidInputError: The output mode does not fit; the message names one that does.
    """
    results = results_of(df, query, on)
    why = None if results is None else REFUSALS.get((mode, results))
    if results is not None and why is not None:
        sink = f"lance_sink(mode={mode!r})" if mode in MODES else "auto_cdc_sink"
        raise InvalidInputError(
            f"{sink} does not fit the query's output mode: each trigger returns {results.value}, "
            f"so {why}. Nothing was written. If this is what you want, set any_output_mode=True"
        )


def results_of(df: DataFrame, query: Any, on: Sequence[str] = ()) -> Results | None:
    """Return the kind of a trigger's rows; None if Spark does not report it.

    Args:
        df: A batch of the query.
        query: The streaming query, from `running_query`; None if Spark does not report it.
        on: The key columns by which the rows are stored.
    """
    if query is None:
        return None
    with suppress(Exception):  # none of this is a public interface of Spark's
        mode = output_mode_of(query)
        if mode == "append":
            return Results.NEW_ROWS
        if mode == "complete":
            return Results.ALL_GROUPS if _keeps_all_groups(df, query, on) else Results.SOME_GROUPS
        return Results.CHANGED_GROUPS if _aggregates(query.logicalPlan()) else Results.NEW_ROWS
    return None


_AGGREGATION: Final = "Aggregate"
_SESSION_WINDOW: Final = "spark.sessionWindow"
"""Spark's mark in the metadata of a column of session windows."""


def _aggregates(plan: Any) -> bool:
    """Return whether a plan has a streaming aggregation."""
    pending = [plan]
    while pending:
        node = pending.pop()
        if _is_streaming_aggregation(node):
            return True
        pending += _items(node.children())
    return False


def _is_streaming_aggregation(node: Any) -> bool:
    return bool(node.isStreaming()) and node.nodeName() == _AGGREGATION


# --- whether all groups of an aggregation reach the sink


def _keeps_all_groups(df: DataFrame, query: Any, on: Sequence[str]) -> bool:
    passed_rdd = query.lastExecution().toRdd().id()
    batch = df._jdf.queryExecution().analyzed()
    key_names = {item.lower() for item in on}
    keys = {_identity(item) for item in _items(batch.output()) if item.name().lower() in key_names}

    def is_passed_to_sink(node: Any) -> bool:
        return node.nodeName() == "LogicalRDD" and bool(node.rdd().id() == passed_rdd)

    return _keeps_keys(batch, is_passed_to_sink, keys) and _keeps_keys(
        query.logicalPlan(), _keeps_its_groups, keys
    )


def _keeps_its_groups(node: Any) -> bool:
    """Return whether a node is the streaming aggregation, and its groups are never merged."""
    return _is_streaming_aggregation(node) and not any(
        column.metadata().contains(_SESSION_WINDOW)
        for expression in _items(node.groupingExpressions())
        for column in _items(expression.references().toSeq())
    )


_KEEPS_ROWS: Final = frozenset(
    {
        "WriteToMicroBatchDataSource",
        "WriteToMicroBatchDataSourceV1",
        "Project",
        "Window",
        "Sort",
        "SubqueryAlias",
        "View",
        "CollectMetrics",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "ResolvedHint",
    }
)
"""Nodes of a logical plan that return a row for each input row."""

_OUTER_SIDES: Final[Mapping[str, tuple[int, ...]]] = {
    "LeftOuter": (0,),
    "RightOuter": (1,),
    "FullOuter": (0, 1),
}
"""The sides of a join that keep all their rows, by join type."""


def _keeps_keys(node: Any, is_source: Callable[[Any], bool], keys: set[str]) -> bool:
    """Return whether a plan's result has every key of the rows of its source.

    Args:
        node: The plan.
        is_source: Whether a node is the source.
        keys: The identities of the key columns.
    """
    if is_source(node):
        return True
    name, children = node.nodeName(), list(_items(node.children()))
    if name == "Union":
        return all(_keeps_keys(child, is_source, keys) for child in children)
    if name == "Join":
        sides = _OUTER_SIDES.get(node.joinType().toString(), ())
        return any(_keeps_keys(children[side], is_source, keys) for side in sides)
    if name == _AGGREGATION and node.groupingExpressions().size() == 0:
        return True  # one row for any input
    keeps_keys = name in _KEEPS_ROWS or (bool(keys) and keys <= _unique_columns(node, name))
    return keeps_keys and len(children) == 1 and _keeps_keys(children[0], is_source, keys)


def _unique_columns(node: Any, name: str) -> set[str]:
    """Return the columns whose values a node keeps; none for other kinds of nodes."""
    if name == "Deduplicate":
        return {_identity(item) for item in _items(node.keys())}
    if name == _AGGREGATION:
        return {_identity(item) for item in _items(node.groupingExpressions())}
    return set()


def _identity(column: Any) -> str:
    """Return a column's id, which it keeps through all nodes of a plan that do not compute it."""
    with suppress(Exception):  # an expression without a name has none
        return str(column.exprId().toString())
    return ""


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
