"""Streams of embeddings become tables of vectors."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from lance_stream.errors import InvalidInputError
from lance_stream.spark import lance_sink, register

pytestmark = [pytest.mark.spark, pytest.mark.oracle]


def embeddings(spark: Any, start: int) -> DataFrame:
    """Return 20 rows, whose vector of 4 items begins with the id."""
    ids = spark.range(start, start + 20)
    return ids.selectExpr("id", "array(float(id), float(1), float(2), float(3)) AS embedding")


def nearest(uri: str, first_item: float) -> int:
    """Return the id that pylance finds for a vector."""
    query = np.array([first_item, 1, 2, 3], np.float32)
    rows = lance.dataset(uri).to_table(nearest={"column": "embedding", "q": query, "k": 1})
    return int(rows["id"][0].as_py())


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_streamed_vectors_can_be_searched(spark: Any, tmp_path: Path, mode: str) -> None:
    """Later batches, too, become vectors that another engine searches."""
    uri = str(tmp_path / "t")
    on = {"on": "id"} if mode == "upsert" else {}
    sink = lance_sink(
        uri, mode=mode, app_id="a", create_options={"vectors": {"embedding": 4}}, **on
    )
    sink(embeddings(spark, 0), 0)
    sink(embeddings(spark, 20), 1)
    assert lance.dataset(uri).schema.field("embedding").type == pa.list_(pa.float32(), 4)
    assert nearest(uri, 33.2) == 33


@pytest.mark.parametrize("mode", ["", "upsert"])
def test_the_format_stores_vectors(spark: Any, tmp_path: Path, mode: str) -> None:
    """`df.write` declares vectors by an option."""
    register(spark)
    uri = str(tmp_path / "t")
    options = {"vectors": "embedding:4"} | ({"mode": mode, "on": "id"} if mode else {})
    for start in (0, 20):
        embeddings(spark, start).write.format("lance").mode("append").options(**options).save(uri)
    assert nearest(uri, 33.2) == 33


def test_column_metadata_declares_vectors(spark: Any, tmp_path: Path) -> None:
    """A program written for lance-spark needs no other declaration."""
    uri = str(tmp_path / "t")
    size = {"arrow.fixed-size-list.size": 4}
    df = embeddings(spark, 0).withColumn("embedding", f.col("embedding").alias("", metadata=size))
    lance_sink(uri, app_id="a")(df, 0)
    assert nearest(uri, 3.2) == 3


def test_undeclared_vectors_are_noticed(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The type of a column cannot be changed once a stream has filled it."""
    df = spark.range(20).selectExpr(
        "id", "array_repeat(float(id), 16) AS v", "array_repeat(float(id), int(id % 3)) AS w"
    )
    sink = lance_sink(str(tmp_path / "t"), app_id="a")
    sink(df, 0)
    (hint,) = [record.getMessage() for record in caplog.records if "vectors" in record.message]
    assert "all lists in v have one length" in hint
    assert "create_options={'vectors': {'v': 16}}" in hint
    sink(df, 1)
    assert len([record for record in caplog.records if "vectors" in record.message]) == 1


def test_vectors_of_another_size_are_refused(spark: Any, tmp_path: Path) -> None:
    """A model that changes its dimension must not end in a table that nobody can search."""
    sink = lance_sink(str(tmp_path / "t"), app_id="a", create_options={"vectors": {"embedding": 5}})
    with pytest.raises(InvalidInputError, match="5"):
        sink(embeddings(spark, 0), 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"embedding": 0}, "must map columns to their numbers of items"),
        ({"embedding": "768"}, "must map columns to their numbers of items"),
        (768, "must map columns to their numbers of items"),
    ],
)
def test_bad_sizes_are_refused_at_once(tmp_path: Path, value: Any, message: str) -> None:
    """The first batch may come hours after the stream was defined."""
    with pytest.raises(InvalidInputError, match=message):
        lance_sink(str(tmp_path / "t"), app_id="a", create_options={"vectors": value})
