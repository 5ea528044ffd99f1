"""The caches of files of open tables."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CorruptDataError
from lance_stream.snapshot import table_version
from lance_stream.snapshot.files import open_files
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.storage.local_store import LocalStore
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.manifest import BasePath
from lance_stream.table.paths import deletion_file_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the names of deletion files that are read from now on."""
    paths: list[str] = []
    real = LocalStore.read

    def watched(store: LocalStore, path: str) -> bytes:
        if path.startswith("_deletions/"):
            paths.append(path)
        return real(store, path)

    monkeypatch.setattr(LocalStore, "read", watched)
    clear_deleted_offsets()
    yield paths
    clear_deleted_offsets()


def delete(ds: Dataset, number: int) -> None:
    ds.delete(f"id = {number}")


def upsert(ds: Dataset, number: int) -> None:
    ds.upsert(pa.table({"id": [number], "value": [-1]}), on=["id"])


@pytest.mark.parametrize("change", [delete, upsert])
def test_batches_do_not_reread_their_deletions(
    tmp_path: Path, read: list[str], change: Callable[[Dataset, int], None]
) -> None:
    """The sink opens the table for each batch, and this process has written the deletion files
    itself.
    """
    rows = pa.table({"id": list(range(100)), "value": list(range(100))})
    lance_stream.create_dataset(tmp_path / "t", rows)
    for number in range(5):
        change(lance_stream.open_dataset(tmp_path / "t"), number)
    assert read == []
    clear_deleted_offsets()
    for _ in range(2):
        ds = lance_stream.open_dataset(tmp_path / "t")
        assert ds.count_rows("id < 5") == (0 if change is delete else 5)
    assert len(read) == len(set(read)) == 1


def test_verify_reads_deletion_files_again(tmp_path: Path, read: list[str]) -> None:
    """The process cache holds the offsets, and would hide a file that was damaged since."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": list(range(100))}))
    ds = ds.delete("id = 7")
    (file,) = (tmp_path / "t" / "_deletions").iterdir()
    assert ds.verify() == []
    assert read
    file.write_bytes(file.read_bytes()[:-20])
    assert any(file.name in finding.where for finding in ds.verify())


@pytest.mark.parametrize(
    ("stated", "has_files", "error"),
    [
        (2, True, ""),
        (0, True, ""),
        (0, False, ""),
        (1, True, "has 2 rows, but fragment 0 should have 1"),
        (3, True, "has 2 rows, but fragment 0 should have 3"),
        (2, False, "should have 2 rows, but has no data file"),
    ],
)
def test_wrong_row_counts_are_corrupt(
    tmp_path: Path, stated: int, has_files: bool, error: str
) -> None:
    """A manifest with a wrong number could make a reader allocate any memory. Old writers state
    none.
    """
    table = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1, 2]})).table
    (fragment,) = table.manifest.fragments
    files = fragment.files if has_files else ()
    checked = replace(fragment, physical_rows=stated, files=files)
    with pytest.raises(CorruptDataError, match=error) if error else nullcontext():
        table.files.check_num_rows(checked)


@pytest.mark.parametrize("limit", [1, 2])
def test_many_stated_rows_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A few bytes of a manifest could make a reader allocate any memory."""
    table = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1, 2]})).table
    table = Dataset(table).delete("id = 1").table
    (fragment,) = table.manifest.fragments
    checked: list[object] = []
    monkeypatch.setattr(open_files, "MAX_UNCHECKED_ROWS", limit)
    monkeypatch.setattr(table_version, "MAX_UNCHECKED_ROWS", limit)
    monkeypatch.setattr(open_files.OpenFiles, "check_num_rows", lambda _, one: checked.append(one))
    expected = [fragment] if limit == 1 else []
    for read in (
        lambda: table.files.deleted_offsets(fragment, 2),
        lambda: table.check_stated_rows(fragment),
    ):
        checked.clear()
        read()
        assert checked == expected


@pytest.mark.parametrize("limit", [1, 2])
def test_rows_of_all_fragments_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Many fragments with few rows each may need as much memory."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1, 2, 3, 4]}))
    table = ds.append(pa.table({"id": [5, 6, 7, 8]})).table
    checked: list[object] = []
    monkeypatch.setattr(table_version, "MAX_UNCHECKED_ROWS", limit)
    monkeypatch.setattr(type(table), "check_stated_rows", lambda *_: None)
    monkeypatch.setattr(open_files.OpenFiles, "check_num_rows", lambda _, one: checked.append(one))
    table.index_of(table.manifest.fragments)
    assert checked == (list(table.manifest.fragments) if limit == 1 else [])


@pytest.mark.parametrize("has_row_ids", [True, False])
@pytest.mark.parametrize("physical", [0, 2])
def test_unstated_rows_may_have_ids(tmp_path: Path, physical: int, has_row_ids: bool) -> None:
    """Old writers state no number, and the row ids must be as many as the file has rows."""
    table = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1, 2]})).table
    (fragment,) = table.manifest.fragments
    stored = replace(
        fragment, physical_rows=physical, row_ids=fragment.row_ids if has_row_ids else None
    )
    table.check_stated_rows(stored)
    if has_row_ids:
        wrong = replace(
            stored, physical_rows=0, row_ids=encode_row_ids(RowIdSequence.from_range(0, 3))
        )
        with pytest.raises(CorruptDataError):
            table.check_stated_rows(wrong)
    else:
        with pytest.raises(CorruptDataError, match="has no row ids, but the table has stable"):
            table.row_ids(stored)


@pytest.mark.parametrize(
    ("physical", "deleted", "live"), [(3, 1, 2), (0, 1, 2), (3, 0, 2), (0, 0, 2), (0, None, 3)]
)
def test_unstated_numbers_are_read(
    tmp_path: Path, physical: int, deleted: int | None, live: int
) -> None:
    """Old writers state neither the rows nor the deleted rows of a fragment."""
    table = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1, 2, 3]})).table
    table = Dataset(table).delete("id = 1").table
    (fragment,) = table.manifest.fragments
    assert fragment.deletion_file is not None
    file = None
    if deleted is not None:
        file = replace(fragment.deletion_file, num_deleted_rows=deleted)
    stored = replace(fragment, physical_rows=physical, deletion_file=file)
    clear_deleted_offsets()
    assert (table.physical_rows(stored), table.num_live_rows(stored)) == (3, live)
    assert table.physical_rows(replace(stored, physical_rows=0, files=())) == 0
    if deleted:
        clear_deleted_offsets()
        table.store.delete(deletion_file_path(fragment.id, fragment.deletion_file))
        assert table.num_live_rows(stored) == live  # without a request


def test_unstated_versions_are_the_first(tmp_path: Path) -> None:
    """Rows that were written before a table had row versions belong to version 1."""
    table = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1, 2, 3]})).table
    (fragment,) = table.manifest.fragments
    assert table.row_versions(fragment, None).to_array().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("file_version", "stated", "is_requested"),
    [((2, 1), 7, False), ((2, 1), 0, True), ((0, 1), 7, True), ((0, 0), 7, True)],
)
def test_sizes_of_old_files_are_asked(
    tmp_path: Path, file_version: tuple[int, int], stated: int, is_requested: bool
) -> None:
    """Writers of 0.1 left out the footer, in which a reader would look for the schema."""
    table = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]})).table
    (file,) = table.manifest.fragments[0].files
    size = table.files.size_of(file)
    old = replace(file, file_version=file_version, size_bytes=stated)
    assert table.files._size_bytes_of(old) == (size if is_requested else stated)


def test_base_paths_must_be_declared(tmp_path: Path) -> None:
    """An empty path would be the working directory of the process."""
    store = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]})).table.store
    bases = (BasePath(1, ""), BasePath(2, str(tmp_path / "other")))
    files = open_files.OpenFiles(store, bases)
    assert files.store_of_base(2).local_path("") == str(tmp_path / "other")
    with pytest.raises(CorruptDataError, match="base path 1 of the manifest is empty"):
        files.store_of_base(1)
    with pytest.raises(CorruptDataError, match=r"base path 3, but .* only \[1, 2\]"):
        files.store_of_base(3)
