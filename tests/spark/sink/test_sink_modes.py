"""Upserts, deletes, CDC and overwrites by the sink."""

import datetime
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import lance_stream
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.monitoring.series import commits_in_log
from lance_stream.spark import LanceSink, auto_cdc_sink, lance_sink, register
from lance_stream.spark.jobs import spark_workers
from lance_stream.spark.sink import batch_writing, modes
from tests.spark.sink.few_rows_by_tasks import upsert_by_tasks

pytestmark = pytest.mark.spark


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture(params=["collected on a local master", "collected on a cluster", "by tasks"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which an upsert finds and writes its rows."""
    if request.param == "collected on a cluster":
        monkeypatch.setattr(modes, "workers_of", spark_workers.SparkTasks)
    if request.param == "by tasks":
        upsert_by_tasks(monkeypatch)
    return str(request.param)


def feed(spark: Any, sink: LanceSink, batch_id: int, schema: str, *rows: Any) -> None:
    sink(spark.createDataFrame(list(rows), schema), batch_id)


def rows_of(uri: str) -> list[tuple[Any, ...]]:
    table = lance_stream.open_dataset(uri).to_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def lineage_of(uri: str) -> dict[Any, tuple[int, int, int]]:
    """Return row id, created-at and last-updated-at by the first column."""
    ds = lance_stream.open_dataset(uri)
    table = ds.scan(with_row_id=True, with_row_versions=True).read_all()
    names = table.schema.names
    return {
        row[names[0]]: (
            row["_rowid"],
            row["_row_created_at_version"],
            row["_row_last_updated_at_version"],
        )
        for row in table.to_pylist()
    }


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
@pytest.mark.essential
def test_upserts_update_and_insert(spark: Any, uri: str) -> None:
    """Updated rows keep their row ids, by which the change feed recognizes them."""
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    feed(spark, sink, 0, "id long, x string", (1, "a"), (2, "b"), (3, "c"))
    before = lineage_of(uri)
    feed(spark, sink, 1, "id long, x string", (2, "B"), (4, "d"))
    ds = lance_stream.open_dataset(uri)
    assert rows_of(uri) == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    after = lineage_of(uri)
    assert after[1] == before[1]
    assert after[2] == (before[2][0], before[2][1], ds.version)
    assert after[4][1:] == (ds.version, ds.version)
    commit = sink.last_commit
    assert commit is not None
    assert commit.version == ds.version
    assert (commit.rows_in, commit.rows_updated, commit.rows_inserted) == (2, 1, 1)
    assert commit.attempts == 1
    assert ds.verify() == []
    assert [version.operation for version in ds.versions()][-1] == "Update"


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
def test_replayed_upserts_are_skipped(spark: Any, uri: str) -> None:
    """Applying a batch twice would rewrite its rows and report updates to every consumer of the
    feed.
    """
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    feed(spark, sink, 0, "id long, x string", (1, "a"))
    feed(spark, sink, 1, "id long, x string", (1, "b"), (2, "b"))
    version = lance_stream.open_dataset(uri).version
    again = lance_sink(uri, mode="upsert", on="id", app_id="a")
    feed(spark, again, 1, "id long, x string", (1, "b"), (2, "b"))
    assert again.last_commit is not None
    assert again.last_commit.skipped
    assert again.last_commit.version == version
    assert lance_stream.open_dataset(uri).version == version


CDC = "id long, x string, seq long, op string"


def cdc_sink(uri: str, **more: Any) -> LanceSink:
    arguments: dict[str, Any] = {
        "on": ["id"],
        "sequence_by": "seq",
        "delete_when": "op = 'd'",
        "except_columns": ["op"],
    }
    return lance_sink(uri, mode="upsert", app_id="a", **{**arguments, **more})


def test_columns_of_the_sink_stay_separate(spark: Any, uri: str) -> None:
    """Spark's `withColumn` replaces a column of the same name, in whatever case, and would store
    the sink's values instead of the user's.
    """
    rows = spark.createDataFrame([(1, 7, 5, 1)], "id long, x long, seq long, part long")
    deleting = lance_sink(uri, mode="upsert", on="id", app_id="a", delete_when="id < 0")
    with pytest.raises(InvalidInputError, match="a column '_LANCE_stream_deletes', but the sink"):
        deleting(rows.withColumnRenamed("x", "_LANCE_stream_deletes"), 0)
    ordered = auto_cdc_sink(uri, keys="id", sequence_by=["seq", "part"], app_id="a")
    with pytest.raises(InvalidInputError, match="a column '__sequence', but the sink adds one"):
        ordered(rows.withColumnRenamed("x", "__sequence"), 0)


@pytest.mark.floors
@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
def test_change_batches_become_one_version(spark: Any, uri: str) -> None:
    """Late, repeated, deleted and unknown keys of one batch must become visible together, and the
    counts must add up.
    """
    sink = cdc_sink(uri)
    feed(spark, sink, 0, CDC, *[(i, "a", 1, "c") for i in range(5)])
    version = lance_stream.open_dataset(uri).version
    feed(
        spark,
        sink,
        1,
        CDC,
        (0, "late", 0, "u"),
        (1, "old", 2, "u"),
        (1, "new", 3, "u"),
        (2, "gone", 2, "d"),
        (3, None, 2, None),
        (7, "new", 1, "c"),
        (8, "never there", 9, "d"),
    )
    assert lance_stream.open_dataset(uri).version == version + 1
    assert rows_of(uri) == [(0, "a", 1), (1, "new", 3), (3, None, 2), (4, "a", 1), (7, "new", 1)]
    commit = sink.last_commit
    assert commit is not None
    counts = (commit.rows_in, commit.rows_inserted, commit.rows_updated, commit.rows_deleted)
    assert counts == (7, 1, 2, 1)
    assert commit.rows_late == 2
    assert lance_stream.open_dataset(uri).verify() == []


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("helpers", [["op"], ["op", "seq"]], ids=["stored order", "not stored"])
@pytest.mark.essential
def test_late_rows_never_resurrect_deleted_rows(spark: Any, uri: str, helpers: list[str]) -> None:
    """The remembered sequence of a delete has to survive a restart of the sink, also if the
    sequence is not stored.
    """
    how: dict[str, Any] = {"except_columns": helpers, "tombstones": "7 days"}
    sink = cdc_sink(uri, **how)
    feed(spark, sink, 0, CDC, (1, "a", 1, "c"), (2, "a", 1, "c"))
    feed(spark, sink, 1, CDC, (1, "gone", 5, "d"), (8, "not there yet", 5, "d"), (2, "b", 2, "u"))
    commit = sink.last_commit
    assert commit is not None
    assert (commit.rows_deleted, commit.rows_updated, commit.deletes_remembered) == (1, 1, 2)
    version = lance_stream.open_dataset(uri).version
    # as after a restart, with another sink
    again = cdc_sink(uri, **how)
    feed(spark, again, 1, CDC, (1, "gone", 5, "d"), (8, "not there yet", 5, "d"), (2, "b", 2, "u"))
    assert lance_stream.open_dataset(uri).version == version
    feed(spark, again, 2, CDC, (1, "late", 4, "u"), (8, "late", 3, "c"), (3, "new", 1, "c"))
    assert again.last_commit is not None
    assert (again.last_commit.rows_late, again.last_commit.rows_inserted) == (2, 1)
    assert [row[:2] for row in rows_of(uri)] == [(2, "b"), (3, "new")]
    feed(spark, again, 3, CDC, (1, "back", 6, "u"), (8, "gone again", 7, "d"))
    assert [row[:2] for row in rows_of(uri)] == [(1, "back"), (2, "b"), (3, "new")]
    assert lance_stream.open_dataset(uri).verify() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "append", "tombstones": "7 days"}, "is for the mode upsert"),
        ({"mode": "upsert", "on": "id", "tombstones": "7 days"}, "delete_when.*sequence_by"),
        ({"mode": "upsert", "on": "id", "tombstones": "a while"}, "is not an age"),
    ],
)
def test_tombstones_need_upserts_with_a_sequence(arguments: dict[str, Any], message: str) -> None:
    """Without a sequence a late row cannot be recognized, so remembered deletes would have no
    effect.
    """
    with pytest.raises(InvalidInputError, match=message):
        lance_sink("/nowhere/t", **arguments)


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
@pytest.mark.essential
def test_missing_columns_keep_their_values(spark: Any, uri: str) -> None:
    """A change event often has only some of the columns, and the others must not become null."""
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    feed(spark, sink, 0, "id long, x string, y int", (1, "a", 1), (2, "b", 2))
    feed(spark, sink, 1, "id long, y int", (2, 20), (3, 30))
    assert rows_of(uri) == [(1, "a", 1), (2, "b", 20), (3, None, 30)]


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
def test_unchanged_rows_can_be_skipped(spark: Any, uri: str) -> None:
    """Rows that a source sends again unchanged would otherwise cost a rewrite and appear in the
    change feed.
    """
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a", skip_unchanged=True)
    feed(spark, sink, 0, "id long, x string", (1, "a"), (2, None), (3, "c"))
    before = lineage_of(uri)
    feed(spark, sink, 1, "id long, x string", (1, "a"), (2, None), (3, "C"))
    assert sink.last_commit is not None
    assert (sink.last_commit.rows_unchanged, sink.last_commit.rows_updated) == (2, 1)
    after = lineage_of(uri)
    assert (after[1], after[2]) == (before[1], before[2])
    version = lance_stream.open_dataset(uri).version
    feed(spark, sink, 2, "id long, x string", (1, "a"))
    assert lance_stream.open_dataset(uri).version == version
    assert sink.last_commit.version is None


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
def test_conditions_select_updates_and_inserts(spark: Any, uri: str) -> None:
    """Conditions see columns that are not stored, and rows that they exclude are counted."""
    sink = lance_sink(
        uri,
        mode="upsert",
        on="id",
        app_id="a",
        except_columns=["force"],
        when_matched="source.force OR source.x > target.x",
        when_not_matched="source.x < 100",
    )
    columns = "id long, x int, force boolean"
    feed(spark, sink, 0, columns, (1, 10, False), (2, 20, False), (3, 300, False))
    feed(spark, sink, 1, columns, (1, 5, False), (2, 5, True), (4, 40, False), (5, 500, False))
    assert rows_of(uri) == [(1, 10), (2, 5), (4, 40)]
    commit = sink.last_commit
    assert commit is not None
    assert (commit.rows_updated, commit.rows_inserted, commit.rows_ignored) == (1, 1, 2)


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="requires pyarrow 19")
def test_strings_become_json_and_come_back(spark: Any, uri: str) -> None:
    """Spark has no JSON type, so the table's schema decides which columns are JSON."""
    schema = pa.schema([("id", pa.int64()), pa.field("j", pa.json_())])
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a", create_options={"schema": schema})
    feed(spark, sink, 0, "id long, j string", (1, '{"a": [1.50]}'), (2, None))
    feed(spark, sink, 1, "id long, j string", (2, "null"))
    assert lance_stream.open_dataset(uri).schema.field("j").type == pa.json_()
    register(spark)
    read = spark.read.format("lance").load(uri)
    assert read.schema["j"].dataType.simpleString() == "string"
    assert sorted(map(tuple, read.collect())) == [(1, '{"a":[1.5]}'), (2, "null")]


@pytest.mark.floors
@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
def test_keys_may_combine_many_types(spark: Any, uri: str) -> None:
    """Keys are compared as the table stores them, after casts from Spark's types."""
    schema = pa.schema(
        [
            ("a", pa.uint16()),
            ("b", pa.large_string()),
            ("c", pa.decimal128(10, 2)),
            ("d", pa.timestamp("ms", "UTC")),
            ("e", pa.bool_()),
            ("f", pa.binary(2)),
            ("g", pa.date32()),
            ("v", pa.int32()),
        ]
    )
    keys = ["a", "b", "c", "d", "e", "f", "g"]
    sink = lance_sink(uri, mode="upsert", on=keys, app_id="a", create_options={"schema": schema})

    def rows(value: int, *numbers: int) -> DataFrame:
        df: DataFrame = spark.createDataFrame([(i, value) for i in numbers], "i int, v int")
        return df.selectExpr(
            "cast(i as smallint) a",
            "concat('k', i) b",
            "cast(i as decimal(8, 1)) c",
            "timestamp_millis(i) d",
            "i % 2 = 0 e",
            "unhex(lpad(hex(i), 4, '0')) f",
            "date_add(date'2026-01-01', i) g",
            "v",
        )

    sink(rows(1, 0, 1, 2, 3), 0)
    sink(rows(2, 2, 3, 4), 1)
    assert sorted(lance_stream.open_dataset(uri).to_table()["v"].to_pylist()) == [1, 1, 2, 2, 2]
    assert sink.last_commit is not None
    assert (sink.last_commit.rows_updated, sink.last_commit.rows_inserted) == (2, 1)


@pytest.mark.since_spark("4.1")  # where the type TIME begins
@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
def test_times_and_empty_arrays_are_upserted(spark: Any, uri: str) -> None:
    """Spark's TIME and the untyped empty array need a conversion to the table's types in both code
    paths.
    """
    schema = pa.schema([("id", pa.int64()), ("at", pa.time64("ns")), ("n", pa.list_(pa.int32()))])
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a", create_options={"schema": schema})
    df = spark.range(2).selectExpr("id", "TIME'12:00:00' at", "array() n")
    for batch_id in range(2):
        sink(df, batch_id)
    assert rows_of(uri) == [(number, datetime.time(12), []) for number in range(2)]
    assert sink.last_commit is not None
    assert sink.last_commit.rows_updated == 2


def test_untyped_empty_maps_are_refused(spark: Any, uri: str) -> None:
    """Spark gives such a map a type that no table can store, and the error shows the cast that
    repairs it.
    """
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    with pytest.raises(UnsupportedFeatureError, match=r"'m' is an empty map .* CAST"):
        sink(spark.range(1).selectExpr("id", "map() m"), 0)


def test_large_first_batches_are_not_collected(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known about the first batch of a run, and the driver must not run out of memory
    to find out.
    """
    collected: list[bool] = []

    def collect(df: DataFrame, limit: Any) -> pa.Table | None:
        rows = batch_writing.collect_rows(df, limit)
        collected.append(rows is not None)
        return rows

    monkeypatch.setattr(modes, "collect_rows", collect)
    monkeypatch.setattr(modes, "MAX_BYTES_ON_DRIVER", 100_000)
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    wide = "id", "repeat('x', 1000) x"
    sink(spark.range(10).selectExpr(*wide), 0)
    sink(spark.range(20).selectExpr(*wide), 1)
    sink(spark.range(1000).selectExpr(*wide), 2)
    assert collected == [True, False]
    assert lance_stream.open_dataset(uri).count_rows() == 1000
    # Spark's own process would hold what each of its tasks returns.
    restarted = lance_sink(uri, mode="upsert", on="id", app_id="a")
    restarted(spark.range(2000).selectExpr(*wide), 3)
    assert collected == [True, False]
    assert lance_stream.open_dataset(uri).count_rows() == 2000


REFUSED = {
    "null key": ([(None, "a"), (1, "b")], "1 of . rows have no key"),
    "twice": ([(1, "a"), (1, "b")], "occur more than once"),
}


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("case", REFUSED)
def test_invalid_upserts_write_nothing(spark: Any, uri: str, case: str) -> None:
    """Null or duplicate keys may be noticed after files are written, and these must not remain."""
    rows, message = REFUSED[case]
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    feed(spark, sink, 0, "id long, x string", (5, "a"))
    files = sorted(path.name for path in Path(uri, "data").iterdir())
    version = lance_stream.open_dataset(uri).version
    with pytest.raises(InvalidInputError, match=message):
        feed(spark, sink, 1, "id long, x string", *rows)
    assert lance_stream.open_dataset(uri).version == version
    assert sorted(path.name for path in Path(uri, "data").iterdir()) == files


def test_equal_sequences_need_equal_rows(spark: Any, uri: str) -> None:
    """With equal sequences the order of rows in a batch would decide, which a replay does not
    reproduce.
    """
    sink = cdc_sink(uri)
    feed(spark, sink, 0, CDC, (1, "a", 1, "u"), (1, "a", 1, "u"))
    assert rows_of(uri) == [(1, "a", 1)]
    with pytest.raises(InvalidInputError, match="which one is newer is ambiguous"):
        feed(spark, sink, 1, CDC, (1, "b", 2, "u"), (1, "c", 2, "u"))


def test_invalid_conditions_are_refused(spark: Any, uri: str) -> None:
    """The error has to quote the argument under the name that the user gave it."""
    for condition in ("no_such = 1", "sum(id) > 1"):
        sink = lance_sink(uri, mode="upsert", on="id", app_id="a", delete_when=condition)
        with pytest.raises(InvalidInputError, match=r"delete_when='.* 1' is not a condition on"):
            feed(spark, sink, 0, "id long", (1,))
    sink = auto_cdc_sink(uri, "id", "id", app_id="a", apply_as_deletes="no_such = 1")
    with pytest.raises(InvalidInputError, match="apply_as_deletes='no_such = 1' is not a condi"):
        feed(spark, sink, 0, "id long", (1,))


def test_unparsable_conditions_are_refused_at_once(spark: Any, uri: str) -> None:
    """With a session at hand, syntax errors are found when the sink is created."""
    with pytest.raises(InvalidInputError, match=r"delete_when='op =' is not .*Syntax error"):
        lance_sink(uri, mode="upsert", on="id", delete_when="op =")


def test_stream_errors_begin_with_the_message(spark: Any, uri: str) -> None:
    """Spark shows the beginning of an error, which must not be the frames of py4j and PySpark."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    sink = lance_sink(uri, mode="upsert", on="key")
    query = rows.writeStream.foreachBatch(sink).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="no column 'key'") as caught:
        query.awaitTermination()
    text = str(caught.value)
    assert 0 < text.index("InvalidInputError: the batch has no column") < text.index("Traceback")


def test_missing_key_columns_are_named(spark: Any, uri: str) -> None:
    """The error lists the columns of the batch, because a renamed column is the usual cause."""
    sink = lance_sink(uri, mode="upsert", on="key", app_id="a")
    with pytest.raises(InvalidInputError, match="the batch has no column 'key'; there are: id"):
        feed(spark, sink, 0, "id long", (1,))


def test_the_key_becomes_the_primary_key(spark: Any, uri: str) -> None:
    """Other writers then know the key, in the order that the user gave, which differs from the
    order of the columns.
    """
    sink = lance_sink(uri, mode="upsert", on=["b", "a"], app_id="a")
    feed(spark, sink, 0, "a long, b string, c int", (1, "x", 1))
    fields = lance_stream.open_dataset(uri).table.schema.fields
    assert {field.name: field.primary_key_position for field in fields} == {
        "a": 2,
        "b": 1,
        "c": None,
    }


def test_appends_omit_helper_columns_too(spark: Any, uri: str) -> None:
    """`except_columns` is not a setting of upserts alone."""
    sink = lance_sink(uri, except_columns=["op"], app_id="a")
    feed(spark, sink, 0, "id long, op string", (1, "c"))
    assert lance_stream.open_dataset(uri).schema.names == ["id"]


# --- changes of another table


CHANGES = "id long, x string, _change_type string, _commit_version long, _rowid long"


@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
@pytest.mark.essential
def test_apply_changes_follows_the_feeds_order(spark: Any, uri: str) -> None:
    """Several changes of a row in one batch, including a changed key, have to be applied by
    version and row id.
    """
    sink = lance_sink(uri, mode="apply_changes", on="id", app_id="a")
    inserts = [(key, "old", "insert", 2, key) for key in range(5)]
    feed(spark, sink, 0, CHANGES, *inserts)
    before = lineage_of(uri)
    feed(
        spark,
        sink,
        1,
        CHANGES,
        (0, "again", "insert", 5, 9),
        (0, "old", "delete", 5, 0),
        (1, "old", "update_preimage", 3, 1),
        (1, "mid", "update_postimage", 3, 1),
        (1, "mid", "update_preimage", 4, 1),
        (1, "new", "update_postimage", 4, 1),
        (2, "old", "update_preimage", 5, 2),  # its key becomes 7
        (7, "old", "update_postimage", 5, 2),
        (3, "old", "delete", 4, 3),
        (8, "came", "insert", 3, 8),
        (8, "came", "delete", 4, 8),  # and went
    )
    assert rows_of(uri) == [(0, "again"), (1, "new"), (4, "old"), (7, "old")]
    assert lance_stream.open_dataset(uri).version == 2
    assert {key: lineage_of(uri)[key][0] for key in (0, 1, 4)} == {
        key: before[key][0] for key in (0, 1, 4)
    }
    commit = sink.last_commit
    assert commit is not None
    assert (commit.rows_in, commit.rows_inserted, commit.rows_updated, commit.rows_deleted) == (
        11,
        1,
        2,
        2,
    )
    assert commit.rows_late == 0
    with pytest.raises(InvalidInputError, match=r"\(id=4\).*version 6.*not a key"):
        feed(spark, sink, 2, CHANGES, (4, "a", "insert", 6, 1), (4, "b", "insert", 6, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "mode=apply_changes needs the key columns"),
        ({"on": "id", "sequence_by": "x"}, "sequence_by is for the mode upsert"),
        ({"on": "id", "delete_when": "x"}, "delete_when is for the mode upsert"),
    ],
)
def test_apply_changes_checks_its_arguments(
    uri: str, arguments: dict[str, Any], message: str
) -> None:
    """The feed determines order and deletes, so arguments that contradict it must be refused."""
    with pytest.raises(InvalidInputError, match=message):
        lance_sink(uri, mode="apply_changes", **arguments)


def test_apply_changes_needs_change_columns(spark: Any, uri: str) -> None:
    """A stream without `readChangeFeed` has no change types, and its rows would be applied as
    inserts.
    """
    sink = lance_sink(uri, mode="apply_changes", on="id", app_id="a")
    with pytest.raises(InvalidInputError, match=r"no column '_change_type'"):
        feed(spark, sink, 0, "id long, x string", (1, "a"))
    assert not Path(uri).exists()


# --- overwrite


@pytest.mark.floors
def test_complete_output_replaces_all_rows(file_stream: Any, uri: str) -> None:
    """Every result of the output mode complete contains all groups, including those with new
    counts.
    """
    file_stream.add(pa.table({"k": [1, 1, 2]}))
    file_stream.add(pa.table({"k": [2, 2, 3]}))
    counts = file_stream.read().groupBy("k").count()
    file_stream.run(lance_sink(uri, mode="overwrite"), df=counts)
    ds = lance_stream.open_dataset(uri)
    assert rows_of(uri) == [(1, 2), (2, 3), (3, 1)]
    assert [version.operation for version in ds.versions()] == ["Create", "Overwrite"]
    assert ds.verify() == []


def test_row_ids_continue_across_overwrites(spark: Any, uri: str) -> None:
    """An id that is used twice would make the change feed report an update; a replayed overwrite
    is skipped.
    """
    sink = lance_sink(uri, mode="overwrite", app_id="a")
    feed(spark, sink, 0, "id long", (1,), (2,))
    feed(spark, sink, 1, "id long", (3,))
    version = lance_stream.open_dataset(uri).version
    feed(spark, lance_sink(uri, mode="overwrite", app_id="a"), 1, "id long", (3,))
    assert lance_stream.open_dataset(uri).version == version
    assert lineage_of(uri) == {3: (2, version, version)}
    assert sink.last_commit is not None
    assert (sink.last_commit.rows_inserted, sink.last_commit.rows_deleted) == (1, 2)


def test_an_empty_output_empties_the_table(spark: Any, uri: str) -> None:
    """An empty complete result means that no group is left; a second one must not create a
    version.
    """
    sink = lance_sink(uri, mode="overwrite", app_id="a")
    feed(spark, sink, 0, "id long", (1,))
    feed(spark, sink, 1, "id long")
    assert lance_stream.open_dataset(uri).count_rows() == 0
    version = lance_stream.open_dataset(uri).version
    feed(spark, sink, 2, "id long")
    assert lance_stream.open_dataset(uri).version == version


def test_replayed_overwrites_count_nothing(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver has committed the batch, so this one must not report its rows."""
    sink = lance_sink(uri, mode="overwrite", app_id="a")
    feed(spark, sink, 0, "id long", (1,))
    commit = modes.overwrite_fragments

    def be_late(*arguments: Any) -> Any:
        monkeypatch.setattr(modes, "overwrite_fragments", commit)
        feed(spark, lance_sink(uri, mode="overwrite", app_id="a"), 1, "id long", (2,))
        return commit(*arguments)

    monkeypatch.setattr(modes, "overwrite_fragments", be_late)
    feed(spark, sink, 1, "id long", (2,))
    assert sink.last_commit is not None
    assert sink.last_commit.skipped
    assert (sink.last_commit.rows_inserted, sink.last_commit.rows_deleted) == (0, 0)
    assert rows_of(uri) == [(2,)]


# --- columns that come


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_new_columns_are_added_on_request(spark: Any, uri: str, mode: str) -> None:
    """Columns are added for both modes, while changed types and sinks without the setting are
    refused.
    """
    on = "id" if mode == "upsert" else None
    sink = lance_sink(uri, mode=mode, on=on, schema_evolution="add_columns", app_id="a")
    feed(spark, sink, 0, "id long", (1,))
    feed(spark, sink, 1, "id long, x string", (2, "b"))
    feed(spark, sink, 2, "id long", (3,))
    assert rows_of(uri) == [(1, None), (2, "b"), (3, None)]
    with pytest.raises(InvalidInputError, match="'x'"):
        feed(spark, sink, 3, "id long, x long", (4, 4))
    fixed = lance_sink(uri, mode=mode, on=on, app_id="b")
    with pytest.raises(InvalidInputError, match="the table has no column 'y'"):
        feed(spark, fixed, 0, "id long, y string", (4, "d"))


@pytest.mark.parametrize(
    ("mode", "renamed"), [("upsert", "id"), ("upsert", "lsn"), ("apply_changes", "id")]
)
def test_renamed_keys_and_sequences_stop_sinks(
    spark: Any, uri: str, mode: str, renamed: str
) -> None:
    """If the sink added the column again, rows would be inserted twice, or replaced by older
    ones.
    """
    lance_stream.create_dataset(uri, pa.table({"id": [1, 2], "lsn": [5, 5]}))
    lance_stream.open_dataset(uri).rename_columns({renamed: "old"})
    by_lsn = {"sequence_by": "lsn"} if mode == "upsert" else {}
    sink = lance_sink(uri, mode, on="id", schema_evolution="add_columns", app_id="a", **by_lsn)
    change = {"_change_type": "insert", "_commit_version": 1} if mode == "apply_changes" else {}
    late = spark.createDataFrame([{"id": 1, "lsn": 4, **change}])
    with pytest.raises(InvalidInputError, match=f"no (key column|column) '{renamed}'"):
        sink(late, 0)
    assert rows_of(uri) == [(1, 5), (2, 5)]


# --- logging


def test_logs_have_one_line_per_batch(
    spark: Any, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Users search the log for slow batches, and `commits_in_log` parses the same line."""
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    with caplog.at_level(logging.INFO, "lance_stream.sink"):
        feed(spark, sink, 0, "id long", (1,), (2,))
    (record,) = [record for record in caplog.records if record.name == "lance_stream.sink"]
    entry = json.loads(record.getMessage().removeprefix("lance_sink "))
    assert (entry["table"], entry["batch_id"], entry["rows_inserted"]) == (uri, 0, 2)
    assert set(entry["seconds"]) == {"plan", "collect", "scan", "write", "commit"}
    (times,) = commits_in_log([f"26/11/23 INFO {record.getMessage()}\n"], uri)
    assert (times.version, dict(times.seconds)) == (1, entry["seconds"])
