"""The change feed: the changes of each operation, their order, and the files that are opened."""

import pickle
import uuid
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError, UnsupportedFeatureError
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.changes import plan_changes
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.row_counts import list_counted_versions
from lance_stream.schema.system_columns import CHANGE_COLUMNS
from lance_stream.table.changes.row_counts import ChangedRowCounts
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import manifest_path
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


@pytest.fixture
def ds() -> Dataset:
    """Version 2 inserts 0 to 3, version 3 deletes 1, version 4 inserts 4, 5 only sets a config."""
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    table = table.append(rows(0, 1, 2, 3)).delete("id = 1").append(rows(4))
    return table.update_config({"a": "b"})


def feed(ds: Dataset, *arguments: Any, **options: Any) -> list[tuple[int, str, int]]:
    table = ds.changes(*arguments, **options).read_all()
    return list(
        zip(
            table["_commit_version"].to_pylist(),
            table["_change_type"].to_pylist(),
            table["id"].to_pylist(),
            strict=True,
        )
    )


def test_versions_show_what_they_changed(ds: Dataset) -> None:
    """This is the contract of the feed: one event per changed row, in the order of versions."""
    assert feed(ds, 0) == [
        (2, "insert", 0),
        (2, "insert", 1),
        (2, "insert", 2),
        (2, "insert", 3),
        (3, "delete", 1),
        (4, "insert", 4),
    ]


def test_after_is_exclusive_through_inclusive(ds: Dataset) -> None:
    """A consumer passes the version that it has as `after` and must not get its changes again."""
    assert feed(ds, 2, 3) == [(3, "delete", 1)]
    assert feed(ds, 3, 3) == []
    assert feed(ds, 4, 5) == []
    assert feed(ds.checkout(3), 2) == [(3, "delete", 1)]


def test_change_columns_follow_the_tables_columns(ds: Dataset) -> None:
    """Consumers address the change columns by name and type, as in Delta's feed."""
    schema = ds.changes(0).schema
    assert schema.names == [*SCHEMA.names, *CHANGE_COLUMNS.names]
    assert pa.schema([schema.field(name) for name in CHANGE_COLUMNS.names]) == CHANGE_COLUMNS
    assert ds.changes(0, columns=["name"]).schema.names == ["name", *CHANGE_COLUMNS.names]
    with pytest.raises(NotFoundError, match="no column 'nope'"):
        ds.changes(0, columns=["nope"])


def test_deleted_rows_keep_their_row_versions(ds: Dataset) -> None:
    """A delete also has the values of the row and the time of the commit."""
    (change,) = ds.changes(2, 3).read_all().to_pylist()
    timestamp = change.pop("_commit_timestamp")
    assert timestamp == ds.checkout(3).timestamp
    assert timestamp.utcoffset() == UTC.utcoffset(None)
    assert change == {
        "id": 1,
        "name": "n1",
        "_change_type": "delete",
        "_commit_version": 3,
        "_rowid": 1,
        "_row_created_at_version": 2,
        "_row_last_updated_at_version": 2,
    }


def test_overwrites_delete_before_they_insert(ds: Dataset) -> None:
    """A consumer that applies changes in order must not delete the new rows."""
    ds = ds.overwrite(rows(7, 8))
    assert feed(ds, 5) == [
        (6, "delete", 0),
        (6, "delete", 2),
        (6, "delete", 3),
        (6, "delete", 4),
        (6, "insert", 7),
        (6, "insert", 8),
    ]


@pytest.mark.parametrize(
    "columns", [["_change_type"], ["name", "_rowid"], ["_commit_version", "id", "_change_type"]]
)
def test_change_columns_are_selected_by_name(ds: Dataset, columns: list[str]) -> None:
    """Every way to read the feed accepts the same columns: the table's columns come first."""
    expected = ds.changes(0).read_all()
    change_columns = [name for name in columns if name in CHANGE_COLUMNS.names]
    names = [name for name in columns if name not in change_columns] + change_columns
    changes = ds.changes(0, columns=columns).read_all()
    assert changes == expected.select(names)
    followed = pa.concat_tables(
        batch.rows for batch in ds.follow(columns=columns, after=0, wait=False)
    )
    assert followed.schema.names == changes.schema.names


def test_columns_match_by_name_across_overwrites(ds: Dataset) -> None:
    """An overwrite creates new columns, so a name is all that connects them, if the type can
    follow.
    """
    other = pa.table({"name": pa.array(["x"], pa.large_string()), "z": [1.5], "id": ["nine"]})
    changes = ds.overwrite(other).changes(0, columns=["name", "id", "z"]).read_all()
    deleted = changes.filter(pa.compute.field("_change_type") == "delete")
    assert deleted["name"].to_pylist() == ["n1", "n0", "n2", "n3", "n4"]
    assert deleted["id"].to_pylist() == [None] * 5, "a number is no text"
    assert deleted["z"].to_pylist() == [None] * 5
    assert changes["id"].to_pylist()[-1] == "nine"
    assert changes["name"].type == pa.large_string()


def test_net_changes_compare_both_ends(ds: Dataset) -> None:
    """A row that was inserted and deleted in between must not appear."""
    assert feed(ds, 0, deduplication_mode="netChanges") == [
        (5, "insert", 0),
        (5, "insert", 2),
        (5, "insert", 3),
        (5, "insert", 4),
    ]
    assert feed(ds, 2, deduplication_mode="netChanges") == [(5, "delete", 1), (5, "insert", 4)]
    with pytest.raises(InvalidInputError, match="deduplication_mode"):
        ds.changes(0, deduplication_mode="some")


@pytest.mark.parametrize(
    ("interval", "named"),
    [
        ((3, 2), "not an interval"),
        ((-1, 2), "not an interval"),
        ((0, 6), "newest version is 5"),
        ((6,), "not an interval"),
        ((0, 1.5), "through must be a version.s number, a tag or a datetime"),
        ((True, 2), "after must be a version.s number, a tag or a datetime"),
    ],
)
def test_invalid_intervals_are_refused(ds: Dataset, interval: tuple[Any, ...], named: str) -> None:
    """Reversed or future intervals would return nothing and look like no changes."""
    with pytest.raises(InvalidInputError, match=named):
        ds.changes(*interval)


@pytest.mark.parametrize("name", ["pre_images", "compute_updates", "column_backfills"])
def test_flags_must_be_booleans(ds: Dataset, name: str) -> None:
    """Options of Spark are texts, and the text "false" would count as true."""
    with pytest.raises(InvalidInputError, match=f"{name} must be True or False, not 'false'"):
        ds.changes(0, **{name: "false"})  # type: ignore[arg-type]  # wrong on purpose


def test_change_columns_are_selected_once(ds: Dataset) -> None:
    """Two columns of one name cannot be told apart, and Spark refuses to use them."""
    with pytest.raises(InvalidInputError, match="'_rowid' is selected twice"):
        ds.changes(0, columns=["_rowid", "id", "_rowid"])


def test_intervals_may_be_times(ds: Dataset) -> None:
    """A report of one day needs no version numbers, even if the table is younger than the day."""
    ends = [version.timestamp for version in ds.versions()]
    second = timedelta(seconds=1)
    for after, through in ((0, 5), (2, 4), (4, 5)):
        expected = feed(ds, after, through)
        assert feed(ds, ends[after], ends[through - 1]) == expected
        assert feed(ds, ends[after].replace(tzinfo=None), through) == expected
    assert feed(ds, ends[0] - second, ends[4] + second) == feed(ds, 0)
    assert feed(ds, ends[4] + second) == []
    with pytest.raises(InvalidInputError, match="no version existed at"):
        ds.changes(0, ends[0] - second)


def test_older_datasets_see_newer_changes(ds: Dataset) -> None:
    """The interval counts, not the version of the dataset object."""
    assert feed(ds.checkout(2), 3, 5) == [(4, "insert", 4)]


def test_missing_versions_are_named(ds: Dataset) -> None:
    """Without one of its versions an interval is incomplete, and the message names a possible
    start.
    """
    for version in (1, 2):
        ds.table.store.delete(manifest_path(version))
    with pytest.raises(
        NotFoundError,
        match=r"need version 1, which .* existing versions .* 3 to 5. Read a snapshot of version "
        r"3, .*startingVersion 4\b",
    ):
        ds.changes(0)
    with pytest.raises(NotFoundError, match=r"need version 2"):
        ds.changes(2)
    assert feed(ds, 3) == [(4, "insert", 4)]
    ds.table.store.delete(manifest_path(4))  # what is left of versions need not be adjacent
    with pytest.raises(
        NotFoundError, match=r"need version 4, .* through 5: 3, 5\. Read a snapshot of version 5, "
    ):
        ds.changes(3)


def test_the_feed_needs_stable_row_ids() -> None:
    """Without ids, an update cannot be distinguished from a delete and an insert."""
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", SCHEMA, stable_row_ids=False
    )
    with pytest.raises(UnsupportedFeatureError, match="migrate_to_stable_row_ids"):
        dataset.append(rows(1)).changes(0)


def test_change_units_can_be_pickled(ds: Dataset) -> None:
    """Spark plans on the driver and reads on workers."""
    plan = plan_changes(ds.table, 0)
    assert [unit.num_rows for unit in plan.units] == [4, 1, 1]
    units = pickle.loads(pickle.dumps(plan.units))
    table = pa.Table.from_batches(read_changes(units), plan.arrow_schema)
    assert table == ds.changes(0).read_all()


def test_reading_a_version_costs_its_changes(ds: Dataset) -> None:
    """The feed must not scan the table: one deleted row opens one fragment."""
    for number in range(5, 15):
        ds = ds.append(rows(number))
    newest = ds.delete("id = 9")
    store = WatchedStore(newest.table.store)
    table = replace(newest.table, store=store)
    plan = plan_changes(table, newest.version - 1)
    assert [unit.num_rows for unit in plan.units] == [1]
    list(read_changes(plan.units))
    data_files = {path for _, path in store.calls if path.startswith("data/")}
    assert len(data_files) == 1, "only the fragment with the deleted row is opened"


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("num_appends", [3, 20])
def test_intervals_read_each_manifest_once(ds: Dataset, after: int, num_appends: int) -> None:
    """Columns are followed back through the same versions whose changes are planned."""
    for number in range(5, 5 + num_appends):
        ds = ds.append(rows(number))
    store = WatchedStore(ds.table.store)
    table = replace(ds.table, store=store, log=type(ds.table.log)(store))
    plan_changes(table, after)
    read = [path for _, path in store.calls if path.endswith(".manifest")]
    assert {*map(manifest_path, range(max(after, 1), ds.version))} <= {*read}
    assert len(read) == len({*read})


def test_timestamps_of_the_feed_are_monotonic(ds: Dataset) -> None:
    """Watermarks in Spark rely on timestamps that never go back."""
    stamps = ds.changes(0).read_all()["_commit_timestamp"].to_pylist()
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == 3


def test_deletes_and_inserts_replace_all_updates() -> None:
    """Without updates, a deletion is what the pre-image would be, whether asked for or not."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [1, 2]}))
    ds = ds.update({"id": "id + 10"}, "id = 2")
    for pre_images in (True, False):
        changes = ds.changes(1, compute_updates=False, pre_images=pre_images).read_all()
        rows = zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True)
        assert list(rows) == [("delete", 2), ("insert", 12)]


def test_backfills_do_not_matter_at_first() -> None:
    """The first version has no columns that an earlier one lacks."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [1, 2]}))
    changes = [
        ds.changes(0, column_backfills=flag).read_all().to_pylist() for flag in (True, False)
    ]
    assert changes[0] == changes[1]
    assert [row["id"] for row in changes[0]] == [1, 2]


def test_columns_may_have_earlier_names(ds: Dataset) -> None:
    """A stream keeps the names with which it has started."""
    columns = FeedColumns(ds.table, ["name"])
    renamed = ds.rename_columns({"name": "title"})
    plan = plan_changes(renamed.table, 3, columns=columns)
    assert plan.arrow_schema.names == ["name", *CHANGE_COLUMNS.names]
    assert [batch["name"].to_pylist() for batch in read_changes(plan.units)] == [["n4"]]
    assert plan_changes(renamed.table, 3).arrow_schema.names[:2] == ["id", "title"]


def test_row_counts_need_no_statements(tmp_path: Path) -> None:
    """Manifests do not state what a restore changed, and old writers omitted how many rows a
    fragment has.
    """
    ds = lance_stream.create_dataset(tmp_path, rows(0, 1, 2))
    fragments = [replace(fragment, physical_rows=0) for fragment in ds.table.manifest.fragments]
    first = replace(ds.table.manifest, fragments=FragmentList.of(fragments))
    ds.table.store.write(manifest_path(1), encode_manifest(first))
    ds = lance_stream.open_dataset(tmp_path).delete("id = 1")
    ds = ds.update({"name": "'x'"}, where="id = 2").append(rows(3)).restore(1)
    versions = list_counted_versions(lance_stream.open_dataset(tmp_path).table)
    assert [version.row_counts for version in versions] == [
        ChangedRowCounts(inserted=3),
        ChangedRowCounts(deleted=1),
        ChangedRowCounts(updated=1),
        ChangedRowCounts(inserted=1),
        ChangedRowCounts(1, 1, 1),
    ]
    ds.table.store.delete(manifest_path(4))
    *_, last = list_counted_versions(lance_stream.open_dataset(tmp_path).table)
    assert (last.version, last.row_counts) == (5, None)


def test_first_versions_have_row_counts(tmp_path: Path) -> None:
    """The reference states none; all rows of the first version are new."""
    lance.write_dataset(pa.table({"id": [1, 2, 3]}), str(tmp_path), enable_stable_row_ids=True)
    lance.write_dataset(pa.table({"id": [4]}), str(tmp_path), mode="append")
    versions = list_counted_versions(lance_stream.open_dataset(tmp_path).table)
    counts = [version.row_counts for version in versions]
    assert [count and count.inserted for count in counts] == [3, 1]
