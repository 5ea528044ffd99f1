"""After our compactions pylance sees the same rows, ids and stamps, and its indices hold."""

import random
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_stream.maintenance.compaction import row_order
from lance_stream.maintenance.compaction.compact import commit_prepared, compact
from lance_stream.maintenance.compaction.plan import CompactionRules, plan
from lance_stream.maintenance.compaction.rewrites import prepare
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.opening import open_newest
from tests.oracle.test_applied import INDEXED_ACTS, IndexedHistory
from tests.oracle.test_diffs import ACTS, History, changes_of

pytestmark = pytest.mark.oracle

STAMPS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


@pytest.fixture(autouse=True)
def no_lineage_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows of small tables be written in another order, too."""
    monkeypatch.setattr(row_order, "SHORT_LINEAGE", 0)
    monkeypatch.setattr(row_order, "MIN_GAIN", 1.01)


def rows_of(uri: str) -> list[dict[str, Any]]:
    ds = lance.dataset(uri)
    rows = ds.to_table(columns=[*ds.schema.names, *STAMPS]).to_pylist()
    return sorted(rows, key=lambda row: row["_rowid"])


def check_indices(uri: str) -> None:
    ds = lance.dataset(uri)
    for condition in ("id = 7", "id >= 5 AND id < 12", "y = 1", "x > 0.5"):
        by_index = ds.to_table(filter=condition)
        by_scan = ds.scanner(filter=condition, use_scalar_index=False).to_table()
        assert sorted(map(repr, by_index.to_pylist())) == sorted(map(repr, by_scan.to_pylist()))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target_rows", [6, 100])
def test_only_the_fragments_change(tmp_path: Path, seed: int, target_rows: int) -> None:
    """A compaction that changes ids or stamps would repeat rows in every change feed."""
    dice = random.Random(seed)
    uri = str(tmp_path / "t")
    history = History(uri, seed)
    for _ in range(6):
        dice.choice(ACTS)(history)
        before = rows_of(uri)
        result = compact(open_newest(uri), target_rows)
        assert rows_of(uri) == before
        lance.dataset(uri).validate()
        assert verify(result.table) == []
        if result.num_removed:
            assert plan(open_newest(uri), CompactionRules(target_rows)) == []


@pytest.mark.parametrize("seed", range(8))
def test_prepared_compactions_rebase_on_pylances_commits(tmp_path: Path, seed: int) -> None:
    """A prepared compaction may be committed much later, when rows have changed."""
    dice = random.Random(seed)
    uri = str(tmp_path / "t")
    history = History(uri, seed)
    for _ in range(6):
        dice.choice(ACTS)(history)
        prepared = prepare(open_newest(uri), CompactionRules(dice.choice([6, 100])))
        for _ in range(dice.randint(1, 2)):
            dice.choice(ACTS)(history)
        before, version = rows_of(uri), history.ds.version
        result = commit_prepared(prepared)
        assert rows_of(uri) == before
        lance.dataset(uri).validate()
        assert verify(result.table) == []
        if result.table.version > version:
            changes = changes_of(open_newest(uri).log, result.table.version)
            assert (changes.inserts, changes.updates, changes.deletes) == ((), (), ())


@pytest.mark.parametrize("seed", range(6))
def test_queries_hold_after_rebased_compactions(tmp_path: Path, seed: int) -> None:
    """Coverage must fit the fragments that the rebase leaves."""
    dice = random.Random(seed)
    uri = str(tmp_path / "t")
    history = IndexedHistory(uri, seed)
    for _ in range(5):
        dice.choice(INDEXED_ACTS)(history)
        prepared = prepare(open_newest(uri), CompactionRules(100))
        dice.choice(INDEXED_ACTS)(history)
        commit_prepared(prepared)
        check_indices(uri)


@pytest.mark.parametrize("seed", range(6))
def test_index_queries_find_scanned_rows(tmp_path: Path, seed: int) -> None:
    """An index that does not follow the moved rows would lose matches."""
    dice = random.Random(seed)
    uri = str(tmp_path / "t")
    history = IndexedHistory(uri, seed)
    for _ in range(5):
        dice.choice(INDEXED_ACTS)(history)
        compact(open_newest(uri), 100)
        check_indices(uri)
