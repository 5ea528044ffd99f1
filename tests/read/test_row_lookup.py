"""Rows are found by their ids, with or without an index of all rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CorruptDataError, NotFoundError
from lance_stream.read import take
from lance_stream.read.row_lookup import _matches_in, find_rows
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.lineage.row_addresses import NO_ADDRESS
from lance_stream.table.lineage.row_ids import RowIdSequence
from lance_stream.table.manifest import FragmentList

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])


def rows(ids: np.ndarray, value: int) -> pa.Table:
    return pa.table([ids, np.full(len(ids), value)], schema=SCHEMA)


def random_table(uri: str, seed: int) -> Dataset:
    """A table with appended, moved, deleted and compacted rows."""
    random = np.random.default_rng(seed)
    ds = lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"])
    num_ids = 0
    for step in range(12):
        chosen = random.integers(0, 5)
        if chosen < 2 or not num_ids:
            ds = ds.append(rows(np.arange(num_ids, num_ids + 20), step))
            num_ids += 20
        elif chosen < 4:
            ids = np.unique(random.integers(0, num_ids + 5, 8))
            ds = ds.upsert(rows(ids, step), on="id")
            num_ids = max(num_ids, int(ids[-1]) + 1)
        else:
            ds = ds.delete(f"id % 7 = {random.integers(0, 7)}")
        if random.integers(0, 6) == 0:
            ds = ds.compact()
    return ds


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.some_cases(one_in=4)
def test_both_ways_find_the_same_rows(tmp_path: Path, seed: int) -> None:
    """A few ids are searched without building the index of all rows, and must give its answer."""
    ds = random_table(str(tmp_path / "t"), seed)
    row_offsets = np.random.default_rng(seed).permutation(ds.table.manifest.next_row_id + 3)
    row_offsets = np.concatenate([row_offsets, row_offsets[:5]]).astype(np.uint64)
    expected, is_expected = ds.table.row_id_index.find(row_offsets)
    hits, is_there = find_rows(open_newest(ds.uri), row_offsets)
    assert is_there.tolist() == is_expected.tolist()
    assert hits.tolist() == expected.tolist()
    assert bool(is_there.any())
    assert not bool(is_there.all())
    few = row_offsets[:3]
    assert find_rows(ds.table, few)[0].tolist() == ds.table.row_id_index.find(few)[0].tolist()


def test_empty_tables_have_no_ids(tmp_path: Path) -> None:
    """Empty arrays break searches that assume a first element."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    for expected in (np.empty(0, np.uint64), np.array([3], np.uint64)):
        hits, is_there = find_rows(ds.table, expected)
        assert hits.tolist() == [int(NO_ADDRESS)] * len(expected)
        assert not is_there.any()


@pytest.mark.parametrize("limit", ["FEW_FRAGMENTS", "MAX_INDEXED_ROWS"])
def test_a_large_table_is_not_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """For three rows, an index of a billion ids would take minutes and gigabytes."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    for first in range(0, 100, 10):
        ds = ds.append(rows(np.arange(first, first + 10), 0))
    ds = ds.delete("id % 10 = 3")
    monkeypatch.setattr(take, limit, 5)
    clear_deleted_offsets()
    table = lance_stream.open_dataset(ds.uri)
    read: list[str] = []
    store = type(table.table.store)
    real = store.read
    monkeypatch.setattr(store, "read", lambda self, path: read.append(path) or real(self, path))
    assert table.take(row_ids=[57, 41, 57])["id"].to_pylist() == [57, 41, 57]
    assert "row_id_index" not in table.table.__dict__
    assert len([path for path in read if path.startswith("_deletions")]) == 2
    with pytest.raises(NotFoundError, match="has no rows with 1 of the row ids"):
        table.take(row_ids=[57, 43])


def test_tables_of_scattered_ids_are_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the index, each call would decode their ids."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA, primary_key=["id"])
    ds = ds.append(rows(np.arange(100), 0)).upsert(rows(np.arange(0, 100, 9), 1), on="id")
    monkeypatch.setattr(take, "MAX_INDEXED_ROWS", 5)
    table = lance_stream.open_dataset(ds.uri)
    assert table.take(row_ids=[18, 4])["value"].to_pylist() == [1, 0]
    assert "row_id_index" in table.table.__dict__


def test_duplicate_live_ids_are_corrupt(tmp_path: Path) -> None:
    """A row id identifies one row, and a choice between two would hide the damage."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    ds = ds.append(rows(np.arange(10), 0)).append(rows(np.arange(10), 0))
    first, second = ds.table.manifest.fragments
    twins = FragmentList.of([first, replace(second, row_ids=first.row_ids)])
    table = ds.table.at(replace(ds.table.manifest, fragments=twins))
    with pytest.raises(CorruptDataError, match="1 row ids belong to two live rows each"):
        find_rows(table, np.array([4], np.uint64))


@pytest.mark.parametrize("requested", [[5], [0, 9], [3], list(range(12))])
@pytest.mark.parametrize("ids", [[5, 3, 9], [3, 4, 5], [9, 5, 0, 3]])
def test_ids_are_found_at_any_offset(ids: list[int], requested: list[int]) -> None:
    """Few ids are looked up in many, and many the other way round."""
    indices, offsets = _matches_in(RowIdSequence.from_array(ids), np.array(requested, np.uint64))
    matches = {requested[index]: offset for index, offset in zip(indices, offsets, strict=True)}
    assert matches == {id_: ids.index(id_) for id_ in requested if id_ in ids}
