"""The numbers of inserted, updated and deleted rows in the list of versions."""

import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.snapshot.history import VersionInfo
from lance_stream.table.changes import row_counts
from lance_stream.table.changes.row_counts import ChangedRowCounts, count_changed_rows
from lance_stream.table.fragments.fragment import (
    LINEAGE_FIELD_IDS,
    DeletionFile,
    DeletionFileType,
    Fragment,
    LineageColumn,
)
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.versions import Restore

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])
UNKNOWN = (None, None, None)


def rows(*ids: int, x: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=SCHEMA)


def numbers(info: VersionInfo) -> tuple[int | None, int | None, int | None]:
    return info.rows_inserted, info.rows_updated, info.rows_deleted


def new_table(**arguments: bool) -> Dataset:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA, **arguments)


@pytest.fixture
def ds() -> Dataset:
    """Return a table with one version per kind of change."""
    ds = new_table().append(rows(0, 1, 2, 3)).append(rows(4, 5))
    ds = ds.upsert(rows(3, 4, 9, x="b"), on="id").delete("id < 2").compact()
    return ds.update({"x": "'c'"}, where="id = 9").update_config({"a": "b"})


def test_verbs_are_counted_without_reading_rows(ds: Dataset) -> None:
    """Counts come from manifests alone, so that listing versions stays cheap."""
    actual = {version.operation: numbers(version) for version in ds.versions()[1:]}
    assert actual["Append"] == (2, 0, 0)
    assert actual["Delete"] == (0, 0, 2)
    assert actual["Rewrite"] == actual["UpdateConfig"] == (0, 0, 0)
    updates = [numbers(version) for version in ds.versions() if version.operation == "Update"]
    assert updates == [(1, 2, 0), (0, 1, 0)]


def test_overwrites_count_deletes_and_inserts(ds: Dataset) -> None:
    """An overwrite replaces all rows, which are no updates even if they are equal."""
    before = ds.count_rows()
    assert numbers(ds.overwrite(rows(1, 2, 3)).versions()[-1]) == (3, 0, before)


def test_counts_without_an_operation_are_certain() -> None:
    """Other programs may omit the transaction; rows that certainly differ are still counted."""
    ds = new_table().append(rows(0, 1, 2, 3))
    appended = ds.append(rows(4))
    updated = appended.update({"x": "'b'"}, where="id >= 0")
    compacted = updated.append(rows(5)).compact()
    versions = [dataset.table.manifest for dataset in (ds, appended, updated)]
    moved = [compacted.checkout(version).table.manifest for version in (5, 6)]
    assert count_changed_rows(*versions[:2], None) == ChangedRowCounts(1)
    assert count_changed_rows(*versions[1:], None) == ChangedRowCounts(0, 5, 0)
    assert count_changed_rows(*moved, None) is None


@pytest.mark.parametrize("column", ["files", "last_updated_at_versions"])
def test_in_place_changes_are_not_counted(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of fragments do not show these rows, and zero updates would be wrong."""
    monkeypatch.setattr(row_counts, "MAX_ROWS", 0)
    older = new_table().append(rows(0, 1, 2, 3)).table.manifest
    fragment = older.fragments[0]
    appended = new_table().append(rows(0, 1, 2, 3)).append(rows(4)).table.manifest.fragments[1]
    changes: dict[str, Any] = {
        "files": fragment.files * 2,
        "last_updated_at_versions": encode_row_versions(RowVersionSequence.uniform(4, 3)),
    }
    for changed, expected in (
        (fragment, ChangedRowCounts(1)),
        (replace(fragment, **{column: changes[column]}), None),
    ):
        newer = replace(older.successor(), fragments=FragmentList.of([changed, appended]))
        assert count_changed_rows(older, newer, object.__new__(Update)) == expected


@pytest.mark.parametrize(
    "unstated",
    [
        {"physical_rows": 0},
        {"deletion_file": DeletionFile(DeletionFileType.BITMAP, 1, 1, 0)},
    ],
    ids=["rows", "deleted rows"],
)
@pytest.mark.parametrize("stable_row_ids", [False, True])
def test_omitted_counts_are_unknown(stable_row_ids: bool, unstated: dict[str, Any]) -> None:
    """A manifest without the number states 0, which a list of versions must not show."""
    ds = new_table(stable_row_ids=stable_row_ids)
    older, newer = ds.table.manifest, ds.append(rows(0, 1)).table.manifest
    fragments = FragmentList.of([replace(newer.fragments[0], **unstated)])
    operation = object.__new__(Append)
    assert count_changed_rows(older, newer, operation) == ChangedRowCounts(2)
    assert count_changed_rows(older, replace(newer, fragments=fragments), operation) is None


def test_restores_are_unknown_until_counted(ds: Dataset) -> None:
    """A restore may change rows in every way, and counting them requires reading row ids."""
    restored = ds.restore(4)  # before the delete
    assert numbers(restored.versions()[-1]) == UNKNOWN
    assert numbers(restored.versions(count_rows=True)[-1]) == (2, 1, 0)


def test_counts_after_gaps_are_unknown(ds: Dataset) -> None:
    """Without the previous version there is nothing to compare with, and zero would be wrong."""
    ds.tags.create("kept", 3)
    ds.cleanup(retain_versions=1)
    for listed in (ds.versions(), ds.versions(count_rows=True)):
        assert [numbers(file) for file in listed] == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("limit", [None, 1])
def test_versions_removed_meanwhile_are_replaced(
    ds: Dataset, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table has a version at any time, so the list must not be empty."""
    kind = type(ds.table.log)
    list_versions = kind.versions

    def list_before_cleanup(log: Any) -> Any:
        monkeypatch.setattr(kind, "versions", list_versions)
        listed = list_versions(log)
        ds.append(rows(9)).cleanup("0s")
        return listed

    monkeypatch.setattr(kind, "versions", list_before_cleanup)
    assert [info.version for info in ds.versions(limit)] == [ds.version + 1]


def test_limits_keep_the_oldest_versions_counts(ds: Dataset) -> None:
    """Its counts need the version before it, which the limit leaves out of the list."""
    everything = ds.versions()
    for limit in (1, 2, len(everything), 99):
        assert ds.versions(limit) == everything[-limit:]
    with pytest.raises(
        InvalidInputError, match="limit must be a whole number of at least 1, not 0"
    ):
        ds.versions(0)


def test_appends_and_deletes_need_no_ids() -> None:
    """Their counts follow from fragments alone, while an upsert cannot be told apart without
    ids.
    """
    ds = new_table(stable_row_ids=False).append(rows(1, 2)).append(rows(3)).delete("id = 1")
    ds = ds.compact().upsert(rows(2, 4), on="id")
    assert [numbers(version) for version in ds.versions()[:4]] == [
        (0, 0, 0),
        (2, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
    ]
    assert numbers(ds.versions()[-1]) == UNKNOWN


@pytest.mark.parametrize("operation", [Append, Overwrite, Update, Rewrite])
def test_billions_of_rows_are_counted_compactly(
    operation: type[Any],
) -> None:
    """A manifest may state any number of rows in a few bytes, and expanding its ranges would
    exhaust memory.
    """
    older = new_table().append(rows(1)).append(rows(2)).delete("id = 2").append(rows(3))
    manifest = older.table.manifest
    num_rows, first = 1 << 31, manifest.next_row_id
    if operation is Rewrite:  # two fragments of so many rows are merged
        manifest = replace(manifest, fragments=FragmentList.of([large_fragment(9, 0, num_rows)]))
        first = 0
    new = large_fragment(10, first, num_rows)
    old_fragments = [] if operation in (Overwrite, Rewrite) else list(manifest.fragments)
    newer = replace(manifest.successor(), fragments=FragmentList.of([*old_fragments, new]))
    instance = object.__new__(operation)
    manifest = replace(manifest, next_row_id=num_rows if operation is Rewrite else first)
    counts = count_changed_rows(manifest, newer, instance)
    assert counts == {
        Append: ChangedRowCounts(num_rows),
        Update: ChangedRowCounts(num_rows),
        Overwrite: ChangedRowCounts(num_rows, 0, 2),
        Rewrite: ChangedRowCounts(),
    }.get(operation)


UPDATE, MOVED = Update(), Rewrite(())
HIDDEN = LineageColumn(LINEAGE_FIELD_IDS["row_ids"], None)


@pytest.mark.parametrize(
    ("operation", "row_ids", "versions", "expected"),
    [
        (UPDATE, [3, 10], [9, 9], ChangedRowCounts(1, 1, 1)),
        (UPDATE, [10, 11], [9, 9], ChangedRowCounts(2, 0, 2)),
        (UPDATE, [10, 11], [1, 1], ChangedRowCounts(2, 0, 2)),
        (UPDATE, [3, 4], [9, 9], ChangedRowCounts(0, 2, 0)),
        (UPDATE, [3, 10], [9, 1], ChangedRowCounts(1, 1, 1)),
        (UPDATE, [3, 4], [1, 1], None),  # an update does not move rows
        (UPDATE, [3, 4], [9, 1], None),
        (UPDATE, [3, 4, 5], [9, 9, 9], None),  # more live rows than there can be
        (MOVED, [3, 4], [1, 1], ChangedRowCounts()),
        (MOVED, [3, 10], [1, 9], ChangedRowCounts(1, 0, 1)),
        (MOVED, [9, 10], [1, 9], ChangedRowCounts(1, 0, 1)),
        (MOVED, [3, 4], [1, 9], None),  # a compaction does not update rows
        (Append(()), [10, 11], [9, 9], ChangedRowCounts(2, 0, 2)),
        (Append(()), [3, 10], [9, 9], None),
        (Restore(1), [10, 11], [9, 9], None),
        (None, [10, 11], [9, 9], None),
        (UPDATE, HIDDEN, [9, 9], None),
        (UPDATE, [3, 10], HIDDEN, None),
    ],
)
def test_rows_that_an_operation_cannot_write(
    operation: Operation | None,
    row_ids: list[int] | LineageColumn,
    versions: list[int] | LineageColumn,
    expected: ChangedRowCounts | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counts from manifests would be wrong for them, and so are unknown."""
    table = new_table().append(rows(*range(10)))
    older = replace(table.table.manifest, version=8)
    (fragment,) = older.fragments
    deletion = DeletionFile(DeletionFileType.ARROW_ARRAY, 8, 1, 2)
    num_rows = len(versions if isinstance(versions, list) else [9, 9])
    new = Fragment(
        7,
        fragment.files,
        num_rows,
        row_ids=_ids(row_ids) if isinstance(row_ids, list) else row_ids,
        last_updated_at_versions=_versions(versions) if isinstance(versions, list) else versions,
    )
    fragments = FragmentList.of([replace(fragment, deletion_file=deletion), new])
    newer = replace(older.successor(), fragments=fragments)
    assert count_changed_rows(older, newer, operation) == expected
    monkeypatch.setattr(row_counts, "MAX_ROWS", num_rows)
    assert count_changed_rows(older, newer, operation) == expected
    monkeypatch.setattr(row_counts, "MAX_ROWS", num_rows - 1)
    if row_ids in ([3, 10], [9, 10]):
        assert count_changed_rows(older, newer, operation) is None


@pytest.mark.parametrize("unstated", ["before", "after", "neither"])
@pytest.mark.parametrize("stable_row_ids", [False, True])
def test_deletes_need_both_counts(
    stable_row_ids: bool, unstated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what the live rows of both versions differ by."""
    monkeypatch.setattr(row_counts, "MAX_ROWS", 0)
    ds = new_table(stable_row_ids=stable_row_ids).append(rows(0, 1, 2)).append(rows(3, 4))
    before, after = ds.table.manifest, ds.delete("id = 0 OR id = 3").table.manifest
    if unstated == "before":
        before = with_first(before, physical_rows=0)
    if unstated == "after":
        after = with_first(after, physical_rows=0)
    expected = ChangedRowCounts(deleted=2) if unstated == "neither" else None
    assert count_changed_rows(before, after, object.__new__(Delete)) == expected


def with_first(manifest: Manifest, **changes: Any) -> Manifest:
    """Return a version whose first fragment differs."""
    first, *others = manifest.fragments
    return replace(manifest, fragments=FragmentList.of([replace(first, **changes), *others]))


def test_deleted_new_rows_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row ids of a new fragment do not show which of its rows are live."""
    monkeypatch.setattr(row_counts, "MAX_ROWS", 0)
    ds = new_table().append(rows(0, 1, 2, 3))
    older, newer = ds.table.manifest, ds.append(rows(4, 5)).table.manifest
    deletion = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 1, 1)
    newer = with_first(newer, deletion_file=deletion)
    assert count_changed_rows(older, newer, UPDATE) == ChangedRowCounts(2, 0, 1)
    first, new = newer.fragments
    fragments = FragmentList.of([first, replace(new, deletion_file=deletion)])
    assert count_changed_rows(older, replace(newer, fragments=fragments), UPDATE) is None


def test_first_versions_may_lack_counts() -> None:
    """All rows of the first version are new, as many as it states."""
    first = new_table().append(rows(0, 1)).append(rows(2)).table.manifest
    assert count_changed_rows(None, first, None) == ChangedRowCounts(3)
    assert count_changed_rows(None, with_first(first, physical_rows=0), None) is None


@pytest.mark.parametrize(("max_rows", "is_counted"), [(9, False), (10, True)])
def test_small_changes_are_compared(
    max_rows: int, is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any operation may have changed them, which is found row by row."""
    monkeypatch.setattr(row_counts, "MAX_ROWS", max_rows)
    ds = new_table().append(rows(0, 1, 2, 3)).append(rows(4))
    newer = ds.update({"x": "'b'"}, where="id >= 0").table.manifest  # five rows, before and after
    expected = ChangedRowCounts(0, 5, 0) if is_counted else None
    assert count_changed_rows(ds.table.manifest, newer, None) == expected


def test_hidden_lineage_is_not_read() -> None:
    """It is in files, so the manifests do not show which rows were moved."""
    older = new_table().append(rows(0, 1)).table.manifest
    newer = with_first(older.successor(), id=9, row_ids=HIDDEN)
    assert count_changed_rows(older, newer, UPDATE) is None


def test_columns_that_return_change_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old fragments may still have the values of a dropped column."""
    monkeypatch.setattr(row_counts, "MAX_ROWS", 0)
    ds = new_table().append(rows(0, 1))
    newer = ds.table.manifest.successor()
    older = ds.drop_columns("x").table.manifest
    older = replace(older, version=newer.version - 1, fragments=newer.fragments)
    assert count_changed_rows(newer, newer.successor(), UPDATE) == ChangedRowCounts()
    assert count_changed_rows(older, newer, UPDATE) is None


def _ids(row_ids: list[int]) -> bytes:
    return encode_row_ids(RowIdSequence.from_array(np.array(row_ids, np.uint64)))


def _versions(versions: list[int]) -> bytes:
    return encode_row_versions(RowVersionSequence.from_array(np.array(versions, np.uint64)))


def large_fragment(fragment_id: int, first: int, num_rows: int) -> Fragment:
    ids = encode_row_ids(RowIdSequence.from_range(first, first + num_rows))
    versions = encode_row_versions(RowVersionSequence.uniform(num_rows, 3))
    return Fragment(fragment_id, (), num_rows, row_ids=ids, last_updated_at_versions=versions)
