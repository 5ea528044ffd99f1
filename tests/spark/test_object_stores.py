"""Streams, the feed, batches and SQL on tables in object stores."""

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, StoreRefusedError
from lance_stream.maintenance.consumers import list_consumers
from lance_stream.snapshot.opening import open_newest
from lance_stream.spark import lance_sink, register
from lance_stream.storage.locations import open_store
from tests.servers.buckets import Bucket
from tests.servers.moto import DynamoTable

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FORMAT = "lance_on_a_store"
CDC = {
    "mode": "upsert",
    "on": ["id"],
    "sequence_by": "seq",
    "delete_when": "op = 'd'",
    "except_columns": ["op"],
}


def changes(number: int) -> pa.Table:
    """Rows 0 to 9 of batch 0; later ones change row 1, delete row `number` and add two."""
    if number == 0:
        ids, ops = list(range(10)), ["u"] * 10
    else:
        ids, ops = [1, number + 1, 8 + 2 * number, 9 + 2 * number], ["u", "d", "u", "u"]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "value": [f"batch {number}"] * len(ids),
            "seq": pa.array([number] * len(ids), pa.int64()),
            "op": ops,
        }
    )


def expected(num_batches: int) -> dict[int, str]:
    rows: dict[int, str] = {}
    for number in range(num_batches):
        for row in changes(number).to_pylist():
            if row["op"] == "d":
                rows.pop(row["id"], None)
            else:
                rows[row["id"]] = row["value"]
    return rows


def rows_of(uri: str, options: dict[str, str]) -> dict[int, str]:
    ds = lance_stream.open_dataset(uri, storage_options=options)
    assert ds.verify() == []
    return {row["id"]: row["value"] for row in ds.to_table(["id", "value"]).to_pylist()}


def test_streams_round_trip_through_stores(
    spark: Any, file_stream: Any, any_bucket: Bucket
) -> None:
    """The sink, compaction, the change feed, scans and numbered writes each open the store
    themselves and must all use its options.
    """
    options = any_bucket.storage_options
    uri, replica = f"{any_bucket.uri}/some tables/customers.lance", f"{any_bucket.uri}/replica"
    register(spark, FORMAT, storage_options=options)
    sink = lance_sink(uri, compact=2, storage_options=options, **CDC)
    for number in range(5):
        file_stream.add(changes(number))
    file_stream.run(sink)
    assert sink.wait_for_compaction(60)
    assert rows_of(uri, options) == expected(5)

    def follow() -> None:
        feed = spark.readStream.format(FORMAT).option("readChangeFeed", "true")
        query = (
            feed.option("consumer", "replica")
            .load(uri)
            .writeStream.foreachBatch(
                lance_sink(replica, mode="apply_changes", on="id", storage_options=options)
            )
            .option("checkpointLocation", str(file_stream.checkpoints / "replica"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    follow()
    file_stream.add(changes(5))
    file_stream.run(sink)
    assert sink.last_commit is not None
    newest = sink.last_commit.version
    file_stream.forget_newest_commit()
    file_stream.run(sink)
    assert (sink.last_commit.skipped, sink.last_commit.version) == (True, newest)
    follow()
    assert rows_of(replica, options) == rows_of(uri, options) == expected(6)
    (consumer,) = list_consumers(open_newest(uri, storage_options=options).refs)
    assert consumer.name == "replica"

    batch = spark.read.format(FORMAT).option("readChangeFeed", "true")
    feed_rows = batch.option("startingVersion", newest).load(uri).orderBy("_rowid").collect()
    by_sql = spark.sql(
        f"SELECT * FROM {FORMAT}_changes('{uri}', {newest}) ORDER BY _rowid"
    ).collect()
    assert [(row.id, row._change_type) for row in feed_rows] == [
        (row.id, row._change_type) for row in by_sql
    ]
    assert {"insert", "delete", "update_preimage", "update_postimage"} == {
        row._change_type for row in feed_rows
    }

    rows = spark.read.format(FORMAT).load(uri)
    assert {row.id: row.value for row in rows.collect()} == expected(6)
    copy = f"{any_bucket.uri}/copy"
    write = rows.repartition(2).write.format(FORMAT).option("txnAppId", "a")
    for _ in range(2):
        write.option("txnVersion", 1).mode("append").save(copy)
    assert rows_of(copy, options) == expected(6)


@pytest.fixture
def s3a_settings(spark: Any, s3_bucket: Bucket) -> Iterator[Bucket]:
    """A bucket that only Spark's own settings know how to reach."""
    options = s3_bucket.storage_options
    settings = {
        "fs.s3a.endpoint": s3_bucket.endpoint.removeprefix("http://"),
        "fs.s3a.connection.ssl.enabled": "false",
        f"fs.s3a.bucket.{s3_bucket.name}.access.key": options["aws_access_key_id"],
        f"fs.s3a.bucket.{s3_bucket.name}.secret.key": options["aws_secret_access_key"],
        "fs.s3a.endpoint.region": options["aws_region"],
        "fs.s3a.path.style.access": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield s3_bucket
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.nightly
def test_spark_settings_suffice_for_s3(spark: Any, file_stream: Any, s3a_settings: Bucket) -> None:
    """On a cluster with `fs.s3a` settings no option should be needed, and options that are given
    must take precedence without being shown.
    """
    uri = f"s3a://{s3a_settings.name}/events"
    register(spark, FORMAT)
    for number in range(2):
        file_stream.add(changes(number))
    file_stream.run(lance_sink(uri, **CDC))
    assert rows_of(uri, s3a_settings.storage_options) == expected(2)
    assert spark.read.format(FORMAT).load(uri).count() == len(expected(2))
    spark.read.format(FORMAT).load(uri).write.format(FORMAT).mode("append").save(f"{uri}-2")
    assert spark.sql(f"SELECT * FROM {FORMAT}_changes('{uri}-2', 0)").count() == len(expected(2))
    theirs = lance_sink(uri, storage_options={"aws_endpoint": "http://127.0.0.1:9"}, app_id="a")
    assert "aws" not in repr(theirs)


@pytest.mark.nightly
def test_registering_again_updates_the_settings(spark: Any, s3_bucket: Bucket) -> None:
    """Rotated credentials would otherwise require a restart of the session."""
    uri = f"{s3_bucket.uri}/events"
    lance_stream.create_dataset(
        uri, pa.schema([("id", pa.int64())]), storage_options=s3_bucket.storage_options
    )
    register(spark, FORMAT, storage_options={**s3_bucket.storage_options, "aws_endpoint": ""})
    with pytest.raises(Exception, match="endpoint"):
        spark.read.format(FORMAT).load(uri)
    register(spark, FORMAT, storage_options=s3_bucket.storage_options)
    assert spark.read.format(FORMAT).load(uri).count() == 0


def test_workers_reuse_one_client(spark: Any, any_bucket: Bucket) -> None:
    """Workers are forked by a daemon that has opened no store, whatever the driver has done, and a
    client for every task would repeat the handshake.
    """
    store = open_store(f"{any_bucket.uri}/t", any_bucket.storage_options)
    store.write("a", b"written by the driver")

    def ask(numbers: Iterator[int]) -> Iterator[tuple[int, bytes, int, int]]:
        from lance_stream.storage.objects import clients

        for _ in numbers:
            yield (
                os.getpid(),
                store.read("a"),
                len(clients._connections),
                id(next(iter(clients._connections.values()))),
            )

    clients_of_tasks = [
        value
        for _ in range(2)
        for value in spark.sparkContext.parallelize(range(4), 2).mapPartitions(ask).collect()
    ]
    assert {read for _, read, _, _ in clients_of_tasks} == {b"written by the driver"}
    by_worker: dict[int, set[tuple[int, int]]] = {}
    for pid, _, num_clients, client in clients_of_tasks:
        by_worker.setdefault(pid, set()).add((num_clients, client))
    assert os.getpid() not in by_worker
    assert len(by_worker) <= 2, "workers are used again"


def test_refusals_name_the_bucket(spark: Any, s3_bucket: Bucket) -> None:
    """An error of the store's client rarely says which location was refused, and a job has
    several.
    """
    options = s3_bucket.storage_options
    sink = lance_sink("s3://no-such-bucket/t", app_id="a", storage_options=options)
    with pytest.raises(StoreRefusedError, match="no-such-bucket"):
        sink(spark.range(3), 0)


@pytest.mark.nightly
def test_a_stream_writes_versions_to_dynamodb(
    spark: Any, file_stream: Any, s3_bucket: Bucket, dynamodb_table: DynamoTable
) -> None:
    """Without the database of versions two writers on S3 could overwrite each other, so an URI
    that leaves it out must be refused.
    """
    options = {**s3_bucket.storage_options, **dynamodb_table.storage_options}
    uri = f"s3+ddb://{s3_bucket.name}/customers?ddbTableName={dynamodb_table.name}"
    register(spark, FORMAT, storage_options=options)
    sink = lance_sink(uri, compact=2, storage_options=options, **CDC)
    for number in range(3):
        file_stream.add(changes(number))
    file_stream.run(sink)
    assert sink.wait_for_compaction(60)
    assert sink.last_commit is not None
    before = sink.last_commit.version
    file_stream.forget_newest_commit()
    file_stream.run(sink)
    assert (sink.last_commit.skipped, sink.last_commit.version) == (True, before)
    assert rows_of(uri, options) == expected(3)
    rows = spark.read.format(FORMAT).load(uri)
    assert {row.id: row.value for row in rows.collect()} == expected(3)
    feed = spark.read.format(FORMAT).option("readChangeFeed", "true")
    assert feed.option("startingVersion", 0).load(uri).count() > len(expected(3))
    with pytest.raises(InvalidInputError, match="manifest_store"):
        lance_sink(f"{s3_bucket.uri}/customers", app_id="b", storage_options=options, **CDC)(
            spark.createDataFrame(changes(1)), 0
        )
