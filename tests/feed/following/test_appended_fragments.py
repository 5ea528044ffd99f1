"""Rows appended to tables without stable row ids: the reference writes, we read the feed."""

import pickle
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import DatasetOptimizer

import lance_stream
from lance_stream.errors import NotFoundError
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.following.appended_fragments import AppendedRows, walk_appended
from lance_stream.table.changes.appended import appended_fragments

pytestmark = pytest.mark.oracle


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{id_}" for id_ in ids]})


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    """Three rows in two fragments, without stable row ids."""
    lance.write_dataset(rows(0, 1), tmp_path / "t")
    return lance.write_dataset(rows(2), tmp_path / "t", mode="append")


def steps(uri: str, after: int = 0, through: int | None = None) -> list[AppendedRows]:
    last = lance_stream.open_dataset(uri, through).table
    return list(walk_appended(last, after, last.version, FeedColumns(last, None)))


def ids_of(step: AppendedRows, start: int = 0, stop: int | None = None) -> list[int]:
    units = pickle.loads(pickle.dumps(list(step.units(start, stop))))
    return [id_ for batch in read_changes(units) for id_ in batch["id"].to_pylist()]


def test_versions_yield_their_appended_rows(dataset: Any) -> None:
    """Appends can be followed without row ids, because a new fragment is all that an append
    adds.
    """
    dataset.insert(rows(3, 4))
    actual = steps(dataset.uri)
    assert [(step.newer.version, step.num_row_changes, ids_of(step)) for step in actual] == [
        (1, 2, [0, 1]),
        (2, 1, [2]),
        (3, 2, [3, 4]),
    ]
    assert all(value.changes_rows is None for value in actual)
    assert [step.newer.version for step in steps(dataset.uri, after=2)] == [3]
    batch = next(read_changes(list(actual[1].units())))
    assert batch["_change_type"].to_pylist() == ["insert"]
    assert batch["_commit_version"].to_pylist() == [2]
    assert batch["_commit_timestamp"][0].as_py() == actual[1].newer.timestamp


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (lambda ds: ds.delete("id = 1"), "changes or deletes rows of fragment 0 (by Delete)"),
        (lambda ds: ds.delete("id = 2"), "removes the rows of fragment 1 (by Delete)"),
        (lambda ds: ds.update({"name": "'x'"}, "id = 1"), "fragment 0 (by Update)"),
        (
            lambda ds: (
                ds.merge_insert("id")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute(rows(1, 9))
            ),
            "fragment 0 (by Update)",
        ),
        (
            lambda ds: lance.write_dataset(rows(9), ds.uri, mode="overwrite"),
            "removes the rows of fragment 0 (by Overwrite)",
        ),
        (lambda ds: ds.add_columns({"x": "id * 2"}), "other values (by Merge)"),
        (
            lambda ds: ds.checkout_version(1).restore(),
            "removes the rows of fragment 1 (by Restore)",
        ),
    ],
)
def test_versions_changing_rows_yield_no_appends(dataset: Any, change: Any, because: str) -> None:
    """The step states why it has no appends, so that the reader can report it."""
    change(dataset)
    *_, step = steps(dataset.uri)
    assert step.newer.version == 3
    assert step.changes_rows is not None
    assert because in step.changes_rows
    assert step.num_row_changes == 0
    assert list(step.units()) == []


def test_metadata_changes_append_nothing(dataset: Any) -> None:
    """Compactions, indices and new columns of nulls add no rows either."""
    DatasetOptimizer(dataset).compact_files()
    dataset.create_scalar_index("id", "BTREE")
    dataset.add_columns(pa.field("x", pa.int64()))
    dataset.update_config({"a": "b"})
    actual = steps(dataset.uri, after=2)
    assert len(actual) == 5  # a compaction is two versions
    assert [(step.num_row_changes, step.changes_rows) for step in actual] == [(0, None)] * 5


def test_column_backfills_may_be_ignored(dataset: Any) -> None:
    """A new column of existing rows does not matter to a reader of appended rows."""
    dataset.add_columns({"x": "id * 2"})
    last = lance_stream.open_dataset(dataset.uri).table
    columns = FeedColumns(last, None)
    (step,) = walk_appended(last, 2, 3, columns, column_backfills=False)
    assert (step.changes_rows, step.num_row_changes) == (None, 0)


def test_insert_only_upserts_are_appends(dataset: Any) -> None:
    """Pylance commits it as an update operation, although it only adds rows."""
    dataset.merge_insert("id").when_not_matched_insert_all().execute(rows(1, 7))
    *_, step = steps(dataset.uri)
    assert (step.changes_rows, ids_of(step)) == (None, [7])


def test_restored_rows_are_not_appended_again(dataset: Any) -> None:
    """A restore brings back fragments whose rows were already delivered."""
    dataset.delete("id = 2")
    dataset.checkout_version(2).restore()
    deleted, restored = steps(dataset.uri, after=2)
    assert deleted.changes_rows is not None
    assert restored.changes_rows == "brings back the rows of fragment 1 (by Restore)"


def test_any_appended_range_is_readable(dataset: Any) -> None:
    """A batch limit can split a version at any row, within and between fragments."""
    lance.write_dataset(rows(*range(10, 20)), dataset.uri, mode="append", max_rows_per_file=4)
    *_, step = steps(dataset.uri)
    assert len(step.appended.fragments) > 1
    for start in range(11):
        for stop in range(start, 11):
            assert ids_of(step, start, stop) == list(range(10 + start, 10 + stop))
            assert len(list(step.units(start, stop))) <= len(step.appended.fragments)


@pytest.mark.floors
def test_first_existing_version_gives_live_rows(dataset: Any) -> None:
    """The first version of a copied table may already have deleted rows."""
    dataset.delete("id = 0")
    last = lance_stream.open_dataset(dataset.uri).table
    assert last.timestamp is not None
    step = AppendedRows(
        last,
        appended_fragments(None, last.manifest, None),
        last.timestamp,
        FeedColumns(last, None),
    )
    assert step.num_row_changes == 2
    assert ids_of(step) == [1, 2]
    assert ids_of(step, 1) == [2]


def test_columns_come_from_the_newest_version(dataset: Any) -> None:
    """A stream has one schema, while the fragments of its history have several."""
    dataset.alter_columns({"path": "name", "name": "title"})
    dataset.add_columns(pa.field("x", pa.int64()))
    dataset.insert(pa.table({"id": [5], "title": ["t"], "x": [1]}))
    actual = steps(dataset.uri)
    tables = [
        pa.Table.from_batches(read_changes(list(step.units()))) for step in (actual[0], actual[-1])
    ]
    assert [table.select(["id", "title", "x"]).to_pydict() for table in tables] == [
        {"id": [0, 1], "title": ["n0", "n1"], "x": [None, None]},
        {"id": [5], "title": ["t"], "x": [1]},
    ]


def test_missing_versions_are_named(dataset: Any) -> None:
    """Skipping a version that was cleaned up would lose its rows silently."""
    dataset.insert(rows(3))
    (Path(dataset.uri) / "_versions" / f"{(1 << 64) - 1 - 2:020}.manifest").unlink()
    with pytest.raises(NotFoundError, match="need version 2"):
        steps(dataset.uri, after=1)
