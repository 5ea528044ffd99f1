"""What several threads share is used under its lock."""

import threading
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.byte_ranges import ByteRange
from lance_stream.caches import Cache
from lance_stream.derived.derivation import Derivation
from lance_stream.derived.reports import DerivedCommit
from lance_stream.environment import MACHINE
from lance_stream.keys.bounds import key_bounds
from lance_stream.keys.bounds.key_bounds import ColumnBounds
from lance_stream.keys.index import key_index
from lance_stream.keys.index.key_index import KeyIndex
from lance_stream.keys.index.run_files import IndexRun, RunUnavailableError
from lance_stream.maintenance.compaction import background as compaction
from lance_stream.maintenance.compaction.automatic import CompactionTrigger
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.indices.background import BackgroundIndexing, IndexRound
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
from lance_stream.read.fragment import FragmentReader
from lance_stream.read.page_cache import PageCache
from lance_stream.read.units import unit_of
from lance_stream.snapshot import store_clock
from tests.guarded import unlocked_uses
from tests.keys.index.small_runs import indexed, small_runs
from tests.keys.keyed_tables import rows, table_of

_small_runs = pytest.fixture(small_runs)


@pytest.mark.usefixtures("_small_runs")
def test_upserts_use_shared_keys_under_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks of one process share bounds and keys: a number given twice finds a wrong row."""
    bounds = unlocked_uses(
        monkeypatch,
        ColumnBounds,
        {"_lows", "_highs", "_row_of_file", "_row_of_fragment", "unsaved_work", "saved_work"},
        exempt={"_forget_all", "num_files"},
    )
    keys = unlocked_uses(
        monkeypatch,
        KeyIndex,
        {
            "_runs",
            "_saved",
            "_rejected_runs",
            "_saved_files",
            "_number_of",
            "_next",
            "_num_lookups",
        },
        exempt={"num_bytes", "num_files", "num_saved_runs", "is_worth_it"},
    )
    chunks = unlocked_uses(
        monkeypatch, IndexRun, {"_is_local"}, exempt={"put", "num_missing", "fetch_all", "_parts"}
    )
    monkeypatch.setattr(key_bounds, "_FORGET_FROM", 0)
    monkeypatch.setattr(key_index, "_FORGET_FROM", 0)
    ds = lance_stream.Dataset(indexed(table_of(6)))
    for number in range(6):
        ds = ds.upsert(rows(range(number, 400), number), "id").compact()
    index = key_index.key_index_of(ds.table, ["id"])
    file = index.covered_by(ds.table.manifest.fragments[0])
    assert file is not None
    index.knows(file)
    index.snapshot_of([file])
    run = next(iter(index._saved.values()))
    index.drop_run(RunUnavailableError(run, is_damaged=False), ds.table.store)
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", 1 << 40)  # keys stay in memory
    ds = ds.append(rows(range(900, 950), 0)).append(rows(range(950, 990), 0))
    ds = ds.upsert(rows(range(900, 970), 1), "id").compact()
    index.merge(ds.table, [])
    assert (bounds, keys, chunks) == (set(), set(), set())


def test_scans_use_pages_under_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that read ahead share the pages of one scan."""
    parts = unlocked_uses(
        monkeypatch, PageCache, {"_parts", "_capacity", "_fetches"}, exempt={"_drop_finished_files"}
    )
    retained, owner = PageCache(), object()
    retained.grow(10)
    for byte_range in (ByteRange(0, 4), ByteRange(4, 8)):
        retained.fetch(
            owner, [byte_range], [], lambda ranges: [bytes(span.size_bytes) for span in ranges]
        )
    with pytest.raises(OSError, match="away"):
        retained.fetch(owner, [ByteRange(8, 12)], [], _away)
    files = unlocked_uses(monkeypatch, FragmentReader, {"_pages_of_files", "_open_pages"})
    table = table_of(1)
    reader: Any = FragmentReader(unit_of(table, 0, columns=("id",)), retained)
    reader._rows_of_unit = SimpleNamespace()
    monkeypatch.setattr(FragmentReader, "_open_pages", lambda *_: None)
    assert reader._cached_pages(table.manifest.fragments[0].files[0]) is None
    assert (parts, files) == (set(), set())


def _away(_ranges: Any) -> Any:
    raise OSError("away")


def test_background_work_reports_under_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream asks while a thread works: it must not lose an outcome, or start a second one."""
    costs = unlocked_uses(
        monkeypatch,
        CompactionTrigger,
        {"_num_batches", "_fastest", "_excess_seconds", "_seconds_of_round"},
        exempt={"reason"},
    )
    table = table_of(1)
    trigger = CompactionTrigger(CompactionRules())
    assert trigger.after_batch(0.5)
    trigger.record_round(table, 1.0)
    outcomes = unlocked_uses(
        monkeypatch, BackgroundIndexing, {"_outcomes", "_is_running", "_thread"}, exempt={"wait"}
    )
    indexing: Any = BackgroundIndexing(RefreshPolicy(rows=1))
    indexing.after_batch(lambda: table)
    assert indexing.wait(60)
    indexing._has_ended(threading.Event(), None)
    indexing._report(IndexRound(reasons={"id_idx": "rows"}))
    indexing.take_outcomes()
    assert (costs, outcomes) == (set(), set())


def test_derivation_rounds_hold_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of one derivation would compute the same rows, and one of the commits would be
    refused.
    """
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema({"id": pa.int64()}))
    declaration: Any = SimpleNamespace(name="d", inputs=("id",), function_version="1")
    derivation: Any = Derivation(ds.uri, None, declaration)
    monkeypatch.setattr(Derivation, "_run_round", lambda _: DerivedCommit())
    rounds = unlocked_uses(monkeypatch, Derivation, {"_run_round"})
    derivation.run()
    derivation._follow(None)
    assert rounds == set()


def test_caches_use_their_values_under_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An LRU cache reorders its values even when they are only read."""
    values = unlocked_uses(monkeypatch, Cache, {"_values", "_store"}, exempt={"_store"})
    cache: Cache[str, int] = Cache(2)
    cache.put("a", 1)
    assert cache.get_or_make("b", lambda: 2) == 2
    assert cache.change("a", lambda value: (value or 0) + 1) == 2
    assert sorted(cache.items()) == [("a", 2), ("b", 2)]
    cache.clear()
    assert cache.get("a") is None
    assert values == set()


def test_shared_state_is_used_under_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """If two sinks begin at the same time, only one may compact the table."""

    class Tables(set[str]):
        def __getattribute__(self, name: str) -> Any:
            assert compaction._TABLES_LOCK.locked()
            return super().__getattribute__(name)

        def __contains__(self, uri: object) -> bool:
            assert compaction._TABLES_LOCK.locked()
            return super().__contains__(uri)

    class Clocks(dict[str, int]):
        def get(self, *key: Any) -> Any:
            assert store_clock._lock.locked()
            return super().get(*key)

        def __setitem__(self, uri: str, ahead: int) -> None:
            assert store_clock._lock.locked()
            super().__setitem__(uri, ahead)

    monkeypatch.setattr(compaction, "_TABLES", Tables())
    assert compaction.begin_work("a")
    assert not compaction.begin_work("a")
    compaction.end_work("a")
    assert compaction.begin_work("a")
    monkeypatch.setattr(store_clock, "_ahead", Clocks())
    store = table_of(1).store
    for _ in range(2):
        assert store_clock.with_store_clock(store, MACHINE) == replace(MACHINE)
