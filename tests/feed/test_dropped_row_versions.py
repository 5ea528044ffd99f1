"""The feed of tables in which some versions have dropped the row versions of all fragments."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream import Dataset
from lance_stream.feed.changes import plan_changes
from lance_stream.feed.row_counts import list_counted_versions
from tests.contracts.watched_stores import WatchedStore
from tests.feed.dropped_row_versions import drop_row_versions
from tests.sampling import ALL_CASES

Row = dict[str, Any]
Step = tuple[str, int, bool]

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
VERBS = ["append", "update", "in place", "delete", "compact", "restore", "add", "drop"]
STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 9), st.booleans()), min_size=2, max_size=7
)


def rows(*ids: int, value: int = 0) -> pa.Table:
    size = len(ids)
    return pa.table({"id": ids, "a": [value] * size, "b": [value] * size}, schema=SCHEMA)


@pytest.fixture
def ds() -> Dataset:
    """Version 1 inserts 0 to 3, version 2 inserts 4 and 5 in another fragment."""
    return new_table().append(rows(4, 5))


def new_table() -> Dataset:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows(0, 1, 2, 3))


def update(ds: Dataset, *ids: int) -> Dataset:
    """Update rows as pylance does: they move to a new fragment."""
    return ds.upsert(rows(*ids, value=ds.version), on="id")


def events(ds: Dataset, *interval: int, **rules: Any) -> list[tuple[str, int]]:
    changes = ds.changes(*interval, **rules).read_all()
    return list(zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True))


def updates(*ids: int) -> list[tuple[str, int]]:
    return [(f"update_{image}image", id_) for image in ("pre", "post") for id_ in ids]


MODES = pytest.mark.parametrize("mode", ["none", "netChanges"])


@MODES
def test_updates_without_row_versions_are_updates(ds: Dataset, mode: str) -> None:
    """The row has another file, and its row version does not show that it is the same row."""
    ds = drop_row_versions(update(ds, 1, 4))
    assert events(ds, 2, deduplication_mode=mode) == updates(1, 4)
    assert [info.row_counts for info in list_counted_versions(ds.table)][-1].updated == 2


@pytest.mark.parametrize("verb", ["append", "delete", "configure"])
def test_untouched_rows_without_versions_are_silent(ds: Dataset, verb: str) -> None:
    """All row versions change to 1, but the rows are in the same files."""
    verbs = {
        "append": lambda: ds.append(rows(9)),
        "delete": lambda: ds.delete("id = 4"),
        "configure": lambda: ds.update_config({"a": "b"}),
    }
    expected = {"append": [("insert", 9)], "delete": [("delete", 4)], "configure": []}
    ds = drop_row_versions(verbs[verb]())
    assert events(ds, 2) == expected[verb]
    counts = list_counted_versions(ds.table)[-1].row_counts
    assert counts is not None
    assert counts.total == len(expected[verb])


@MODES
def test_compactions_only_hide_earlier_updates(ds: Dataset, mode: str) -> None:
    """A compaction that drops row versions changes no row itself, and an earlier change remains
    visible in an interval that contains both.
    """
    ds = drop_row_versions(update(ds, 4).compact())
    assert events(ds, 3, deduplication_mode=mode) == []
    assert events(ds, 2, deduplication_mode=mode) == updates(4)
    assert list_counted_versions(ds.table)[-1].rows_updated == 0


def test_later_compactions_hide_no_update(ds: Dataset) -> None:
    """A compaction of rows without row versions writes version 1, the same as at first."""
    ds = drop_row_versions(update(ds, 1)).append(rows(9))
    ds = drop_row_versions(ds).compact()
    assert events(ds, 1, deduplication_mode="netChanges") == [
        *updates(1),
        *(("insert", id_) for id_ in (4, 5, 9)),
    ]


def test_restores_undo_updates_without_versions(ds: Dataset) -> None:
    """The restored row has another file, and only the undone version shows what it changed."""
    ds = drop_row_versions(drop_row_versions(update(ds, 1)).compact()).restore(2)
    assert events(ds, ds.version - 1) == updates(1)
    ds = drop_row_versions(update(ds, 4).restore(2))
    assert events(ds, ds.version - 1) == updates(4)
    assert events(ds, 2, deduplication_mode="netChanges") == []


@pytest.mark.parametrize("drops", [False, True])
def test_gaps_after_dropped_versions_show_updates(ds: Dataset, drops: bool) -> None:
    """Without the versions in between, every moved row may have changed: an update that changes
    nothing is safe, a missing one is not.
    """
    ds = drop_row_versions(ds.append(rows(9)))
    ds.tags.create("kept", ds.version)
    ds = drop_row_versions(update(ds, 1)).compact()
    ds = drop_row_versions(ds) if drops else ds
    ds.cleanup(retain_versions=1)
    ds = lance_stream.open_dataset(ds.uri)
    net = events(ds, 3, deduplication_mode="netChanges")
    assert sorted(net) == sorted(updates(*range(6), 9))


@pytest.mark.parametrize("has_dropped", [False, True])
def test_versions_without_drops_cost_the_same(has_dropped: bool) -> None:
    """Tables that never lost row versions, or never had any, are read as before."""
    ds = new_table()
    for number in range(4, 8):
        ds = ds.append(rows(number))
        ds = drop_row_versions(ds) if has_dropped else ds
    ds = update(ds, 5).compact()
    store = WatchedStore(ds.table.store)
    table = replace(ds.table, store=store, log=type(ds.table.log)(store))
    plan_changes(table, ds.version - 3)
    read = [path for _, path in store.calls]
    assert len(read) == len({*read}), "no file is read twice"


def do(ds: Dataset, step: Step) -> Dataset:
    verb, number, drops = step
    match verb:
        case "append":
            ds = ds.append(rows(10 * ds.version, 10 * ds.version + 1))
        case "update":
            ds = update(ds, *range(number % 3, 6, 3))
        case "in place":
            ds = ds.update({"a": str(ds.version)}, where=f"id % 3 = {number % 3}")
        case "delete":
            ds = ds.delete(f"id % 5 = {number % 5}")
        case "compact":
            ds = ds.compact()
        case "restore":
            ds = ds.restore(1 + number % ds.version)
        case "add" if "c" not in ds.schema.names:
            ds = ds.add_columns({"c": "id * 7"})
        case "drop" if "c" in ds.schema.names:
            ds = ds.drop_columns(["c"])
    return drop_row_versions(ds) if drops else ds


def content(row: Row) -> tuple[Any, ...]:
    return row["id"], row["a"], row["b"]


def check_law(ds: Dataset, snapshots: list[dict[int, Any]], after: int, through: int) -> None:
    """Check that the changes of an interval lead from its first rows to its last ones."""
    for mode in ("none", "netChanges"):
        for backfills in (True, False):
            table, before = dict(snapshots[after]), {}
            rules = {"deduplication_mode": mode, "column_backfills": backfills}
            for change in ds.changes(after, through, **rules).read_all().to_pylist():
                row_id, kind = change["_rowid"], change["_change_type"]
                if kind in ("delete", "update_preimage"):
                    assert table.pop(row_id) == content(change)
                    before[row_id] = kind
                else:
                    assert row_id not in table
                    assert kind == "insert" or before[row_id] == "update_preimage"
                    table[row_id] = content(change)
            assert table == snapshots[through], (after, through, rules)


@settings(max_examples=100 if ALL_CASES else 20, deadline=None)
@given(steps=STEPS)
@example(steps=[("update", 1, False), ("compact", 0, True), ("compact", 0, False)])
@example(steps=[("append", 0, True), ("update", 1, False), ("restore", 1, True)])
@example(steps=[("update", 0, True), ("update", 0, False), ("restore", 2, True)])
def test_changes_lead_from_version_to_version(steps: Sequence[Step]) -> None:
    """Whatever drops row versions, a version's rows and the changes give a later version's rows."""
    ds = new_table()
    for step in steps:
        ds = do(ds, step)
    snapshots: list[dict[int, Any]] = [{}]
    for version in range(1, ds.version + 1):
        table = ds.checkout(version).to_table(with_row_id=True)
        snapshots.append({row["_rowid"]: content(row) for row in table.to_pylist()})
    for after in range(ds.version):
        for through in {after + 1, ds.version}:
            check_law(ds, snapshots, after, through)
