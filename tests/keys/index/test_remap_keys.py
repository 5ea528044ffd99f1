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
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.keys.index import key_index, remap_keys, run_files
from lance_stream.keys.index.key_index import KeyIndex
from lance_stream.keys.index.remap_keys import RewrittenFiles
from lance_stream.keys.index.run_format import CoveredFile, KeyColumns, Keys
from lance_stream.keys.index.run_merging import REMOVED, RenumberedKeys
from lance_stream.maintenance.compaction.compact import commit_prepared
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import RewriteTask, prepare, write_task
from lance_stream.schema.fields import Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.storage.store import Store
from lance_stream.table.conflicts.carried_rows import RewrittenRows
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.paths import data_file_name
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


TEXTS = KeyColumns((0,), ("string",), False, (5, 6))


def fragment_of(number: int, num_rows: int, path: str | None = None) -> Fragment:
    name = data_file_name(bytes([number]) * 16) if path is None else path
    file = DataFile(path=name, field_ids=(0,), column_indices=(0,), file_version=(2, 1))
    return Fragment(id=number, files=(file,), physical_rows=num_rows)


def covered_of(*fragments: Fragment) -> list[CoveredFile]:
    files = [KeyIndex([Field("id", "string", 0)]).covered_by(fragment) for fragment in fragments]
    return [file for file in files if file is not None]


def save_keys(store: Store, columns: KeyColumns, *fragments: Fragment) -> None:
    """Write a run that has one key per row of some files."""
    files = covered_of(*fragments)
    words = np.arange(sum(file.num_rows for file in files), dtype=np.uint64)
    numbers = words.astype(np.uint32)
    keys = Keys(words, None if columns.is_exact else numbers, numbers)
    assert run_files.write_run(store, columns, files, [RenumberedKeys(keys, None)])


def group_of(
    old: Sequence[Fragment], new: Sequence[Fragment], num_rows: int | None = None
) -> RewrittenFiles:
    """Return a group of which all rows are written, or at least this number per fragment."""
    none = np.empty(0, np.uint32)
    rows = [RewrittenRows(num_rows or part.physical_rows, none) for part in old]
    return RewrittenFiles(old, rows, new, None)


def carried(memory: KeyIndex, groups: Sequence[RewrittenFiles]) -> Any:
    covered = [memory.covered_by(fragment) for group in groups for fragment in group.old]
    return remap_keys._carried(memory, memory.snapshot_of(covered), groups, covered)


def memory_of(store: Store) -> KeyIndex:
    memory = KeyIndex([Field("id", "string", 0)], TEXTS.seeds)
    memory.refresh(store)
    return memory


@pytest.mark.parametrize(("num_rows", "is_read"), [(9, False), (10, True)])
def test_saved_indices_must_fit_the_table(
    num_rows: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that was dropped or has another type now has no keys to carry over."""
    monkeypatch.setattr(key_index, "MIN_SHARED_ROWS", 10)
    table = table_of(1)
    for columns in (
        TEXTS,
        TEXTS,
        KeyColumns((0, 1), ("string", "int64"), False, (5, 6)),
        KeyColumns((1,), ("int32",), True, (0, 0)),
        KeyColumns((7,), ("string",), False, (5, 6)),
    ):
        save_keys(table.store, columns)
    group = group_of([fragment_of(1, num_rows)], [])
    ids = [
        tuple(field.id for field in memory._fields)
        for memory in remap_keys._memories(table, [group])
    ]
    assert sorted(ids) == ([(0,), (0, 1)] if is_read else [])


def test_groups_are_carried_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index must not state that it has a new file of which it has some of the keys."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    one, two, unknown = (fragment_of(number, 20) for number in (1, 2, 3))
    by_hand = fragment_of(4, 20, "part-0.lance")
    twin = replace(one, id=9)
    new, other = fragment_of(5, 40), fragment_of(6, 20)
    save_keys(store, TEXTS, one, two)
    memory = memory_of(store)
    for groups, files in (
        ([group_of([one, two], [new])], [new]),
        ([group_of([one], [other])], [other]),
        ([group_of([one], [other]), group_of([two], [new])], [other, new]),
        ([group_of([one, unknown], [new]), group_of([two], [other])], [other]),
        ([group_of([one, by_hand], [new]), group_of([two], [other])], [other]),
        ([group_of([one, two], [by_hand])], []),
        ([group_of([one, two], [new], num_rows=21)], []),
        ([group_of([one, twin], [new])], []),
        ([group_of([one], [other]), group_of([twin], [new])], [other]),
        ([group_of([unknown], [other])], []),
    ):
        keys = carried(memory, groups)
        assert (covered_of(*files) or None) == (None if keys is None else list(keys.files))
    for max_keys, is_carried in ((40, True), (39, False)):
        monkeypatch.setattr(key_index, "MAX_MERGED_KEYS", max_keys)
        assert (carried(memory, [group_of([one, two], [new])]) is not None) == is_carried


def test_runs_without_carried_files_stay_unread() -> None:
    """A run of a hundred files would be copied for the keys of none."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    one, two, unknown = (fragment_of(number, 20) for number in (1, 2, 3))
    save_keys(store, TEXTS, one)
    save_keys(store, TEXTS, two)
    keys = carried(
        memory_of(store),
        [group_of([one], [fragment_of(5, 20)]), group_of([two, unknown], [fragment_of(6, 40)])],
    )
    assert [run.footer.files for run in keys.runs] == [tuple(covered_of(one))]


def test_other_seeds_are_not_carried() -> None:
    """Among the hashes of the index they would never be found, and each upsert would insert their
    rows again.
    """
    store = MemoryStore(f"/{uuid.uuid4()}")
    one, two = fragment_of(1, 20), fragment_of(2, 20)
    save_keys(store, TEXTS, one)
    memory = memory_of(store)
    save_keys(store, TEXTS._replace(seeds=(7, 8)), two)
    memory.refresh(store)
    assert [memory.knows(file) for file in covered_of(one, two)] == [True, True]
    new, other = fragment_of(5, 20), fragment_of(6, 20)
    keys = carried(memory, [group_of([one], [new]), group_of([two], [other])])
    assert list(keys.files) == covered_of(new)
    assert carried(memory, [group_of([one, two], [fragment_of(7, 40)])]) is None


@pytest.mark.parametrize(("max_copied", "is_carried"), [(2, True), (1, False)])
def test_large_runs_are_left_alone(
    max_copied: int, is_carried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of other files are copied, too, which the compaction of a small one does not repay,
    however many unknown rows it has.
    """
    monkeypatch.setattr(remap_keys, "MAX_COPIED", max_copied)
    store = MemoryStore(f"/{uuid.uuid4()}")
    one, two, unknown = fragment_of(1, 20), fragment_of(2, 20), fragment_of(3, 400)
    by_hand = fragment_of(4, 400, "part-0.lance")
    save_keys(store, TEXTS, two)
    memory = memory_of(store)
    save_keys(store, TEXTS, one, two)
    memory.refresh(store)
    groups = [
        group_of([one], [fragment_of(5, 20)]),
        group_of([unknown, by_hand], [fragment_of(6, 800)]),
    ]
    assert (carried(memory, groups) is not None) == is_carried


def test_files_without_keys_are_carried() -> None:
    """All keys of a file may be null, which the index knows, too."""
    table = table_of(1)
    fields = table.schema.fields_named(["id"])
    memory = KeyIndex(fields, (5, 6))
    one, two, three = (fragment_of(number, 20) for number in (1, 2, 3))
    by_hand = fragment_of(4, 20, "part-0.lance")
    nulls = memory.collector(covered_of(one)[0].file, 20)
    nulls.add_keys([pa.nulls(20, pa.string())])
    memory.add([nulls])
    groups = [group_of([one], [two]), group_of([by_hand], [three])]
    remap_keys._carry(memory, table, groups)
    assert not memory.knows(covered_of(two)[0])  # there is nothing to sort
    none = Keys(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint32))
    memory.add_sorted(table.store, covered_of(two), [RenumberedKeys(none, None)], (5, 6))
    remap_keys._carry(memory, table, [group_of([two], [three])])
    assert memory.num_files == 2


@pytest.mark.parametrize(
    ("num_unknown", "room", "is_read"),
    [(50, 50, True), (51, 51, False), (50, 49, False), (50, 99, True)],
)
def test_at_most_half_is_read(
    num_unknown: int, room: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next upsert reads the new file, if any does; and the keys need room."""
    table = table_of(1)
    table = lance_stream.Dataset(table).append(rows(range(100, 100 + num_unknown), 0)).table
    memory = KeyIndex(table.schema.fields_named(["id"]), (5, 6))
    monkeypatch.setattr(key_index, "MAX_BYTES", room * key_index._BYTES_PER_ROW)
    one, two = table.manifest.fragments
    indexed_file = memory.covered_by(one)
    assert indexed_file is not None
    nulls = memory.collector(indexed_file.file, indexed_file.num_rows)
    nulls.add_keys([pa.nulls(50, pa.string())])
    memory.add([nulls])
    remap_keys._read_few(memory, table, [group_of([one, two], [])])
    assert memory.num_files == 1 + is_read


def test_dropped_columns_are_not_read() -> None:
    """Files still have the column, but the table has not."""
    table = table_of(2)
    memory = KeyIndex(table.schema.fields_named(["x"]))
    table = lance_stream.Dataset(table).drop_columns(["x"]).table
    one, two = table.manifest.fragments
    file = memory.covered_by(one)
    assert file is not None
    numbers = memory.collector(file.file, file.num_rows)
    numbers.add_keys([pa.array(range(50))])
    memory.add([numbers])
    remap_keys._read_few(memory, table, [group_of([one, two], [])])
    assert memory.num_files == 1


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
