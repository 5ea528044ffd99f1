"""The numbers of rows that versions of pylance changed, as far as its manifests tell them."""

from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream

pytestmark = pytest.mark.oracle


def written(**arguments: Any) -> tuple[str, "lance.LanceDataset"]:
    uri = arguments.pop("uri")
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "x": ["a"] * 10})
    return uri, lance.write_dataset(rows, uri, **arguments)


def counts(uri: str) -> list[tuple[int | None, int | None, int | None]]:
    return [
        (version.rows_inserted, version.rows_updated, version.rows_deleted)
        for version in lance_stream.open_dataset(uri).versions()
    ]


def test_pylance_merges_are_counted_from_manifests(tmp_path: Any) -> None:
    """A merge inserts and updates in one commit, without saying how many rows."""
    uri, ds = written(uri=str(tmp_path / "t"), enable_stable_row_ids=True)
    merged = pa.table({"id": pa.array([8, 9, 10], pa.int64()), "x": ["b"] * 3})
    ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(merged)
    ds.delete("id < 3")
    ds.optimize.compact_files()
    changes = counts(uri)
    assert changes[:3] == [(10, 0, 0), (1, 2, 0), (0, 0, 3)]
    assert set(changes[3:]) == {(0, 0, 0)}


def test_updates_without_stable_ids_are_unknown(tmp_path: Any) -> None:
    """Moved and new rows cannot be distinguished, and a guess would be wrong."""
    uri, ds = written(uri=str(tmp_path / "t"), enable_stable_row_ids=False)
    ds.insert(pa.table({"id": pa.array([10], pa.int64()), "x": ["c"]}))
    ds.delete("id < 3")
    ds.update({"x": "'d'"}, where="id = 5")
    unknown = (None, None, None)
    assert counts(uri) == [(10, 0, 0), (1, 0, 0), (0, 0, 3), unknown]
    counted = lance_stream.open_dataset(uri).versions(count_rows=True)
    assert counted[3].row_counts is None
