"""Shallow clones, whose data and deletion files lie in another table's directory."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import IndexBuildError
from lance_stream.write import planning
from tests.eager_indices import eager_indices

pytestmark = pytest.mark.oracle


@pytest.fixture
def clone(tmp_path: Path) -> str:
    """A clone of a table in which one row is deleted."""
    base, uri = str(tmp_path / "base"), str(tmp_path / "clone")
    rows = pa.table({"id": range(10), "x": [0.5] * 10})
    base_table = lance.write_dataset(rows, base, enable_stable_row_ids=True)
    base_table.delete("id = 0")
    base_table.shallow_clone(uri, base_table.version)
    return uri


@pytest.mark.parametrize("ours", ["delete", "update", "upsert"])
@pytest.mark.parametrize("their_writer", ["lance_stream", "pylance"])
def test_races_on_clones_are_replanned(
    clone: str, ours: str, their_writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conflicts depend on deletion files, which lie in another table's folder."""
    verbs: dict[str, Callable[[Any], object]] = {
        "delete": lambda ds: ds.delete("id IN (1, 2)"),
        "update": lambda ds: ds.update({"id": "id", "x": "x + 1"}, where="id = 1"),  # moves it
        "upsert": lambda ds: ds.upsert(pa.table({"id": [1, 20], "x": [1.5, 2.5]}), on="id"),
    }
    due = [clone]
    real = planning.commit

    def commit(*args: Any, **kwargs: Any) -> Any:
        for uri in due:
            due.clear()
            if their_writer == "pylance":
                lance.dataset(uri).delete("id = 5")
            else:
                lance_stream.open_dataset(uri).delete("id = 5")
        return real(*args, **kwargs)

    monkeypatch.setattr(planning, "commit", commit)
    verbs[ours](lance_stream.open_dataset(clone))
    expected_ids = {
        "delete": {3, 4, 6, 7, 8, 9},
        "update": {1, 2, 3, 4, 6, 7, 8, 9},
        "upsert": {1, 2, 3, 4, 6, 7, 8, 9, 20},
    }[ours]
    ds = lance_stream.open_dataset(clone)
    assert set(ds.to_table()["id"].to_pylist()) == expected_ids
    assert set(lance.dataset(clone).to_table()["id"].to_pylist()) == expected_ids
    assert ds.verify() == []
    staged = {path.name for path in (Path(clone) / "_deletions").iterdir()}
    assert len(staged) == 2, "theirs, and ours; what was staged and lost is gone"


@pytest.mark.parametrize("is_branch", [True, False])
def test_indices_misplaced_by_compactions_are_explained(tmp_path: Path, is_branch: bool) -> None:
    """pylance finds neither their rows nor their files; creating them again is the remedy."""
    base, uri = str(tmp_path / "base"), str(tmp_path / "clone")
    lance.write_dataset(pa.table({"id": range(10)}), base)
    theirs = lance.write_dataset(pa.table({"id": range(10, 20)}), base, mode="append")
    theirs.create_scalar_index("id", "BTREE")
    if is_branch:
        theirs.create_branch("dev")
        uri = f"{base}/tree/dev"
    else:
        theirs.shallow_clone(uri, theirs.version)
    lance.dataset(uri).optimize.compact_files()
    ds = lance_stream.open_dataset(uri).append(pa.table({"id": [20]}))
    with pytest.raises(ValueError, match="Not found"):
        lance.dataset(uri).to_table(filter="id = 11")
    with eager_indices():
        assert ds.to_table(filter="id = 11")["id"].to_pylist() == [11]

    (finding,) = ds.verify()
    cause = f"{base}/_indices/.*, but are in .*{uri}/_indices/.*: pylance 14 misplaces them"
    assert re.search(cause, finding.message)
    with pytest.raises(IndexBuildError, match=f"id_idx: .*{cause}.*\\(replace=True\\)"):
        ds.optimize_indices()

    lance.dataset(uri).create_scalar_index("id", "BTREE", replace=True)
    ds = lance_stream.open_dataset(uri).append(pa.table({"id": [21]})).optimize_indices()
    assert ds.verify() == []
    assert lance.dataset(uri).to_table(filter="id >= 19")["id"].to_pylist() == [19, 20, 21]
