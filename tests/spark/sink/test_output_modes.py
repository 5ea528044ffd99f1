"""A sink takes only the results of a streaming query that its mode stores correctly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions

import lance_stream
from lance_stream.spark import lance_sink
from lance_stream.spark.arguments.choices import SINK_MODES
from lance_stream.spark.session.running_queries import running_query
from lance_stream.spark.sink.output_modes import REFUSALS, Results, results_of

pytestmark = pytest.mark.spark

TAKEN = {
    Results.NEW_ROWS: {"append", "upsert", "apply_changes", "scd1", "scd2"},
    Results.CHANGED_GROUPS: {"upsert", "scd1", "scd2"},
    Results.ALL_GROUPS: {"upsert", "overwrite", "scd1", "scd2"},
    Results.SOME_GROUPS: {"overwrite"},
}


@pytest.mark.essential
def test_every_result_is_taken_or_refused() -> None:
    """A new mode or kind of result must be decided on, since by default it would be stored wrongly
    or refused without reason.
    """
    refused = {pair for pair in REFUSALS if pair[0] in SINK_MODES}
    taken = {(mode, results) for results, modes in TAKEN.items() for mode in modes}
    assert refused | taken == {(mode, results) for mode in SINK_MODES for results in Results}
    assert not refused & taken


def queries(rows: Any) -> dict[str, tuple[str, Any, Results]]:
    groups = rows.groupBy("k").count()
    static = rows.sparkSession.range(10).groupBy("id").count()
    return {
        "append": ("append", rows, Results.NEW_ROWS),
        "update": ("update", rows, Results.NEW_ROWS),
        "update without doubles": ("update", rows.dropDuplicates(["k"]), Results.NEW_ROWS),
        "update beside an aggregate": (
            "update",
            rows.join(static, rows.k == static.id),
            Results.NEW_ROWS,
        ),
        "update of groups": ("update", groups.filter("count > 0"), Results.CHANGED_GROUPS),
        "complete": ("complete", groups.selectExpr("k", "count AS n"), Results.ALL_GROUPS),
        "complete with a filter": ("complete", groups.filter("count > 1"), Results.SOME_GROUPS),
    }


@pytest.mark.slow
def test_results_of_a_query_are_recognized(file_stream: Any, tmp_path: Path) -> None:
    """The kind of a result is read from Spark's plan, whose classes may change with a release."""
    file_stream.add(pa.table({"k": pa.array([1, 1, 2], pa.int64())}))
    outcomes = []
    for name, (output_mode, df, expected) in queries(file_stream.read()).items():

        def note(batch: Any, _: int, name: str = name, expected: Any = expected) -> None:
            batch.count()  # the query's state wants it
            query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            outcomes.append((name, results_of(batch, running_query(batch, query_id)), expected))
            assert running_query(batch, "") is running_query(batch, "another") is None
            assert results_of(batch, None) is None

        (
            df.writeStream.foreachBatch(note)
            .outputMode(output_mode)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
    assert [row[1] for row in outcomes] == [row[2] for row in outcomes], outcomes
    assert len(outcomes) == len(queries(file_stream.read()))


EVERY_GROUP: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda batch: batch,
    "another column": lambda batch: batch.withColumn("one", functions.lit(1)).toDF("k", "n", "one"),
    "some columns": lambda batch: batch.select("K"),
    "distinct": lambda batch: batch.distinct(),
    "no doubles by key": lambda batch: batch.dropDuplicates(["k"]),
    "one row a key": lambda batch: batch.groupBy("k").agg(functions.max("count")),
    "sorted": lambda batch: batch.alias("t").orderBy("k").repartition(2, "k").hint("rebalance"),
    "kept": lambda batch: batch.persist(),
    "watched": lambda batch: batch.observe("seen", functions.count("*")),
    "ranked": lambda batch: batch.selectExpr("k", "rank() OVER (ORDER BY count) AS place"),
    "with names": lambda batch: batch.join(names(batch), "k", "left"),
    "named": lambda batch: names(batch).join(batch, "k", "right"),
    "and the sum": lambda batch: batch.union(batch.selectExpr("-1L AS k", "sum(count)")),
}
SOME_GROUPS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda batch: batch.filter("count < 2").withColumn("one", functions.lit(1)),
    "limit": lambda batch: batch.orderBy("k").limit(1),
    "the first of a rank": lambda batch: batch.selectExpr(
        "k", "rank() OVER (ORDER BY count) AS place"
    ).filter("place = 1"),
    "no doubles by another column": lambda batch: batch.dropDuplicates(["count"]),
    "one row of another column": lambda batch: batch.groupBy("count").agg(
        functions.max("k").alias("k")
    ),
    "inner join": lambda batch: batch.join(names(batch), "k"),
    "left join of it": lambda batch: names(batch).join(batch, "k", "left"),
    "semi join": lambda batch: batch.join(names(batch), "k", "left_semi"),
    "except": lambda batch: batch.exceptAll(batch.filter("count > 1")),
    "and others": lambda batch: batch.union(names(batch).selectExpr("k", "0L")),
    "exploded": lambda batch: batch.selectExpr("explode(array_repeat(k, int(2 - count))) AS k"),
    "sample": lambda batch: batch.sample(0.5),
    "by Python": lambda batch: batch.mapInArrow(lambda batches: batches, batch.schema),
    "checkpoint of a filter": lambda batch: batch.filter("count < 2").localCheckpoint(eager=False),
    "rows of Python": lambda batch: batch.sparkSession.createDataFrame([(1, 1)], batch.schema),
}


def names(batch: Any) -> Any:
    return batch.sparkSession.range(3).selectExpr("id AS k", "'a' AS name")


def test_sessions_that_may_merge_are_noticed(file_stream: Any) -> None:
    """A late row merges two sessions: the group of the second one no longer exists."""
    file_stream.add(pa.table({"k": pa.array([1, 20], pa.int64())}))
    outcomes = []

    def note(batch: Any, _: int) -> None:
        batch.count()  # the query's state wants it
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        outcomes.append(results_of(batch, running_query(batch, query_id), ["k"]))

    rows = file_stream.read().withColumn("at", functions.timestamp_seconds("k"))
    session = functions.session_window("at", "15 seconds")
    file_stream.run(note, df=rows.groupBy("k", session).count())
    assert outcomes == [Results.SOME_GROUPS]


@pytest.mark.floors
def test_filtered_groups_are_noticed(file_stream: Any) -> None:
    """The program drops groups between the query and the sink, which then never removes them from
    the table.
    """
    file_stream.add(pa.table({"k": pa.array([1, 1, 2], pa.int64())}))
    outcomes = {}

    def note(batch: Any, _: int) -> None:
        batch.count()  # the query's state wants it
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        query = running_query(batch, query_id)
        for name, change in {**EVERY_GROUP, **SOME_GROUPS}.items():
            outcomes[name] = results_of(change(batch), query, ["k"])

    file_stream.run(note, df=file_stream.read().groupBy("k").count())
    assert outcomes == {
        **dict.fromkeys(EVERY_GROUP, Results.ALL_GROUPS),
        **dict.fromkeys(SOME_GROUPS, Results.SOME_GROUPS),
    }


def test_filtered_complete_results_refuse_upserts(file_stream: Any, tmp_path: Path) -> None:
    """A complete result without some groups cannot tell which ones were removed."""
    file_stream.add(pa.table({"k": pa.array([1], pa.int64())}))
    sink = lance_sink(str(tmp_path / "table"), mode="upsert", on="k")
    with pytest.raises(Exception, match="a group that the query later removes would stay"):
        file_stream.run(
            lambda batch, batch_id: sink(batch.filter("count < 2"), batch_id),
            df=file_stream.read().groupBy("k").count(),
        )
    assert not (tmp_path / "table").exists()


def test_any_output_mode_can_be_allowed(file_stream: Any, tmp_path: Path) -> None:
    """A history of all results is a valid use, but only if the user asks for it."""
    file_stream.add(pa.table({"k": pa.array([1], pa.int64())}))
    file_stream.add(pa.table({"k": pa.array([1, 2], pa.int64())}))
    history = str(tmp_path / "history")
    counts = file_stream.read().groupBy("k").count()
    with pytest.raises(Exception, match=r"lance_sink\(mode='append'\) does not fit"):
        file_stream.run(lance_sink(history), df=counts)
    assert not Path(history).exists()
    file_stream.run(lance_sink(history, any_output_mode=True), df=counts)
    rows = lance_stream.open_dataset(history).to_table().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, 1), (1, 2), (2, 1)]


@pytest.mark.since_spark("4.1")
def test_the_format_refuses_update_mode(file_stream: Any, tmp_path: Path) -> None:
    """Spark would append updated groups as new rows."""
    file_stream.add(pa.table({"k": pa.array([1], pa.int64())}))
    lance_stream.spark.register(file_stream.spark)
    query = (
        file_stream.read()
        .groupBy("k")
        .count()
        .writeStream.format("lance")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "table"))
    )
    with pytest.raises(Exception, match="Update"):
        query.awaitTermination()
    assert not (tmp_path / "table").exists()
