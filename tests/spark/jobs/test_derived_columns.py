"""Derived columns computed by Spark's tasks."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_stream
from lance_stream import DerivedFunctionError, InvalidInputError
from lance_stream.spark import derive, lance_sink
from lance_stream.table.paths import STAGED_ROWS_DIRECTORY

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
VECTOR = {"vector": pa.list_(pa.float32(), 4)}


def rows(start: int, stop: int) -> pa.Table:
    return pa.table([range(start, stop), [f"text {n}" for n in range(start, stop)]], schema=SCHEMA)


@pytest.mark.essential
def test_tasks_compute_rows_from_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A run has to compute exactly the rows that are new or changed since the last one, set
    failures aside, and leave no staged files.
    """
    uri = str(tmp_path / "t.lance")
    ds = lance_stream.create_dataset(uri, SCHEMA)
    ds.append(rows(0, 500)).append(rows(500, 800))
    factor = 2.0

    def load() -> dict[str, float]:
        import os

        return {"factor": factor, "process": os.getpid()}

    def embed(batch: pa.RecordBatch, model: dict[str, float]) -> Any:
        texts = batch["text"].to_pylist()
        if "bad" in texts:
            raise ValueError("bad")
        return np.array([[len(text) * model["factor"]] * 4 for text in texts], np.float32)

    vectors = derive(
        spark, uri, VECTOR, embed, "text", function_version="1", setup=load, batch_rows=100
    )
    result = vectors.run()
    assert (result.num_computed, result.num_in_place, result.num_commits) == (800, 800, 1)
    sink = lance_sink(uri, mode="upsert", on="id", app_id="texts")
    changed = [(3, "new text"), (799, "bad"), (900, "x")]
    sink(spark.createDataFrame(changed, "id long, text string"), 0)
    result = vectors.run()
    assert (result.num_computed, result.num_failed) == (3, 1)
    records = {row["id"]: row for row in lance_stream.open_dataset(uri).to_table().to_pylist()}
    assert len(records) == 801
    for record in records.values():
        expected = None if record["text"] == "bad" else [len(record["text"]) * 2.0] * 4
        assert record["vector"] == expected
    assert [batch.num_rows for batch in lance_stream.list_quarantine(uri)] == [1]
    assert lance_stream.open_dataset(uri).verify() == []
    assert not list((Path(uri) / STAGED_ROWS_DIRECTORY).glob("*"))  # of tasks, or of the sink


def test_tasks_fill_a_separate_target_table(spark: SparkSession, tmp_path: Path) -> None:
    """With `target=` deletes and updates of the source have to reach another table through its
    change feed.
    """
    uri, beside = str(tmp_path / "t.lance"), str(tmp_path / "beside.lance")
    lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 100))
    lengths = derive(
        spark,
        uri,
        {"length": pa.int64()},
        lambda batch: [len(text) for text in batch["text"].to_pylist()],
        "text",
        function_version="1",
        target=beside,
        copy_columns=["id"],
    )
    lengths.run()
    lance_stream.open_dataset(uri).delete("id < 10").update({"text": "'x'"}, where="id = 50")
    assert lengths.run().num_computed == 1
    records = lance_stream.open_dataset(beside).to_table(["id", "length"]).to_pylist()
    assert {row["id"]: row["length"] for row in records} == {
        n: 1 if n == 50 else len(f"text {n}") for n in range(10, 100)
    }


def test_errors_of_tasks_reach_the_user(spark: SparkSession, tmp_path: Path) -> None:
    """Spark wraps errors of workers in long traces, and a worker that exits leaves none, but the
    user needs the cause in one sentence.
    """
    uri = str(tmp_path / "t.lance")
    lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 100))

    def broken(batch: pa.RecordBatch) -> Any:
        raise KeyError("no model")

    vectors = derive(
        spark, uri, VECTOR, broken, "text", function_version="1", max_failures=5, batch_rows=10
    )
    with pytest.raises(DerivedFunctionError, match=r"more than 5 rows .*no model"):
        vectors.run()
    for end, cause in (sys.exit, r"sys\.exit\(50\)"), (os._exit, "a Python worker of Spark died"):
        ending = derive(
            spark,
            uri,
            VECTOR,
            lambda batch, end=end: (
                end(50) if "text 50" in str(batch["text"]) else [None] * batch.num_rows
            ),
            "text",
            function_version="1",
            batch_rows=10,
        )
        with pytest.raises(DerivedFunctionError, match=cause):
            ending.run()
        assert "vector" not in lance_stream.open_dataset(uri).schema.names
    for returned in np.zeros((VECTOR["vector"].list_size, 10)), {1.0}, None:
        wrong = derive(
            spark, uri, VECTOR, lambda _, r=returned: r, "text", function_version="1", batch_rows=10
        )
        with pytest.raises(DerivedFunctionError, match="returned invalid values for"):
            wrong.run()
    with pytest.raises(InvalidInputError, match=r"call lance_stream\.spark\.derive\(spark, uri"):
        lance_stream.derive(spark, uri, VECTOR, broken, inputs="text", function_version="1")  # type: ignore[arg-type,misc]  # the mistake
    with pytest.raises(InvalidInputError, match="is the Spark session, not"):
        derive(uri, VECTOR, broken, "text", "1", function_version="1")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(InvalidInputError, match=r"function .* cannot be sent .* setup="):
        derive(spark, uri, VECTOR, lambda _: spark.version, "text", function_version="1")
    lock = threading.Lock()
    with pytest.raises(InvalidInputError, match=r"setup .* cannot be sent .*lock"):
        derive(spark, uri, VECTOR, broken, "text", function_version="1", setup=lambda: lock)
