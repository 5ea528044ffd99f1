"""Restores of numbers, tags and times, across changes of columns, as the feed shows them."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError, open_dataset
from tests.faults.killed_changes import killed_at

pytestmark = pytest.mark.oracle


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    """Three versions, of which `gold` is the second: rows 1 and 2."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "x": ["a", "b"]})
    dataset = lance_stream.create_dataset(tmp_path / "t", rows.schema).append(rows)
    dataset.tags.create("gold")
    return dataset.upsert(pa.table({"id": [2, 3], "x": ["B", "c"]}), "id")


SAME = {"x": "z", "z": "x"}
"""The names of one column, before and after it is renamed."""


def rows_at(ds: Dataset, version: int, columns: list[str]) -> dict[int, dict[str, Any]]:
    """Return the rows of a version by row id, with the names that columns have in another one."""
    rows = ds.checkout(version).to_table(with_row_id=True).to_pylist()
    return {
        row["_rowid"]: {name: row.get(name, row.get(SAME.get(name))) for name in columns}
        for row in rows
    }


def check_feed(ds: Dataset, after: int) -> None:
    """Check that a version and its feed give the newest version, in that one's columns."""
    columns = ds.schema.names
    state = rows_at(ds, after, columns)
    for change in ds.changes(after).read_all().to_pylist():
        row = {name: change[name] for name in columns}
        if change["_change_type"] in ("delete", "update_preimage"):
            assert state.pop(change["_rowid"])["id"] == row["id"]  # a dropped column's values stay
        else:
            state[change["_rowid"]] = row
    assert state == rows_at(ds, ds.version, columns)


@pytest.mark.parametrize("how", ["number", "tag", "time", "branch and number"])
def test_restores_take_all_version_forms(ds: Dataset, how: str) -> None:
    """Users name a version the same way in both verbs, and the feed must bridge the restore."""
    version = {
        "number": 2,
        "tag": "gold",
        "time": ds.checkout(2).timestamp,
        "branch and number": ("main", 2),
    }[how]
    restored = ds.restore(version)  # type: ignore[arg-type]  # it has a timestamp
    assert restored.version == 4
    assert restored.to_table() == ds.checkout(2).to_table()
    assert lance.dataset(ds.uri).to_table() == restored.to_table()
    check_feed(restored, 3)
    check_feed(restored, 1)


@pytest.mark.parametrize("change", ["add", "values", "drop", "rename", "overwrite"])
def test_restored_columns_appear_in_the_feed(ds: Dataset, change: str) -> None:
    """A restore brings back schema and rows, and followers from any version must reach the same
    table.
    """
    changed = {
        "add": lambda: ds.add_columns(pa.field("y", pa.int64())),
        "values": lambda: ds.add_columns({"y": "id * 2"}),
        "drop": lambda: ds.drop_columns("x"),
        "rename": lambda: ds.rename_columns({"x": "z"}),
        "overwrite": lambda: ds.overwrite(pa.table({"id": [7], "w": [1.5]})),
    }[change]()
    changed = changed.append(pa.table({"id": [9]}))
    restored = changed.restore("gold")
    assert restored.schema.names == ["id", "x"]
    assert restored.verify() == []
    assert restored.to_table().to_pydict() == {"id": [1, 2], "x": ["a", "b"]}
    assert lance.dataset(ds.uri).to_table() == restored.to_table()
    for after in (1, 2, 3, 4, 5):
        check_feed(restored, after)
    again = restored.append(pa.table({"id": [10], "x": ["j"]})).restore(changed.version)
    assert again.to_table() == changed.to_table()
    for after in (2, 5, 6, 7):
        check_feed(again, after)


def test_impossible_restores_commit_nothing(ds: Dataset) -> None:
    """A tag or version of another branch has files elsewhere, which this branch must not name."""
    ds.branches.create("dev")
    dev = open_dataset(ds.uri, branch="dev").append(pa.table({"id": [5]}))
    dev.tags.create("of-dev")
    for version, error, match in (
        (None, InvalidInputError, "takes an older version"),
        (0, InvalidInputError, "whole number from 1"),
        (9, NotFoundError, "has no version 9"),
        ("silver", NotFoundError, "existing tags: gold, of-dev"),
        ("of-dev", InvalidInputError, "the branch 'dev', and this is the main branch"),
        (("dev", None), InvalidInputError, "the branch 'dev', and this is the main branch"),
        (2.5, InvalidInputError, "a version must be"),
    ):
        with pytest.raises(error, match=match):
            ds.restore(version)  # type: ignore[arg-type]  # what is refused
    assert ds.checkout(None).version == 3
    assert dev.restore(3).to_table() == ds.to_table()
    with pytest.raises(NotFoundError):
        dev.restore(2)


def test_killed_restores_can_be_repeated(ds: Dataset) -> None:
    """A kill at any call of the store, even with a cleanup afterwards, must leave the restored
    version intact.
    """
    for number in range(9):
        with killed_at(number, before=number % 2 == 0) as result:
            open_dataset(ds.uri).restore("gold")
        open_dataset(ds.uri).cleanup(retain_versions=2, delete_unverified=True)
        restored = open_dataset(ds.uri).restore("gold")
        assert restored.verify() == []
        assert restored.to_table()["id"].to_pylist() == [1, 2]
        if len(result) <= number:
            break
        open_dataset(ds.uri).append(pa.table({"id": [number]}))
    assert number >= 3
