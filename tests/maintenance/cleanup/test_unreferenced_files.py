"""Which files a cleanup deletes."""

import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.maintenance.cleanup.unreferenced_files import UnreferencedFiles
from lance_stream.storage.store import StoredFile
from lance_stream.table.named_files import FileKind, Nameable
from tests.keys.index.small_runs import indexed, runs_of, small_runs
from tests.keys.keyed_tables import rows, table_of
from tests.maintenance.cleanup.tables import DAY, busy_table, in_days, new_table, paths_of


def test_unreferenced_files_stay_while_young() -> None:
    """A young file may belong to a commit under way, and files that are not ours are never
    touched.
    """
    ds = busy_table()
    lost = [
        "data/0101.lance",
        "data/0101/0000.blob",
        "data/.0102.lance.0123456789abcdef.tmp",
        "_deletions/1-2-3.arrow",
        "_transactions/9-abc.txn",
        "_transactions/9-abc.txn#1",
        "_versions/.18446744073709551600.manifest.0123456789abcdef.tmp",
        "_indices/2f1b3f4e-0000-0000-0000-000000000000/index.idx",
        "_lance_stream/tombstones/0123456789abcdef0123456789abcdef.arrow",
        "_lance_stream/key_bounds/99.arrow",
        "_lance_stream/key_index/99-0123456789abcdef0123456789abcdef.keys",
        "_lance_stream/staged_rows/0123456789abcdef0123456789abcdef.arrow",
        "_refs/tags/.gold.json.0123456789abcdef.tmp",
    ]
    others = ["notes.txt", "data/notes.txt", "_lance_stream/later/x", "_fri/1/x", "_versions/x"]
    for path in lost + others:
        ds.table.store.write(path, b"?")
    none = CleanupRules(older_than=1000 * DAY)
    assert cleanup(ds.table, none, environment=in_days(6.9)).num_files == {}
    report = cleanup(ds.table, none, environment=in_days(7.1))
    assert sum(report.num_files.values()) == len(lost)
    assert set(report.num_files.values()) == {1, 4}
    assert report.num_files["temporary files"] == 4
    there = paths_of(ds)
    assert not set(lost) & set(there)
    assert set(others) <= set(there)
    assert ds.checkout(3).verify() == ds.verify() == []


def test_unreferenced_files_can_go_at_once() -> None:
    """The caller vouches that nobody is writing."""
    ds = busy_table()
    ds.table.store.write("data/0101.lance", b"?")
    assert ds.cleanup(retain_versions=1).num_files["data files"] == 3
    assert ds.cleanup(delete_unverified=True).num_files == {"data files": 1}
    assert ds.verify() == []


def test_our_unneeded_files_are_removed() -> None:
    """Files beside Lance's format follow the same rule: those that a remaining version names
    must stay.
    """
    ds = new_table()
    for number in range(3):
        data = pa.table({"id": [number], "x": [5], "op": ["d"]})
        ds = ds.upsert(data, "id", "x", "op = 'd'", "op", tombstones="7 days")
    config = dict(ds.config)
    ds = ds.update_config({"lance_stream.tombstones": None})
    ds.table.store.write("_lance_stream/key_bounds/0.arrow", b"a cache")
    ds.tags.create("late", 3)
    assert ds.cleanup(retain_versions=1).num_files["tombstone files"] == 1
    remaining = [text for text in paths_of(ds) if text.startswith("_lance_stream")]
    assert len(remaining) == 3
    assert remaining[0] == "_lance_stream/key_bounds/0.arrow"
    assert all(
        value.rpartition("/")[2] in config["lance_stream.tombstones"] for value in remaining[1:]
    )
    assert ds.checkout("late").verify() == []


def test_blob_files_follow_their_data_file() -> None:
    """Blobs lie in a folder named after their data file, and no manifest lists them."""
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([blob])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema, file_version="2.2")
    for letter in (b"x", b"y"):
        ds = ds.append(pa.table({"b": pa.array([letter * 100_000], pa.large_binary())}, schema))
    first = [file.path for file in ds.table.store.list("data")]
    assert sum(text.endswith(".blob") for text in first) == 2
    ds = ds.overwrite(pa.table({"b": pa.array([b"z" * 100_000], pa.large_binary())}, schema))
    ds.tags.create("kept", 2)
    report = ds.cleanup(retain_versions=1)
    assert report.num_files["data files"] == report.num_files["blob files"] == 1
    assert sum(value in paths_of(ds) for value in first) == 2
    for version, letter in (("kept", b"x"), (None, b"z")):
        assert ds.checkout(version).to_table()["b"].to_pylist() == [letter * 100_000]


@pytest.mark.parametrize(
    ("modified", "is_certain", "goes"),
    [
        (99.0, True, True),
        (100.0, True, True),
        (100.5, True, False),
        (99.0, False, False),
    ],
)
def test_abandoned_files_are_old_and_certain(modified: float, is_certain: bool, goes: bool) -> None:
    """A file at the limit is as old as a commit may take."""
    identity = Nameable(FileKind.DATA, "data/x.lance", is_certain)
    file = StoredFile("data/x.lance", 1, modified)
    for removed in (set(), {"data/x.lance"}):
        files = UnreferencedFiles([(identity, file)], removed, 100.0).files()
        assert files == ([(identity, file)] if goes or removed else [])


def test_linked_folders_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their files may belong to another table."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    for name in ("elsewhere/a.arrow", "t/data/lost.lance"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"?")
    (tmp_path / "t" / "_lance_stream").mkdir()
    (tmp_path / "t" / "_lance_stream" / "tombstones").symlink_to(tmp_path / "elsewhere")
    assert ds.cleanup(delete_unverified=True).num_files == {"data files": 1}
    assert (tmp_path / "elsewhere" / "a.arrow").exists()
    assert caplog.text.count("_lance_stream/tombstones is a link") == 1


def test_useful_runs_of_keys_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the key index goes with the last of the data files that it covers."""
    for _ in small_runs(monkeypatch):
        table = indexed(table_of())
        old = runs_of(table)
        Dataset(table).cleanup(delete_unverified=True)
        assert runs_of(table) == old
        newest = Dataset(table).overwrite(rows([9], 9))
        newest.cleanup(retain_versions=1)
        assert runs_of(table) == old  # their data files existed when they were listed
        assert newest.cleanup(delete_unverified=True).num_files == {"indices of keys": len(old)}
        assert runs_of(table) == []
