"""Migration to stable row ids: in one transaction, and readable by the reference."""

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, UnsupportedFeatureError
from lance_stream.maintenance.migrations import stable_row_ids
from lance_stream.maintenance.verification.verify import verify
from tests.verbs.columns.test_add_columns import in_the_way

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
STAMPS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{id_}" for id_ in ids]}, SCHEMA)


@pytest.fixture
def ds() -> Dataset:
    """Seven rows in two fragments, one of them deleted, without stable row ids."""
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", SCHEMA, stable_row_ids=False
    )
    return dataset.append(rows(1, 2, 3)).append(rows(4, 5, 6, 7)).delete("id = 2")


def test_every_row_gets_an_id(ds: Dataset) -> None:
    """Deleted rows count as well, since ids are assigned by position."""
    result = lance_stream.migrate_to_stable_row_ids(ds.uri)
    assert result.version == ds.version + 1
    assert result.has_stable_row_ids
    assert result.to_table(["id"], with_row_id=True, with_row_versions=True).to_pydict() == {
        "id": [1, 3, 4, 5, 6, 7],
        "_rowid": [0, 2, 3, 4, 5, 6],
        "_row_created_at_version": [1] * 6,
        "_row_last_updated_at_version": [1] * 6,
    }
    assert result.table.manifest.next_row_id == 7
    assert result.verify() == []
    assert result.to_table().equals(ds.to_table())


def test_no_data_file_changes(ds: Dataset) -> None:
    """Ids are assigned in the manifest only, at any size of table."""
    before = ds.table.store.list_names("data")
    result = lance_stream.migrate_to_stable_row_ids(ds.uri)
    assert ds.table.store.list_names("data") == before
    assert [
        (fragment.id, fragment.files, fragment.deletion_file)
        for fragment in result.table.manifest.fragments
    ] == [
        (fragment.id, fragment.files, fragment.deletion_file)
        for fragment in ds.table.manifest.fragments
    ]


def test_the_feed_starts_with_the_migration(ds: Dataset) -> None:
    """From here on every change must carry the id that the migration assigned."""
    first = lance_stream.migrate_to_stable_row_ids(ds.uri)
    result = first.update({"name": "'new'"}, "id = 4").delete("id = 1").append(rows(8))
    feed = result.changes(first.version).read_all()
    assert list(
        zip(
            *feed.select(["_change_type", "id", "name", "_rowid"]).to_pydict().values(), strict=True
        )
    ) == [
        ("update_preimage", 4, "n4", 3),
        ("update_postimage", 4, "new", 3),
        ("delete", 1, "n1", 0),
        ("insert", 8, "n8", 7),
    ]


def test_migrating_twice_makes_no_version(ds: Dataset) -> None:
    """A job that migrates at each start must have no effect after the first."""
    result = lance_stream.migrate_to_stable_row_ids(ds.uri)
    assert lance_stream.migrate_to_stable_row_ids(ds.uri).version == result.version


def test_empty_tables_are_migrated() -> None:
    """Without fragments only the flag and the counter are set, from which later rows take their
    ids.
    """
    empty = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", SCHEMA, stable_row_ids=False
    )
    result = lance_stream.migrate_to_stable_row_ids(empty.uri)
    assert result.has_stable_row_ids
    filled = result.append(rows(1))
    assert filled.to_table(["id"], with_row_id=True)["_rowid"].to_pylist() == [0]
    assert filled.changes(result.version).read_all().num_rows == 1


def test_concurrent_rows_get_ids_too(ds: Dataset) -> None:
    """Rows appended between plan and commit must not stay without ids."""
    result = stable_row_ids.migrate(in_the_way(ds, lambda: ds.append(rows(8, 9))).table)
    assert result.version == ds.version + 2
    assert Dataset(result).to_table(["id"], with_row_id=True)["_rowid"].to_pylist()[-2:] == [7, 8]
    assert verify(result) == []


def test_earlier_plans_can_still_commit(ds: Dataset) -> None:
    """A writer that planned before the migration must get ids at its commit."""

    def migrate() -> None:
        lance_stream.migrate_to_stable_row_ids(ds.uri)

    appended = in_the_way(ds, migrate).append(rows(8))
    assert appended.to_table(["id"], "id = 8", with_row_id=True)["_rowid"].to_pylist() == [7]
    assert appended.verify() == []


def test_concurrently_updated_rows_keep_their_ids(ds: Dataset) -> None:
    """An update planned without ids must find those that the migration assigned meanwhile."""

    def migrate() -> None:
        lance_stream.migrate_to_stable_row_ids(ds.uri)

    changed = in_the_way(ds, migrate).update({"name": "'new'"}, "id = 5")
    assert changed.to_table(["id"], "id = 5", with_row_id=True)["_rowid"].to_pylist() == [4]
    assert changed.changes(ds.version + 1).read_all()["_change_type"].to_pylist() == [
        "update_preimage",
        "update_postimage",
    ]


def test_versions_before_migration_cannot_be_restored(ds: Dataset) -> None:
    """A restore would bring back rows without ids, under ids that are in use."""
    result = lance_stream.migrate_to_stable_row_ids(ds.uri)
    with pytest.raises(InvalidInputError, match="has no stable row ids"):
        result.restore(ds.version)


def test_history_before_migrations_has_no_feed(ds: Dataset) -> None:
    """Without ids older versions cannot be compared row by row."""
    result = lance_stream.migrate_to_stable_row_ids(ds.uri)
    with pytest.raises(UnsupportedFeatureError, match="stable row ids"):
        result.changes(0)


@pytest.mark.oracle
class TestWithTheReference:
    """Tables that it created, and how it reads them afterwards."""

    @pytest.fixture(params=["legacy", "2.0", "2.2"])
    def theirs(self, tmp_path: Path, request: Any) -> Any:
        """Twelve rows in three fragments; some are deleted."""
        dataset = lance.write_dataset(
            rows(*range(12)),
            tmp_path / "t",
            max_rows_per_file=4,
            data_storage_version=request.param,
        )
        dataset.delete("id IN (1, 5)")
        return dataset

    def test_lance_reads_ids_and_stamps(self, theirs: Any) -> None:
        """The reference must accept the sequences that the migration wrote, in every file
        version.
        """
        ours = lance_stream.migrate_to_stable_row_ids(theirs.uri)
        read = lance.dataset(theirs.uri)
        read.validate()
        assert read.has_stable_row_ids
        table = read.to_table(columns=["id", *STAMPS])
        assert table["_rowid"].to_pylist() == table["id"].to_pylist()
        assert set(table["_row_created_at_version"].to_pylist()) == {1}
        assert set(table["_row_last_updated_at_version"].to_pylist()) == {1}
        assert ours.verify() == []

    def test_lance_finds_rows_by_id(self, theirs: Any) -> None:
        """Lance's index from ids to addresses is built from our sequences, also after deletes
        and a compaction.
        """
        first = lance_stream.migrate_to_stable_row_ids(theirs.uri)
        first.delete("id < 3").compact()
        read = lance.dataset(theirs.uri)
        if theirs.data_storage_version == "0.1":
            assert read.to_table(["_rowid"], filter="id = 7")["_rowid"].to_pylist() == [7]
        else:  # it does not read the oldest files so
            assert read.to_table(["id"], filter="_rowid = 7")["id"].to_pylist() == [7]

    def test_lance_continues_to_write(self, theirs: Any) -> None:
        """Every verb of the reference must go on assigning and keeping ids on the migrated
        table.
        """
        first = lance_stream.migrate_to_stable_row_ids(theirs.uri)
        ds = lance.dataset(theirs.uri)
        ds.insert(rows(20, 21))
        merge = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows(3, 30))
        ds = lance.dataset(theirs.uri)
        ds.update({"name": "'u'"}, where="id = 8")
        ds.delete("id = 9")
        ds.optimize.compact_files()
        ds = lance.dataset(theirs.uri)
        ds.validate()
        ids = dict(zip(*ds.to_table(columns=["id", "_rowid"]).to_pydict().values(), strict=True))
        assert ids == {
            **{number: number for number in range(12) if number not in (1, 5, 9)},
            20: 12,
            21: 13,
            30: 14,
        }
        delta = ds.delta(begin_version=first.version, end_version=ds.version)
        updated = pa.Table.from_batches(delta.get_updated_rows())
        assert sorted(updated["id"].to_pylist()) == [3, 8]
        feed = lance_stream.open_dataset(theirs.uri).changes(first.version).read_all()
        posts = feed.filter(pa.compute.equal(feed["_change_type"], "update_postimage"))
        assert sorted(posts["id"].to_pylist()) == [3, 8]
        assert lance_stream.open_dataset(theirs.uri).verify() == []

    def test_columns_rewritten_in_place_are_stamped(self, theirs: Any) -> None:
        """Readers of both programs find changed rows by their version stamps."""
        first = lance_stream.migrate_to_stable_row_ids(theirs.uri)
        if theirs.data_storage_version.startswith("0."):
            with pytest.raises(InvalidInputError, match=r"version 0\.1"):
                first.add_columns({"y": "id * 2"})
            return
        result = first.add_columns({"y": "id * 2"})
        read = lance.dataset(theirs.uri).to_table(columns=["id", "y", *STAMPS])
        assert read["y"].to_pylist() == [2 * id_ for id_ in read["id"].to_pylist()]
        assert set(read["_row_last_updated_at_version"].to_pylist()) == {result.version}

    def test_an_index_blocks_the_migration(self, theirs: Any) -> None:
        """An index refers to row addresses, so it has to be dropped first."""
        theirs.create_scalar_index("id", "BTREE")
        with pytest.raises(InvalidInputError, match=r"address: 'id_idx'\. Drop them"):
            lance_stream.migrate_to_stable_row_ids(theirs.uri)
        assert not lance.dataset(theirs.uri).has_stable_row_ids
        theirs.drop_index("id_idx")
        lance_stream.migrate_to_stable_row_ids(theirs.uri)
        read = lance.dataset(theirs.uri)
        read.create_scalar_index("id", "BTREE")
        assert read.to_table(filter="id = 7", with_row_id=True)["_rowid"].to_pylist() == [7]

    def test_stale_lance_writers_can_commit(self, theirs: Any) -> None:
        """A Lance writer that opened the table earlier must not remove the ids by its commit."""
        stale = lance.dataset(theirs.uri)
        lance_stream.migrate_to_stable_row_ids(theirs.uri)
        stale.delete("id = 0")
        lance.dataset(theirs.uri).validate()
        table = lance.dataset(theirs.uri).to_table(columns=["id", "_rowid"])
        assert table["_rowid"].to_pylist() == [2, 3, 4, 6, 7, 8, 9, 10, 11]


@pytest.mark.oracle
def test_lance_keeps_the_stable_row_ids(tmp_path: Path) -> None:
    """If Lance could restore an older version, the ids would be lost behind our back."""
    theirs = lance.write_dataset(rows(0, 1, 2), tmp_path / "t")
    result = lance_stream.migrate_to_stable_row_ids(theirs.uri)
    with pytest.raises(OSError, match="stable row ids were enabled after it"):
        theirs.checkout_version(1).restore()
    assert result.checkout(None).version == result.version
