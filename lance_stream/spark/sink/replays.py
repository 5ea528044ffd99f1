"""Repeated batches: a replay by Spark, or other rows under a committed batch id.

Properties of the thread that runs foreachBatch identify the stream. Whether a batch is the
committed one is decided by its rows: Spark's tasks compute them once, and their digest is compared
with the ledger's (`ledger.verdicts`). Computing them also lets the state stores of a stateful
query commit the batch; otherwise they refuse the next one.

Some plans return different rows each time: those that Spark calls nondeterministic, and those
whose rows depend on the order of a shuffle, which Spark does not report. There a batch with
different rows counts as a replay, unless the same run of the query has committed it (see
`batch_calls`).
"""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_stream.ledger.messages import second_rows, unknown_stream
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import RowsDigest, add_up, digest_of
from lance_stream.ledger.verdicts import has_other_rows
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.arrow_jobs import map_in_arrow
from lance_stream.spark.sink.batch import Batch
from lance_stream.spark.sink.reports import SinkCommit
from lance_stream.spark.writer.bad_row_rules import publish_bad_rows

_log = logging.getLogger("lance_stream.sink")


def identify(df: DataFrame, batch_id: int, app_id: str | None, rules: str) -> MicroBatch:
    """Return which micro-batch of which stream a DataFrame is.

    Args:
        df: The batch.
        batch_id: Its batch id.
        app_id: The user's app id, if there is one.
        rules: A fingerprint of the rules by which the rows are applied.

    Raises:
        InvalidInputError: There is no app id, and Spark does not report the query's id.
    """
    query_id = ""
    with suppress(Exception):  # Spark Connect has no SparkContext, and raises various errors
        context = df.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
    name = app_id or query_id
    if not name:
        raise unknown_stream("lance_sink(uri, app_id='...')")
    return MicroBatch(name, batch_id, query_id, rules)


def skip_if_committed(batch: Batch, table: TableVersion) -> SinkCommit | None:
    """Return the outcome of a batch that is already committed; None if it is not.

    The rows of a committed batch id are computed once. A sink that died after its commit may not
    have quarantined the bad ones.

    Args:
        batch: The batch.
        table: The newest version.

    Raises:
        OtherBatchError: The batch id was committed with other rows or rules.
    """
    with batch.phases("plan"):
        if batch.pending.find_in(table) is None:
            return None
        batch = batch.with_names_of(table)
    with batch.phases("replay"):
        df = batch.read()
        digest = batch.call.digest = digest_by_tasks(df)
        pending = batch.pending.with_rows(digest)
        if pending.check(table).rows_differ and (
            batch.arguments.replays_may_differ or rows_may_differ(df, batch.query)
        ):
            pending = replace(pending, may_differ=True)
        entry = pending.find_in(table)
        if entry is None:  # the committed batch is a different one
            batch.call.digest = None
            return None
        if entry.digest and batch.call.is_second(digest, entry.digest):
            raise second_rows(table.uri, entry, pending.batch)
    differs = has_other_rows(entry, digest) and bool(digest.num_rows)
    if differs:
        _log.warning(
            "batch %d of app id %r is already committed to %s, with %s rows of digest %s; it was "
            "repeated with %s. The query's plan is nondeterministic, so the batch is treated as "
            "the same one and skipped",
            *(pending.batch.batch_id, pending.batch.app_id, table.uri),
            *(entry.num_rows, entry.digest, digest),
        )
    publish_bad_rows(batch.arguments, batch.pending.batch, table)
    return replace(batch.outcome, version=entry.version, skipped=True, rows_differ=differs)


# --- the digest of a DataFrame

DIGEST: Final = StructType([StructField("rows", LongType()), StructField("digest", StringType())])
_DIGEST_SCHEMA: Final = pa.schema([("rows", pa.int64()), ("digest", pa.string())])


def digest_by_tasks(df: DataFrame) -> RowsDigest:
    """Return the digest of a DataFrame's rows; each of its partitions is computed once."""
    rows = map_in_arrow(df, _digesting, DIGEST).collect()
    return add_up(RowsDigest.parse(row.rows, row.digest) for row in rows)


def _digesting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    digest = add_up(map(digest_of, batches))
    totals = {"rows": [digest.num_rows], "digest": [digest.text]}
    yield pa.RecordBatch.from_pydict(totals, schema=_DIGEST_SCHEMA)


# --- which plans give the same rows each time


def rows_may_differ(df: DataFrame, query: Any) -> bool:
    """Return whether a batch may have different rows when Spark computes it again.

    If Spark does not show its plans (Spark Connect), they count as deterministic, so that
    different rows raise an error and are not skipped.

    Args:
        df: The batch, as the sink receives it.
        query: Its streaming query; see `running_query`.
    """
    plans = []
    with suppress(Exception):  # none of this is a public interface of Spark's
        plans.append(df._jdf.queryExecution().analyzed())
        if _reads_clock(plans[0]):
            return True
        if query is not None:
            plans.append(query.logicalPlan())
    return any(_may_differ(plan) for plan in plans)


_DETERMINISTIC_NODES: Final = frozenset(
    {
        "Project",
        "Filter",
        "Union",
        "Join",
        "Distinct",
        "Generate",
        "Expand",
        "Sort",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "EventTimeWatermark",
        "UpdateEventTimeWatermarkColumn",
        "SubqueryAlias",
        "View",
        "ResolvedHint",
        "CollectMetrics",
        "WriteToMicroBatchDataSource",
        "WriteToMicroBatchDataSourceV1",
        "LogicalRDD",
        "LocalRelation",
        "Range",
        "OneRowRelation",
    }
)
"""Nodes of a logical plan whose rows do not depend on the order of their input."""

_EXACT_AGGREGATES: Final = frozenset(
    {"count", "sum", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"}
)
_PURE_FUNCTIONS: Final = frozenset(
    {"cast", "coalesce", "window", "named_struct", "struct", "isnull"}
)
_FLOATS: Final = frozenset({"float", "double"})


_CLOCK_FUNCTIONS: Final = re.compile(
    r"\b(current_timestamp|current_date|current_time|localtimestamp|now)\("
)
"""Functions that Spark calls deterministic because their value is constant within a job."""


def _reads_clock(plan: Any) -> bool:
    """Return whether the rows of a batch's own plan contain the time of the job.

    In the query's plan these functions return the batch's time, which Spark keeps for the replay.
    """
    return any(_CLOCK_FUNCTIONS.search(node.expressions().mkString(" ")) for node in _nodes(plan))


def _may_differ(plan: Any) -> bool:
    return not plan.deterministic() or any(not _is_deterministic(node) for node in _nodes(plan))


def _nodes(plan: Any) -> Iterator[Any]:
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        children = node.children()
        pending += [children.apply(index) for index in range(children.size())]


def _is_deterministic(node: Any) -> bool:
    name = node.nodeName()
    if name == "Aggregate":
        return _is_deterministic_aggregate(node)
    if name == "Deduplicate":  # keeps the first of the rows with the same keys
        return bool(node.keys().size() == node.child().output().size())
    if node.children().size() == 0 and node.isStreaming():
        return True
    return name in _DETERMINISTIC_NODES


def _is_deterministic_aggregate(node: Any) -> bool:
    """Return whether no aggregate depends on the order of rows; sums of floats do, by rounding."""
    expressions = node.aggregateExpressions()
    for index in range(expressions.size()):
        expression = expressions.apply(index)
        functions = {name.lower() for name in re.findall(r"(\w+)\(", expression.toString())}
        if functions - _EXACT_AGGREGATES - _PURE_FUNCTIONS:
            return False
        if "sum" in functions and expression.dataType().simpleString() in _FLOATS:
            return False
    return True
