"""The sink merges small fragments in the background; on a cluster by Spark tasks."""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import NotFoundError
from lance_stream.maintenance.compaction import automatic
from lance_stream.maintenance.compaction.compact import commit_prepared, compact
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import prepare
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.spark import LanceSink, lance_sink
from lance_stream.spark.jobs import compaction
from lance_stream.spark.jobs.compaction import write_by_jobs, writer_of

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "x": [f"row {id_}" for id_ in ids]}, schema=SCHEMA)


@pytest.fixture
def ds(tmp_path: Path) -> lance_stream.Dataset:
    ds = lance_stream.create_dataset(str(tmp_path / "t"), SCHEMA)
    for first in range(0, 12, 2):
        ds = ds.append(rows(first, first + 1))
    return ds.delete("id = 3")


@pytest.fixture
def no_data_file_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which is the driver; Spark's tasks run in others."""

    def refuse(*_: object) -> None:
        raise AssertionError("the driver reads a data file")

    monkeypatch.setattr(OpenFiles, "_open", refuse)


def content(ds: lance_stream.Dataset) -> list[dict[str, Any]]:
    records = ds.scan(with_row_id=True, with_row_versions=True).read_all().to_pylist()
    return sorted(records, key=lambda row: row["id"])


def test_tasks_merge_fragments_like_the_driver(
    spark: Any, ds: lance_stream.Dataset, no_data_file_is_read_here: None
) -> None:
    """Files that tasks have rewritten are committed later, and an append in
    between must survive.
    """
    write: Callable[..., Any] = lambda tasks: write_by_jobs(spark, tasks)  # noqa: E731  # bound
    prepared = prepare(ds.table, CompactionRules(4), write)
    assert [len(group.old) for group in prepared.groups] == [2, 2, 2]
    ds.append(rows(20))
    result = commit_prepared(prepared)
    assert (result.num_removed, result.num_added) == (6, 3)
    assert [fragment.physical_rows for fragment in result.table.manifest.fragments] == [1, 3, 4, 4]


def test_compaction_by_tasks_changes_no_row(spark: Any, ds: lance_stream.Dataset) -> None:
    """Row ids and versions of rows have to survive, or the change feed would report updates."""
    before = content(ds)
    result = compact(ds.table, write=lambda tasks: write_by_jobs(spark, tasks))
    assert (result.num_removed, result.num_added) == (6, 1)
    assert content(lance_stream.Dataset(result.table)) == before
    assert verify(result.table) == []


def test_failed_tasks_leave_no_files(spark: Any, ds: lance_stream.Dataset) -> None:
    """The sink decides by the class of an error whether to retry, and a failed attempt must not
    leave files.
    """
    store = ds.table.store
    missing = ds.table.manifest.fragments[4].files[0].path
    store.delete(f"data/{missing}")
    before = store.list("data")
    with pytest.raises(NotFoundError, match=missing):
        prepare(ds.table, CompactionRules(4), lambda tasks: write_by_jobs(spark, tasks))
    assert store.list("data") == before


@pytest.mark.parametrize(
    ("master", "uses_spark"),
    [
        ("local", False),
        ("local[2]", False),
        ("local[*,3]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://there:7077", True),
        ("yarn", True),
        (None, True),  # Spark Connect does not tell
    ],
)
def test_the_driver_writes_on_single_machines(master: str | None, uses_spark: bool) -> None:
    """With a local master tasks run in the driver's machine, so a Spark job
    would only add delay.
    """
    session: Any = SimpleNamespace()
    if master is not None:
        session.sparkContext = SimpleNamespace(master=master)
    assert (writer_of(session) is not None) == uses_spark


@pytest.fixture(params=["on a local master", "on a cluster"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to write a compaction's files."""
    if request.param == "on a cluster":
        monkeypatch.setattr(compaction, "driver_is_alone", lambda _: False)
    return str(request.param)


def sizes(uri: str) -> list[int]:
    return [
        fragment.physical_rows
        for fragment in lance_stream.open_dataset(uri).table.manifest.fragments
    ]


def merging(sink: LanceSink) -> Callable[[Any, int], None]:
    """The sink, then a wait for its compaction."""

    def write(df: Any, batch_id: int) -> None:
        sink(df, batch_id)
        assert sink.wait_for_compaction(60)

    return write


@pytest.mark.quick_cases(one_in=2)
def test_compaction_is_invisible_in_the_feed(file_stream: Any, tmp_path: Path, way: str) -> None:
    """A consumer must receive each inserted row once, although compaction moves
    it several times.
    """
    uri = str(tmp_path / "table")
    for number in range(6):
        file_stream.add(rows(2 * number, 2 * number + 1))
    sink = lance_sink(uri, compact=2)
    file_stream.run(merging(sink))
    table = lance_stream.open_dataset(uri)
    assert sizes(uri) == [8, 4]
    assert [version.operation for version in table.versions()].count("Rewrite") == 3
    assert sink.last_compaction is not None
    assert sink.last_compaction.error is None
    feed = table.changes(0).read_all()
    assert sorted(feed["id"].to_pylist()) == list(range(12))
    assert set(feed["_change_type"].to_pylist()) == {"insert"}
    assert verify(table.table) == []


@pytest.mark.floors
@pytest.mark.parametrize("when", [{"compact": 1}, {"compact": "auto"}], ids=str)
@pytest.mark.slow
def test_upserts_are_unaffected_by_compaction(
    spark: Any, tmp_path: Path, way: str, when: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Background compaction races with every upsert, and neither values nor row ids may differ
    from a table without it.
    """
    monkeypatch.setattr(automatic, "BATCHES_BETWEEN_CHECKS", 1)
    monkeypatch.setattr(automatic, "FAN_IN", 2)
    with_it, without = str(tmp_path / "with"), str(tmp_path / "without")
    sinks = [
        lance_sink(with_it, mode="upsert", on="id", app_id="a", **when),
        lance_sink(without, mode="upsert", on="id", app_id="a"),
    ]
    for batch_id in range(5):
        keys = range(batch_id * 2, batch_id * 2 + 6)
        df = spark.createDataFrame(
            [(key, f"batch {batch_id}") for key in keys], "id long, x string"
        )
        for sink in sinks:
            sink(df, batch_id)
    assert sinks[0].wait_for_compaction(60)
    tables = [lance_stream.open_dataset(value) for value in (with_it, without)]
    ids = [{row["id"]: (row["x"], row["_rowid"]) for row in content(table)} for table in tables]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 14
    assert "Rewrite" in [version.operation for version in tables[0].versions()]
    assert verify(tables[0].table) == []


def test_replayed_batches_start_no_compaction(spark: Any, tmp_path: Path) -> None:
    """A replay writes nothing, so after a restart it must not cost a compaction either."""
    uri = str(tmp_path / "table")
    df = spark.range(3)
    for batch_id in range(2):
        lance_sink(uri, app_id="a")(df, batch_id)
    before = lance_stream.open_dataset(uri).version
    sink = lance_sink(uri, app_id="a", compact=1)
    sink(df, 1)
    assert sink.wait_for_compaction(60)
    assert sink.last_compaction is None
    assert lance_stream.open_dataset(uri).version == before


def test_pickling_keeps_the_compaction_settings(tmp_path: Path) -> None:
    """A pickled sink must not carry the thread that compacts, but still has to start its own."""
    sink = pickle.loads(pickle.dumps(lance_sink(str(tmp_path / "t"), compact=7)))
    assert sink.arguments.compact == 7
    assert sink.last_compaction is None
    assert sink.wait_for_compaction()
