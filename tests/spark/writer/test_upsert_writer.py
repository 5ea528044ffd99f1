"""The format "lance" as a writer of upserts and change feeds, by batches, SQL and streams."""

import pickle
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import CharType, StringType, StructField, StructType

import lance_stream
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    OtherBatchError,
    TableReplacedError,
)
from lance_stream.expressions.predicates import evaluate_predicate, parse_predicate
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.spark import lance_sink, register
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.writer.delete_conditions import resolve_delete_condition
from lance_stream.spark.writer.lance_writer import TaskResult, plan
from lance_stream.spark.writer.upsert_writer import UpsertJob, plan_upsert
from lance_stream.table.config import ledger_entries
from lance_stream.table.paths import STAGED_ROWS_DIRECTORY
from lance_stream.upsert.large import staged_rows
from tests.spark.writer.writers_of_jobs import batch_writer, stream_writer

CDC = {
    "mode": "upsert",
    "on": "id",
    "sequenceBy": "seq",
    "deleteWhen": "op = 'd'",
    "exceptColumns": "op",
}
CDC_OF_SINK: dict[str, Any] = {
    "mode": "upsert",
    "on": "id",
    "sequence_by": "seq",
    "delete_when": "op = 'd'",
    "except_columns": ["op"],
}


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def save(df: Any, uri: str, **options: Any) -> None:
    df.write.format("lance").mode("append").options(**options).save(uri)


def by(*on: str, **more: Any) -> dict[str, Any]:
    return {"mode": "upsert", "on": ",".join(on)} | more


def changes(*rows: tuple[int, str, int, str]) -> pa.Table:
    ids, values, seqs, ops = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": list(values),
            "seq": pa.array(seqs, pa.int64()),
            "op": list(ops),
        }
    )


def rows_of(uri: str) -> list[tuple[Any, ...]]:
    table = lance_stream.open_dataset(uri).to_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def staged_in(uri: str) -> list[str]:
    return [path.name for path in Path(uri, STAGED_ROWS_DIRECTORY).glob("*")]


def data_files(uri: str) -> set[str]:
    return {path.name for path in Path(uri, "data").glob("*")}


# --- batches


@pytest.mark.spark
@pytest.mark.floors
@pytest.mark.slow
def test_a_batch_updates_and_inserts(session: Any, uri: str) -> None:
    """Rows keep their row ids, and a new table gets the key as its primary key."""
    save(session.sql("SELECT id, 'a' AS x FROM range(3)"), uri, **by("id"))
    before = lance_stream.open_dataset(uri).to_table(with_row_id=True)
    save(session.sql("SELECT id + 1 AS ID, 'b' AS X FROM range(3)"), uri, **by("Id"))
    ds = lance_stream.open_dataset(uri)
    assert rows_of(uri) == [(0, "a"), (1, "b"), (2, "b"), (3, "b")]
    after = ds.to_table(with_row_id=True).sort_by("id")
    assert after["_rowid"][:3] == before.sort_by("id")["_rowid"]
    assert (ds.version, ds.verify()) == (2, [])
    assert [version.operation for version in ds.versions()] == ["Create", "Update"]
    keys = {field.name: field.primary_key_position for field in ds.table.schema.fields}
    assert keys == {"id": 0, "x": None}
    kinds = ds.changes(1, pre_images=False).read_all()["_change_type"].to_pylist()
    assert sorted(kinds) == ["insert", "update_postimage", "update_postimage"]
    assert lance.dataset(uri).count_rows() == 4


@pytest.mark.spark
@pytest.mark.essential
def test_a_numbered_batch_is_applied_once(session: Any, uri: str) -> None:
    """A second batch with its number is refused, as the sink does."""
    df = session.createDataFrame(changes((1, "a", 1, "i"), (2, "b", 1, "i")))
    for _ in range(2):
        save(df, uri, txnAppId="load", txnVersion=7, **CDC)
    assert lance_stream.open_dataset(uri).version == 1
    with pytest.raises(Exception, match="under the same batch id"):
        save(df.where("id = 1"), uri, txnAppId="load", txnVersion=7, **CDC)
    sink = lance_sink(uri, app_id="load", **CDC_OF_SINK)
    sink(df, 7)
    assert sink.last_commit is not None
    assert sink.last_commit.skipped
    assert rows_of(uri) == [(1, "a", 1), (2, "b", 1)]


@pytest.mark.spark
@pytest.mark.slow
def test_large_tasks_stage_their_rows(session: Any, uri: str) -> None:
    """Rows that exceed a task's memory are staged in files, which are deleted after the commit."""
    numbers = session.range(0, 240_000, 1, 2)
    save(numbers.selectExpr("id", "concat('first ', id) AS x"), uri, **by("id"))
    assert Path(uri, STAGED_ROWS_DIRECTORY).exists()
    assert staged_in(uri) == []
    save(numbers.selectExpr("id * 2 AS id", "concat('next ', id) AS x"), uri, **by("id"))
    assert staged_in(uri) == []
    ds = lance_stream.open_dataset(uri)
    assert (ds.version, ds.count_rows(), ds.verify()) == (2, 360_000, [])
    rows = ds.to_table(filter="id IN (1, 2, 479998)").sort_by("id")
    assert rows["x"].to_pylist() == ["first 1", "next 1", "next 239999"]


@pytest.mark.spark
def test_views_are_written_by_key(session: Any, uri: str) -> None:
    """INSERT into such a view has to update existing keys, and INSERT OVERWRITE has no meaning for
    it.
    """
    save(session.sql("SELECT 1 AS id, 'a' AS x"), uri, **by("id"))
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW by_key USING lance "
        f"OPTIONS (path '{uri}', mode 'upsert', on 'id')"
    )
    assert session.table("by_key").count() == 1
    session.sql("INSERT INTO by_key VALUES (1, 'b'), (2, 'c')")
    assert rows_of(uri) == [(1, "b"), (2, "c")]
    with pytest.raises(Exception, match=r"use \.mode\('append'\)"):
        session.sql("INSERT OVERWRITE by_key VALUES (1, 'z')")


@pytest.mark.spark
def test_excepted_columns_are_not_appended(session: Any, uri: str) -> None:
    """A sink with the same rules recognizes the batch as the committed one."""
    df = session.createDataFrame(changes((1, "a", 1, "i")))
    for _ in range(2):
        save(df, uri, exceptColumns="OP, seq", txnAppId="a", txnVersion=0)
    assert rows_of(uri) == [(1, "a")]
    sink = lance_sink(uri, except_columns=["seq", "OP"], app_id="a")
    with pytest.raises(OtherBatchError, match="rules"):  # names are compared as they are written
        lance_sink(uri, except_columns=["seq"], app_id="a")(df, 0)
    sink(df, 0)
    assert sink.last_commit is not None
    assert sink.last_commit.skipped


# --- streams


def run(
    file_stream: Any, uri: str, output_mode: str = "append", df: Any = None, **options: Any
) -> str:
    stream = file_stream.read()
    query = (
        (stream if df is None else df(stream))
        .writeStream.format("lance")
        .outputMode(output_mode)
        .options(**{"checkpointLocation": str(file_stream.checkpoints / "main"), **options})
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()
    return str(query.id)


@pytest.mark.since_spark("4.1")
@pytest.mark.spark
@pytest.mark.floors
@pytest.mark.slow
def test_format_and_sink_take_turns(session: Any, file_stream: Any, uri: str) -> None:
    """Each recognizes the other's newest batch in the ledger as a replay."""
    register(session)
    file_stream.add(changes((1, "a", 1, "i"), (2, "b", 2, "i"), (3, "c", 3, "i")))
    run(file_stream, uri, appId="mine", tombstones="7 days", **CDC)
    file_stream.forget_newest_commit()
    file_stream.add(changes((2, "b", 4, "d"), (1, "A", 5, "u"), (1, "z", 0, "u")))
    sink = lance_sink(uri, app_id="mine", tombstones="7 days", **CDC_OF_SINK)
    file_stream.run(sink)
    assert rows_of(uri) == [(1, "A", 5), (3, "c", 3)]
    file_stream.forget_newest_commit()
    file_stream.add(changes((2, "late", 3, "u"), (4, "d", 6, "i")))
    query_id = run(file_stream, uri, appId="mine", tombstones="7 days", **CDC)
    ds = lance_stream.open_dataset(uri)
    assert rows_of(uri) == [(1, "A", 5), (3, "c", 3), (4, "d", 6)]
    assert (ds.version, ds.verify()) == (3, [])
    entry = ledger_entries.read_entry(ds.config, "mine")
    assert entry is not None
    assert (entry.batch_id, entry.query_id, entry.num_rows) == (2, query_id, 2)


@pytest.mark.since_spark("4.1")
@pytest.mark.spark
def test_the_format_applies_a_change_feed(session: Any, uri: str, tmp_path: Path) -> None:
    """A replica without any Python function needs the format as both source and sink, across
    restarts.
    """
    register(session)
    source = lance_stream.create_dataset(str(tmp_path / "source"), pa.table({"id": [1, 2]}))
    source = source.append(pa.table({"id": [3]}))
    source.delete("id = 2")

    def replicate() -> None:
        feed = session.readStream.format("lance").option("readChangeFeed", "true")
        query = feed.load(str(tmp_path / "source")).writeStream.format("lance")
        query = query.options(mode="apply_changes", on="id", checkpointLocation=str(tmp_path / "c"))
        query.trigger(availableNow=True).start(uri).awaitTermination()

    replicate()
    source = lance_stream.open_dataset(str(tmp_path / "source"))
    source.append(pa.table({"id": [4]})).delete("id = 1")
    replicate()
    assert rows_of(uri) == [(3,), (4,)]
    assert lance_stream.open_dataset(uri).schema.names == ["id"]


@pytest.mark.since_spark("4.1")
@pytest.mark.spark
def test_modes_must_fit_the_output_mode(session: Any, file_stream: Any, uri: str) -> None:
    """A mode that does not fit the output mode would lose batches or retain removed groups, so the
    stream stops unless the user allows it.
    """
    register(session)
    file_stream.add(changes((1, "a", 1, "i"), (1, "b", 2, "i")))
    with pytest.raises(Exception, match="only those of the last one would stay"):
        run(file_stream, uri, mode="overwrite")
    counted = {"df": lambda df: df.groupBy("id").count(), "output_mode": "complete"}
    with pytest.raises(Exception, match="later removes would stay in the table"):
        run(file_stream, uri, **counted, **by("id"))
    with pytest.raises(NotFoundError):
        lance_stream.open_dataset(uri)
    run(file_stream, uri, **counted, **by("id", anyOutputMode="true"))
    assert rows_of(uri) == [(1, 2)]


# --- in one process


def planned(uri: str, rows: pa.Table, streaming: bool = False, **options: str) -> UpsertJob:
    arguments = parse_writer_options(
        {"path": uri, "mode": "upsert", "on": "id", **options}, streaming
    )
    return plan_upsert(arguments, spark_schema(carrier_schema(rows.schema)))


def written(job: UpsertJob, rows: pa.Table, query_id: str = "") -> TaskResult:
    part = batch_writer(job).write(iter(rows.to_batches()))
    return replace(pickle.loads(pickle.dumps(part)), query_id=query_id)


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage all rows in files."""
    monkeypatch.setattr(staged_rows, "_MAX_INLINE_BYTES", 0)


@pytest.mark.usefixtures("in_files")
def test_two_drivers_apply_a_batch_once(uri: str) -> None:
    """Both drivers have staged their rows, and the loser has to delete its files."""
    rows = pa.table({"id": [1, 2]})
    job = planned(uri, rows, streaming=True)
    parts = [written(job, rows, "q") for _ in range(2)]
    assert len(staged_in(uri)) == 2
    for part in parts:
        stream_writer(job).commit([part], 0)
    assert (lance_stream.open_dataset(uri).version, rows_of(uri)) == (1, [(1,), (2,)])
    assert staged_in(uri) == []
    assert len(data_files(uri)) == 1


@pytest.mark.usefixtures("in_files")
def test_commits_plan_on_the_newest_version(uri: str) -> None:
    """Another writer may have changed or created the table since the tasks were planned."""
    rows = pa.table({"id": [1, 2], "x": ["a", "b"]})
    job = planned(uri, rows)
    part = written(job, rows)
    ds = lance_stream.create_dataset(uri, pa.table({"id": [2], "x": ["z"], "y": [5]}))
    batch_writer(job).commit([part])
    assert rows_of(uri) == [(1, "a", None), (2, "b", 5)]
    assert lance_stream.open_dataset(uri).version == ds.version + 1


@pytest.mark.usefixtures("in_files")
@pytest.mark.parametrize("error", [OSError("no answer"), KeyboardInterrupt()])
def test_failed_commits_delete_staged_rows(
    uri: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Neither an error nor an interrupt may leave a copy of the batch on the store."""
    rows = pa.table({"id": [1, 2]})
    job = planned(uri, rows)
    part = written(job, rows)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("lance_stream.spark.writer.upsert_writer.upsert_staged", fail)
    with pytest.raises(type(error)):
        batch_writer(job).commit([part])
    assert staged_in(uri) == []


@pytest.mark.usefixtures("in_files")
def test_aborts_delete_staged_rows(uri: str) -> None:
    """Spark passes None for tasks without a result, and the files of the others must still be
    deleted.
    """
    rows = pa.table({"id": [1, 2]})
    job = planned(uri, rows)
    for missing in ([], [None]):
        part = written(job, rows)
        assert staged_in(uri)
        batch_writer(job).abort([part, *missing])
        assert staged_in(uri) == []


@pytest.mark.usefixtures("in_files")
def test_invalid_rows_of_tasks_leave_nothing(uri: str) -> None:
    """The rows of all tasks are staged before the driver sees a null or duplicate key."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    job = planned(uri, rows)
    good, bad = written(job, rows), written(job, pa.table({"id": pa.array([None], pa.int64())}))
    with pytest.raises(InvalidInputError, match="null"):
        batch_writer(job).commit([good, bad])
    with pytest.raises(InvalidInputError, match="occur more than once"):
        batch_writer(job).commit([written(job, rows), written(job, rows)])
    assert staged_in(uri) == []
    with pytest.raises(NotFoundError):
        lance_stream.open_dataset(uri)


@pytest.mark.usefixtures("in_files")
def test_lost_staged_rows_are_cleaned_up(uri: str) -> None:
    """A killed process leaves them behind, and other programs must not take them for part of the
    table.
    """
    rows = pa.table({"id": [1, 2]})
    ds = lance_stream.create_dataset(uri, rows)
    part = written(planned(uri, rows), rows)
    assert part.staged is not None
    assert lance.dataset(uri).count_rows() == 2
    assert ds.cleanup(retain_versions=1).num_files == {}
    assert ds.cleanup(delete_unverified=True).num_files == {"staged rows": 1}
    with pytest.raises(NotFoundError):
        batch_writer(planned(uri, rows)).commit([part])
    assert lance_stream.open_dataset(uri).version == 1


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_columns_evolve_on_request(uri: str, mode: str) -> None:
    """New columns and wider types have to be committed before the tasks write."""
    narrow = pa.table({"id": pa.array([1, 2], pa.int64()), "x": pa.array([1, 2], pa.int32())})
    wide = pa.table({"id": pa.array([3], pa.int64()), "x": pa.array([2**40]), "y": ["new"]})
    lance_stream.create_dataset(uri, narrow)
    by_key = {"on": "id"} if mode == "upsert" else {}
    options = {"path": uri, "mode": mode, **by_key}
    for evolution in ("none", "add_columns", "widen_types"):
        arguments = parse_writer_options({**options, "schemaEvolution": evolution}, False)
        with pytest.raises(InvalidInputError, match=r"'x'|'y'"):
            plan(arguments, spark_schema(carrier_schema(wide.schema)), False)
    both = {"schemaEvolution": "add_columns, widen_types"}
    arguments = parse_writer_options({**options, **both}, False)
    job = plan(arguments, spark_schema(carrier_schema(wide.schema)), False)
    part = batch_writer(job).write(iter(wide.to_batches()))
    batch_writer(job).commit([part])
    assert rows_of(uri) == [(1, 1, None), (2, 2, None), (3, 2**40, "new")]
    assert lance_stream.open_dataset(uri).verify() == []


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(("stored", "received"), [("id", "id"), ("ID", "id"), ("id", "Id")])
def test_primary_keys_ignore_case(uri: str, mode: str, stored: str, received: str) -> None:
    """Spark does not distinguish the case of columns, so any spelling of the option has to create
    the key, and to agree with the key of a table that exists.
    """
    by_key = {"on": "id"} if mode == "upsert" else {}
    options = {"path": uri, "mode": mode, "primaryKey": "iD", **by_key}
    arguments = parse_writer_options(options, False)
    for name in (stored, received):
        rows = pa.table({name: [1, 2]})
        job = plan(arguments, spark_schema(carrier_schema(rows.schema)), False)
        batch_writer(job).commit([batch_writer(job).write(iter(rows.to_batches()))])
    ds = lance_stream.open_dataset(uri)
    assert [
        field.name for field in ds.table.schema.fields if field.primary_key_position is not None
    ] == [stored]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_options_name_columns_ignoring_case(uri: str, mode: str) -> None:
    """Spark does not distinguish the case of columns, whichever option names them, or names them
    twice.
    """
    by_key = {"on": "id"} if mode == "upsert" else {}
    options = {"path": uri, "mode": mode, "vectors": "EMB:2", "exceptColumns": "Op,oP", **by_key}
    arguments = parse_writer_options(options, False)
    vectors = pa.array([[1.0, 2.0]], pa.list_(pa.float32()))
    for name in ("emb", "Emb"):
        rows = pa.table({"id": [1], name: vectors, "op": ["u"]})
        job = plan(arguments, spark_schema(carrier_schema(rows.schema)), False)
        batch_writer(job).commit([batch_writer(job).write(iter(rows.to_batches()))])
    schema = lance_stream.open_dataset(uri).schema
    assert schema.names == ["id", "emb"]
    assert schema.field("emb").type == pa.list_(pa.float32(), 2)


def test_upserts_create_no_branches(uri: str) -> None:
    """A misspelt branch would receive the rows, and no reader of the table would see them."""
    rows = pa.table({"id": [1]})
    lance_stream.create_dataset(uri, rows)
    with pytest.raises(NotFoundError, match="dve"):
        planned(uri, rows, branch="dve")


@pytest.mark.parametrize("evolution", ["none", "add_columns"])
@pytest.mark.parametrize(
    ("renamed", "match"),
    [("id", "no key column 'id'.*has the columns old, lsn"), ("lsn", "no column 'lsn' for it")],
)
def test_keys_and_sequences_are_not_added(
    uri: str, renamed: str, match: str, evolution: str
) -> None:
    """A column that is added is null in all rows: an upsert would insert them again, or replace
    them by older ones.
    """
    lance_stream.create_dataset(uri, pa.table({"id": [1, 2], "lsn": [1, 2]}))
    lance_stream.open_dataset(uri).rename_columns({renamed: "old"})
    by_key = {"mode": "upsert", "on": "id", "sequenceBy": "lsn"}
    arguments = parse_writer_options({"path": uri, **by_key, "schemaEvolution": evolution}, False)
    rows = pa.schema([("id", pa.int64()), ("lsn", pa.int64())])
    with pytest.raises(InvalidInputError, match=match):
        plan(arguments, spark_schema(carrier_schema(rows)), False)
    assert lance_stream.open_dataset(uri).version == 2


def test_new_queries_need_new_app_ids(uri: str) -> None:
    """A new checkpoint counts its batches from zero, and under the old app id their rows would be
    lost as replays.
    """
    rows = pa.table({"id": [1, 2]})
    job = planned(uri, rows, streaming=True)
    stream_writer(job, "app", late_start=True).commit([written(job, rows, "old")], 5)
    job = planned(uri, rows, streaming=True)
    assert job.has_committed(MicroBatch("app", 5, "old"))
    with pytest.raises(InvalidInputError, match="comes from the streaming query new"):
        stream_writer(job, "app").commit([written(job, rows, "new")], 3)
    assert lance_stream.open_dataset(uri).version == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"on": "idd"}, r"no column 'idd' \(did you mean 'id'"),
        ({"sequenceBy": "sequence"}, "no column 'sequence'"),
        ({"exceptColumns": "opp"}, r"no column 'opp' \(did you mean 'op'"),
        ({"exceptColumns": "id"}, "'id' cannot be left out"),
        ({"mode": "apply_changes"}, "'_change_type'"),
        ({"tombstones": "7 days"}, "tombstones remember deletes"),
        ({"deleteWhen": "op"}, "must be boolean"),
        ({"deleteWhen": "substring(op, 1, 1) = 'd'"}, r"withColumn\('gone'"),
        ({"deleteWhen": "op LIKE '%d\\\\d'"}, "an escape character before 'd'"),
        ({"deleteWhen": "opp = 'd'"}, "no column 'opp'; they have: id, "),
        ({"deleteWhen": "CAST(op AS INT) = 1"}, "cast"),
        ({"deleteWhen": "1 / seq > 0"}, "division by zero"),
        ({"deleteWhen": "seq + 1 > 0"}, "overflow"),
        ({"deleteWhen": "-seq > 0"}, "overflow"),
        ({"deleteWhen": "seq * 2 IN (4)"}, "overflow"),
        ({"deleteWhen": "seq > 2147483647 + 1"}, "overflow"),
        ({"deleteWhen": "at > TIMESTAMP '2026-01-01'"}, "cast or a time"),
        ({"deleteWhen": "at > '2026-01-01'"}, "session's time zone"),
        ({"deleteWhen": "at = ("}, "not a SQL expression"),
    ],
)
def test_unsupported_upsert_options_are_refused(
    uri: str, options: dict[str, str], match: str
) -> None:
    """Tasks evaluate `deleteWhen` without Spark, so a condition that could mean something else
    than in Spark must be refused.
    """
    rows = changes((1, "a", 1, "i")).append_column("at", pa.array([0], pa.timestamp("us", "UTC")))
    with pytest.raises(InvalidInputError, match=match):
        planned(uri, rows, **options)
    with pytest.raises(NotFoundError):
        lance_stream.open_dataset(uri)


CONDITIONS = (
    "op = 'd'",
    "OP in ('d', 'D')",
    "lower(op) = 'd'",
    "op <> 'u' AND seq > 1",
    "NOT (op = 'u' OR op IS NULL)",
    "at IS NOT NULL",
    "gone",
    "op LIKE 'd%' or f > 0.1",
    "f > 300",
    "day < DATE '2026-01-02'",
    "seq > -1 AND f < -0.0 OR seq < 2",
    "price >= 1.25",
    "seq BETWEEN 1 AND 2",
)


@pytest.mark.spark
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.essential
def test_delete_conditions_select_sparks_rows(session: Any, condition: str) -> None:
    """Nulls, NaN, negative zero, casts and decimals must decide as in Spark, or a delete would hit
    other rows.
    """
    df = session.sql(
        "SELECT * FROM VALUES"
        " (1L, 'd', TIMESTAMP'2026-01-01', true, 0.1F, DATE'2026-01-01', 1.25BD),"
        " (2L, 'D', NULL, false, CAST('NaN' AS FLOAT), DATE'2026-01-02', 1.249BD),"
        " (3L, NULL, NULL, NULL, CAST(NULL AS FLOAT), NULL, NULL),"
        " (NULL, 'dx', TIMESTAMP'2026-01-01', NULL, -0.0F, DATE'1969-12-31', 9.9BD),"
        " (0L, 'u', NULL, true, 500F, DATE'2026-01-03', -1.25BD)"
        " AS t(seq, op, at, gone, f, day, price)"
    )
    chosen = sorted(map(str, df.where(condition).toArrow().to_pylist()))
    resolved = resolve_delete_condition(condition, df.schema, case_sensitive=False)
    rows = df.toArrow()
    mask = evaluate_predicate(
        parse_predicate(resolved, rows.schema),
        rows.combine_chunks().to_batches()[0],
    )
    assert sorted(map(str, rows.filter(mask).to_pylist())) == chosen
    assert 0 < len(chosen) < 5


TEXTS = [
    "CORP\\bob",
    "CORP\bob",
    "CORPbob",
    "10%",
    "10",
    "a\tb",
    "a\\tb",
    "it's",
    'say "d"',
    "d1",
    "\\",
]


@pytest.mark.spark
@pytest.mark.parametrize(
    "condition",
    [
        r"op = 'CORP\\bob'",
        r"op = 'CORP\bob'",
        r"op LIKE '10\%'",
        r"op LIKE '%\\\\%'",
        r"op LIKE '%!_%' ESCAPE '!' OR op LIKE 'a\tb'",
        r"op IN ('a\tb', 'it\'s', 'it''s')",
        r"""op = "say \"d\"" OR op = 'say "d"'""",
        r"op RLIKE '^\\w\\d$'",
        r"op = r'a\tb'",
        r"contains(op, '\\')",
    ],
)
def test_backslashes_mean_what_spark_means(session: Any, condition: str) -> None:
    """A delete that reads an escape differently deletes other rows."""
    df = session.createDataFrame(pa.table({"op": TEXTS}))
    resolved = resolve_delete_condition(condition, df.schema, case_sensitive=False)
    rows = pa.RecordBatch.from_pydict({"op": TEXTS})
    mask = evaluate_predicate(parse_predicate(resolved, rows.schema), rows)
    chosen = [row.op for row in df.where(condition).collect()]
    assert rows.filter(mask)["op"].to_pylist() == chosen
    assert 0 < len(chosen) < len(TEXTS)


def test_padded_columns_decide_no_delete() -> None:
    """Spark pads 'd' with blanks for a CHAR(3), while the table has no such padding."""
    written = {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}
    for field in (StructField("op", CharType(3)), StructField("op", StringType(), True, written)):
        with pytest.raises(InvalidInputError, match=r"a CHAR column, to whose length Spark pads"):
            resolve_delete_condition("op = 'd'", StructType([field]), case_sensitive=False)
    varying = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
    columns = StructType([StructField("op", StringType(), True, varying)])
    assert resolve_delete_condition("op = 'd'", columns, case_sensitive=False) == "op = 'd'"


@pytest.mark.spark
def test_collated_columns_decide_no_delete(session: Any) -> None:
    """The evaluation in tasks compares bytes, while Spark compares by the collation."""
    schema: StructType = session.sql("SELECT 'd' COLLATE UTF8_LCASE AS op").schema
    with pytest.raises(InvalidInputError, match="UTF8_LCASE"):
        resolve_delete_condition("op = 'D'", schema, case_sensitive=False)


def test_empty_first_upserts_create_the_table(uri: str) -> None:
    """Like an empty append, so that a later batch can tell that a missing table was deleted."""
    rows = pa.table({"id": [1, 2]})
    job = planned(uri, rows, streaming=True)
    stream_writer(job, "app").commit([written(job, rows.slice(2), "query")], 0)
    assert lance_stream.open_dataset(uri).count_rows() == 0
    assert planned(uri, rows, streaming=True).has_committed(MicroBatch("app", 0, "query"))


@pytest.mark.parametrize("streaming", [False, True])
def test_upserts_create_no_deleted_table_again(uri: str, streaming: bool) -> None:
    """A new table would lack the rows of all earlier batches."""
    rows = pa.table({"id": [1, 2]})
    lance_stream.create_dataset(uri, rows)
    job = planned(uri, rows, streaming=streaming)
    part = written(job, rows, "query")
    shutil.rmtree(uri)
    commit = partial(stream_writer(job, "app").commit, batchId=3)
    with pytest.raises(TableReplacedError, match="the table has been deleted since"):
        (commit if streaming else batch_writer(job).commit)([part])
    assert not Path(uri).exists()
