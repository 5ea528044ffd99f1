"""Branches in Spark: read, written in batches and streams, followed, never created by accident."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import NotFoundError, open_dataset
from lance_stream.spark import lance_sink, register

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with the branches `dev` and `dev/deep`, from version 2 of the main branch."""
    uri = str(tmp_path / "a table")
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["n1", "n2"]})
    ds = lance_stream.create_dataset(uri, rows.schema).append(rows)
    ds.branches.create("dev")
    ds.branches.create("dev/deep", ("dev", 2))
    return uri


def ids_of(uri: str, branch: str | None) -> list[int]:
    theirs = lance.dataset(uri).checkout_version((branch, None)).to_table()["id"].to_pylist()
    assert sorted(open_dataset(uri, branch=branch).to_table()["id"].to_pylist()) == sorted(theirs)
    return sorted(theirs)


def load(session: Any, uri: str, **options: Any) -> list[int]:
    rows = session.read.format("lance").options(**options).load(uri).collect()
    return sorted(row["id"] for row in rows)


@pytest.mark.nightly
def test_batches_write_and_read_branches(session: Any, uri: str) -> None:
    """The option `branch` must apply to appends, overwrites, time travel and the change feed, and
    never touch the main table.
    """
    df = session.range(5, 8, 1, 2).selectExpr("id", "concat('n', id) AS name")
    df.write.format("lance").mode("append").option("branch", "dev").save(uri)
    df.write.format("lance").mode("overwrite").option("branch", "dev/deep").save(uri)
    assert ids_of(uri, "dev") == load(session, uri, branch="dev") == [1, 2, 5, 6, 7]
    assert ids_of(uri, "dev/deep") == load(session, uri, branch="dev/deep") == [5, 6, 7]
    assert ids_of(uri, None) == load(session, uri, branch="main") == [1, 2]
    assert load(session, uri, branch="dev", versionAsOf=2) == [1, 2]
    changes = load(session, uri, branch="dev", readChangeFeed=True, startingVersion=3)
    assert changes == [5, 6, 7]


@pytest.mark.since_spark("4.1")
def test_streams_run_from_branch_to_branch(session: Any, uri: str, tmp_path: Path) -> None:
    """The change feed of one branch is written to another branch, both by the sink and by the
    format.
    """

    def feed(**options: Any) -> Any:
        reader = session.readStream.format("lance").option("branch", "dev").options(**options)
        return reader.load(uri)

    def run(stream: Any) -> None:
        stream.trigger(availableNow=True).start().awaitTermination()

    def upsert() -> None:
        sink = lance_sink(uri, branch="dev/deep", mode="apply_changes", on="id")
        rows = feed(readChangeFeed="true", startingVersion=3, consumer="copy")
        stream = rows.writeStream.foreachBatch(sink)
        run(stream.option("checkpointLocation", str(tmp_path / "a")))

    def append() -> None:
        stream = feed().writeStream.format("lance").option("branch", "copy")
        run(stream.option("checkpointLocation", str(tmp_path / "b")).option("path", uri))

    open_dataset(uri).branches.create("copy", 1)
    dev = open_dataset(uri, branch="dev").append(pa.table({"id": [5], "name": ["n5"]}))
    append()
    dev = dev.delete("id = 1").update({"name": "'new'"}, "id = 2")
    upsert()
    dev.append(pa.table({"id": [6], "name": ["n6"]}))
    upsert()
    assert ids_of(uri, "dev") == ids_of(uri, "dev/deep") == [2, 5, 6]
    assert ids_of(uri, "copy") == [1, 2, 5]
    assert ids_of(uri, None) == [1, 2]
    assert open_dataset(uri, branch="dev").tags.list()["lance_stream.consumer.copy"].branch == "dev"


def test_a_missing_branch_is_never_created(session: Any, uri: str, tmp_path: Path) -> None:
    """A misspelt branch that came into existence on a write would silently divert the data of a
    job.
    """
    df = session.range(3).selectExpr("id", "'x' AS name")
    before = sorted(Path(uri).rglob("*"))
    with pytest.raises(NotFoundError):
        lance_sink(uri, branch="dve", app_id="x")(df, 0)
    with pytest.raises(NotFoundError):
        lance_sink(str(tmp_path / "none"), branch="dev", app_id="x")(df, 0)
    for attempt in (
        lambda: df.write.format("lance").mode("append").option("branch", "dve").save(uri),
        lambda: (
            df.write.format("lance")
            .mode("append")
            .options(branch="dve", mode="upsert", on="id")
            .save(uri)
        ),
        lambda: session.read.format("lance").option("branch", "dve").load(uri).count(),
        lambda: session.readStream.format("lance").option("branch", "dve").load(uri).schema,
    ):
        with pytest.raises(
            Exception, match=r"has no branch 'dve'; existing branches: dev, dev/deep"
        ):
            attempt()
    with pytest.raises(Exception, match="leave the option 'branch' out"):
        load(session, uri, branch="dev", tag="gold")
    assert sorted(Path(uri).rglob("*")) == before
    assert not (tmp_path / "none").exists()
