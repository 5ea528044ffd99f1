"""Compaction carries the key index over: its new files are known before a key is read."""

import pickle
import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.keys.index import key_index, remap_keys, run_files
from lance_stream.keys.index.remap_keys import RewrittenFiles
from lance_stream.keys.index.run_merging import REMOVED
from lance_stream.maintenance.compaction.compact import commit_prepared
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import RewriteTask, prepare, write_task
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.conflicts.carried_rows import RewrittenRows
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.upsert.upsert import upsert
from tests.contracts.watched_stores import WatchedStore
from tests.keys.index.small_runs import indexed, restart, runs_of, small_runs
from tests.keys.keyed_tables import ON_ID, SCHEMA, num_read, rows, table_of, watched

_small_runs = pytest.fixture(autouse=True)(small_runs)


@pytest.fixture(autouse=True)
def _no_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever cannot be carried over is left out, and not by an error."""
    yield
    assert not [
        record for record in caplog.records if "cannot carry the key index" in record.getMessage()
    ]


def num_reads_of_an_upsert(table: TableVersion) -> int:
    """Return how often an upsert of 310 keys reads data files; the table has 300 of them."""
    table, store = watched(table)
    result = upsert(table, rows(range(310), 99), ON_ID)
    assert (result.num_updated, result.num_inserted) == (300, 10)
    assert lance_stream.Dataset(result.table).count_rows() == 310
    return num_read(store)


def saved_table() -> TableVersion:
    """Return a table of several fragments, nearly all of them in the index; for a new process."""
    table = upsert(indexed(table_of()), rows(range(0, 300, 2), 5), ON_ID).table
    table = upsert(table, rows([4, 6], 6), ON_ID).table  # saves the keys of the first one's file
    restart()
    return table


@pytest.mark.floors
def test_compacting_processes_read_no_new_keys() -> None:
    """The keys are known from the old files, and reading them again after each compaction would
    cost a full scan.
    """
    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(0, 300, 7), number), ON_ID).table
    assert num_reads_of_an_upsert(lance_stream.Dataset(table).compact().table) == 0


@pytest.mark.parametrize("saved", [1, 1 << 20])
def test_keys_in_memory_are_remapped(saved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many keys become a run of the index, while few stay in memory."""
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", 1 << 20)
    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(0, 300, 7), number), ON_ID).table
    assert not runs_of(table)
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", saved)
    table = lance_stream.Dataset(table).compact().table
    assert len(runs_of(table)) == (1 if saved == 1 else 0)
    assert num_reads_of_an_upsert(table) == 0


def test_processes_without_upserts_remap_the_index() -> None:
    """A maintenance job has no index in memory, but the streams that follow should not pay for its
    compaction.
    """
    table = saved_table()
    before = runs_of(table)
    rules = CompactionRules(max_deleted_fraction=0.0, newest_fragment=9)
    table = commit_prepared(prepare(table, rules)).table
    assert len(runs_of(table)) == len(before) + 1
    restart()
    assert num_reads_of_an_upsert(table) <= 3  # of the newest files, which no process has saved


def test_drivers_remap_what_tasks_wrote() -> None:
    """Tasks return fragments through a pickle, and the mapping of old to new rows has to survive
    it.
    """

    def by_tasks(tasks: Sequence[RewriteTask]) -> list[list[Fragment]]:
        return [write_task(pickle.loads(pickle.dumps(task))) for task in tasks]

    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(0, 300, 7), number), ON_ID).table
    table = commit_prepared(prepare(table, write=by_tasks)).table
    assert num_reads_of_an_upsert(table) == 0


def test_composite_keys_are_remapped() -> None:
    """Keys of several columns are stored as hashes, whose remapping must not need the values."""
    ds = lance_stream.Dataset(table_of())
    for number in range(1, 4):
        ds = ds.upsert(rows(range(0, 300, number), 0), ["id", "seq"])
    ds = ds.compact()
    restart()
    table, store = watched(ds.table)
    result = lance_stream.Dataset(table).upsert(rows(range(60), 0), ["id", "seq"])
    assert result.count_rows() == ds.count_rows() == 300
    assert num_read(store) == 0


def test_concurrently_deleted_rows_stay_deleted() -> None:
    """A compaction maps rows of the version that it has read, and an upsert in between has moved
    or deleted some of them.
    """
    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(0, 300, 7), number), ON_ID).table
    prepared = prepare(table)
    table = upsert(table, rows(range(0, 300, 11), 7), ON_ID).table
    deleted = lance_stream.Dataset(table).delete("id < 'key 30000'")
    num_rows = deleted.count_rows()
    assert commit_prepared(prepared).num_removed
    table, store = watched(lance_stream.open_dataset(table.store.uri).table)
    result = upsert(table, rows(range(300), 8), ON_ID)
    assert (result.num_updated, result.num_inserted) == (num_rows, 300 - num_rows)
    assert num_read(store) == 0


@pytest.mark.parametrize("num_unknown", [10, 1000])
def test_few_unknown_rows_are_remapped(num_unknown: int) -> None:
    """Few missing keys are read; if most are unknown, the next upsert reads the new file."""
    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(0, 300, 7), number), ON_ID).table
    added = range(1000, 1000 + num_unknown)
    ds = lance_stream.Dataset(table).append(rows(added, 0)).compact()
    assert len(ds.table.manifest.fragments) == 1
    table, store = watched(ds.table)
    assert upsert(table, rows(range(990, 1010), 9), ON_ID).num_updated == 10
    assert num_read(store) == (0 if num_unknown == 10 else 1)


def test_uncommitted_compactions_are_harmless() -> None:
    """The run names files that no version has, and merging drops them."""
    table = upsert(saved_table(), rows([1], 7), ON_ID).table
    before = runs_of(table)
    prepared = prepare(table)
    assert len(runs_of(table)) == len(before) + 1
    prepared.delete_files(table.store)
    for number in range(3):
        restart()
        result = upsert(table, rows(range(300), number), ON_ID)
        assert (result.num_updated, result.num_inserted) == (300, 0)
        table = result.table


def test_batches_do_not_wait_for_compactions() -> None:
    """Writing a large run takes minutes, during which the stream must go on."""
    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(0, 300, 7), number), ON_ID).table
    writes, goes_on = threading.Event(), threading.Event()

    def stop_at_runs(call: str, path: str) -> None:
        if call == "open_writer" and "key_index" in path:
            writes.set()
            assert goes_on.wait(60)

    slow = replace(table, store=WatchedStore(table.store, before=stop_at_runs))
    prepared = []
    thread = threading.Thread(target=lambda: prepared.append(prepare(slow)))
    thread.start()
    try:
        assert writes.wait(60)
        result = upsert(table, rows(range(40), 8), ON_ID)
        assert thread.is_alive()
    finally:
        goes_on.set()
        thread.join()
    assert result.num_updated == 40
    table = commit_prepared(prepared[0]).table
    assert num_reads_of_an_upsert(table) == 0


def test_runs_found_early_are_used_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that is registered twice would return every row twice."""
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", 1)
    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(0, 300, 7), number), ON_ID).table
    memory = key_index.key_index_of(table, ["id"])
    real = run_files.write_run

    def find_at_once(*arguments: Any) -> Any:
        run = real(*arguments)
        memory.refresh(table.store)  # as another thread's look-up does
        return run

    with monkeypatch.context() as patched:
        patched.setattr(run_files, "write_run", find_at_once)
        compacted = lance_stream.Dataset(table).compact().table
    assert num_reads_of_an_upsert(compacted) == 0


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("how", ["fails", "is killed"])
def test_compactions_may_end_at_any_request(how: str) -> None:
    """Whether it fails or is killed, the next upsert of any process finds all rows."""

    class KilledError(BaseException):
        pass

    num_with_runs = num_requests = 0
    for last in range(1, 200):
        table = upsert(saved_table(), rows([1], 7), ON_ID).table
        num_before = len(runs_of(table))
        calls = 0

        def count(call: str, path: str, last: int = last) -> None:
            nonlocal calls
            calls += 1
            if calls == last:
                raise OSError("gone") if how == "fails" else KilledError
            if calls > last and how == "is killed":
                raise KilledError

        store = WatchedStore(table.store, before=count)
        with suppress(OSError, KilledError):
            commit_prepared(prepare(replace(table, store=store, log=ObjectStoreLog(store))))
        num_with_runs += len(runs_of(table)) > num_before
        restart()
        assert num_reads_of_an_upsert(lance_stream.open_dataset(table.store.uri).table) < 20
        if calls < last:
            num_requests = calls
            break
    assert num_requests > 10
    assert num_with_runs > 2


def test_runs_of_other_seeds_stay_apart() -> None:
    """Another process began its own index before it could see the first one."""
    ds = lance_stream.Dataset(indexed(table_of(3)))
    (path,) = runs_of(ds.table)
    hidden = bytes(ds.table.store.read(path))
    ds.table.store.delete(path)
    ds = ds.append(rows(range(150, 300), 0))
    for number in range(3):
        ds = ds.upsert(rows([160, 170], number), "id")
    ds.table.store.write(path, hidden)
    restart()
    seeds = {indexed_column.seeds for indexed_column in run_files.indexed_columns(ds.table.store)}
    assert len(seeds) == 2
    ds = ds.upsert(rows(range(300), 5), "id").compact()
    assert num_reads_of_an_upsert(ds.table) < 20


def test_small_compactions_copy_no_large_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Remapping reads the whole index, which costs more than reading the keys of a few new rows."""
    monkeypatch.setattr(remap_keys, "MAX_COPIED", 1)
    table = indexed(table_of())
    before = runs_of(table)
    table, store = watched(table)
    rules = CompactionRules(target_rows=60, max_rows=50)
    assert prepare(table, rules).groups
    assert runs_of(table) == before
    assert not [path for call, path in store.calls if "key_index" in path and "ranges" in call]


def test_new_numbers_follow_the_written_rows() -> None:
    """Deleted rows and another order shift positions, and an index entry off by one row would
    update the wrong row.
    """
    dice = np.random.default_rng(5)
    for _ in range(50):
        sizes = dice.integers(1, 9, 3)
        deleted = [np.flatnonzero(dice.random(size) < 0.4).astype(np.uint32) for size in sizes]
        moved = [
            RewrittenRows(int(size), removed) for size, removed in zip(sizes, deleted, strict=True)
        ]
        group = RewrittenFiles((), moved, (), None)
        live = [
            (at, row)
            for at, (size, removed) in enumerate(zip(sizes, deleted, strict=True))
            for row in range(size)
            if row not in removed
        ]
        order = dice.permutation(len(live)) if dice.random() < 0.5 else None
        written = live if order is None else [live[position] for position in order]
        numbers = group._replace(order=order).new_numbers(100).tolist()
        rows_of = [(at, row) for at, size in enumerate(sizes) for row in range(size)]
        expected = [100 + written.index(row) if row in written else int(REMOVED) for row in rows_of]
        assert numbers == expected


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("seed", range(3))
def test_concurrent_compactions_lose_no_key(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread compacts without pause while runs are written, merged and remapped."""
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", [1, 40, 400][seed])
    dice = random.Random(seed)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    uri, is_over = ds.uri, threading.Event()
    num_compactions = 0
    errors: list[Exception] = []

    def compact_all_the_time() -> None:
        nonlocal num_compactions
        try:
            while not is_over.is_set():
                result = commit_prepared(prepare(lance_stream.open_dataset(uri).table))
                num_compactions += bool(result.num_removed)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=compact_all_the_time)
    thread.start()
    try:
        model: dict[str, int] = {}
        for number in range(30):
            some = rows(dice.sample(range(300), dice.randrange(1, 80)), number)
            result = upsert(lance_stream.open_dataset(uri).table, some, ON_ID)
            names = some["id"].to_pylist()
            assert result.num_inserted == len(set(names) - set(model))
            model |= dict.fromkeys(names, number)
    finally:
        is_over.set()
        thread.join()
    assert not errors
    stored = lance_stream.open_dataset(uri).to_table().to_pydict()
    assert dict(zip(stored["id"], stored["x"], strict=True)) == model
    assert len(stored["id"]) == len(model)
    assert num_compactions
