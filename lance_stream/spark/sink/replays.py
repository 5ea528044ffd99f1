"""A batch that comes again: a replay of Spark's, or other rows under an old number.

Which stream a batch belongs to Spark says in properties of the thread that runs foreachBatch.
Whether a batch is the one that the table has its rows say: they are computed once, in Spark's
tasks, and their digest is held against the ledger's (`write.batch_proofs`). Computing them also
lets the state stores of a stateful query commit the batch, without which they refuse the next one.

Some plans give other rows each time: those that Spark calls not deterministic, and those whose
rows depend on the order in which a shuffle brings them, which Spark does not say. There a batch
that comes with other rows is taken for a replay, unless this very run of the query has put it in
(see `runs`).
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

from lance_stream.errors import InvalidInputError, OtherBatchError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arrow_jobs import map_in_arrow
from lance_stream.spark.sink.running_queries import running_query
from lance_stream.spark.sink.runs import Call
from lance_stream.table.ledger import LedgerEntry
from lance_stream.write.batch_proofs import MicroBatch, has_other_rows, second_rows
from lance_stream.write.micro_batches import find_taken_in
from lance_stream.write.row_digests import RowsDigest, add_up, digest_of

_log = logging.getLogger("lance_stream.sink")


def identify(df: DataFrame, batch_id: int, app_id: str | None, rules: str = "") -> MicroBatch:
    """Return which micro-batch of which stream a DataFrame is.

    Args:
        df: The batch.
        batch_id: Its number.
        app_id: The stream's name, if the user gave it one.
        rules: A fingerprint of the rules by which the rows are taken in.

    Raises:
        InvalidInputError: It has no name, and Spark does not tell the query's id.
    """
    query_id = local_property(df, "sql.streaming.queryId")
    name = app_id or query_id
    if not name:
        raise InvalidInputError(
            "the sink does not know which stream this batch belongs to: Spark did not tell the "
            "id of a streaming query. It does so in the thread that runs foreachBatch, but not "
            "through Spark Connect, not in threads of your own, and not outside of a streaming "
            "query. Give the stream a name: lance_sink(uri, app_id='...')"
        )
    return MicroBatch(name, batch_id, query_id, rules)


def local_property(df: DataFrame, name: str) -> str:
    """Return what Spark tells the thread that runs foreachBatch; empty where it does not."""
    with suppress(Exception):  # Spark Connect has no SparkContext, and says so in many ways
        return df.sparkSession.sparkContext.getLocalProperty(name) or ""
    return ""


def hold_against(
    table: TableVersion, batch: MicroBatch, df: DataFrame, call: Call, *, may_differ: bool
) -> tuple[LedgerEntry | None, bool]:
    """Return what says that a batch is in, and whether it now has other rows than it had then.

    Args:
        table: A version that has a batch of this number.
        batch: The batch.
        df: Its rows, as the sink reads them; they are computed once.
        call: The sink's call; it is told the digest of the rows.
        may_differ: Whether the user says that a batch may have other rows each time.

    Returns:
        The entry; None if what is in is another batch, and this one is new.

    Raises:
        OtherBatchError: A batch with other rows, or by other rules, is in under this number.
    """
    call.digest = digest_by_tasks(df)
    known = replace(batch, digest=call.digest)
    try:
        entry = find_taken_in(table, known)
    except OtherBatchError:
        if not (may_differ or rows_may_differ(df, batch.query_id)):
            raise
        entry = find_taken_in(table, replace(known, may_differ=True))
    else:
        if entry is None and (may_differ or rows_may_differ(df, batch.query_id)):
            entry = find_taken_in(table, replace(known, may_differ=True))
    if entry is None:
        return None, False
    if entry.digest and call.is_second(call.digest, entry.digest):
        raise second_rows(table, entry, known)
    differs = has_other_rows(entry, known) and bool(call.digest.num_rows)
    if differs:
        _log.warning(
            "batch %d of app id %r is in %s already, with %s rows of digest %s; it has come again "
            "with %s. The query's plan does not promise the same rows each time, so it is taken "
            "for the same batch and skipped",
            *(batch.batch_id, batch.app_id, table.uri, entry.num_rows, entry.digest, known.digest),
        )
    return entry, differs


# --- the digest of a DataFrame

DIGEST: Final = StructType([StructField("rows", LongType()), StructField("digest", StringType())])
_DIGEST_SCHEMA: Final = pa.schema([("rows", pa.int64()), ("digest", pa.string())])


def digest_by_tasks(df: DataFrame) -> RowsDigest:
    """Return the digest of a DataFrame's rows; each of its partitions is computed once."""
    rows = map_in_arrow(df, _digesting, DIGEST).collect()
    return add_up(RowsDigest.parse(row.rows, row.digest) for row in rows)


def _digesting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    digest = add_up(map(digest_of, batches))
    told = {"rows": [digest.num_rows], "digest": [digest.text]}
    yield pa.RecordBatch.from_pydict(told, schema=_DIGEST_SCHEMA)


# --- which plans give the same rows each time


def rows_may_differ(df: DataFrame, query_id: str) -> bool:
    """Say whether Spark's plans leave it open which rows a batch has when it is computed again.

    Where Spark does not show its plans (Spark Connect) they are taken for deterministic, so that
    other rows are an error and not left out.

    Args:
        df: The batch, as it goes into the sink.
        query_id: The streaming query that gave it; empty if it is not known.
    """
    plans = []
    with suppress(Exception):  # none of this is a public interface of Spark's
        plans.append(df._jdf.queryExecution().analyzed())
        if _asks_the_clock(plans[0]):
            return True
        query = running_query(df, query_id)
        if query is not None:
            plans.append(query.logicalPlan())
    return any(_may_differ(plan) for plan in plans)


_GIVES_THE_SAME: Final = frozenset(
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
"""Nodes of a logical plan whose rows do not depend on the order of the rows that they get."""

_SAME_SUMS: Final = frozenset(
    {"count", "sum", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"}
)
_HARMLESS: Final = frozenset({"cast", "coalesce", "window", "named_struct", "struct", "isnull"})
_INEXACT: Final = frozenset({"float", "double"})


_CLOCK: Final = re.compile(r"\b(current_timestamp|current_date|current_time|localtimestamp|now)\(")
"""Functions that Spark calls deterministic, for they have one value in a job: each job another."""


def _asks_the_clock(plan: Any) -> bool:
    """Say whether a batch's own plan has the time of the job in its rows.

    In the query's plan they have the batch's time, which Spark keeps for the replay.
    """
    return any(_CLOCK.search(node.expressions().mkString(" ")) for node in _nodes(plan))


def _may_differ(plan: Any) -> bool:
    return not plan.deterministic() or any(not _is_settled(each) for each in _nodes(plan))


def _nodes(plan: Any) -> Iterator[Any]:
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        children = node.children()
        pending += [children.apply(place) for place in range(children.size())]


def _is_settled(node: Any) -> bool:
    name = node.nodeName()
    if name == "Aggregate":
        return _is_settled_aggregate(node)
    if name == "Deduplicate":  # of rows with the same keys the first one stays
        return bool(node.keys().size() == node.child().output().size())
    if node.children().size() == 0 and node.isStreaming():
        return True
    return name in _GIVES_THE_SAME


def _is_settled_aggregate(node: Any) -> bool:
    """Say whether no aggregate depends on the order of rows: sums of floats do, by rounding."""
    expressions = node.aggregateExpressions()
    for place in range(expressions.size()):
        expression = expressions.apply(place)
        functions = {each.lower() for each in re.findall(r"(\w+)\(", expression.toString())}
        if functions - _SAME_SUMS - _HARMLESS:
            return False
        if "sum" in functions and expression.dataType().simpleString() in _INEXACT:
            return False
    return True
