"""The format as a writer checks rows, and sets bad ones aside exactly once."""

import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.spark import lance_sink, register
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.writer.checked_rows import plan_checks
from lance_stream.spark.writer.lance_writer import StreamWriter, plan
from lance_stream.storage.local_store import LocalStore
from tests.spark.sink.test_bad_rows import (
    COLUMNS,
    EXPECT,
    TABLE,
    Killed,
    expected,
    random_rows,
    reason_of,
    rows_of,
)

UPSERT = {
    "mode": "upsert",
    "on": "ID",
    "sequenceBy": "lsn",
    "deleteWhen": "OP = 'd'",
    "exceptColumns": "Op",
}
MODES: dict[str, dict[str, Any]] = {
    "append": {"mode": "append", "exceptColumns": "op"},
    "overwrite": {"mode": "overwrite", "anyOutputMode": "true", "exceptColumns": "op"},
    "upsert": UPSERT,
}
INCOMING = pa.schema(
    [
        ("id", pa.int32()),
        ("x", pa.int16()),
        ("name", pa.string()),
        ("lsn", pa.int64()),
        ("op", pa.string()),
    ]
)
ASIDE = {"badRows": "quarantine"}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, INCOMING.types, strict=True)],
        schema=INCOMING,
    )


def write(
    uri: str, rows: list[tuple[Any, ...]], number: int, tasks: int = 2, **options: Any
) -> Any:
    """Do what Spark does with a micro-batch: a writer for the tasks, and another for the commit."""
    writers = []
    for _ in range(2):
        options_of_write = {"path": uri, "appId": "app", **options}
        arguments = parse_writer_options(options_of_write, streaming=True)
        schema = spark_schema(carrier_schema(INCOMING))
        overwrite = arguments.mode == "overwrite"
        job = plan(arguments, schema, overwrite)
        checks = plan_checks(arguments, job, schema, case_sensitive=False)
        writers.append(StreamWriter(job, checks))
    parts = [writers[0].write(iter([batch_of(rows[start::tasks])])) for start in range(tasks)]
    writers[1].commit(parts, number)
    return parts


def aside(uri: str) -> list[tuple[Any, ...]]:
    quarantined = lance_stream.open_dataset(quarantine_uri(uri)).to_table().to_pylist()
    rows = [(e["batch_id"], e["reason"], tuple(json.loads(e["row"]).values())) for e in quarantined]
    return sorted(rows, key=repr)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.floors
def test_only_bad_rows_are_quarantined(uri: str, mode: str) -> None:
    """Random batches are compared with the model of the sink, and the last batch is repeated."""
    chance = random.Random(mode)
    lance_stream.create_dataset(uri, TABLE)
    options = {**MODES[mode], **ASIDE, "expect": json.dumps(EXPECT)}
    batches = []
    for number in range(3):
        batches.append(random_rows(chance, number))
        write(uri, batches[-1], number, **options)
    write(uri, batches[-1], 2, **options)
    assert rows_of(uri) == expected(mode, batches)
    assert lance.dataset(uri).count_rows() == len(rows_of(uri))
    expected_rows = [
        (number, reason, row)
        for number, rows in enumerate(batches)
        for row in rows
        if (reason := reason_of(row, mode))
    ]
    assert aside(uri) == sorted(expected_rows, key=repr)
    assert {value.state for value in lance_stream.list_quarantine(uri)} == {"ready"}
    if mode == "append":
        assert (
            lance_stream.replay_quarantine(uri, where="reason = 'op'", expect={}).rows_remaining
            == {}
        )
    elif mode == "upsert":
        result = lance_stream.replay_quarantine(uri, where="reason = 'large'", fix={"x": "x + 10"})
        assert result.rows_remaining == {}


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("is_first", [True, False])
def test_batches_of_bad_rows_are_recorded(uri: str, mode: str, is_first: bool) -> None:
    """The ledger entry makes a repetition a replay, also for the first batch, which creates the
    table.
    """
    options = {**MODES[mode], **ASIDE, "expect": "x > 9"}
    number = 0
    if not is_first:
        write(uri, [(1, 10, "a", 1, "u")], 0, 1, **options)
        number = 1
    before = [] if is_first else rows_of(uri)
    for _ in range(2):
        write(uri, [(2, 5, "a", 1, "u")], number, 1, **options)
        assert lance_stream.open_dataset(uri).version == number + 1
    assert [value.state for value in lance_stream.list_quarantine(uri)] == ["ready"]
    assert rows_of(uri) == before


@pytest.mark.parametrize("later", ["the same", "another check", "no bad row", "the sink"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.some_cases(one_in=4)
@pytest.mark.spark
def test_killed_writers_quarantine_rows_once(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch, mode: str, when: str, later: str
) -> None:
    """A batch that is repeated after a kill, unchanged, with other checks or by the sink, must
    neither lose nor duplicate a bad row.
    """
    rows = [(1, 5, "a", 1, "u"), (2, 15, "a", 1, "u"), (3, 50, "a", 1, "u")]
    lance_stream.create_dataset(uri, TABLE)
    options = {**MODES[mode], **ASIDE}
    publish = LocalStore.create_once
    for attempt in range(2):
        published = 0

        def die(store: Any, path: str, *args: Any, **kwargs: Any) -> Any:
            nonlocal published
            is_version = path.endswith(".manifest")
            published += is_version
            if is_version and published == attempt + 1 and when == "before":  # noqa: B023  # called in the same round
                raise Killed
            is_published = publish(store, path, *args, **kwargs)
            if is_version and published == attempt + 1:  # noqa: B023  # called in the same round
                raise Killed
            return is_published

        monkeypatch.setattr(LocalStore, "create_once", die)
        with pytest.raises(Killed):
            write(uri, rows, attempt, **options, expect="x > 9")
        monkeypatch.undo()
        is_done = attempt == 1 or when == "after"
        if later == "the sink":
            of_sink: dict[str, Any] = {"mode": mode, "except_columns": "op", "app_id": "app"}
            if mode == "upsert":
                of_sink |= {"on": "ID", "sequence_by": "lsn", "delete_when": "OP = 'd'"}
                of_sink["except_columns"] = "Op"
            sink = lance_sink(uri, bad_rows="quarantine", expect="x > 9", **of_sink)
            sink(spark.createDataFrame(rows, COLUMNS), attempt)
            assert sink.last_commit is not None
            assert sink.last_commit.skipped == is_done
        else:
            checks = {"the same": "x > 9", "another check": "x > 19"}
            more = {"expect": checks[later]} if later in checks else {}
            write(uri, rows, attempt, **options, **more)
        limit = 19 if later == "another check" else 0 if later == "no bad row" else 9
        limit = 9 if is_done else limit
        quarantined = (
            [row[1] for number, _, row in aside(uri) if number == attempt]
            if attempt or limit
            else []
        )
        assert sorted(quarantined) == [row[1] for row in rows if row[1] <= limit]
    assert {value.state for value in lance_stream.list_quarantine(uri)} <= {"ready"}


@pytest.mark.since_spark("4.1")
@pytest.mark.spark
def test_batches_inserts_and_streams_check_rows(spark: Any, file_stream: Any, uri: str) -> None:
    """Batch writes, INSERT and streams reach the writer on different paths of Spark, and each has
    to check rows.
    """
    register(spark)
    df = spark.createDataFrame([(1, "a"), (-1, "b")], "id bigint, s string")
    with pytest.raises(Exception, match="1 of 2 rows does not fit") as refused:
        df.write.format("lance").mode("append").option("expect", "ID > 0").save(uri)
    assert "badRows=quarantine" in str(refused.value)
    assert not Path(uri, "_versions").exists()
    assert not list(Path(uri).rglob("*.lance"))
    numbered = {"txnAppId": "load", "txnVersion": 1, "expect": '{"sign": "id > 0"}', **ASIDE}
    for _ in range(2):
        df.write.format("lance").mode("append").options(**numbered).save(uri)
    assert rows_of(uri) == [(1, "a")]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW checked USING lance "
        f"OPTIONS (path '{uri}', expect 'id > 0')"
    )
    spark.sql("INSERT INTO checked VALUES (2, 'c')")
    with pytest.raises(Exception, match="does not fit"):
        spark.sql("INSERT INTO checked VALUES (-3, 'c')")
    assert rows_of(uri) == [(1, "a"), (2, "c")]

    stream = f"{uri}.stream"
    for number in range(2):
        file_stream.add(pa.table({"id": [number + 1, -number - 1]}))
    query = (
        file_stream.read()
        .writeStream.format("lance")
        .options(**ASIDE, expect="id > 0", mode="upsert", on="id")
        .option("checkpointLocation", f"{uri}.checkpoint")
        .trigger(availableNow=True)
        .start(stream)
    )
    query.awaitTermination()
    assert rows_of(stream) == [(1,), (2,)]
    assert sorted(row for _, _, row in aside(stream)) == [(-2,), (-1,)]
    result = lance_stream.replay_quarantine(stream, fix={"id": "10 - id"}, replace_existing=True)
    assert result.rows_replayed == 2
    assert sorted(rows_of(stream)) == [(1,), (2,), (11,), (12,)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"badRows": "drop"}, "must be refuse or quarantine"),
        ({"badRows": "quarantine"}, "set 'txnAppId'"),
        ({"quarantineUri": "q.lance"}, "badRows=quarantine"),
        ({"expect": "x >"}, "the option 'expect'"),
        ({"expect": "{}"}, "JSON object"),
        ({"expect": '["x > 0", 3]'}, "the option 'expect'"),
        ({"expect": '{"null": "x > 0"}'}, "built-in reason"),
        ({"mode": "apply_changes", "on": "id", "expect": "x > 0"}, "build on each other"),
        ({"bad_rows": "quarantine"}, "did you mean 'badRows'"),
        ({"branch": "dev", **ASIDE, "txnAppId": "a", "txnVersion": "1"}, "quarantineUri"),
        ({"quarantineUri": "t", **ASIDE, "txnAppId": "a", "txnVersion": "1"}, "table itself"),
    ],
)
def test_invalid_check_options_are_refused(options: dict[str, str], problem: str) -> None:
    """An option for checks that has no effect would leave the user with unchecked rows, so the
    error names the option to repair.
    """
    with pytest.raises(InvalidInputError, match=problem):
        parse_writer_options({"path": "t", **options}, streaming=False)


@pytest.mark.parametrize("mode", MODES)
def test_checks_of_missing_columns_are_refused(uri: str, mode: str) -> None:
    """The planner of the write notices such a check, before any task has run."""
    for expect, problem in (
        ("y > 0", "no column 'y'"),
        ("x + 1", "must be boolean"),
        ("name > 5", "check"),
    ):
        with pytest.raises(InvalidInputError, match=problem):
            write(uri, [(1, 1, "a", 1, "u")], 0, 1, **MODES[mode], expect=expect)


def test_refused_rows_leave_no_data_files(uri: str) -> None:
    """Tasks notice bad rows after they have written files, and a failing job that is repeated
    would fill the disk.
    """
    lance_stream.create_dataset(uri, TABLE)
    with pytest.raises(InvalidInputError, match="1 of 2 rows"):
        write(
            uri, [(1, 5, "a", 1, "u"), (2, 50, "a", 1, "u")], 0, **MODES["append"], expect="x > 9"
        )
    assert not list(Path(uri).rglob("*.lance"))
    assert not Path(quarantine_uri(uri)).exists()
