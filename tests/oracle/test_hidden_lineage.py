"""Row ids and versions in hidden columns of data files, which pylance writes if a config asks."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import NotFoundError, UnsupportedFeatureError
from lance_stream.table.fragments import LineageColumn

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


def test_the_feed_follows_them(uri: str) -> None:
    ds = lance_stream.open_dataset(uri)
    read = ds.changes(2, pre_images=False).read_all()
    changes = zip(read["_change_type"].to_pylist(), read["id"].to_pylist(), strict=True)
    assert list(changes) == [
        *(("delete", each) for each in (3, 5, 9)),
        *(("update_postimage", each) for each in (0, 8, 16)),
        ("delete", 7),
    ]


def test_such_a_table_is_not_written(uri: str) -> None:
    ds = lance_stream.open_dataset(uri)
    with pytest.raises(UnsupportedFeatureError, match="hidden columns"):
        ds.delete("id = 1")
    assert lance_stream.open_dataset(uri).version == ds.version
    with pytest.raises(NotFoundError):
        ds.checkout(ds.version + 1)
