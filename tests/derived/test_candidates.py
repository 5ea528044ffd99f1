"""The rows of a source that may have changed since a version."""

import uuid
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.derived.candidates import (
    CandidateRows,
    VersionDiff,
    _highest,
    _rows,
    changed_since,
    next_rows,
)
from lance_stream.derived.progress import PendingRange


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_restored_rows_of_any_fragment_count(changed: int) -> None:
    """A restore brings back old row versions, so only comparing the fragments shows its rows."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for start in (0, 3, 6):
        ds = ds.append(pa.table({"id": range(start, start + 3), "x": [1] * 3}))
    before = ds.version
    ds = ds.update({"x": "2"}, where=f"id = {3 * changed + 1}")
    ids = [field.id for field in ds.table.schema.fields]
    table = ds.restore(before).table
    difference = changed_since(table, ds.version, ids, (), ())
    (rows,) = difference.others
    assert rows.fragment_index == changed
    assert 3 * changed + 1 in rows.row_ids
    fragment_ids = table.manifest.fragments.ids
    assert sorted({*fragment_ids} - {*difference.decided}) == [fragment_ids[changed]]


@pytest.mark.parametrize("max_rows", [1, 4, 6])
def test_changed_rows_are_returned_in_parts(max_rows: int) -> None:
    """Restored rows have old versions, which the skipped versions of other rows must not hide in
    the next part.
    """
    schema = pa.schema([("id", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    table = ds.append(pa.table({"id": range(6)})).table
    restored = CandidateRows(0, np.arange(6, dtype=np.uint32), np.arange(6, dtype=np.uint64))
    changed = VersionDiff(PendingRange(9, skip=(table.version,)), others=(restored,))
    pending = next_rows(table, (), max_rows, changed)
    row_ids = [row_id for rows in pending.rows for row_id in rows.row_ids.tolist()]
    while pending.remaining:
        pending = next_rows(table, pending.remaining, max_rows)
        row_ids += [row_id for rows in pending.rows for row_id in rows.row_ids.tolist()]
    assert sorted(row_ids) == list(range(6))


def test_remaining_ranges_keep_their_versions() -> None:
    """Otherwise each part would check the rows of all earlier versions again. Restored rows may
    have any version, so the rest of their range has all.
    """
    schema = pa.schema([("id", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for start in (0, 3, 6):
        ds = ds.append(pa.table({"id": range(start, start + 3)}))
    restored = CandidateRows(0, np.arange(3, dtype=np.uint32), np.arange(3, dtype=np.uint64))
    newest = PendingRange(2, skip=(4,))
    for others, rest in (((), PendingRange(2, 5, (4,))), ((restored,), PendingRange(0, 5))):
        pending = next_rows(ds.table, (), 1, VersionDiff(newest, others=others))
        assert pending.remaining == (rest,)
    pending = next_rows(ds.table, (newest,), 2)
    assert pending.remaining == (PendingRange(2, 4, (4,)),)
    pending = next_rows(ds.table, (PendingRange(3), newest), 3)
    assert pending.remaining == (PendingRange(3),)


def test_processed_versions_are_not_checked_again() -> None:
    """A compaction mixes rows of several versions in a fragment, and computing all of them again
    would repeat the work of months.
    """
    schema = pa.schema([("id", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for start in (0, 3, 6):
        ds = ds.append(pa.table({"id": range(start, start + 3)}))
    table = ds.compact().table
    pending = next_rows(table, (PendingRange(after=3),), 100)
    assert [rows.row_ids.tolist() for rows in pending.rows] == [[6, 7, 8]]
    pending = next_rows(table, (PendingRange(after=2, skip=(4,)),), 100)
    assert [rows.row_ids.tolist() for rows in pending.rows] == [[3, 4, 5]]


@pytest.mark.parametrize("deleted", [(), (0,), (3,), (5,), (0, 2, 3, 5)])
def test_parts_of_fragments_omit_deleted_rows(deleted: tuple[int, ...]) -> None:
    """Lineage selects a part of a fragment, whose deleted rows count from the fragment's start."""
    schema = pa.schema([("id", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    ds = ds.append(pa.table({"id": range(6)}))
    for row in deleted:
        ds = ds.delete(f"id = {row}")
    for start, stop in combinations(range(7), 2):
        rows = _rows(ds.table, 0, PendingRange(0), start, stop)
        expected = [row for row in range(start, stop) if row not in deleted]
        assert rows.offsets.tolist() == rows.row_ids.tolist() == expected
    whole = _rows(ds.table, 0, PendingRange(0), 0, None)
    assert whole.offsets.tolist() == [row for row in range(6) if row not in deleted]


@pytest.mark.parametrize(
    ("max_rows", "num_reads", "expected"),
    [(2, 1, [7, 8]), (3, 2, [6, 7, 8]), (4, 2, [5, 6, 7, 8]), (6, 2, [3, 4, 5, 6, 7, 8])],
)
def test_the_highest_rows_are_read_first(
    max_rows: int, num_reads: int, expected: list[int]
) -> None:
    """A backfill of a large table must not read the lineage of all fragments in each round."""
    reads: list[int] = []

    def source(index: int) -> tuple[int, Callable[[], CandidateRows]]:
        ids = np.arange(3 * index, 3 * index + 3, dtype=np.uint64)

        def read() -> CandidateRows:
            reads.append(index)
            return CandidateRows(index, np.arange(3, dtype=np.uint32), ids)

        return int(ids[-1]), read

    rows, has_all = _highest(map(source, range(3)), max_rows)
    assert sorted(row_id for part in rows for row_id in part.row_ids.tolist()) == expected
    assert not has_all
    assert len(reads) <= num_reads + (max_rows % 3 == 0)


@pytest.mark.parametrize("after", [2, 5])
def test_only_later_versions_are_skipped(after: int) -> None:
    """The progress keeps the skipped versions until the rest of the range is checked."""
    schema = pa.schema([("id", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for start in range(4):
        ds = ds.append(pa.table({"id": [start]}))
    difference = changed_since(ds.table, after, (0,), (1,), tuple(range(1, 8)))
    assert difference.pending_range == PendingRange(after, skip=tuple(range(after + 1, 6)))


@pytest.mark.parametrize("outputs", [(), (1,)])
def test_lost_versions_leave_all_pending(outputs: tuple[int, ...]) -> None:
    """What has changed since, without row versions or by a restore, nobody can tell."""
    schema = pa.schema([("id", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for start in range(3):
        ds = ds.append(pa.table({"id": [start]}))
    ds.cleanup(retain_versions=1, older_than="0 seconds")
    table = lance_stream.open_dataset(ds.uri).table
    assert changed_since(table, 2, (0,), outputs, (3,)) == VersionDiff(PendingRange(0))
