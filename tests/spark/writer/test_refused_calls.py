"""Calls of PySpark's writers that the format cannot serve are refused before Spark starts."""

from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.spark import register
from lance_stream.spark.writer import refused_calls

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("call", ["partitionBy", "clusterBy"])
def test_partitions_are_refused_by_name(call: str, spark: Any, tmp_path: Path) -> None:
    """Spark ignores them for streams, and its error for batches is about an existing table."""
    register(spark)
    batch = getattr(spark.range(3).write.format("lance").mode("append"), call)("id")
    rates = spark.readStream.format("rate").load()
    stream = getattr(rates.writeStream.format("lance"), call)("value")
    for start in (batch.save, stream.start):
        with pytest.raises(InvalidInputError, match="have no partitions or clusters"):
            start(str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()


def test_partitions_are_refused_as_arguments(spark: Any, tmp_path: Path) -> None:
    """The calls that start a write also take the format and the columns."""
    register(spark)
    with pytest.raises(InvalidInputError, match="have no partitions or clusters"):
        spark.range(3).write.save(str(tmp_path / "t"), "lance", "append", partitionBy="id")


def test_other_formats_keep_their_partitions(spark: Any, tmp_path: Path) -> None:
    """The check is in PySpark's own writers."""
    register(spark)
    rows = spark.range(4).selectExpr("id", "id AS part")
    rows.write.partitionBy("part").mode("append").json(str(tmp_path / "files"))
    rows.write.save(str(tmp_path / "files"), "json", "append", partitionBy="part")
    assert (tmp_path / "files" / "part=3").is_dir()


def test_catalog_tables_are_refused_before_starting(spark: Any, tmp_path: Path) -> None:
    """A query that starts leaves a checkpoint behind, and an error that nobody waits for."""
    register(spark)
    stream = spark.readStream.format("rate").load().writeStream.format("lance")
    with pytest.raises(InvalidInputError, match=r"use start\(path\)"):
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("events")
    assert not (tmp_path / "checkpoint").exists()


def test_writers_that_show_nothing_still_write() -> None:
    """A vendor's writer may hide what it was told, and a check must not stop other formats."""

    class Writer:
        def save(self, path: str) -> str:
            return path

    assert refused_calls._checked(Writer.save)(Writer(), "t") == "t"
