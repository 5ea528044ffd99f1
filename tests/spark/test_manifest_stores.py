"""A stream into a table with a manifest store, and a stream of its changes."""

from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.spark import lance_sink, register
from tests.servers.buckets import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FORMAT = "lance_in_a_manifest_store"


@pytest.fixture(
    params=[
        pytest.param("dynamodb", marks=pytest.mark.server("moto")),
        pytest.param("postgresql", marks=pytest.mark.server("moto", "postgresql")),
    ]
)
def locations(request: pytest.FixtureRequest, s3_bucket: Bucket) -> tuple[str, str, dict[str, str]]:
    """Two tables' URIs, and the options of both."""
    options = dict(s3_bucket.storage_options)
    if request.param == "postgresql":
        options["manifest_store"] = request.getfixturevalue("postgresql_url")
        options["aws_conditional_put"] = "disabled"
        return f"{s3_bucket.uri}/t", f"{s3_bucket.uri}/replica", options
    table = request.getfixturevalue("dynamodb_table")
    options |= table.storage_options
    uri, query = s3_bucket.uri.replace("s3:", "s3+ddb:"), f"?ddbTableName={table.name}"
    return f"{uri}/t{query}", f"{uri}/replica{query}", options


def rows(*ids: int, value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "value": [value] * len(ids)})


def values_by_id(uri: str, options: dict[str, str]) -> dict[int, str]:
    ds = lance_stream.open_dataset(uri, storage_options=options)
    assert ds.verify() == []
    return {row["id"]: row["value"] for row in ds.to_table().to_pylist()}


@pytest.mark.nightly
def test_replicas_follow_exactly_once_streams(
    spark: Any, file_stream: Any, locations: tuple[str, str, dict[str, str]]
) -> None:
    """The versions of such a table are rows of a database, and sink, replay detection and change
    feed have to work on them alike.
    """
    uri, replica, options = locations
    register(spark, FORMAT, storage_options=options)
    sink = lance_sink(uri, mode="upsert", on=["id"], storage_options=options)
    file_stream.add(rows(1, 2, 3, value="first"))
    file_stream.add(rows(2, 4, value="second"))
    file_stream.run(sink)
    assert sink.last_commit is not None
    newest = sink.last_commit.version
    file_stream.forget_newest_commit()
    file_stream.run(sink)
    assert (sink.last_commit.skipped, sink.last_commit.version) == (True, newest)
    expected = {1: "first", 2: "second", 3: "first", 4: "second"}
    assert values_by_id(uri, options) == expected

    def follow() -> None:
        feed = spark.readStream.format(FORMAT).option("readChangeFeed", "true").load(uri)
        to_replica = lance_sink(replica, mode="apply_changes", on="id", storage_options=options)
        (
            feed.writeStream.foreachBatch(to_replica)
            .option("checkpointLocation", str(file_stream.checkpoints / "replica"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    follow()
    frame = spark.createDataFrame([(5, "third")], "id bigint, value string")
    frame.write.format(FORMAT).mode("append").save(uri)
    follow()
    assert values_by_id(replica, options) == values_by_id(uri, options) == expected | {5: "third"}
    assert spark.read.format(FORMAT).load(uri).count() == 5
