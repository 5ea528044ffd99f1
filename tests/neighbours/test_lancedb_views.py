"""LanceDB's materialized views over a table that we write."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from tests.recipes import need

pytestmark = pytest.mark.recipes


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "x": [f"row {row_id}" for row_id in ids]})


def ids_of(table: Any) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def test_views_count_compacted_rows_once(tmp_path: Path) -> None:
    """A view takes each fragment that no transaction explains for new rows."""
    lancedb: Any = need("lancedb")
    db = lancedb.connect(tmp_path)
    ds = lance_stream.create_dataset(str(tmp_path / "t.lance"), rows(*range(100)))
    view = db.create_materialized_view("view", "t")
    view.refresh()
    ds = ds.append(rows(100)).append(rows(101))
    view.refresh()
    ds = ds.compact().append(rows(102))
    result = view.refresh()
    assert ids_of(view.table) == list(range(103))
    assert (result.mode, result.rows_written) == ("incremental", 1)


def test_views_survive_compactions_between_deletes(tmp_path: Path) -> None:
    """Deletes around a compaction change the fragments whose rows the view has already counted."""
    lancedb: Any = need("lancedb")
    db = lancedb.connect(tmp_path)
    ds = lance_stream.create_dataset(str(tmp_path / "t.lance"), rows(0, 1, 2))
    ds = ds.append(rows(3, 4))
    view = db.create_materialized_view("view", "t")
    view.refresh()
    ds = ds.delete("id = 1").append(rows(5))
    ds = ds.compact().delete("id = 4").append(rows(6))
    view.refresh()
    assert ids_of(view.table) == [0, 2, 3, 5, 6]
