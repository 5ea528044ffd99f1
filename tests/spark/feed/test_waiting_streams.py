"""Streams that wait for their table: `waitForTable`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import LongType, StringType, StructType

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.spark import register
from lance_stream.spark.source.lance_source import LanceSource
from lance_stream.spark.versions import HAS_READ_LIMITS
from tests.spark.feed.query_runs import Query

USER_SCHEMA = StructType().add("id", LongType()).add("_change_type", StringType())
BOTH = pytest.mark.parametrize("without_start", [False, True] if HAS_READ_LIMITS else [True])
PAST = "2020-01-01T00:00:00"


class WaitingQuery(Query):
    """A query with a user-specified schema."""

    user_schema = USER_SCHEMA

    def _make_reader(self) -> DataSourceStreamReader:
        options = {"readChangeFeed": "true", "waitForTable": "true", **self.options}
        source = LanceSource({"path": self.uri, **options})
        reader = source.streamReader(self.user_schema)
        if self.without_start and HAS_READ_LIMITS:
            of_other: Any = reader
            reader = self.make(of_other.options, of_other.carried, None, of_other._find_table)
        return reader


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [str(id_) for id_ in ids]})


def create(uri: str) -> Dataset:
    """Version 1 inserts 1 and 2, 2 inserts 3, 3 deletes 1, 4 inserts 4."""
    ds = lance_stream.create_dataset(uri, rows(1, 2)).append(rows(3))
    return ds.delete("id = 1").append(rows(4))


def ids(query: Query) -> list[tuple[int, str]]:
    return sorted((row["id"], row["_change_type"][0]) for row in query.rows)


ALL = [(1, "d"), (1, "i"), (2, "i"), (3, "i"), (4, "i")]
STARTS: list[tuple[dict[str, str], list[tuple[int, str]]]] = [
    ({}, [(2, "i"), (3, "i"), (4, "i")]),
    ({"startingVersion": "0"}, ALL),
    ({"startingVersion": "1"}, ALL),
    ({"startingVersion": "3"}, [(1, "d"), (4, "i")]),
    ({"startingVersion": "latest"}, ALL),  # all of it came after the query's start
    ({"startingTimestamp": PAST}, ALL),
]


@BOTH
@pytest.mark.parametrize(("options", "expected"), STARTS)
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_streams_wait_for_their_table(
    tmp_path: Path,
    options: dict[str, str],
    expected: list[tuple[int, str]],
    restarts: int,
    without_start: bool,
) -> None:
    """A consumer may be deployed before the producer has created the table, and may be restarted
    while it waits.
    """
    query = WaitingQuery(str(tmp_path / "t"), options, without_start)
    for _ in range(restarts):
        assert [batch for batch in query.run() if batch] == []
    query.start()
    query.trigger()
    assert query.rows == []
    create(query.uri)
    if restarts == 2:
        query.start()
    while query.trigger():
        pass
    assert ids(query) == expected
    lance_stream.open_dataset(query.uri).append(rows(9))
    query.run()
    assert ids(query) == [*expected, (9, "i")]


@BOTH
def test_streams_wait_for_their_first_version(tmp_path: Path, without_start: bool) -> None:
    """The table may exist before the version at which the user wants to start."""
    ds = create(str(tmp_path / "t"))
    query = WaitingQuery(ds.uri, {"startingVersion": "7"}, without_start)
    query.start()
    query.trigger()
    for number in (5, 6, 7):
        ds = ds.append(rows(number))
        query.trigger()
    assert ids(query) == [(7, "i")]


def test_bounded_runs_ignore_later_tables(tmp_path: Path) -> None:
    """A bounded run fixes its end at the start, so a table that appears later belongs to the next
    run.
    """
    if not HAS_READ_LIMITS:
        pytest.skip("PySpark 4.1 does not say that a run ends")
    query = WaitingQuery(str(tmp_path / "t"), {"startingVersion": "1"})
    query.start()
    query.reader.prepareForTriggerAvailableNow()
    create(query.uri)
    assert query.trigger()  # the first batch, which has no rows
    assert not query.trigger()
    assert query.rows == []
    query.run()
    assert ids(query) == ALL


@BOTH
def test_workers_receive_readers_of_waiting_streams(tmp_path: Path, without_start: bool) -> None:
    """Spark pickles the reader once at the start, before the table and its columns are known."""
    query = WaitingQuery(str(tmp_path / "t"), {"filter": "ID > 2"}, without_start)
    query.start()
    of_workers = cloudpickle.loads(cloudpickle.dumps(query.reader))
    start = query.reader.initialOffset()
    create(query.uri)
    assert query.trigger()
    tables = [
        batch.to_pylist()
        for partition in query.reader.partitions(start, json.loads(query.offsets[-1]))
        for batch in of_workers.read(partition)
    ]
    assert sorted(row["id"] for rows in tables for row in rows) == [3, 4]


@BOTH
def test_deleted_tables_are_not_awaited(tmp_path: Path, without_start: bool) -> None:
    """Waiting is for the first table only, since a new table after a deletion
    has other versions.
    """
    query = WaitingQuery(str(tmp_path / "t"), {"startingVersion": "1"}, without_start)
    create(query.uri)
    query.run()
    assert ids(query) == ALL
    shutil.rmtree(query.uri)
    with pytest.raises(NotFoundError):
        query.run()


@BOTH
def test_columns_are_checked_when_tables_appear(tmp_path: Path, without_start: bool) -> None:
    """The user's schema cannot be checked earlier, and a missing column must
    not arrive as nulls.
    """
    query = WaitingQuery(str(tmp_path / "t"), {}, without_start)
    query.user_schema = StructType().add("no", LongType())
    query.start()
    query.trigger()
    create(query.uri)
    with pytest.raises(InvalidInputError, match="column 'no' does not exist"):
        query.trigger()


def test_waiting_without_schema_explains_the_remedy(tmp_path: Path) -> None:
    """A source without a table cannot tell Spark its columns, so the user has to pass a schema."""
    source = LanceSource({"path": str(tmp_path / "t"), "waitForTable": "true"})
    with pytest.raises(NotFoundError, match="there is no dataset at") as caught:
        source.schema()
    assert "schema(...)" in "".join([str(caught.value), *caught.value.__notes__])


def test_batch_reads_refuse_to_wait(tmp_path: Path) -> None:
    """A batch query has one moment at which the table exists or does not."""
    source = LanceSource({"path": str(tmp_path / "t"), "waitForTable": "true"})
    with pytest.raises(InvalidInputError, match="waitForTable"):
        source.reader(StructType())


# --- in Spark


@pytest.fixture
def queries(spark: Any) -> Iterator[list[Any]]:
    running: list[Any] = []
    yield running
    for span in running:
        span.stop()


@pytest.mark.spark
@pytest.mark.floors
@pytest.mark.slow
@pytest.mark.parametrize("is_feed", [True, False])
def test_spark_queries_wait_for_tables(
    spark: Any, tmp_path: Path, queries: list[Any], is_feed: bool
) -> None:
    """Spark itself has to accept a source without rows and columns of its own, also after a
    restart.
    """
    register(spark)
    uri, ids_read = str(tmp_path / "t"), set[int]()

    def start() -> Any:
        stream = spark.readStream.format("lance").schema("id BIGINT").option("waitForTable", "true")
        df = stream.option("readChangeFeed", is_feed).load(uri)
        writer = df.writeStream.foreachBatch(
            lambda batch, _: ids_read.update(row["id"] for row in batch.collect())
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        queries.append(query)
        return query

    query = start()
    query.processAllAvailable()
    query.stop()
    query = start()
    query.processAllAvailable()
    assert ids_read == set()
    ds = lance_stream.create_dataset(uri, rows(1, 2))
    query.processAllAvailable()
    assert ids_read == {1, 2}
    ds.append(rows(3))
    query.processAllAvailable()
    assert ids_read == {1, 2, 3}
