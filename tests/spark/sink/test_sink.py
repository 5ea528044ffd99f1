"""Micro-batches become versions, exactly once."""

import datetime
import pickle
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import lance_stream
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    OtherBatchError,
    UnsupportedFeatureError,
)
from lance_stream.spark import lance_sink, register
from lance_stream.spark.jobs import arrow_jobs
from lance_stream.spark.sink import modes
from lance_stream.spark.sink.batch_writing import collect_rows

pytestmark = pytest.mark.spark


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 5 == 4 else f"n{i}" for i in ids], pa.string()),
            "tags": pa.array([[i] * (i % 3) for i in ids], pa.list_(pa.int32())),
        }
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def ids_of(uri: str) -> list[int]:
    return sorted(lance_stream.open_dataset(uri).to_table(["id"])["id"].to_pylist())


def versions_of(uri: str) -> int:
    return len(lance_stream.open_dataset(uri).versions())


@pytest.mark.floors
def test_each_file_becomes_a_version(file_stream: Any, uri: str) -> None:
    """A stream's first batch creates the table, and the properties of each version name the query
    that wrote it.
    """
    batches = [rows(0, 1, 2), rows(3), rows(4, 5)]
    for batch in batches:
        file_stream.add(batch)
    query_id = file_stream.run(lance_sink(uri))

    table = lance_stream.open_dataset(uri)
    assert table.has_stable_row_ids
    assert table.file_version == "2.2"
    assert table.to_table().sort_by("id").equals(pa.concat_tables(batches))
    assert [version.operation for version in table.versions()] == ["Create"] + ["Append"] * 2
    assert [version.num_rows for version in table.versions()] == [3, 4, 6]
    assert query_id in str(table.versions()[-1].properties)
    assert table.verify() == []


def test_last_commit_describes_the_batch(file_stream: Any, uri: str) -> None:
    """Users log `last_commit`, so its counts, version and app id have to belong to the batch that
    was just written.
    """
    sink = lance_sink(uri)
    commits = []

    def remember(df: Any, batch_id: int) -> None:
        sink(df, batch_id)
        commits.append(sink.last_commit)

    file_stream.add(rows(*range(10)))
    file_stream.add(rows(*range(10, 30)))
    query_id = file_stream.run(remember)
    assert [commit.rows_inserted for commit in commits] == [10, 20]
    assert [commit.batch_id for commit in commits] == [0, 1]
    assert commits[-1].version == lance_stream.open_dataset(uri).version
    assert commits[-1].app_id == query_id
    assert not commits[-1].skipped
    assert commits[-1].bytes_written > 0
    assert set(commits[-1].seconds) == {"plan", "write", "commit"}


@pytest.mark.floors
def test_replayed_micro_batches_change_nothing(file_stream: Any, uri: str) -> None:
    """Spark repeats a batch whose commit it has not recorded, and the sink must neither add rows
    nor a version.
    """
    file_stream.add(rows(0, 1))
    file_stream.add(rows(2, 3))
    sink = lance_sink(uri)
    file_stream.run(sink)
    before = versions_of(uri)

    newest = file_stream.forget_newest_commit()
    file_stream.run(sink)
    assert sink.last_commit is not None
    assert sink.last_commit.skipped
    assert sink.last_commit.batch_id == newest
    assert sink.last_commit.version == before
    assert ids_of(uri) == [0, 1, 2, 3]
    assert versions_of(uri) == before

    file_stream.add(rows(4))
    file_stream.run(sink)
    assert ids_of(uri) == [0, 1, 2, 3, 4]


@pytest.mark.essential
def test_failures_after_the_commit_repeat_nothing(file_stream: Any, uri: str) -> None:
    """A function that fails after the sink has committed makes Spark repeat the batch."""
    file_stream.add(rows(0, 1))
    file_stream.add(rows(2))
    sink = lance_sink(uri)

    def fail_after_the_second(df: Any, batch_id: int) -> None:
        sink(df, batch_id)
        if batch_id == 1:
            raise RuntimeError("power cut")

    with pytest.raises(Exception, match="power cut"):
        file_stream.run(fail_after_the_second)
    file_stream.run(sink)
    assert ids_of(uri) == [0, 1, 2]
    assert versions_of(uri) == 2


def test_two_tables_per_batch_are_exact(file_stream: Any, tmp_path: Path) -> None:
    """A failure between two sinks of one function must leave each table with every batch once
    after the restart.
    """
    odd, even = str(tmp_path / "odd"), str(tmp_path / "even")
    to_odd, to_even = lance_sink(odd), lance_sink(even)
    failures = [1]

    def both(df: Any, batch_id: int) -> None:
        to_odd(df.filter("id % 2 = 1"), batch_id)
        if batch_id in failures:
            failures.remove(batch_id)
            raise RuntimeError("between the two tables")
        to_even(df.filter("id % 2 = 0"), batch_id)

    for first in (0, 10, 20):
        file_stream.add(rows(*range(first, first + 10)))
    with pytest.raises(Exception, match="between the two tables"):
        file_stream.run(both)
    file_stream.run(both)
    assert ids_of(odd) == list(range(1, 30, 2))
    assert ids_of(even) == list(range(0, 30, 2))
    assert versions_of(odd) == versions_of(even) == 3


def test_sinks_may_share_an_app_id(file_stream: Any, uri: str) -> None:
    """Two sinks have separate state, but must still write a batch once."""
    file_stream.add(rows(0, 1))
    sinks = [lance_sink(uri, app_id="app"), lance_sink(uri, app_id="app")]

    def both(df: Any, batch_id: int) -> None:
        for sink in sinks:
            sink(df, batch_id)

    file_stream.run(both)
    assert ids_of(uri) == [0, 1]
    assert [sink.last_commit.skipped for sink in sinks if sink.last_commit] == [False, True]


@pytest.mark.essential
def test_different_rows_of_batches_are_refused(file_stream: Any, uri: str) -> None:
    """Skipping them as if they were a replay would lose them."""
    file_stream.add(rows(0, 1))
    sink = lance_sink(uri)

    def twice(df: Any, batch_id: int) -> None:
        sink(df.filter("id = 0"), batch_id)
        sink(df.filter("id = 1"), batch_id)

    with pytest.raises(Exception, match="give the sink that failed now its own app_id"):
        file_stream.run(twice)


def test_other_queries_need_their_app_id(file_stream: Any, uri: str) -> None:
    """With a new checkpoint the batch ids start again, and under the same app id new rows would be
    taken for replays.
    """
    file_stream.add(rows(0, 1))
    file_stream.run(lance_sink(uri, app_id="app"))
    with pytest.raises(Exception, match=r"InvalidInputError.*'app'.*checkpoint"):
        file_stream.run(lance_sink(uri, app_id="app"), checkpoint="another")
    assert ids_of(uri) == [0, 1]


def test_two_queries_append_independently(file_stream: Any, uri: str) -> None:
    """Without an app id each query counts its own batches, so equal batch ids are no replay."""
    file_stream.add(rows(0, 1))
    file_stream.run(lance_sink(uri), checkpoint="one")
    file_stream.run(lance_sink(uri), checkpoint="other")
    assert ids_of(uri) == [0, 0, 1, 1]


@pytest.mark.parametrize("arguments", [{}, {"mode": "upsert", "on": "id"}])
def test_empty_first_batches_create_the_table(
    file_stream: Any, uri: str, arguments: dict[str, Any]
) -> None:
    """Later batches then know that a missing table was deleted; an empty later batch changes
    nothing.
    """
    sink = lance_sink(uri, **arguments)

    def without_rows(df: Any, batch_id: int) -> None:
        sink(df.filter("id < 0"), batch_id)

    file_stream.add(rows(0))
    file_stream.run(without_rows)
    assert sink.last_commit is not None
    assert (sink.last_commit.version, sink.last_commit.rows_in) == (1, 0)
    file_stream.forget_newest_commit()
    file_stream.run(without_rows)
    assert sink.last_commit.skipped

    file_stream.add(rows(1))
    file_stream.run(sink)
    file_stream.add(rows(2))
    file_stream.run(without_rows)
    assert (ids_of(uri), versions_of(uri)) == ([1], 2)


def test_deleted_tables_are_not_recreated(file_stream: Any, uri: str) -> None:
    """A restarted query would silently begin a table without the batches before."""
    file_stream.add(rows(0))
    file_stream.run(lance_sink(uri, app_id="a"))
    shutil.rmtree(uri)
    file_stream.add(rows(1))
    with pytest.raises(Exception, match=r"no table at .* for batch 1 of the stream a,"):
        file_stream.run(lance_sink(uri, app_id="a"))
    assert not Path(uri).exists()
    file_stream.run(lance_sink(uri, app_id="a", create_options={"late_start": True}))
    assert ids_of(uri) == [1]


def test_batches_outside_streams_need_app_ids(spark: Any, uri: str) -> None:
    """A backfill has no query whose id could tell a replay from new rows."""
    df = spark.createDataFrame([(1,)], "id long")
    with pytest.raises(InvalidInputError, match="app_id"):
        lance_sink(uri)(df, 0)
    sink = lance_sink(uri, app_id="backfill")
    for batch_id in (0, 0, 1):
        sink(df, batch_id)
    assert ids_of(uri) == [1, 1]


def test_older_batches_are_compared(spark: Any, uri: str) -> None:
    """Without a query id, as through Spark Connect, only the digest tells a
    replay from new rows.
    """
    ones, twos = (spark.createDataFrame([(number,)], "id long") for number in (1, 2))
    for batch_id, df in enumerate((ones, twos)):
        lance_sink(uri, app_id="a")(df, batch_id)
    sink = lance_sink(uri, app_id="a")
    sink(ones, 0)
    assert sink.last_commit is not None
    assert (sink.last_commit.skipped, sink.last_commit.version) == (True, 1)
    with pytest.raises(OtherBatchError, match="restore the newest checkpoint"):
        sink(twos, 0)
    lance_sink(uri, app_id="a", replays_may_differ=True)(twos, 0)
    assert ids_of(uri) == [1, 2]


def test_running_streams_do_not_recreate_tables(spark: Any, uri: str) -> None:
    """A new table would hold the later batches alone; another query begins with its own first
    batch.
    """
    df = spark.createDataFrame([(1,)], "id long")
    sink = lance_sink(uri, app_id="a")
    sink(df, 3)
    shutil.rmtree(uri)
    with pytest.raises(NotFoundError, match=r"no longer exists, .* batch 3 .* as its version 1"):
        sink(df, 4)
    assert not Path(uri).exists()
    sink(df, 0)
    assert ids_of(uri) == [1]


def test_older_copies_stop_running_streams(spark: Any, uri: str) -> None:
    """The copy lacks the rows of later batches, which Spark does not repeat."""
    sink = lance_sink(uri, app_id="a")
    sink(spark.createDataFrame([(1,)], "id long"), 3)
    shutil.copytree(uri, f"{uri}-copy")
    sink(spark.createDataFrame([(2,)], "id long"), 4)
    shutil.rmtree(uri)
    shutil.move(f"{uri}-copy", uri)
    with pytest.raises(NotFoundError, match=r"older copy .* batch 4 .* as its version 2"):
        sink(spark.createDataFrame([(3,)], "id long"), 5)
    assert ids_of(uri) == [1]


def test_changed_rules_after_restart_are_logged(
    spark: Any, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Other keys after a restart are usually a mistake, and the warning appears once instead of
    with every batch.
    """
    df = spark.createDataFrame([(1, 2)], "id long, other long")
    lance_sink(uri, mode="upsert", on="id", app_id="a")(df, 0)
    lance_sink(uri, mode="upsert", on="id", app_id="a")(df, 1)
    assert "other keys" not in caplog.text
    sink = lance_sink(uri, mode="upsert", on=["id", "other"], app_id="a")
    for batch_id in (2, 3):
        sink(df, batch_id)
    warnings = [record for record in caplog.records if "other keys" in record.getMessage()]
    assert len(warnings) == 1
    assert (
        "batch 1 of the stream a was written by a sink with another mode"
        in warnings[0].getMessage()
    )


@pytest.mark.floors
def test_session_settings_are_restored(spark: Any, uri: str) -> None:
    """The sink changes the size of Arrow batches for its own job only."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    lance_sink(uri, app_id="a")(spark.createDataFrame([(1,)], "id long"), 0)
    assert spark.conf.get(name) == before


@pytest.mark.essential
def test_one_task_writes_little_data(spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second batch on the sink knows that batches are small, and one file per task would
    make the table slow.
    """
    monkeypatch.setattr("lance_stream.spark.sink.batch_writing.SMALL_BATCH_ROWS", 0)
    monkeypatch.setattr("lance_stream.spark.sink.batch_writing.SLOW_SECONDS", 600.0)
    sink = lance_sink(uri, app_id="a")
    files = []
    for batch_id in range(2):
        sink(spark.range(batch_id * 100, batch_id * 100 + 100, 1, 4), batch_id)
        assert sink.last_commit is not None
        files.append(sink.last_commit.num_files)
    assert files == [4, 1]
    assert ids_of(uri) == list(range(200))


def count_jobs_of_tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    jobs: list[Any] = []

    def map_in_arrow(df: Any, *arguments: Any) -> Any:
        jobs.append(df)
        return arrow_jobs.map_in_arrow(df, *arguments)

    monkeypatch.setattr("lance_stream.spark.sink.batch_writing.map_in_arrow", map_in_arrow)
    return jobs


def test_drivers_write_little_data(spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver on the same machine as the workers saves the job of Spark altogether."""
    monkeypatch.setattr("lance_stream.spark.sink.batch_writing.SMALL_BATCH_ROWS", 100)
    jobs = count_jobs_of_tasks(monkeypatch)
    sink = lance_sink(uri, app_id="a")
    stop, by_tasks = 0, []
    for batch_id, num_rows in enumerate((100, 101, 100, 10)):
        before = len(jobs)
        sink(spark.range(stop, stop + num_rows, 1, 4), batch_id)
        by_tasks.append(len(jobs) - before)
        stop += num_rows
        assert sink.last_commit is not None
        assert sink.last_commit.rows_inserted == num_rows
    # Of the first batch nothing is known; the third follows a larger one.
    assert by_tasks == [1, 0, 1, 0]
    assert ids_of(uri) == list(range(stop))
    assert lance_stream.open_dataset(uri).verify() == []


@pytest.mark.parametrize("case", ["small", "large", "of a function"])
def test_drivers_write_small_first_batches(
    file_stream: Any, uri: str, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Starting Python workers takes longer than all else. But a stream often begins with all that
    there is, and a function of the user's may return values of any size.
    """
    jobs = count_jobs_of_tasks(monkeypatch)
    if case == "large":
        monkeypatch.setattr("lance_stream.spark.sink.batch_writing.SMALL_FIRST_BYTES", 100)
    double = udf(lambda number: 2 * number, "long")
    sink = lance_sink(uri, app_id="a")

    def write(df: DataFrame, batch_id: int) -> None:
        sink(df.withColumn("id", double("id")) if case == "of a function" else df, batch_id)

    file_stream.add(rows(*range(10)))
    file_stream.run(write)
    assert len(jobs) == (0 if case == "small" else 1)
    assert ids_of(uri) == list(range(0, 20, 2) if case == "of a function" else range(10))


@pytest.mark.floors
@pytest.mark.parametrize("by_driver", [False, True])
def test_driver_and_tasks_write_equal_rows(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch, by_driver: bool
) -> None:
    """Two code paths convert Spark's types, and the session's time zone must not influence either
    of them.
    """
    jobs = count_jobs_of_tasks(monkeypatch)
    if not by_driver:
        monkeypatch.setattr("lance_stream.spark.sink.batch_writing.SMALL_BATCH_ROWS", 0)
    sink = lance_sink(uri, app_id="a")
    query = """SELECT id, CAST(id AS STRING) AS `a-b`, TIMESTAMP'2026-07-02 05:30:00' AS at,
                      TIMESTAMP_NTZ'2026-01-02 03:04:05' AS naive, DATE'2026-01-02' AS day,
                      CAST(id AS DECIMAL(20, 3)) AS price, X'00ff' AS code, id > 3 AS flag,
                      map('k', id) AS pairs, INTERVAL '1' SECOND AS took,
                      named_struct('x', id, 'y', array(1, NULL)) AS place,
                      IF(id = 2, NULL, 1.5F) AS small FROM range({}, {}, 1, 3)"""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        sink(spark.sql(query.format(0, 5)), 0)
        sink(spark.sql(query.format(5, 10)), 1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert len(jobs) == (1 if by_driver else 2)
    records = lance_stream.open_dataset(uri).to_table().to_pylist()
    assert [row.pop("id") for row in records] == list(range(10))
    for index in (5, 6, 9):
        expected = {
            "a-b": str(index),
            "at": datetime.datetime(2026, 7, 2, 9, 30, tzinfo=datetime.UTC),
            "naive": datetime.datetime(2026, 1, 2, 3, 4, 5),
            "day": datetime.date(2026, 1, 2),
            "price": Decimal(index),
            "code": b"\0\xff",
            "flag": True,
            "pairs": [("k", index)],
            "took": datetime.timedelta(seconds=1),
            "place": {"x": index, "y": [1, None]},
            "small": 1.5,
        }
        assert records[index] == expected


def test_drivers_refuse_values_out_of_range(spark: Any, uri: str) -> None:
    """The driver casts collected rows itself, and a wrapped value or an orphaned file would go
    unnoticed.
    """
    lance_stream.create_dataset(uri, pa.schema([("u8", pa.uint8())]))
    sink = lance_sink(uri, app_id="a")
    sink(spark.sql("SELECT 1S AS u8"), 0)
    before = list(Path(uri).glob("data/*"))
    with pytest.raises(InvalidInputError, match="'u8'"):
        sink(spark.sql("SELECT -1S AS u8"), 1)
    assert list(Path(uri).glob("data/*")) == before
    assert lance_stream.open_dataset(uri).to_table().to_pylist() == [{"u8": 1}]


def test_uncollectable_batches_are_written_by_tasks(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that exceeds the driver's limits is no error as long as tasks can write it."""
    jobs = count_jobs_of_tasks(monkeypatch)
    monkeypatch.setattr("lance_stream.spark.sink.batch_writing.collect_rows", lambda _: None)
    sink = lance_sink(uri, app_id="a")
    for batch_id in range(2):
        sink(spark.range(batch_id * 10, batch_id * 10 + 10), batch_id)
    assert len(jobs) == 2
    assert ids_of(uri) == list(range(20))


def test_only_size_refusals_use_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Spark's refusal of a large result may lead to another attempt by tasks; any other error
    is the user's.
    """

    class RefusedError(Py4JJavaError):
        def __init__(self, message: str) -> None:
            self.message = message

        def __str__(self) -> str:
            return self.message

    def refusing(message: str) -> None:
        def collect(*_: Any) -> pa.Table:
            raise RefusedError(message)

        monkeypatch.setattr("lance_stream.spark.sink.batch_writing.collect_arrow", collect)

    df: Any = None
    refusing("... is bigger than spark.driver.maxResultSize (1 GiB)")
    assert collect_rows(df) is None
    refusing("division by zero")
    with pytest.raises(RefusedError, match="division"):
        collect_rows(df)


def test_slow_batches_keep_their_tasks(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task for few rows saves files, but not if computing the rows takes long."""
    monkeypatch.setattr("lance_stream.spark.sink.batch_writing.SMALL_BATCH_ROWS", 0)
    monkeypatch.setattr("lance_stream.spark.sink.batch_writing.SLOW_SECONDS", 0.0)
    sink = lance_sink(uri, app_id="a")
    for batch_id in range(3):
        sink(spark.range(batch_id * 100, batch_id * 100 + 100, 1, 4), batch_id)
        assert sink.last_commit is not None
        assert sink.last_commit.num_files == 4


# --- columns and types


def test_names_allow_backticks_not_dots(spark: Any, uri: str) -> None:
    """The format separates the names of nested fields by dots, so such a column could never be
    selected.
    """
    with pytest.raises(InvalidInputError, match=r"'a\.b'.*contain a dot"):
        sink_rows(spark, uri, "SELECT 1L AS `a.b`", 0)
    sink_rows(spark, uri, "SELECT 2L AS `c``d`, 3L AS `e f`", 0)
    assert lance_stream.open_dataset(uri).to_table().to_pylist() == [{"c`d": 2, "e f": 3}]


def sink_rows(spark: Any, uri: str, query: str, batch_id: int) -> None:
    lance_sink(uri, app_id="test")(spark.sql(query), batch_id)


@pytest.fixture
def table(uri: str) -> str:
    lance_stream.create_dataset(
        uri,
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("small", pa.int16()),
                pa.field("name", pa.string()),
            ]
        ),
    )
    return uri


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT 1L AS id, 's' AS colour", "colour"),
        ("SELECT 1S AS small, 's' AS name", "id"),
        ("SELECT 1L AS id, 1 AS small", "small"),
        ("SELECT 1L AS id, 5 AS name", "name"),
        ("SELECT CAST(NULL AS bigint) AS id", "id"),
        ("SELECT if(id = 3, NULL, id) AS id FROM range(5)", "id"),
    ],
    ids=["unknown", "missing", "narrowing", "other kind", "null literal", "null value"],
)
def test_invalid_rows_name_their_column(spark: Any, table: str, query: str, named: str) -> None:
    """A batch has many columns, and an error without the name does not help; no file may remain
    either.
    """
    with pytest.raises(InvalidInputError, match=f"'{named}'"):
        sink_rows(spark, table, query, 0)
    assert lance_stream.open_dataset(table).version == 1
    assert not list(Path(table).glob("data/*")), "no data file is left behind"


@pytest.mark.essential
def test_columns_match_by_name(spark: Any, table: str) -> None:
    """Spark's order of columns may change with a query; columns that a batch lacks are null."""
    sink_rows(spark, table, "SELECT 'x' AS name, 1L AS id", 0)
    assert lance_stream.open_dataset(table).to_table().to_pylist() == [
        {"id": 1, "small": None, "name": "x"}
    ]


def test_types_that_spark_lacks_are_restored(spark: Any, uri: str) -> None:
    """Spark turns unsigned, half and fixed-size types into others, and the table's own types must
    be stored.
    """
    zone = pa.timestamp("ms", "America/New_York")
    schema = pa.schema(
        [
            ("u8", pa.uint8()),
            ("u16", pa.uint16()),
            ("u32", pa.uint32()),
            ("u64", pa.uint64()),
            ("f16", pa.float16()),
            ("vector", pa.list_(pa.float32(), 2)),
            ("halves", pa.list_(pa.float16(), 2)),
            ("large", pa.large_string()),
            ("code", pa.binary(2)),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
            ("at", zone),
            ("naive", pa.timestamp("s")),
            ("took", pa.duration("ms")),
            ("price", pa.decimal128(12, 2)),
            ("place", pa.struct([("x", pa.uint8()), ("y", pa.list_(pa.uint16()))])),
        ]
    )
    lance_stream.create_dataset(uri, schema)
    sink_rows(
        spark,
        uri,
        """SELECT 255S AS u8, 65535 AS u16, 4294967295L AS u32, 18446744073709551615BD AS u64,
                  1.5F AS f16, array(1.0F, 2.0F) AS vector, array(0.5F, NULL) AS halves,
                  'long' AS large, X'0102' AS code, 'k' AS kind,
                  TIMESTAMP'2026-01-02 05:30:00' AS at, TIMESTAMP_NTZ'2026-01-02 03:04:05' AS naive,
                  INTERVAL '1' SECOND AS took, 1.25BD AS price,
                  named_struct('x', 7S, 'y', array(1, NULL)) AS place""",
        0,
    )
    (row,) = lance_stream.open_dataset(uri).to_table().cast(schema).to_pylist()
    assert row == {
        "u8": 255,
        "u16": 65535,
        "u32": 4294967295,
        "u64": 18446744073709551615,
        "f16": np.float16(1.5),
        "vector": [1.0, 2.0],
        "halves": [np.float16(0.5), None],
        "large": "long",
        "code": b"\1\2",
        "kind": "k",
        "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "naive": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "took": datetime.timedelta(seconds=1),
        "price": Decimal("1.25"),
        "place": {"x": 7, "y": [1, None]},
    }


@pytest.mark.essential
def test_unfit_values_name_their_column(spark: Any, uri: str) -> None:
    """A cast that wraps or truncates would store wrong values silently."""
    lance_stream.create_dataset(
        uri, pa.schema([("u8", pa.uint8()), ("vector", pa.list_(pa.float32(), 2))])
    )
    for query, named in (
        ("SELECT -1S AS u8", "u8"),
        ("SELECT array(1.0F) AS vector", "vector"),
    ):
        with pytest.raises(InvalidInputError, match=f"'{named}'"):
            sink_rows(spark, uri, query, 0)
    assert not list(Path(uri).glob("data/*"))


def test_new_tables_can_have_a_schema(spark: Any, uri: str) -> None:
    """Types that Spark lacks, the configuration and the file version can only be chosen when the
    sink creates the table.
    """
    schema = pa.schema([("id", pa.uint32()), ("vector", pa.list_(pa.float32(), 2))])
    sink = lance_sink(
        uri,
        app_id="a",
        create_options={"schema": schema, "config": {"team": "flights"}, "file_version": "2.0"},
    )
    sink(spark.sql("SELECT 1L AS id, array(1.0F, 2.0F) AS vector"), 0)
    table = lance_stream.open_dataset(uri)
    assert table.schema == schema
    assert table.file_version == "2.0"
    assert table.config["team"] == "flights"
    assert table.to_table().to_pylist() == [{"id": 1, "vector": [1.0, 2.0]}]


@pytest.mark.parametrize("mode", ["append", "upsert", "overwrite"])
def test_failed_first_batches_create_no_table(spark: Any, uri: str, mode: str) -> None:
    """Otherwise the corrected batch would be refused for the types of the wrong one."""
    sink = lance_sink(uri, mode=mode, on="id" if mode == "upsert" else None, app_id="a")
    bad = spark.sql("SELECT 1L AS id, if(id = 2, raise_error('no'), 'x') AS x FROM range(4)")
    with pytest.raises(Exception, match="no"):
        sink(bad, 0)
    void = spark.sql("SELECT id, NULL AS x FROM range(4)")
    with pytest.raises(InvalidInputError, match="'x' has or contains the type null"):
        sink(void, 0)
    with pytest.raises(NotFoundError):
        lance_stream.open_dataset(uri)
    sink(spark.sql("SELECT id, id * 2 AS x FROM range(4)"), 0)
    ds = lance_stream.open_dataset(uri)
    assert (ds.version, ds.schema.field("x").type, ds.count_rows()) == (1, pa.int64(), 4)
    sink(void, 1)
    assert lance_stream.open_dataset(uri).verify() == []


def test_concurrent_creation_adds_the_other_columns(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sinks find no table, and one creates it while the other is writing, which must then add
    its columns.
    """
    sink = lance_sink(uri, schema_evolution="add_columns", app_id="a")
    commit = modes.append_fragments

    def be_late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(modes, "append_fragments", commit)
        lance_sink(uri, app_id="b")(spark.sql("SELECT 1L AS id"), 0)
        return commit(*args, **options)

    monkeypatch.setattr(modes, "append_fragments", be_late)
    sink(spark.sql("SELECT 2L AS id, 'x' AS x"), 0)
    ds = lance_stream.open_dataset(uri)
    assert sorted(ds.to_table()["id"].to_pylist()) == [1, 2]
    assert ds.schema.names == ["id", "x"]
    assert ds.verify() == []


def test_unsupported_types_create_no_table(spark: Any, uri: str) -> None:
    """A table without the refused column would make the corrected query fail as well."""
    with pytest.raises(UnsupportedFeatureError, match="'m'"):
        sink_rows(spark, uri, "SELECT make_ym_interval(1, 2) AS m", 0)
    assert not Path(uri).exists()


@pytest.mark.floors
def test_maps_round_trip(spark: Any, uri: str) -> None:
    """Null maps, empty maps and nulls in values are distinct, and the nullability in Spark's plan
    must not limit later batches.
    """
    rows = "SELECT 1L AS id, map('a', named_struct('n', array(1, NULL)), 'b', NULL) AS m"
    sink_rows(spark, uri, f"{rows} UNION ALL SELECT 2L, NULL UNION ALL SELECT 3L, map()", 0)
    stored = lance_stream.open_dataset(uri).to_table().sort_by("id")
    # Spark calls `n` non-null, as this plan makes no nulls; the next one may.
    assert stored.schema.field("m").type == pa.map_(
        pa.string(), pa.struct([("n", pa.list_(pa.int32()))])
    )
    assert stored["m"].to_pylist() == [[("a", {"n": [1, None]}), ("b", None)], None, []]
    register(spark)
    read = spark.read.format("lance").load(uri).orderBy("id").collect()
    assert [
        row.m and {key: value and list(value.n) for key, value in row.m.items()} for row in read
    ] == [
        {"a": [1, None], "b": None},
        None,
        {},
    ]


@pytest.mark.floors
def test_extension_types_accept_their_storage(spark: Any, uri: str) -> None:
    """Spark has no UUID, so a column of an extension type is written from the values of its
    storage type and keeps its own.
    """
    schema = pa.schema([("id", pa.int64()), ("key", pa.uuid()), ("flag", pa.bool8())])
    lance_stream.create_dataset(uri, schema)
    sink_rows(
        spark, uri, "SELECT 1L AS id, CAST('0123456789abcdef' AS BINARY) AS key, 1Y AS flag", 0
    )
    table = lance_stream.open_dataset(uri).to_table()
    assert table.schema == schema
    assert table["key"].combine_chunks().storage.to_pylist() == [b"0123456789abcdef"]
    register(spark)
    (row,) = spark.read.format("lance").load(uri).collect()
    assert (bytes(row.key), row.flag) == (b"0123456789abcdef", 1)


# --- what is refused at once


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"mode": "apend"}, InvalidInputError),
        ({"mode": "upsert"}, InvalidInputError),
        ({"on": ["id"]}, InvalidInputError),
        ({"on": [""]}, InvalidInputError),
        ({"sequence_by": "at"}, InvalidInputError),
        ({"delete_when": "op = 'd'"}, InvalidInputError),
        ({"skip_unchanged": True}, InvalidInputError),
        ({"except_columns": ["op", "op"]}, InvalidInputError),
        ({"schema_evolution": "all"}, InvalidInputError),
        ({"compact": 0}, InvalidInputError),
        ({"compact": "often"}, InvalidInputError),
        ({"compact": True}, InvalidInputError),
        ({"app_id": " "}, InvalidInputError),
        ({"create_options": {"file_version": "9.9"}}, (InvalidInputError, UnsupportedFeatureError)),
        ({"create_options": {"shema": None}}, InvalidInputError),
    ],
    ids=str,
)
def test_unsupported_arguments_are_refused_at_once(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    """A mistake in the arguments must not wait for the first batch, which may arrive hours after
    the start.
    """
    (named,) = arguments
    with pytest.raises(error, match="9.9" if "9.9" in str(arguments) else named):
        lance_sink("/nowhere", **arguments)


def test_a_sink_can_be_pickled(spark: Any, uri: str) -> None:
    """Spark Connect sends the sink to the server, where it has to work without the state of the
    client.
    """
    sink = lance_sink(uri, app_id="a", storage_options={"durable": "true"})
    sink(spark.createDataFrame([(1,)], "id long"), 0)
    again = pickle.loads(pickle.dumps(sink))
    again(spark.createDataFrame([(2,)], "id long"), 1)
    assert ids_of(uri) == [1, 2]
