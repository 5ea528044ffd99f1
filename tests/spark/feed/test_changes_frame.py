"""`read_changes`: the change feed as a DataFrame, without the processes that plan a format."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lance_stream
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.spark import read_changes, register
from lance_stream.spark.feed import changes_frame
from lance_stream.spark.jobs import arrow_jobs
from lance_stream.spark.jobs.arrow_jobs import settings

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.uint8()),
        ("when", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("text", pa.large_string()),
        ("bytes", pa.binary(2)),
        ("vector", pa.list_(pa.float32(), 2)),
        ("part", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)


def rows(*ids: int, small: int = 1) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": id_,
                "small": small,
                "when": id_ * 1_000_000,
                "local": id_ * 1_000_000,
                "text": None if id_ % 3 == 0 else f"text {id_}",
                "bytes": b"ab",
                "vector": [0.5, float(id_)],
                "part": {"a": id_, "b": None},
            }
            for id_ in ids
        ],
        SCHEMA,
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with an append, an upsert and a delete: versions 2, 3 and 4."""
    where = str(tmp_path / "t")
    ds = lance_stream.create_dataset(where, SCHEMA, primary_key=["id"]).append(rows(*range(10)))
    ds.upsert(rows(3, 4, 10, small=2), on="id").delete("id = 5")
    return where


def by_format(spark: SparkSession, uri: str, options: Mapping[str, Any]) -> DataFrame:
    register(spark)
    return spark.read.format("lance").option("readChangeFeed", True).options(**options).load(uri)


@pytest.fixture(params=["the driver", "the driver as Arrow data", "tasks"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select what reads the rows, and how they reach Spark."""
    if request.param == "tasks":
        monkeypatch.setattr(changes_frame, "MAX_LOCAL_BYTES", -1)
    if request.param == "the driver as Arrow data":
        monkeypatch.setattr(arrow_jobs, "MAX_BYTES_IN_PLAN", 0)
        monkeypatch.setattr(arrow_jobs, "MIN_PARTITION_BYTES", 64)
    return str(request.param)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(
    "options",
    [
        {"startingVersion": 1},
        {"startingVersion": 2, "endingVersion": 3},
        {"startingVersion": 3, "preImages": False, "columns": "ID,small"},
        {"startingVersion": 2, "deduplicationMode": "netChanges", "filter": "ID > 3"},
        {"startingTimestamp": "2001-01-01T00:00:00+00:00"},
        {"startingVersion": 2, "computeUpdates": False},
        {"startingVersion": 1, "columns": "_change_type,part.a,ID,_rowid", "filter": "small = 1"},
    ],
)
@pytest.mark.usefixtures("reader")
@pytest.mark.essential
def test_its_rows_equal_the_formats_rows(
    spark: SparkSession, uri: str, options: dict[str, Any]
) -> None:
    """`read_changes` plans in the user's process instead of a worker, and every option must still
    have the same effect.
    """
    changes, expected = read_changes(spark, uri, **options), by_format(spark, uri, options)
    assert changes.schema.simpleString() == expected.schema.simpleString()
    assert changes.collect() == expected.collect()


def test_large_feeds_are_divided_into_tasks(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large feed must use all cores and keep the order of changes."""
    monkeypatch.setattr(changes_frame, "MAX_LOCAL_BYTES", -1)
    monkeypatch.setattr("lance_stream.distributed.dividing.number_of_tasks", lambda _bytes: 3)
    changes = read_changes(spark, uri, startingVersion=1)
    assert changes.rdd.getNumPartitions() > 1
    expected = by_format(spark, uri, {"startingVersion": 1}).collect()
    assert changes.collect() == expected


def test_commit_times_ignore_the_sessions_zone(spark: SparkSession, uri: str) -> None:
    """Rows that the driver hands to Spark must not be shifted by the zone of the session."""
    expected = by_format(spark, uri, {"startingVersion": 2}).collect()
    with settings(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        assert read_changes(spark, uri, startingVersion=2).collect() == expected


@pytest.mark.since_spark("4.0")
def test_few_rows_start_no_python_worker(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving the start of workers is why this function exists."""

    def fail(*_: object) -> None:
        raise AssertionError("tasks read the rows")

    monkeypatch.setattr(changes_frame, "map_in_arrow", fail)
    assert read_changes(spark, uri, startingVersion=1).count() == 16


@pytest.mark.usefixtures("reader")
def test_later_commits_are_not_shown(spark: SparkSession, uri: str) -> None:
    """Two actions on one DataFrame must agree while other writers commit."""
    changes = read_changes(spark, uri, startingVersion=1)
    before = changes.count()
    lance_stream.open_dataset(uri).append(rows(20))
    assert changes.count() == before
    assert read_changes(spark, uri, startingVersion=1).count() == before + 1


def test_options_accept_python_values(spark: SparkSession, uri: str) -> None:
    """A Python function should accept lists, datetimes, numbers and None where the format only
    accepts text.
    """
    deletes = read_changes(spark, uri, startingVersion=4, columns=["id"], preImages=True)
    assert [(entry.id, entry._change_type) for entry in deletes.collect()] == [(5, "delete")]
    since = datetime(2001, 1, 1, tzinfo=UTC)
    assert read_changes(spark, uri, startingTimestamp=since).count() == 16
    changes = read_changes(spark, uri, startingVersion=4, endingVersion=None, readchangefeed=True)
    assert changes.count() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'startingVersion'"),
        ({"startingVersion": 99}, "startingVersion is 99, but the newest version"),
        ({"startingVersion": 1, "maxRowsPerTrigger": 5}, "belongs to a stream"),
        ({"startingVersions": 1}, "did you mean 'startingVersion'"),
        ({"startingVersion": 1, "path": "/another"}, "is its second argument"),
        ({"startingVersion": 1, "PATH": "/another"}, "is its second argument"),
        ({"startingVersion": 1, "readChangeFeed": False}, "returns the change feed"),
    ],
)
def test_invalid_options_are_refused(
    spark: SparkSession, uri: str, options: dict[str, Any], message: str
) -> None:
    """Options for streams, misspelt names and a second path have no effect here and must not be
    ignored.
    """
    with pytest.raises(InvalidInputError, match=message):
        read_changes(spark, uri, **options)


def test_missing_tables_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    """The function runs in the user's process, so the error arrives without any wrapping."""
    with pytest.raises(NotFoundError):
        read_changes(spark, tmp_path / "none", startingVersion=1)


@pytest.mark.usefixtures("reader")
def test_empty_intervals_keep_their_columns(spark: SparkSession, uri: str) -> None:
    """A program that selects columns from the result must also work when nothing has changed."""
    changes = read_changes(spark, uri, startingVersion=5)
    assert changes.columns[: len(SCHEMA)] == SCHEMA.names
    assert changes.count() == 0
