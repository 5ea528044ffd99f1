"""A stream feeds a table with a blob column; its feed and scans return the bytes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.spark import lance_sink, register

pytestmark = pytest.mark.spark

BLOB = {
    "lance-encoding:blob": "true",
    "lance-encoding:blob-inline-size-threshold": "10",
    "lance-encoding:blob-dedicated-size-threshold": "1000",
}


def rows(*sizes: int | None) -> pa.Table:
    values = [None if size is None else bytes([size % 251]) * size for size in sizes]
    return pa.table({"id": pa.array(range(len(sizes))), "image": pa.array(values, pa.binary())})


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.essential
def test_blobs_round_trip_through_a_stream(
    file_stream: Any, tmp_path: Path, spark: Any, version: str
) -> None:
    """Small blobs are stored inline and large ones apart, and scans, the change feed and
    `take_blobs` must return the same bytes and nulls.
    """
    uri = str(tmp_path / "table")
    columns = [pa.field("id", pa.int64()), pa.field("image", pa.large_binary(), metadata=BLOB)]
    lance_stream.create_dataset(uri, pa.schema(columns), version)
    expected = rows(0, None, 5, 300, 5000)
    file_stream.add(expected)
    file_stream.run(lance_sink(uri))

    register(spark)
    pairs = [
        (row["id"], None if row["image"] is None else bytes(row["image"]))
        for row in expected.to_pylist()
    ]
    scanned = spark.read.format("lance").load(uri).orderBy("id").collect()
    read_pairs = [(row.id, None if row.image is None else bytes(row.image)) for row in scanned]
    assert read_pairs == pairs
    feed = spark.read.format("lance").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", 1).load(uri).orderBy("id").collect()
    read_pairs = [(row.id, None if row.image is None else bytes(row.image)) for row in changes]
    assert read_pairs == pairs
    ds = lance_stream.open_dataset(uri)
    large = ds.take_blobs("image", row_offsets=[4])[0]
    assert large is not None
    assert (large.size, large.read(3)) == (5000, bytes([5000 % 251]) * 3)
