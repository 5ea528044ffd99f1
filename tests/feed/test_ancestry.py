"""From which version a version was made, and which columns it shares with it."""

from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.version_log import LogState
from lance_stream.errors import InvalidInputError
from lance_stream.feed.ancestry import Ancestry
from lance_stream.feed.change_units import check_names
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.following.appended_fragments import walk_appended
from lance_stream.feed.following.existing_versions import ExistingVersions
from lance_stream.feed.following.snapshots import Snapshot
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import manifest_path

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int64())])


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    """Version 2 has rows, and 3 renames x to y."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    ds = ds.append(pa.table({"id": [1], "x": [2]}))
    return ds.rename_columns({"x": "y"})


def without_transaction(ds: Dataset, version: int) -> Dataset:
    """Return a table with a version whose writer stated no transaction."""
    manifest = ds.table.log.read(version)
    plain = replace(manifest, inline_transaction=None, transaction_file="")
    ds.table.store.write(manifest_path(version), encode_manifest(plain))
    return lance_stream.open_dataset(ds.uri)


def test_first_versions_have_no_origin(ds: Dataset) -> None:
    """Neither have versions that do not exist, nor the first one after a cleanup."""
    assert [Ancestry(ds.table).origin(version) for version in (1, 77)] == [None, None]
    ds.table.store.delete(manifest_path(1))
    ancestry = Ancestry(lance_stream.open_dataset(ds.uri).table)
    assert [ancestry.origin(version) for version in (1, 2)] == [None, None]
    origin = ancestry.origin(3)
    assert origin is not None
    assert (origin.version, origin.same) == (2, {0: 0, 1: 1})


def test_gaps_end_at_the_newest_version(ds: Dataset) -> None:
    """Older ones may have had other columns."""
    ds = ds.append(pa.table({"id": [2], "y": [3]})).append(pa.table({"id": [3], "y": [4]}))
    ds.table.store.delete(manifest_path(4))
    origin = Ancestry(lance_stream.open_dataset(ds.uri).table).origin(5)
    assert origin is not None
    assert (origin.version, origin.same) == (3, {0: 0, 1: 1})


def test_only_columns_of_both_are_common(ds: Dataset) -> None:
    """A file still has a dropped column, and a restore brings the column back."""
    ds = ds.drop_columns(["y"]).restore(3)
    ancestry = Ancestry(ds.table)
    assert ancestry.common_ids(3, 5) == {0, 1}
    assert ancestry.common_ids(3, 4) == ancestry.common_ids(4, 5) == {0}


def test_unknown_operations_match_names_only(ds: Dataset) -> None:
    """Without a transaction, the version may be an overwrite, whose ids mean other columns."""
    origin = Ancestry(without_transaction(ds, 3).table).origin(3)
    assert origin is not None
    assert (origin.version, origin.same) == (2, {0: 0})


def test_new_row_ids_are_no_overwrite(tmp_path: Path) -> None:
    """Before the migration a table has no row ids to compare, but the same files."""
    lance.write_dataset(pa.table({"id": [1], "x": [2]}), str(tmp_path / "t"))
    ds = lance_stream.migrate_to_stable_row_ids(tmp_path / "t").rename_columns({"x": "y"})
    assert Ancestry(ds.table).match_over_gap(1, ds.version) == {0: 0, 1: 1}


def test_versions_of_a_moment_are_listed(ds: Dataset) -> None:
    """The first listing may have only the newest, and later versions belong to later batches."""
    for number in range(3):
        ds = ds.append(pa.table({"id": [number], "y": [0]}))
    table = ds.table
    ds.append(pa.table({"id": [9], "y": [0]}))
    ds.table.store.delete(manifest_path(3))
    state = LogState(table.manifest, {5: "", 6: ""}, is_all=False)
    versions = ExistingVersions(table, state)
    assert [number for number in range(9) if versions.has(number)] == [0, 1, 2, 4, 5, 6]
    assert versions.versions == [1, 2, 4, 5, 6]
    assert [versions.next_existing(number) for number in (1, 3, 6)] == [1, 4, 6]
    assert versions.between(1, 3) == [2, 4]
    assert ExistingVersions(table, state).versions == [1, 2, 4, 5, 6]
    whole = ExistingVersions(table, LogState(table.manifest, {5: "", 6: ""}, is_all=True))
    assert whole.versions == [5, 6]


def test_listed_versions_stay_in_sight(ds: Dataset) -> None:
    """A writer may have removed all of them since, while a batch still needs their numbers."""
    ds.append(pa.table({"id": [9], "y": [0]}))
    for version in (1, 2, 3):
        ds.table.store.delete(manifest_path(version))
    versions = ExistingVersions(ds.table, LogState(ds.table.manifest, {3: ""}, is_all=False))
    assert versions.versions == [3]


def test_empty_intervals_read_nothing(ds: Dataset) -> None:
    """Their version may be gone, and none of its rows is asked for."""
    ds.table.store.delete(manifest_path(2))
    table = lance_stream.open_dataset(ds.uri).table
    assert list(walk_appended(table, 2, 2, FeedColumns(table, None))) == []


def test_appends_need_no_transaction(ds: Dataset) -> None:
    """The fragments show what a version did if its writer stated nothing."""
    table = without_transaction(ds, 2).table
    steps = list(walk_appended(table, 1, 2, FeedColumns(table, None)))
    assert [(step.changes_rows, step.num_row_changes) for step in steps] == [(None, 1)]


def test_change_columns_are_reserved() -> None:
    """Two columns of one name could not be told apart."""
    check_names(SCHEMA)
    with pytest.raises(InvalidInputError, match="columns _change_type, _rowid have the names"):
        check_names(pa.schema({"_rowid": pa.int64(), "id": pa.int8(), "_change_type": pa.int8()}))


def test_whole_fragments_state_no_number(ds: Dataset) -> None:
    """Only chosen rows are counted before they are read."""
    (unit,) = Snapshot(ds.table).units()
    assert unit.num_rows == 0
