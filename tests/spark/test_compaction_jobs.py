"""Fragments are merged by Spark's tasks, and the driver reads no data file for it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.dataset.compact import commit_prepared, compact
from lance_stream.dataset.compaction_plan import CompactionRules
from lance_stream.dataset.open_files import OpenFiles
from lance_stream.dataset.rewrites import prepare
from lance_stream.dataset.verify import verify
from lance_stream.errors import NotFoundError
from lance_stream.spark.compaction_jobs import write_by_jobs, writer_of

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "x": [f"row {each}" for each in ids]}, schema=SCHEMA)


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
    found = ds.scan(with_row_id=True, with_row_versions=True).read_all().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def test_tasks_merge_fragments_as_the_driver_does(
    spark: Any, ds: lance_stream.Dataset, no_data_file_is_read_here: None
) -> None:
    write: Callable[..., Any] = lambda tasks: write_by_jobs(spark, tasks)  # noqa: E731  # bound
    prepared = prepare(ds.table, CompactionRules(4), write)
    assert [len(each.old) for each in prepared.groups] == [2, 2, 2]
    ds.append(rows(20))
    done = commit_prepared(prepared)
    assert (done.num_removed, done.num_added) == (6, 3)
    assert [each.physical_rows for each in done.table.manifest.fragments] == [1, 3, 4, 4]


def test_no_row_changes_by_it(spark: Any, ds: lance_stream.Dataset) -> None:
    before = content(ds)
    done = compact(ds.table, write=lambda tasks: write_by_jobs(spark, tasks))
    assert (done.num_removed, done.num_added) == (6, 1)
    assert content(lance_stream.Dataset(done.table)) == before
    assert verify(done.table) == []


def test_an_error_of_a_task_is_raised_as_what_it_is_and_leaves_no_file(
    spark: Any, ds: lance_stream.Dataset
) -> None:
    store = ds.table.store
    gone = ds.table.manifest.fragments[4].files[0].path
    store.delete(f"data/{gone}")
    before = store.list("data")
    with pytest.raises(NotFoundError, match=gone):
        prepare(ds.table, CompactionRules(4), lambda tasks: write_by_jobs(spark, tasks))
    assert store.list("data") == before


@pytest.mark.parametrize(
    ("master", "is_left_to_spark"),
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
def test_the_driver_writes_itself_where_it_is_the_only_machine(
    master: str | None, is_left_to_spark: bool
) -> None:
    session: Any = SimpleNamespace()
    if master is not None:
        session.sparkContext = SimpleNamespace(master=master)
    assert (writer_of(session) is not None) == is_left_to_spark
