"""A sink takes only those results of a streaming query that its mode stores rightly."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.spark import lance_sink
from lance_stream.spark.sink.arguments import MODES
from lance_stream.spark.sink.output_modes import REFUSALS, Results, results_of

pytestmark = pytest.mark.spark

TAKEN = {
    Results.NEW_ROWS: {"append", "upsert", "apply_changes"},
    Results.CHANGED_GROUPS: {"upsert"},
    Results.ALL_GROUPS: {"upsert", "overwrite"},
    Results.SOME_GROUPS: {"overwrite"},
}


def test_each_mode_takes_or_refuses_each_kind_of_result() -> None:
    refused = {pair for pair in REFUSALS if pair[0] in MODES}
    taken = {(mode, results) for results, modes in TAKEN.items() for mode in modes}
    assert refused | taken == {(mode, results) for mode in MODES for results in Results}
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
def test_the_results_of_a_query_are_known_in_its_batches(file_stream: Any, tmp_path: Path) -> None:
    file_stream.add(pa.table({"k": pa.array([1, 1, 2], pa.int64())}))
    found = []
    for name, (output_mode, df, expected) in queries(file_stream.read()).items():

        def note(batch: Any, _: int, name: str = name, expected: Any = expected) -> None:
            batch.count()  # the query's state wants it
            query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            found.append((name, results_of(batch, query_id), expected))
            assert results_of(batch, "") is results_of(batch, "another") is None

        (
            df.writeStream.foreachBatch(note)
            .outputMode(output_mode)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
    assert [each[1] for each in found] == [each[2] for each in found], found
    assert len(found) == len(queries(file_stream.read()))


def test_results_that_do_not_fit_are_taken_when_that_is_said(
    file_stream: Any, tmp_path: Path
) -> None:
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


def test_the_format_refuses_the_output_mode_update(file_stream: Any, tmp_path: Path) -> None:
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
