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
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.storage.local_store import LocalStore


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
