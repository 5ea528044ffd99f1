"""Row ids and versions in hidden columns of data files, which pylance writes if a config asks."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.table.fragments.fragment import LineageColumn

pytestmark = pytest.mark.oracle

SPILLED = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "1"}
COLUMNS = ["id", "x", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


@pytest.fixture(params=["2.0", "2.1", "2.2"])
def uri(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Version 3 deletes, 4 updates, 5 and 6 compact, 7 deletes; sequences are hidden from 4 on."""
    where = str(tmp_path / "table")
    rows = pa.table({"id": list(range(20)), "x": [0] * 20})
    lance.write_dataset(rows, where, enable_stable_row_ids=True, data_storage_version=request.param)
    lance.dataset(where).update_config(SPILLED)
    lance.dataset(where).delete("id IN (3, 5, 9)")
    lance.dataset(where).update({"x": "1"}, where="id % 8 = 0")
    lance.dataset(where).optimize.compact_files()
    lance.dataset(where).delete("id = 7")
    return where


def test_rows_and_their_lineage_are_read(uri: str) -> None:
    """Ids and stamps must be the same, wherever they are stored."""
    newest = lance_stream.open_dataset(uri)
    (fragment,) = newest.table.manifest.fragments
    assert isinstance(fragment.row_ids, LineageColumn)
    for version in range(1, newest.version + 1):
        ds = lance_stream.open_dataset(uri, version)
        theirs = lance.dataset(uri, version=version).to_table(columns=COLUMNS)
        ours = ds.to_table(with_row_id=True, with_row_versions=True).select(COLUMNS)
        assert ours.to_pylist() == theirs.to_pylist()
        assert ds.verify() == []
    assert newest.take(row_ids=[16, 1], columns=["id"])["id"].to_pylist() == [16, 1]


def test_the_feed_follows_hidden_lineage(uri: str) -> None:
    """A feed without the hidden stamps would miss updates."""
    ds = lance_stream.open_dataset(uri)
    read = ds.changes(2, pre_images=False).read_all()
    changes = zip(read["_change_type"].to_pylist(), read["id"].to_pylist(), strict=True)
    assert list(changes) == [
        *(("delete", number) for number in (3, 5, 9)),
        *(("update_postimage", number) for number in (0, 8, 16)),
        ("delete", 7),
    ]


def spilled(uri: str, version: int | None = None) -> list[list[bool]]:
    """Return which sequences of each fragment are hidden: ids, last-updated-at, created-at."""
    ds = lance_stream.open_dataset(uri, version)
    return [
        [isinstance(sequence, LineageColumn) for sequence in fragment.sequences]
        for fragment in ds.table.manifest.fragments
    ]


def check_both_read(uri: str) -> None:
    """Check every version: both readers agree on rows and lineage, and the feed rebuilds it."""
    rows: dict[int, dict[str, object]] = {}
    for version in range(1, lance.dataset(uri).version + 1):
        ds = lance_stream.open_dataset(uri, version)
        theirs = lance.dataset(uri, version=version).to_table(columns=COLUMNS).to_pylist()
        ours = ds.to_table(with_row_id=True, with_row_versions=True).select(COLUMNS).to_pylist()
        assert ours == theirs
        assert ds.verify(deep=True) == []
        for change in ds.changes(version - 1).read_all().to_pylist():
            row = {name: change[name] for name in COLUMNS}
            if change["_change_type"] in ("delete", "update_preimage"):
                assert rows.pop(change["_rowid"]) == row
            else:
                rows[change["_rowid"]] = row
        assert list(rows.values()) == sorted(ours, key=list(rows.values()).index)


@pytest.fixture(params=["2.0", "2.1", "2.2"])
def ours(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Version 3 upserts, 4 updates, 5 compacts."""
    uri = str(tmp_path / "table")
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("x", pa.int64())])
    ds = lance_stream.create_dataset(uri, schema, file_version=request.param, config=SPILLED)
    ds = ds.append(pa.table({"id": range(20), "x": [0] * 20}))
    ds = ds.upsert(pa.table({"id": [30, 17, 3, 9, 31], "x": [1] * 5}), on="id")
    ds = ds.update({"x": "2"}, where="id % 5 = 0")
    ds.compact()
    return uri


@pytest.mark.some_cases(one_in=3)
def test_pylance_reads_our_hidden_lineage(ours: str) -> None:
    """The config makes us write such columns as well, behind a feature flag."""
    assert spilled(ours, 3) == [[False] * 3, [True, False, True], [False] * 3]
    assert spilled(ours, 4)[-1] == [True, False, True]
    assert spilled(ours) == [[True] * 3]
    check_both_read(ours)
    theirs = lance.dataset(ours)
    row_ids = [20, 3, 17]
    their_ids = theirs._take_rows(row_ids, columns=["id"])["id"].to_pylist()
    taken = lance_stream.open_dataset(ours).take(row_ids=row_ids, columns=["id"])
    assert taken["id"].to_pylist() == their_ids == [30, 3, 17]
    flags = lance_stream.open_dataset(ours).table.manifest
    assert (flags.reader_feature_flags, flags.writer_feature_flags) == (2 + 2048, 2 + 8 + 2048)


@pytest.mark.some_cases(one_in=3)
def test_pylance_continues_our_hidden_lineage(ours: str) -> None:
    """pylance moves and merges rows by the hidden ids."""
    lance.write_dataset(pa.table({"id": [40], "x": [4]}), ours, mode="append")
    lance.dataset(ours).update({"x": "5"}, where="id IN (3, 30, 40)")
    lance.dataset(ours).delete("id = 9")
    merge = lance.dataset(ours).merge_insert("id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(pa.table({"id": [17, 50], "x": [6, 6]}))
    lance_stream.open_dataset(ours).upsert(pa.table({"id": [50, 3], "x": [7, 7]}), on="id")
    lance.dataset(ours).add_columns({"y": "x + 1"})
    lance.dataset(ours).drop_columns(["y"])
    lance.dataset(ours).optimize.compact_files()
    lance_stream.open_dataset(ours).delete("id = 17")
    lance.dataset(ours, version=6).restore()
    lance_stream.open_dataset(ours).compact()
    check_both_read(ours)


@pytest.mark.some_cases(one_in=3)
def test_lineage_placement_follows_the_config(ours: str) -> None:
    """The flag must go when no column is hidden, or old readers stay excluded."""
    lance_stream.open_dataset(ours).update_config({"lance.row_lineage.spill": None})
    assert spilled(ours) == [[True] * 3]
    ds = lance_stream.open_dataset(ours).compact()
    assert spilled(ours) == [[False] * 3]
    assert ds.table.manifest.reader_feature_flags == 2
    ds.update_config({"lance.row_lineage.spill": "TRUE"}).compact()
    assert spilled(ours) == [[True] * 3]
    check_both_read(ours)


@pytest.mark.some_cases(one_in=3)
def test_clones_and_branches_read_hidden_lineage(ours: str, tmp_path: Path) -> None:
    """The hidden columns lie in another table's folder."""
    ds = lance_stream.open_dataset(ours)
    rows = ds.to_table(with_row_id=True, with_row_versions=True)
    ds.branches.create("side")
    branch = lance_stream.open_dataset(ours, branch="side")
    clone = ds.shallow_clone(str(tmp_path / "clone"))
    for value in (branch, clone):
        assert value.to_table(with_row_id=True, with_row_versions=True) == rows
        changed = value.upsert(pa.table({"id": [3, 60], "x": [8, 8]}), on="id").compact()
        assert sum(changed.to_table()["x"].to_pylist()) == sum(rows["x"].to_pylist()) + 15
        assert changed.verify(deep=True) == []
    assert lance.dataset(str(tmp_path / "clone")).count_rows() == rows.num_rows + 1
