"""Which run of which query a batch belongs to, and how often a batch of the sink asks the JVM."""

import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import DataFrame, SparkSession, functions

from lance_stream.spark import lance_sink
from lance_stream.spark.session.running_queries import output_mode_of, run_of, running_query

pytestmark = pytest.mark.spark


def test_runs_of_queries_are_identified(spark: SparkSession, tmp_path: Path) -> None:
    """The run is cached for its batches, and the next run of the query has the same query id."""
    runs: list[tuple[str, str]] = []

    def note(batch: DataFrame, _batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        query = running_query(batch, query_id)
        runs.append((run_of(query), output_mode_of(query)))

    expected: list[tuple[str, str]] = []
    for run, mode in enumerate(("append", "update")):
        for number in range(2):
            tmp_path.joinpath("in").mkdir(exist_ok=True)
            tmp_path.joinpath("in", f"{run}-{number}.json").write_text('{"id": 1}\n')
        rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        query = (
            rows.json(str(tmp_path / "in"))
            .writeStream.foreachBatch(note)
            .outputMode(mode)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        expected += [(str(query.runId), mode)] * 2
    assert runs == expected
    assert len(set(runs)) == 2


@pytest.mark.since_spark("4.0")  # older ones report the error of a stopped batch
def test_stopping_during_a_batch_raises_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The error is short, because Spark 4.3 overflows its stack on the trace of a Java error."""
    raised: list[Exception] = []
    sink = lance_sink(tmp_path / "table")

    def write(batch: DataFrame, batch_id: int) -> None:
        try:
            sink(batch, batch_id)
        except Exception as error:
            raised.append(error)
            raise

    slowly = functions.udf(lambda number: time.sleep(0.05) or number, "long")
    tmp_path.joinpath("in").mkdir()
    tmp_path.joinpath("in", "1.json").write_text('{"id": 1}\n' * 2000)
    rows = (
        spark.readStream.schema("id long")
        .json(str(tmp_path / "in"))
        .select(slowly("id").alias("id"))
    )
    query = rows.writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 60
    while not tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.05)
    query.stop()
    assert [str(value)[:21] for value in raised] == ["the query was stopped"]
    assert len("".join(traceback.format_exception(raised[0]))) < 2000
    assert query.exception() is None


MAX_CALLS = 20


def test_small_appends_make_few_jvm_calls(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call is a round trip, and a stream of small batches makes them for every batch."""
    calls: list[tuple[int, str]] = []
    send = JavaClient.send_command

    def counted(self: Any, command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith("m"):  # of the garbage collector
            calls.append((threading.get_ident(), command))
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    sink, counts = lance_sink(tmp_path / "table"), []

    def write(batch: DataFrame, batch_id: int) -> None:
        calls.clear()
        sink(batch, batch_id)
        counts.append(sum(thread == threading.get_ident() for thread, _ in calls))

    tmp_path.joinpath("in").mkdir()
    for number in range(4):
        tmp_path.joinpath("in", f"{number}.json").write_text('{"id": 1}\n')
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    query = rows.json(str(tmp_path / "in")).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert len(counts) == 4
    assert 0 < counts[-1] <= MAX_CALLS, calls
