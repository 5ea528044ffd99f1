"""Rows that are deleted: by new deletion files, or by other writers meanwhile."""

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.environment import MACHINE
from lance_stream.row_updates.changed_rows import (
    chosen_rows,
    deleted_rows,
    moved_lineage,
    row_ids_of,
    with_moved_lineage,
    without_rows,
)
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.storage.store import NUM_READERS
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.paths import deletion_file_path

ROWS = pa.table({"a": [0, 1, 2, 3]})


@pytest.fixture
def ds() -> Dataset:
    """Two fragments of four rows, of which the second one has a deleted row."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", ROWS)
    return ds.append(pa.table({"a": [4, 5, 6, 7]})).delete("a = 4")


@pytest.mark.parametrize("num_readers", [NUM_READERS, NUM_READERS + 1])
@pytest.mark.parametrize(
    ("predicate", "updated", "removed"),
    [
        ("a > 100", {}, ()),
        ("a = 1", {0: [1]}, ()),
        ("a = 1 OR a > 5", {0: [1], 1: [0, 2, 3]}, ()),
        ("a < 4", {}, (0,)),
        ("a >= 2", {0: [2, 3]}, (1,)),
        ("a >= 0", {}, (0, 1)),
    ],
)
def test_emptied_fragments_have_no_file(
    ds: Dataset,
    predicate: str,
    updated: dict[int, list[int]],
    removed: tuple[int, ...],
    num_readers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are removed; the files of others have all deleted rows, old and new."""
    monkeypatch.setattr(MemoryStore, "num_readers", num_readers)
    table = ds.table
    fragments, emptied = without_rows(table, chosen_rows(table, predicate), MACHINE)
    assert emptied == removed
    clear_deleted_offsets()  # so that the files are read
    deleted = {fragment.id: table.deleted_offsets(fragment).tolist() for fragment in fragments}
    assert deleted == updated
    for fragment in fragments:
        assert fragment.deletion_file is not None
        assert fragment.deletion_file.num_deleted_rows == len(updated[fragment.id])
        assert fragment.row_ids is None
        assert fragment.created_at_versions is None
        assert fragment.last_updated_at_versions is None


def test_only_more_deletes_are_found(ds: Dataset) -> None:
    """After any other change, rows must be looked up again: one that a restore brought back would
    be inserted twice.
    """
    one = ds.delete("a = 5")
    two = one.delete("a = 7")
    other = two.restore(ds.version).delete("a = 6")

    def fragment(dataset: Dataset) -> Fragment:
        return dataset.table.manifest.fragments[1]

    for before, now, expected in (
        (ds, ds, [0]),
        (ds, one, [0, 1]),
        (ds, two, [0, 1, 3]),
        (one, two, [0, 1, 3]),
        (one, ds, None),
        (one, other, None),
        (two, one, None),
    ):
        deleted = deleted_rows(now.table, fragment(before), fragment(now))
        assert (None if deleted is None else deleted.tolist()) == expected
    whole = replace(fragment(ds), deletion_file=None)
    for before_fragment, expected in (
        (whole, [0]),
        (replace(whole, physical_rows=5), None),
        (replace(whole, files=()), None),
        (replace(whole, id=0), None),
    ):
        deleted = deleted_rows(ds.table, before_fragment, fragment(ds))
        assert (None if deleted is None else deleted.tolist()) == expected
    assert deleted_rows(ds.table, fragment(ds), whole) is None


def test_removed_deletion_files_are_unknown(ds: Dataset) -> None:
    """A cleanup may have removed the version on which a batch was planned."""
    before, now = ds.table.manifest.fragments[1], ds.delete("a = 5").table.manifest.fragments[1]
    assert before.deletion_file is not None
    ds.table.store.delete(deletion_file_path(before.id, before.deletion_file))
    clear_deleted_offsets()
    assert deleted_rows(ds.table, before, now) is None


def test_moved_rows_keep_their_lineage(ds: Dataset) -> None:
    """The change feed and the key index follow a row by its id, wherever it moves."""
    addresses = chosen_rows(ds.table, "a IN (2, 3, 5, 7)")
    assert addresses.tolist() == [2, 3, (1 << 32) + 1, (1 << 32) + 3]
    lineage = moved_lineage(ds.table, addresses)
    assert lineage.row_ids.tolist() == row_ids_of(ds.table, addresses).tolist() == [2, 3, 5, 7]
    assert lineage.created_at.tolist() == [1, 1, 2, 2]
    nothing = moved_lineage(ds.table, addresses[:0])
    assert (len(nothing.row_ids), len(nothing.created_at)) == (0, 0)
    written = [Fragment(0, (), num_rows) for num_rows in (3, 2, 1)]  # two of the rows are new
    first, second, third = with_moved_lineage(written, lineage)
    assert isinstance(first.row_ids, bytes)
    assert isinstance(first.created_at_versions, bytes)
    assert isinstance(second.row_ids, bytes)
    assert isinstance(second.created_at_versions, bytes)
    assert decode_row_ids(first.row_ids).to_array().tolist() == [2, 3, 5]
    assert decode_row_ids(second.row_ids).to_array().tolist() == [7]
    assert decode_row_versions(first.created_at_versions, 3).to_array().tolist() == [1, 1, 2]
    assert decode_row_versions(second.created_at_versions, 1).to_array().tolist() == [2]
    assert third == written[2]
