"""The format "lance" as a writer: batches, INSERT, and streams, exactly once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import NotFoundError
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.resolving import open_version
from lance_stream.spark import lance_sink, register
from lance_stream.spark.writer.lance_writer import TaskResult
from lance_stream.table.config import ledger_entries
from lance_stream.verbs.jobs import plan_job
from tests.spark.writer.writers_of_jobs import batch_writer, stream_writer

pytestmark = pytest.mark.spark

FAILS = "CAST(raise_error('the rows cannot be computed') AS BIGINT)"


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{id_}" for id_ in ids]})


def numbers(session: Any, start: int, stop: int, tasks: int = 2) -> Any:
    return session.range(start, stop, 1, tasks).selectExpr("id", "concat('n', id) AS name")


def save(df: Any, uri: str, mode: str = "append", **options: Any) -> None:
    df.write.format("lance").mode(mode).options(**options).save(uri)


def ids_of(uri: str) -> list[int]:
    return sorted(lance_stream.open_dataset(uri).to_table(["id"])["id"].to_pylist())


def files_of(uri: str) -> set[str]:
    return {path.name for path in Path(uri, "data").glob("*")}


def files_named(uri: str) -> set[str]:
    manifest = open_newest(uri).manifest
    return {file.path for fragment in manifest.fragments for file in fragment.files}


# --- batches


@pytest.mark.floors
def test_the_first_write_creates_the_table(session: Any, uri: str) -> None:
    """Table and rows appear in one version, so no reader sees an empty table in between."""
    save(numbers(session, 0, 10), uri)
    ds = lance_stream.open_dataset(uri)
    assert ds.version == 1
    assert all(field.nullable for field in ds.schema)  # of this plan Spark knows it has no nulls
    assert ds.has_stable_row_ids
    assert ds.file_version == "2.2"
    assert ds.verify() == []
    assert ds.changes(0).read_all().num_rows == 10
    read = lance.dataset(uri).to_table().sort_by("id")
    assert read.to_pydict() == rows(*range(10)).to_pydict()


def test_an_append_adds_a_version(session: Any, uri: str) -> None:
    """The files on disk must be exactly those that the manifests name: no task's file may be lost
    or orphaned.
    """
    save(numbers(session, 0, 10), uri)
    save(numbers(session, 10, 15, tasks=4), uri)
    after = lance_stream.open_dataset(uri)
    assert (after.version, ids_of(uri)) == (2, list(range(15)))
    assert files_of(uri) == files_named(uri)


def test_an_empty_dataframe_creates_the_table(session: Any, uri: str) -> None:
    """Spark's other formats create the table as well; a second empty write has
    nothing to commit.
    """
    for _ in range(2):
        save(numbers(session, 0, 10).where("id < 0"), uri)
    ds = lance_stream.open_dataset(uri)
    assert (ds.version, ds.count_rows()) == (1, 0)
    assert ds.schema.names == ["id", "name"]


def test_write_options_shape_a_new_table(session: Any, uri: str) -> None:
    """Options that only apply when a table is created must be refused when they contradict the
    existing one.
    """
    save(numbers(session, 0, 3), uri, fileVersion="2.1", primaryKey="name, id")
    table = open_newest(uri)
    assert table.file_version.manifest_name == "2.1"
    keys = {field.name: field.primary_key_position for field in table.schema.fields}
    assert keys == {"name": 1, "id": 2}
    save(numbers(session, 3, 4), uri, fileVersion="2.1", primaryKey="name, id")
    for options, match in (
        ({"fileVersion": "2.2"}, "has files of version 2.1, not 2.2"),
        ({"primaryKey": "id"}, "has the primary key name, id, not id"),
    ):
        with pytest.raises(Exception, match=match):
            save(numbers(session, 4, 5), uri, **options)
    assert ids_of(uri) == [0, 1, 2, 3]


def test_an_overwrite_continues_row_ids(session: Any, uri: str) -> None:
    """The change feed tells old rows from new ones by row id, so an overwrite must not assign an
    id twice.
    """
    save(numbers(session, 0, 4), uri)
    save(numbers(session, 7, 9), uri, mode="overwrite")
    after = lance_stream.open_dataset(uri)
    assert (after.version, ids_of(uri)) == (2, [7, 8])
    assert sorted(after.to_table(with_row_id=True)["_rowid"].to_pylist()) == [4, 5]
    kinds = after.changes(1).read_all()["_change_type"].to_pylist()
    assert sorted(kinds) == ["delete"] * 4 + ["insert"] * 2
    assert after.verify() == []


def test_overwrites_keep_types_spark_lacks(session: Any, uri: str) -> None:
    """Overwriting a table with rows read from it must not turn float16 or fixed-size vectors into
    what Spark makes of them.
    """
    schema = pa.schema(
        [
            pa.field("id", pa.uint32(), nullable=False),
            ("vector", pa.list_(pa.float32(), 2)),
            ("half", pa.float16()),
        ]
    )
    table = pa.table(
        {
            "id": [1],
            "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
            "half": pa.array([np.float16(0.5)], pa.float16()),
        },
        schema=schema,
    )
    lance_stream.create_dataset(uri, schema, primary_key=["id"]).append(table)
    loaded = session.read.format("lance").load(uri)
    save(loaded.selectExpr("half", "vector", "id + 1 AS id"), uri, mode="overwrite")
    after = lance_stream.open_dataset(uri)
    assert [field.type for field in after.schema] == schema.types
    assert after.to_table().to_pylist() == [{"id": 2, "vector": [1.0, 2.0], "half": 0.5}]
    save(loaded.selectExpr("id", "'new' AS note"), uri, mode="overwrite")
    assert lance_stream.open_dataset(uri).schema.names == ["id", "note"]
    assert min(field.id for field in open_newest(uri).schema.fields) > 2


def test_invalid_columns_write_nothing(session: Any, uri: str) -> None:
    """A write whose columns do not fit has to fail before it leaves files, with this package's
    error.
    """
    save(numbers(session, 0, 3), uri)
    for df, match in (
        (numbers(session, 3, 5).selectExpr("id", "name", "id AS new"), "no column 'new'"),
        (numbers(session, 3, 5).selectExpr("CAST(id AS DOUBLE) AS id", "name"), "'id' is double"),
    ):
        with pytest.raises(Exception, match=match) as caught:
            save(df, uri)
        assert "InvalidInputError" in str(caught.value)
    assert lance_stream.open_dataset(uri).version == 1
    assert files_of(uri) == files_named(uri)


def test_new_columns_are_added_on_request(session: Any, uri: str) -> None:
    """Columns change only when `schemaEvolution` allows it; older rows then have nulls."""
    save(numbers(session, 0, 2), uri)
    wider = numbers(session, 2, 3).selectExpr("id", "id * 1.5D AS price")
    save(wider, uri, schemaEvolution="add_columns")
    after = lance_stream.open_dataset(uri).to_table().sort_by("id")
    assert after.to_pydict() == {
        "id": [0, 1, 2],
        "name": ["n0", "n1", None],
        "price": [None, None, 3.0],
    }


@pytest.mark.floors
def test_a_failed_task_leaves_nothing(session: Any, uri: str) -> None:
    """The other tasks have written files by then, and neither these nor a table may remain."""
    df = numbers(session, 0, 8).selectExpr(f"IF(id = 7, {FAILS}, id) AS id", "name")
    with pytest.raises(Exception, match="the rows cannot be computed"):
        save(df.coalesce(1), uri)  # of several tasks one may still write when another has failed
    with pytest.raises(NotFoundError):
        open_newest(uri)
    assert files_of(uri) == set()


@pytest.mark.essential
def test_invalid_rows_leave_nothing(session: Any, uri: str) -> None:
    """A refused write must leave neither a version nor a file."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    lance_stream.create_dataset(uri, schema)
    df = numbers(session, 0, 8).selectExpr("IF(id = 7, NULL, id) AS id", "name")
    with pytest.raises(Exception, match="'id' must not be null in the table, but contains 1 null"):
        save(df.coalesce(1), uri)
    assert lance_stream.open_dataset(uri).version == 1
    assert files_of(uri) == set()


@pytest.mark.essential
def test_numbered_writes_are_idempotent(session: Any, uri: str) -> None:
    """`txnAppId` and `txnVersion` let a scheduler repeat a job, as in Delta; an older number
    cannot be verified and must be refused.
    """

    def write(version: int, first: int) -> None:
        save(numbers(session, first, first + 5), uri, txnAppId="nightly", txnVersion=version)

    for _ in range(2):
        write(3, 0)
    with pytest.raises(Exception, match="contents of batch 2 are no longer known"):
        write(2, 50)
    for _ in range(2):
        write(4, 10)
    after = lance_stream.open_dataset(uri)
    assert (after.version, ids_of(uri)) == (2, [*range(5), *range(10, 15)])
    assert files_of(uri) == files_named(uri)
    entries = ledger_entries.read_entries(after.config)
    assert {app: entry.batch_id for app, entry in entries.items()} == {"nightly": 4}


def test_rows_are_inserted_through_a_view(session: Any, uri: str) -> None:
    """INSERT matches columns by position or by list, and INSERT OVERWRITE must replace the rows in
    the same table.
    """
    save(numbers(session, 0, 2), uri)
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW target USING lance OPTIONS (path '{uri}')")
    session.sql("INSERT INTO target SELECT 2L, 'two'")
    session.sql("INSERT INTO target (name, id) VALUES ('three', 3L)")
    assert ids_of(uri) == [0, 1, 2, 3]
    session.sql("INSERT OVERWRITE target VALUES (9L, 'nine')")
    assert lance_stream.open_dataset(uri).to_table().to_pylist() == [{"id": 9, "name": "nine"}]
    numbers(session, 10, 12).write.insertInto("target")
    assert ids_of(uri) == [9, 10, 11]


def test_catalog_tables_cannot_be_created(session: Any, uri: str) -> None:
    """Spark would not pass the path of such a table to the format later on."""
    lance_stream.create_dataset(uri, rows(0).schema)
    for statement in (
        f"CREATE TABLE forgetful USING lance OPTIONS (path '{uri}')",
        f"CREATE TABLE forgetful USING lance LOCATION '{uri}'",
        f"CREATE TABLE forgetful USING lance LOCATION '{uri}' AS SELECT 1L AS id",
    ):
        with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW name USING"):
            session.sql(statement)
    assert session.sql("SHOW TABLES LIKE 'forgetful'").count() == 0


def test_unusable_catalog_entries_explain_themselves(session: Any, uri: str) -> None:
    """Spark creates an entry with columns without asking the format, so the first use has to
    explain the remedy.
    """
    session.sql(f"CREATE TABLE forgetful (id BIGINT) USING lance OPTIONS (path '{uri}')")
    try:
        for statement in ("SELECT * FROM forgetful", "INSERT INTO forgetful VALUES (1)"):
            with pytest.raises(Exception, match=r"drop it\. Use CREATE TEMPORARY VIEW"):
                session.sql(statement).collect()
    finally:
        session.sql("DROP TABLE forgetful")
    assert not Path(uri).exists()


@pytest.mark.floors
def test_views_with_columns_create_their_table(session: Any, uri: str) -> None:
    """The first INSERT creates the table, with or without rows; afterwards it is read and written
    by the view's name.
    """
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW fresh (id BIGINT, name STRING) USING lance "
        f"OPTIONS (path '{uri}', primaryKey 'id')"
    )
    session.sql("INSERT INTO fresh SELECT 1L, 'none' WHERE false")
    assert lance_stream.open_dataset(uri).schema.names == ["id", "name"]
    session.sql("INSERT INTO fresh BY NAME SELECT 'b' AS name, 2L AS id")
    session.sql("INSERT INTO fresh (name, id) VALUES ('c', 3)")
    assert session.table("fresh").orderBy("id").collect() == [(2, "b"), (3, "c")]


def test_the_format_can_have_another_name(session: Any, uri: str) -> None:
    """Another library may already have registered the name "lance" in the session."""
    register(session, "lance_stream")
    numbers(session, 0, 3).write.format("lance_stream").mode("append").save(uri)
    assert ids_of(uri) == [0, 1, 2]


@pytest.mark.floors
def test_every_spark_type_round_trips(session: Any, uri: str) -> None:
    """Schema conversion has one case per type, and the second write must match the stored schema
    exactly.
    """
    df = session.sql(
        "SELECT CAST(1 AS TINYINT) a, CAST(2 AS SMALLINT) b, 3 c, 4L d, CAST(5 AS FLOAT) e, 6D f,"
        " true g, 'x' h, X'00ff' i, DATE'2026-01-02' j, TIMESTAMP'2026-01-02 03:04:05.678901' k,"
        " TIMESTAMP_NTZ'2026-01-02 03:04:05' l, CAST(1.25 AS DECIMAL(10, 2)) m, array(1, NULL) n,"
        " named_struct('x', 1, 'y', 'z') o, map('k', 1L) p, INTERVAL '1 02:03:04' DAY TO SECOND q"
    )
    save(df, uri)
    save(df, uri)
    assert session.read.format("lance").load(uri).collect() == df.collect() * 2


# --- what becomes of files when a job ends badly


def written(uri: str, query_id: str = "") -> TaskResult:
    """Return the part of a task that has written two rows."""
    job = plan_job(uri, rows(0).schema)
    part = batch_writer(job).write(iter(rows(0, 1).to_batches()))
    return replace(part, query_id=query_id)


def test_an_abort_deletes_the_files(uri: str) -> None:
    """An abort has to find the files of all tasks, including those that returned no commit
    message.
    """
    part = written(uri)
    assert len(files_of(uri)) == 1
    batch_writer(part.job).abort([part, None])
    assert files_of(uri) == set()


def test_an_abort_after_committing_deletes_nothing(uri: str) -> None:
    """Spark may abort a write whose commit succeeded but whose answer was lost, and its files then
    belong to the table.
    """
    part = written(uri)
    writer = batch_writer(part.job)
    writer.commit([part])
    writer.abort([part])
    assert ids_of(uri) == [0, 1]


def test_streams_need_a_query_id(uri: str) -> None:
    """Without the id of a query or an `appId` a replay could not be recognized, so nothing may be
    written.
    """
    writer = stream_writer(plan_job(uri, rows(0).schema))
    part = writer.write(iter(rows(0, 1).to_batches()))  # outside of a task, without a query id
    with pytest.raises(lance_stream.InvalidInputError, match="the option appId"):
        writer.commit([part], 0)
    with pytest.raises(NotFoundError):
        open_newest(uri)
    assert files_of(uri) == set()


@pytest.mark.essential
def test_concurrent_drivers_commit_a_batch_once(uri: str) -> None:
    """Two drivers of one query can overlap after a network partition, and the loser has to delete
    its files.
    """
    first, second = written(uri, "q"), written(uri, "q")
    for part in (first, second):
        stream_writer(part.job).commit([part], 0)
    assert (lance_stream.open_dataset(uri).version, ids_of(uri)) == (1, [0, 1])
    assert files_of(uri) == files_named(uri)


def test_new_queries_need_new_app_ids(uri: str) -> None:
    """A query with a new checkpoint counts its batches from zero, so under the old app id its rows
    would be taken for replays and be lost.
    """
    first = stream_writer(plan_job(uri, rows(0).schema), "app", late_start=True)
    first.commit([written(uri, "old")], 5)
    late = written(uri, "new")
    with pytest.raises(lance_stream.InvalidInputError, match="comes from the streaming query new"):
        stream_writer(late.job, "app").commit([late], 3)
    assert ids_of(uri) == [0, 1]
    assert files_of(uri) == files_named(uri)
    assert late.job.has_committed(MicroBatch("app", 5, "old"))


def test_later_batches_create_no_table(uri: str) -> None:
    """The table was deleted meanwhile, and a new one would lack the rows of the earlier batches."""
    job = plan_job(uri, rows(0).schema)
    part = written(uri, "query")
    with pytest.raises(lance_stream.NotFoundError, match=r"for batch 5 of the stream app,"):
        stream_writer(job, "app").commit([part], 5)
    assert files_of(uri) == set()
    stream_writer(job, "app", late_start=True).commit([written(uri, "query")], 5)
    assert ids_of(uri) == [0, 1]


# --- streams


def run(file_stream: Any, uri: str, mode: str = "append", df: Any = None, **options: Any) -> str:
    stream = (
        file_stream.spark.readStream.schema(file_stream.schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(file_stream.files))
    )
    query = (
        (stream if df is None else df(stream))
        .writeStream.format("lance")
        .outputMode(mode)
        .options(**{"checkpointLocation": str(file_stream.checkpoints / "main"), **options})
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()
    return str(query.id)


@pytest.mark.since_spark("4.1")
def test_each_micro_batch_becomes_a_version(session: Any, file_stream: Any, uri: str) -> None:
    """The ledger entry of the newest batch must name its query, version, row count and digest, by
    which a replay is recognized.
    """
    register(session)
    for batch in (rows(0, 1, 2), rows(3), rows(4, 5)):
        file_stream.add(batch)
    query_id = run(file_stream, uri, queryName="named")
    after = lance_stream.open_dataset(uri)
    assert [version.num_rows for version in after.versions()] == [3, 4, 6]
    assert ids_of(uri) == list(range(6))
    assert after.verify() == []
    entry = ledger_entries.read_entry(after.config, query_id)
    assert entry is not None
    assert (entry.batch_id, entry.query_id, entry.version, entry.num_rows) == (2, query_id, 3, 2)
    assert entry.digest == digest_of(rows(4, 5)).text
    assert files_of(uri) == files_named(uri)


@pytest.mark.since_spark("4.1")
@pytest.mark.floors
@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("options", [{}, {"appId": "mine"}])
def test_replayed_micro_batches_write_nothing(
    session: Any, file_stream: Any, uri: str, options: dict[str, str]
) -> None:
    """Spark repeats a batch whose commit it has not recorded, and the table must not have its rows
    twice.
    """
    register(session)
    file_stream.add(rows(0, 1))
    file_stream.add(rows(2))
    run(file_stream, uri, **options)
    before = files_of(uri)
    file_stream.forget_newest_commit()
    run(file_stream, uri, **options)
    assert lance_stream.open_dataset(uri).version == 2
    assert files_of(uri) == before
    file_stream.add(rows(3))
    run(file_stream, uri, **options)
    assert ids_of(uri) == [0, 1, 2, 3]


@pytest.mark.since_spark("4.1")
def test_the_sink_continues_the_formats_stream(session: Any, file_stream: Any, uri: str) -> None:
    """Sink and format share one ledger, so a user may switch from one to the other without
    duplicates.
    """
    register(session)
    file_stream.add(rows(0, 1))
    run(file_stream, uri)
    file_stream.add(rows(2))
    file_stream.forget_newest_commit()
    file_stream.run(lance_sink(uri))
    assert ids_of(uri) == [0, 1, 2]


@pytest.mark.since_spark("4.1")
def test_new_checkpoints_need_new_app_ids(
    session: Any, file_stream: Any, uri: str, tmp_path: Path
) -> None:
    """An `appId` that outlives its checkpoint would make new batches look like replays."""
    register(session)
    file_stream.add(rows(0, 1))
    run(file_stream, uri, appId="mine")
    with pytest.raises(Exception, match="comes from the streaming query"):
        run(file_stream, uri, appId="mine", checkpointLocation=str(tmp_path / "new"))
    assert ids_of(uri) == [0, 1]
    assert files_of(uri) == files_named(uri)


@pytest.mark.since_spark("4.1")
def test_failed_micro_batches_are_repeated_cleanly(
    session: Any, file_stream: Any, uri: str
) -> None:
    """The failed attempt leaves no file behind, and the repetition commits the rows once."""
    register(session)
    file_stream.add(rows(0, 1))
    file_stream.add(rows(2, 3))

    def failing(df: Any) -> Any:
        return df.selectExpr(f"IF(id = 3, {FAILS}, id) AS id", "name")

    with pytest.raises(Exception, match="the rows cannot be computed"):
        run(file_stream, uri, df=failing)
    assert ids_of(uri) == [0, 1]
    assert files_of(uri) == files_named(uri)
    run(file_stream, uri)
    assert ids_of(uri) == [0, 1, 2, 3]


@pytest.mark.since_spark("4.1")
def test_complete_output_overwrites_the_table(session: Any, file_stream: Any, uri: str) -> None:
    """Each result of the output mode complete replaces the previous one, and a replay must not
    create a further version.
    """
    register(session)
    file_stream.add(rows(0, 1, 2))
    file_stream.add(rows(0, 3))

    def counted(df: Any) -> Any:
        return df.groupBy("id").count()

    run(file_stream, uri, mode="complete", df=counted)
    after = lance_stream.open_dataset(uri)
    assert after.version == 2
    counts = after.to_table().to_pydict()
    assert dict(zip(counts["id"], counts["count"], strict=True)) == {0: 2, 1: 1, 2: 1, 3: 1}
    file_stream.forget_newest_commit()
    run(file_stream, uri, mode="complete", df=counted)
    assert lance_stream.open_dataset(uri).version == 2
    assert files_of(uri) - files_named(uri) == {
        file.path for fragment in open_version(uri, 1).manifest.fragments for file in fragment.files
    }
