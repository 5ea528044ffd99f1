"""Slowly changing dimensions by `auto_cdc_sink`, with the arguments of AUTO CDC."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, OtherBatchError
from lance_stream.spark import LanceSink, auto_cdc_sink, lance_sink
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.jobs import spark_workers
from lance_stream.spark.sink import modes
from tests.spark.sink.few_rows_by_tasks import upsert_by_tasks
from tests.upsert.histories import dimension_models as model
from tests.upsert.histories.dimension_models import Change

COLUMNS = "id long, city string, note string, seq long, op string"
ARGUMENTS: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": "seq",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["op", "seq"],
}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture(params=["collected on a local master", "collected on a cluster", "by tasks"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which rows of keys are found and written."""
    if request.param == "collected on a cluster":
        monkeypatch.setattr(modes, "workers_of", spark_workers.SparkTasks)
    if request.param == "by tasks":
        upsert_by_tasks(monkeypatch)
    return str(request.param)


def sink_of(uri: str, scd_type: int = 2, **more: Any) -> LanceSink:
    return auto_cdc_sink(uri, stored_as_scd_type=scd_type, app_id="a", **ARGUMENTS | more)


def feed(spark: Any, sink: LanceSink, batch_id: int, *changes: Change) -> None:
    sink(spark.createDataFrame(list(changes), COLUMNS), batch_id)


def rows_of(uri: str) -> pa.Table:
    return lance_stream.open_dataset(uri).to_table()


@pytest.mark.spark
@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.essential
def test_change_order_does_not_alter_history(spark: Any, uri: str, seed: int) -> None:
    """AUTO CDC promises the same history for any order and division of the changes, and for a
    replay of the last batch.
    """
    chance = random.Random(seed)
    log = model.random_log(chance)
    sink = sink_of(uri)
    batches = [batch for batch in model.in_batches(chance, log) if batch]
    for batch_id, changes in enumerate(batches):
        feed(spark, sink, batch_id, *changes)
    ds = lance_stream.open_dataset(uri)
    assert model.states(ds.to_table()) == model.history(log)
    assert ds.verify() == []
    again = sink_of(uri)
    feed(spark, again, len(batches) - 1, *batches[-1])
    assert lance_stream.open_dataset(uri).version == ds.version


@pytest.mark.spark
def test_batches_become_one_version_once(spark: Any, uri: str) -> None:
    """Closing an old row and opening the new one must be visible together, and replays must
    neither repeat nor replace them.
    """
    sink = sink_of(uri)
    feed(spark, sink, 0, Change(1, "Ulm", "x", 5, "u"), Change(2, "Bonn", "x", 5, "u"))
    version = lance_stream.open_dataset(uri).version
    changes = [Change(1, "Bonn", "x", 7, "u"), Change(2, None, None, 8, "d")]
    changes.append(Change(3, None, None, 4, "d"))
    feed(spark, sink, 1, *changes)
    commit = sink.last_commit
    assert commit is not None
    assert commit.version == version + 1
    assert (commit.rows_in, commit.rows_inserted, commit.rows_updated) == (3, 1, 2)
    assert (commit.rows_deleted, commit.deletes_remembered) == (0, 1)
    again = sink_of(uri)
    feed(spark, again, 1, *changes)
    assert again.last_commit is not None
    assert again.last_commit.skipped
    with pytest.raises(OtherBatchError):
        feed(spark, again, 1, Change(1, "Trier", "x", 9, "u"))
    feed(spark, again, 2, *changes)  # the same changes as another batch
    assert again.last_commit.version is None
    assert lance_stream.open_dataset(uri).version == version + 1


@pytest.mark.spark
def test_untracked_columns_keep_the_last_value(spark: Any, uri: str) -> None:
    """`track_history_except_column_list` must ignore the case of names and only update the open
    row.
    """
    sink = sink_of(uri, track_history_except_column_list=["NOTE"])
    feed(spark, sink, 0, Change(1, "Ulm", "a", 1, "u"), Change(1, "Ulm", "b", 2, "u"))
    feed(spark, sink, 1, Change(1, "Bonn", "c", 3, "u"))
    assert model.states(rows_of(uri)) == [(1, "Ulm", "b", 1, 3), (1, "Bonn", "c", 3, None)]


@pytest.mark.spark
@pytest.mark.usefixtures("way")
@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("scd_type", [1, 2])
def test_several_columns_order_changes(spark: Any, uri: str, scd_type: int) -> None:
    """Timestamps of a source may be equal, so a second column decides, for both types of
    dimension.
    """
    sink = auto_cdc_sink(
        uri,
        stored_as_scd_type=scd_type,
        keys="id",
        sequence_by=["ts", "lsn"],
        apply_as_deletes="op = 'd'",
        column_list=["id", "v"],
        app_id="a",
    )
    columns = "id long, v string, ts timestamp, lsn long, op string"
    rows = spark.sql(
        "SELECT * FROM VALUES (1L, 'b', timestamp'2024-01-01 10:00:00', 2L, 'u'), "
        "(1L, 'a', timestamp'2024-01-01 10:00:00', 1L, 'u'), "
        "(2L, 'c', timestamp'2024-01-01 11:00:00', 1L, 'd') AS t(id, v, ts, lsn, op)"
    )
    assert rows.columns == [part.split()[0] for part in columns.split(", ")]
    sink(rows, 0)
    late = "(2L, 'late', timestamp'2024-01-01 10:00:00', 9L, 'u')"
    sink(spark.sql(f"SELECT * FROM VALUES {late} AS t(id, v, ts, lsn, op)"), 1)
    table = rows_of(uri)
    if scd_type == 1:
        assert [(row["id"], row["v"]) for row in table.to_pylist()] == [(1, "b")]
        assert table.column_names == ["id", "v", "__SEQUENCE"]
        return
    assert table.column_names == ["id", "v", "__START_AT", "__END_AT"]
    history = sorted(
        (
            row["id"],
            row["v"],
            row["__START_AT"]["lsn"],
            row["__END_AT"] and row["__END_AT"]["lsn"],
        )
        for row in table.to_pylist()
    )
    assert history == [(1, "a", 1, 2), (1, "b", 2, None), (2, "late", 9, 1)]


@pytest.mark.spark
def test_type_1_remembers_deletes_forever(spark: Any, uri: str) -> None:
    """A late change must not resurrect a deleted row, even if the sequence is not among the stored
    columns.
    """
    sink = sink_of(uri, 1)
    feed(spark, sink, 0, Change(1, None, None, 5, "d"), Change(2, "Ulm", "x", 5, "u"))
    feed(spark, sink, 1, Change(1, "Bonn", "x", 4, "u"), Change(2, "late", "x", 3, "u"))
    table = rows_of(uri)
    assert model.rows_of(table) == [(2, "Ulm", "x")]
    assert "__SEQUENCE" in table.column_names  # since seq is not stored
    feed(spark, sink, 2, Change(1, "Bonn", "x", 6, "u"))
    assert model.rows_of(rows_of(uri)) == [(1, "Bonn", "x"), (2, "Ulm", "x")]


@pytest.mark.spark
def test_new_columns_extend_a_history(spark: Any, uri: str) -> None:
    """Closed rows of the history get nulls, and the new row continues the same history."""
    sink = sink_of(uri, schema_evolution="add_columns")
    feed(spark, sink, 0, Change(1, "Ulm", "x", 1, "u"))
    more = spark.createDataFrame([(1, "Ulm", "x", 2, "u", 9)], COLUMNS + ", size int")
    sink(more, 1)
    history = rows_of(uri).to_pylist()
    assert sorted((row["__START_AT"], row["__END_AT"], row["size"]) for row in history) == [
        (1, 2, None),
        (2, None, 9),
    ]


@pytest.mark.spark
def test_wider_sequences_widen_starts_and_ends(spark: Any, uri: str) -> None:
    """No column of the batch has their names, and the stream would stop although it may widen."""
    sink = sink_of(uri, schema_evolution="widen_types")
    for batch_id, (kind, seq) in enumerate([("int", 1), ("int", 2), ("long", 2**40)]):
        changes = spark.createDataFrame([(1, "Ulm", "x" * seq.bit_length(), seq, "u")], COLUMNS)
        sink(changes.withColumn("seq", changes["seq"].cast(kind)), batch_id)
    rows = model.states(rows_of(uri))
    assert [(row.start, row.end) for row in rows] == [(1, 2), (2, 2**40), (2**40, None)]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("*; 1 AS __START_AT", "has a column '__START_AT', a name reserved"),
        ("*; 1 AS __SEQUENCE", "has a column '__SEQUENCE', but this name is reserved"),
        (
            "*; 1 AS _Lance_stream_DELETES",
            "has a column '_Lance_stream_DELETES', but the sink adds",
        ),
        ("CAST(NULL AS long) AS id; city; note; seq; op", "rows have no key"),
        ("id; city; note; CAST(NULL AS long) AS seq; op", "rows have no 'seq'"),
        ("id; city; note; op", "the batch has no column 'seq'"),
        ("id; city; note; map(seq, 1) AS seq; op", "values have no order"),
    ],
)
def test_batches_without_a_history_are_refused(
    spark: Any, uri: str, select: str, message: str
) -> None:
    """Null keys or sequences and reserved column names would build a history that later batches
    cannot extend.
    """
    rows = spark.createDataFrame([Change(1, "Ulm", "x", 1, "u")], COLUMNS)
    with pytest.raises(InvalidInputError, match=message):
        sink_of(uri)(rows.selectExpr(*select.split("; ")), 0)


@pytest.mark.spark
def test_type_1_tables_refuse_type_2(spark: Any, uri: str) -> None:
    """Such a table lacks the interval of each row, so a changed argument after a restart must not
    write into it.
    """
    feed(spark, sink_of(uri, 1), 0, Change(1, "Ulm", "x", 1, "u"))
    with pytest.raises(InvalidInputError, match="no __START_AT and no __END_AT"):
        feed(spark, sink_of(uri), 1, Change(1, "Ulm", "x", 1, "u"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": None}, r"name the key columns, for example keys=\['id'\]"),
        ({"sequence_by": None}, "name the column or columns that order them"),
        ({"sequence_by": 3}, "sequence_by must be a list of column names"),
        ({"column_list": ["id", "city"]}, "set only one of them"),
        ({"except_column_list": ["id"]}, "key column 'id' cannot be left out"),
        ({"except_column_list": None, "column_list": ["city"]}, "key column 'id' cannot be left"),
        (
            {"track_history_column_list": "city", "track_history_except_column_list": "note"},
            "set only one of them",
        ),
        ({"track_history_column_list": "id"}, "key column 'id' cannot have a history"),
        (
            {"stored_as_scd_type": 1, "track_history_column_list": "city"},
            "type 1 .* keeps no history",
        ),
        ({"apply_as_deletes": True}, "apply_as_deletes must be a condition in SQL"),
        ({"tombstones": "soon"}, "'soon' is not an age"),
        ({"stored_as_scd_type": 3}, "stored_as_scd_type is 1, .* not 3"),
        ({"stored_as_scd_type": True}, "stored_as_scd_type is 1, .* not True"),
    ],
)
def test_invalid_dimension_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Contradictory lists of columns have no sensible meaning, and the error has to say which one
    to drop.
    """
    with pytest.raises(InvalidInputError, match=message):
        auto_cdc_sink("/somewhere", **{"stored_as_scd_type": 2, **ARGUMENTS, **arguments})


def test_scd_type_may_be_text() -> None:
    """Spark's own function accepts both a number and text."""
    assert "stored_as_scd_type=2" in repr(sink_of("/somewhere", "2"))  # type: ignore[arg-type]  # a text is taken


@pytest.mark.parametrize("mode", ["scd1", "scd2", "cdc", "SCD"])
def test_scd_modes_recommend_auto_cdc(mode: str) -> None:
    """Changes that arrive in any order have a function of their own."""
    with pytest.raises(InvalidInputError, match=r"foreachBatch\(auto_cdc_sink\("):
        lance_sink("/somewhere", mode=mode)


def test_the_format_leads_to_auto_cdc() -> None:
    """A user of the format who looks for `scd2` is shown the sink that supports it."""
    with pytest.raises(InvalidInputError, match=r"foreachBatch\(auto_cdc_sink\("):
        parse_writer_options({"path": "/somewhere", "mode": "scd2"}, streaming=True)
