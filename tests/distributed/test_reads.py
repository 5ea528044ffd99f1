"""Reads divided into tasks for other engines: the rows of a scan, or of the feed."""

import pickle
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.distributed import dividing
from lance_stream.distributed.reads import ChangesRead, DistributedRead, VersionRead
from lance_stream.errors import InvalidInputError, NotFoundError


def rows(start: int, stop: int) -> pa.Table:
    return pa.table(
        {
            "id": range(start, stop),
            "x": [number % 7 for number in range(start, stop)],
            "part": [{"a": number, "b": str(number)} for number in range(start, stop)],
        }
    )


@pytest.fixture
def ds(tmp_path: Path) -> lance_stream.Dataset:
    """Return a table of several fragments, with all kinds of changes."""
    ds = lance_stream.create_dataset(tmp_path / "t", rows(0, 100))
    ds = ds.append(rows(100, 150)).delete("id % 10 = 3").rename_columns({"x": "y"})
    return ds.upsert(rows(95, 105).rename_columns(["id", "y", "part"]), on="id").compact()


def read_all(
    read: DistributedRead, num_tasks: int | None = None, names: Sequence[str] | None = None
) -> pa.Table:
    tasks = pickle.loads(pickle.dumps(read.tasks(num_tasks, names)))
    schemas = [task.schema for task in tasks] or [read.schema]
    batches = chain.from_iterable(task.read() for task in tasks)
    return pa.Table.from_batches(batches, schemas[0])


@pytest.mark.parametrize("num_tasks", [None, 1, 2, 5])
def test_tasks_read_the_scanned_rows(
    ds: lance_stream.Dataset, num_tasks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever fragments are split, no row is lost, doubled or moved."""
    monkeypatch.setattr(dividing, "MIN_ROWS_IN_A_PART", 10)
    monkeypatch.setattr(dividing, "MIN_SCATTERED_ROWS_IN_A_PART", 2)
    read = VersionRead(ds.uri, columns=["part.a", "id"], filter="id % 3 = 0")
    assert read.version == ds.version
    expected = ds.to_table(["part.a", "id"], "id % 3 = 0")
    assert read_all(read, num_tasks) == expected
    assert read.schema == expected.schema
    assert len(read.tasks(num_tasks)) == min(num_tasks or 1, 5)
    second = VersionRead(ds.uri, version=2)
    assert read_all(second, num_tasks) == ds.checkout(2).to_table()


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_tasks_read_the_feed_rows(
    ds: lance_stream.Dataset, num_tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes applied in another order give other rows."""
    monkeypatch.setattr(dividing, "MIN_SCATTERED_ROWS_IN_A_PART", 2)
    read = ChangesRead(ds.uri, 0)
    assert read_all(read, num_tasks) == ds.changes(0).read_all()
    assert read.schema == ds.changes(0).schema
    assert len(read.tasks(num_tasks)) == num_tasks
    selected = ChangesRead(ds.uri, 1, 5, columns=["id", "_change_type"], filter="y > 3")
    with ds.checkout(5).follow(
        after=1, wait=False, columns=["id", "_change_type"], filter="y > 3"
    ) as stream:
        expected = pa.concat_tables(batch.rows for batch in stream)
    assert read_all(selected, num_tasks) == expected
    assert selected.version == 5


def test_tags_and_times_start_intervals(ds: lance_stream.Dataset) -> None:
    """The ends of an interval are those of `Dataset.changes`; the tag may move between tasks."""
    ds.tags.create("done", 2)
    moment = ds.checkout(3).timestamp
    assert moment is not None
    reads = ChangesRead(ds.uri, "done"), ChangesRead(ds.uri, moment)
    ds.tags.update("done", ds.version)
    for read in reads:
        assert read_all(read, names=["id"]) == ds.changes(2).read_all().select(["id"])


def test_a_finished_interval_has_no_tasks(ds: lance_stream.Dataset) -> None:
    """A program that continues after the last version finds nothing, not an error."""
    read = ChangesRead(ds.uri, ds.version)
    assert read.tasks(8) == []
    assert read_all(read).num_rows == 0


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["y"], ["y"]), (["part", "id"], ["id", "part"]), ([], ["id"])],
)
def test_engines_read_only_requested_columns(
    ds: lance_stream.Dataset, names: list[str], expected: list[str]
) -> None:
    """A query needs few columns, and the rows even if it needs none."""
    paths = ["id", "y", "part.a"]
    table, changes = VersionRead(ds.uri, columns=paths), ChangesRead(ds.uri, 1, columns=paths)
    assert read_all(table, names=names) == ds.to_table(paths).select(expected)
    assert read_all(VersionRead(ds.uri), names=names) == ds.to_table().select(expected)
    assert read_all(changes, names=names) == ds.changes(1, columns=paths).read_all().select(
        expected
    )
    everything = ds.changes(1).read_all().select(["id", "_rowid"])
    assert read_all(ChangesRead(ds.uri, 1), names=["_rowid", "id"]) == everything


def test_a_task_needs_no_manifest(tmp_path: Path) -> None:
    """A task is sent to a worker: its size must not grow with the table."""
    ds = lance_stream.create_dataset(tmp_path / "t", rows(0, 2))
    for start in range(2, 80, 2):
        ds = ds.append(rows(start, start + 2))
    (all_rows,) = VersionRead(ds.uri).tasks(1)
    (appended,) = ChangesRead(ds.uri, ds.version - 1).tasks(1)
    assert len(pickle.dumps(appended)) < len(pickle.dumps(all_rows)) / 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"columns": ["nothing"]}, NotFoundError),
        ({"columns": "id"}, InvalidInputError),
        ({"columns": []}, InvalidInputError),
        ({"filter": "nothing = 1"}, NotFoundError),
        ({"version": 99}, NotFoundError),
    ],
)
def test_invalid_reads_of_versions_are_refused(
    ds: lance_stream.Dataset, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """A mistake shows where the source is created, not in an engine's worker."""
    with pytest.raises(error):
        VersionRead(ds.uri, **arguments)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"after": 99}, InvalidInputError),
        ({"after": 3, "through": 2}, InvalidInputError),
        ({"after": 1, "columns": ["nothing"]}, NotFoundError),
        ({"after": 1, "filter": "nothing = 1"}, NotFoundError),
    ],
)
def test_bad_reads_of_changes_are_refused(
    ds: lance_stream.Dataset, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """A mistake shows where the source is created, not in an engine's worker."""
    with pytest.raises(error):
        ChangesRead(ds.uri, **arguments)


def test_read_changes_end_at_times(ds: lance_stream.Dataset) -> None:
    """The interval is that of `Dataset.changes`, also among versions that were cleaned up."""
    first, _, third, *_ = (version.timestamp for version in ds.versions())
    assert first is not None
    assert third is not None
    assert read_all(ChangesRead(ds.uri, first, third)).equals(ds.changes(first, third).read_all())
    with pytest.raises(InvalidInputError, match="before it starts"):
        ChangesRead(ds.uri, third, first)
    ds.tags.create("old", 1)
    ds.cleanup(older_than="0 seconds", retain_versions=2)
    with pytest.raises(NotFoundError, match="versions between 1 and 5 have been cleaned up"):
        ChangesRead(ds.uri, 0, third)
