"""Types, shapes and settings of a batch that mean something else to Spark than to a table."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Observation, functions
from pyspark.sql.types import StructType

import lance_stream
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.spark import lance_sink
from lance_stream.spark.jobs.arrow_jobs import settings
from lance_stream.spark.source.lance_source import LanceSource

pytestmark = pytest.mark.spark


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def rows_of(uri: str) -> list[tuple[Any, ...]]:
    table = lance_stream.open_dataset(uri).to_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


# --- keys and sequences


@pytest.mark.since_spark("4.0")
@pytest.mark.parametrize(
    "collation",
    [
        "UTF8_LCASE",
        "UNICODE",
        "UNICODE_CI",
        pytest.param("UTF8_BINARY_RTRIM", marks=pytest.mark.since_spark("4.1")),
    ],
)
def test_collated_keys_are_refused(spark: Any, uri: str, collation: str) -> None:
    """Spark would compare them by the collation, and the table by bytes."""
    sink = lance_sink(uri, mode="upsert", on="name", app_id="a")
    batch = spark.sql(f"SELECT 'Ann' COLLATE {collation} AS name, 1 AS v")
    with pytest.raises(InvalidInputError, match=f"key column 'name' has the collation {collation}"):
        sink(batch, 0)
    assert not Path(uri).exists()


@pytest.mark.since_spark("4.0")
@pytest.mark.parametrize(
    ("way", "num_rows"),
    [("lower(`name`) COLLATE UTF8_BINARY", 1), ("`name` COLLATE UTF8_BINARY", 2)],
)
def test_remedies_for_collated_keys_work(spark: Any, uri: str, way: str, num_rows: int) -> None:
    """The error for collated keys recommends these expressions, so both must yield keys that a
    table can compare by bytes.
    """
    sink = lance_sink(uri, mode="upsert", on="name", app_id="a", sequence_by="v")
    batch = spark.sql(
        "SELECT IF(id = 0, 'Ann', 'ANN') COLLATE UTF8_LCASE AS name, id v FROM range(2)"
    )
    sink(batch.withColumn("name", functions.expr(way)), 0)
    assert len(rows_of(uri)) == num_rows


@pytest.mark.since_spark("4.0")
@pytest.mark.parametrize("sequence", ["seq", "named_struct('n', 1, 's', seq)", "array(seq)"])
def test_collated_sequences_are_refused(spark: Any, uri: str, sequence: str) -> None:
    """The table orders versions of a row by bytes, and a collation, even one inside a struct or
    array, could order them differently.
    """
    sink = lance_sink(uri, mode="upsert", on="id", sequence_by="seq", app_id="a")
    batch = spark.sql("SELECT 1L AS id, 'a' COLLATE UNICODE AS seq").selectExpr(
        "id", f"{sequence} AS seq"
    )
    with pytest.raises(InvalidInputError, match=r"'seq' \(sequence_by\) has the collation UNICODE"):
        sink(batch, 0)


@pytest.mark.since_spark("4.0")
def test_collated_text_is_stored(spark: Any, uri: str) -> None:
    """A table stores the bytes of collated text, while `delete_when` still compares it by the
    collation, as Spark does.
    """
    sink = lance_sink(uri, mode="upsert", on="id", delete_when="op = 'd'", app_id="a")
    batch = spark.sql("SELECT id, IF(id = 0, 'D', 'U') COLLATE UTF8_LCASE AS op FROM range(2)")
    sink(batch, 0)
    assert rows_of(uri) == [(1, "U")]


def test_timestamps_around_clock_changes_are_distinct(spark: Any, uri: str) -> None:
    """Instants must not pass through the local time of the session, where an hour is missing in
    March and occurs twice in October.
    """
    # The clock of Berlin leaves out 2 o'clock in March, and has it twice in October.
    batch = (
        "SELECT at, date_format(at, 'dd HH:mm') AS text, cast(at AS timestamp_ntz) AS local, "
        "id + {} AS n FROM (SELECT id, timestamp_seconds(3600 * id + IF(id < 4, 1774742400, "
        "1792864800)) AS at FROM range(8))"
    )
    with settings(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        sink = lance_sink(uri, mode="upsert", on="at", sequence_by="at", app_id="a")
        for batch_id in range(2):
            sink(spark.sql(batch.format(10 * batch_id)), batch_id)
    rows = rows_of(uri)
    assert [f"{row[0]:%d %H}" for row in rows] == [
        *("29 00", "29 01", "29 02", "29 03"),
        *("24 22", "24 23", "25 00", "25 01"),
    ]
    assert [row[1] for row in rows] == [f"{row[2]:%d %H:%M}" for row in rows]
    assert [row[1][:5] for row in rows][-3:] == ["25 01", "25 02", "25 02"]
    assert [row[3] for row in rows] == list(range(10, 18))
    ds = lance_stream.open_dataset(uri)
    (row,) = ds.to_table(filter="at = '2026-10-25T01:00:00Z'").to_pylist()
    assert row["n"] == 17


@pytest.mark.essential
def test_timestamps_are_not_local_times(spark: Any, uri: str) -> None:
    """An instant and a local time with the same digits are different values, and a conversion
    would silently depend on the session's time zone.
    """
    sink = lance_sink(uri, mode="upsert", on="at", app_id="a")
    sink(spark.sql("SELECT TIMESTAMP'2026-10-25 02:30:00' AS at"), 0)
    with pytest.raises(InvalidInputError, match=r"'at' is timestamp\[us\], but timestamp\[us, tz="):
        sink(spark.sql("SELECT TIMESTAMP_NTZ'2026-10-25 02:30:00' AS at"), 1)


def test_decimals_of_38_digits_survive(spark: Any, uri: str) -> None:
    """A decimal that the table cannot hold exactly must be refused and never be rounded."""
    nines = "9" * 38
    sink = lance_sink(uri, mode="upsert", on="k", app_id="a")
    for batch_id in range(2):
        sink(spark.sql(f"SELECT {nines}BD AS k, -0.{nines}BD AS v"), batch_id)
    (row,) = rows_of(uri)
    assert [str(value) for value in row] == [nines, f"-0.{nines}"]
    with pytest.raises(InvalidInputError, match="'v' contains a value that does not fit"):
        sink(spark.sql(f"SELECT 1BD AS k, {nines}BD AS v"), 2)


# --- columns that are not stored


@pytest.mark.since_spark("4.0")
def test_unstored_columns_may_have_any_type(spark: Any, uri: str) -> None:
    """A column that only `delete_when` reads need not have a type of the format, but it must be
    one that Arrow can carry.
    """
    others = {
        "v": 'parse_json(\'{"op": "d"}\')',
        "i": "make_interval(1, 2)",
        "n": "NULL",
        "y": "cast(INTERVAL '1-2' YEAR TO MONTH AS STRING)",
    }
    batch = spark.range(2).selectExpr(
        "id", *(f"{other} AS {name}" for name, other in others.items())
    )
    rules = {"on": "id", "except_columns": list(others), "app_id": "a"}
    sink = lance_sink(
        uri, mode="upsert", delete_when="id = 0 AND variant_get(v, '$.op', 'string') = 'd'", **rules
    )
    sink(batch, 0)
    assert rows_of(uri) == [(1,)]
    unreadable = batch.withColumn("y", functions.expr("array(INTERVAL '1-2' YEAR TO MONTH)"))
    with pytest.raises(UnsupportedFeatureError, match=r"'y' has intervals of years .* CAST"):
        sink(unreadable, 1)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_rows_without_a_column_are_refused(spark: Any, uri: str, mode: str) -> None:
    """Rows without columns would create a table that can never be read, or change the row count
    without data.
    """
    nothing = spark.range(3).select()
    with pytest.raises(InvalidInputError, match="no column to store; it has: none"):
        lance_sink(uri, mode=mode, app_id="b")(nothing, 0)
    assert not Path(uri).exists()
    lance_sink(uri, app_id="a")(spark.range(1), 0)
    with pytest.raises(InvalidInputError, match="no column to store; it has: id"):
        lance_sink(uri, mode=mode, app_id="b", except_columns=["id"])(spark.range(3), 0)
    assert rows_of(uri) == [(0,)]


@pytest.mark.since_spark("4.0")
def test_format_refuses_rows_without_columns(tmp_path: Path) -> None:
    """The format as a writer has its own entry point and must refuse such rows before it creates a
    directory.
    """
    writer = LanceSource({"path": str(tmp_path / "table")})
    with pytest.raises(InvalidInputError, match="the rows have no columns"):
        writer.writer(StructType([]), overwrite=False)


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_an_empty_batch_makes_no_table(spark: Any, uri: str, mode: str) -> None:
    """An empty batch is skipped even if its types could not be stored."""
    on = {"on": "id"} if mode == "upsert" else {}
    sink = lance_sink(uri, mode=mode, app_id="a", **on)
    for batch_id, schema in enumerate(["id long", "id long, v void"]):
        sink(spark.createDataFrame([], schema), batch_id)
        assert sink.last_commit is not None
        assert sink.last_commit.version is None
    assert not Path(uri).exists()
    with pytest.raises(InvalidInputError, match="'v' has or contains the type null"):
        sink(spark.sql("SELECT 1L AS id, NULL AS v"), 2)
    sink(spark.createDataFrame([(1, "a")], "id long, v string"), 3)
    assert rows_of(uri) == [(1, "a")]


@pytest.mark.floors
@pytest.mark.parametrize("condition", ["op", "'true'", "DATE'2026-01-01'", "array(true)"])
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_non_boolean_conditions_are_refused(
    spark: Any, uri: str, condition: str, ansi: str
) -> None:
    """Spark would cast text or dates to a boolean differently by `spark.sql.ansi.enabled`, and
    thereby delete different rows.
    """
    sink = lance_sink(uri, mode="upsert", on="id", delete_when=condition, app_id="a")
    with (
        settings(spark, {"spark.sql.ansi.enabled": ansi}),
        pytest.raises(InvalidInputError, match=r"is .*, not a condition; compare it"),
    ):
        sink(spark.sql("SELECT 1L AS id, 'd' AS op"), 0)
    assert not Path(uri).exists()


@pytest.mark.essential
def test_numbers_are_conditions_as_in_spark(spark: Any, uri: str) -> None:
    """Change data often carries a delete flag of 0 or 1, and a null flag must delete no row."""
    sink = lance_sink(
        uri, mode="upsert", on="id", delete_when="gone", except_columns=["gone"], app_id="a"
    )
    sink(spark.sql("SELECT id, int(nullif(id, 2)) AS gone FROM range(3)"), 0)
    assert rows_of(uri) == [(0,), (2,)]


# --- what else a batch comes with


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_observations_cover_the_whole_batch(spark: Any, uri: str, mode: str) -> None:
    """If the sink read only a part of the batch first, an `Observation` would report the count of
    this part.
    """
    on = {"on": "id"} if mode == "upsert" else {}
    sink = lance_sink(uri, mode=mode, app_id="a", **on)
    for batch_id in range(2):
        seen = Observation()
        rows = spark.range(5 * batch_id, 5 * batch_id + 5)
        sink(rows.observe(seen, functions.count("*").alias("n")), batch_id)
        assert seen.get == {"n": 5}


def test_cached_batches_replay_identically(spark: Any, uri: str) -> None:
    """A persisted batch with random values has the same rows on a replay, so its digest must agree
    with the ledger.
    """
    batch = spark.range(5).withColumn("r", functions.rand()).persist()
    sink = lance_sink(uri, app_id="a")
    for _ in range(2):
        sink(batch, 0)
    assert sink.last_commit is not None
    assert (sink.last_commit.skipped, sink.last_commit.rows_differ) == (True, False)
    assert rows_of(uri) == sorted(tuple(row) for row in batch.collect())
    batch.unpersist()


def test_sinks_serve_two_queries_at_once(file_stream: Any, uri: str) -> None:
    """Batches and compactions of two queries share the sink's state, which must not mix their app
    ids or lose rows.
    """
    for number in range(3):
        file_stream.add(pa.table({"id": pa.array(range(number, number + 3), pa.int64())}))
    sink = lance_sink(uri, compact=2)
    twice = [file_stream.start(sink, checkpoint) for checkpoint in ("one", "two")]
    for query in twice:
        query.awaitTermination()
    assert sink.wait_for_compaction(60)
    assert [row[0] for row in rows_of(uri)] == sorted([0, 1, 1, 2, 2, 2, 3, 3, 4] * 2)
    ds = lance_stream.open_dataset(uri)
    assert ds.verify() == []
    assert len(ds.ledger()) == 2


def test_settings_are_restored_after_all_threads(spark: Any) -> None:
    """The first of two threads to finish must not reset a Spark setting that the other one still
    needs.
    """
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    both, is_done = threading.Barrier(2), threading.Event()

    def hold() -> None:
        with settings(spark, {name: "7"}):
            both.wait(10)
            is_done.wait(10)

    thread = threading.Thread(target=hold)
    with settings(spark, {name: "7"}):
        thread.start()
        both.wait(10)
    assert spark.conf.get(name) == "7"
    is_done.set()
    thread.join(10)
    assert spark.conf.get(name) == before
