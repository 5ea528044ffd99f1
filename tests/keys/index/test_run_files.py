"""The key index in files: shared by processes, checked before use, harmless if it is gone."""

import errno
import json
import os
import random
import uuid
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.environment import MACHINE
from lance_stream.errors import CorruptDataError
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.file_columns import FileColumn
from lance_stream.keys.index import key_index, run_files, run_format
from lance_stream.keys.index.key_index import KeyIndex
from lance_stream.keys.index.memtable import Collector
from lance_stream.keys.index.run_files import RunUnavailableError, write_run
from lance_stream.keys.index.run_format import CoveredFile, KeyColumns, Keys, RunEncoder, RunFooter
from lance_stream.keys.index.run_merging import RenumberedKeys, merged, planned_parts
from lance_stream.keys.index.shared_index import index_keys, merge_runs, shared_index
from lance_stream.keys.key_words import words_of
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.maintenance.compaction.compact import commit_prepared
from lance_stream.maintenance.compaction.rewrites import PreparedCompaction, prepare
from lance_stream.schema.fields import Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.storage.store import Store
from lance_stream.upsert.upsert import upsert
from tests.contracts.watched_stores import WatchedStore
from tests.keys.index.small_runs import indexed, restart, runs_of, small_runs
from tests.keys.keyed_tables import ON_ID, SCHEMA, num_read, rows, table_of, watched

TEXTS = KeyColumns((0,), ("string",), False, (5, 6))
NUMBERS = KeyColumns((0,), ("int64",), True, (0, 0))


_small_runs = pytest.fixture(autouse=True)(small_runs)


@pytest.mark.floors
def test_new_processes_read_no_indexed_key() -> None:
    """A restarted stream would otherwise read the keys of the whole table
    before its first batch.
    """
    table, store = watched(indexed(table_of()))
    result = upsert(table, rows(range(0, 310, 7), 9), ON_ID)
    assert (result.num_updated, result.num_inserted) == (43, 2)
    assert num_read(store) <= 3  # those of the first upserts, of a row each
    index = key_index.key_index_of(table, ["id"])
    assert index.num_saved_runs == 1
    assert index.num_bytes < 100 * 24


def test_small_tables_cost_no_index_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the keys of a small table is cheaper than any request for an index."""
    monkeypatch.setattr(key_index, "MIN_SHARED_ROWS", 1 << 19)
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", 1 << 20)
    table = table_of()
    for number in range(1, 6):
        table, store = watched(table)
        table = upsert(table, rows(range(0, 300, number), number), ON_ID).table
        assert not [path for _, path in store.calls if "key_index" in path]


@pytest.mark.parametrize(("min_rows", "is_listed"), [(100, True), (101, False)])
def test_many_unknown_rows_cost_a_request(
    min_rows: int, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have saved their keys."""
    monkeypatch.setattr(key_index, "MIN_SHARED_ROWS", min_rows)
    table, store = watched(table_of(2))
    index = KeyIndex(table.schema.fields_named(["id"]))
    index.look_up(list(table.manifest.fragments), 2, store)
    assert ("list_names" in {call for call, _ in store.calls}) == is_listed


def test_one_upsert_alone_makes_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single upsert gains nothing from an index that it leaves behind."""
    monkeypatch.setattr(cached_key_bounds, "MIN_UNSAVED_WORK", 1 << 40)
    assert not runs_of(upsert(table_of(), rows(range(40), 1), ON_ID).table)


def test_the_second_process_makes_the_index() -> None:
    """The bounds that the first process saved show that keys are looked up repeatedly."""
    table = upsert(table_of(), rows(range(40), 1), ON_ID).table
    assert not runs_of(table)
    restart()
    table = upsert(table, rows(range(40), 2), ON_ID).table
    assert len(runs_of(table)) == 1
    restart()
    table, store = watched(table)
    upsert(table, rows(range(40), 3), ON_ID)
    assert num_read(store) == 1  # that of the second upsert


def test_refused_runs_are_logged_and_retried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may be full for a while, and every failed write costs as much as the run is large."""
    refuses = True

    def refuse(call: str, path: str) -> None:
        if refuses and call == "open_writer" and "key_index" in path:
            raise OSError("full")

    monkeypatch.setattr(key_index, "LOOKUPS_BEFORE_RETRY", 4)
    table = table_of()
    store = WatchedStore(table.store, before=refuse)
    table = replace(table, store=store)
    for number in range(1, 6):
        result = upsert(replace(table, store=store), rows(range(0, 300, 3), number), ON_ID)
        assert result.num_updated == 100
        table = result.table
    assert len([path for call, path in store.calls if "key_index" in path and "open" in call]) == 1
    assert not runs_of(table)
    assert caplog.text.count("cannot write a run") == 1
    refuses = False
    for number in range(6, 8):
        table = upsert(replace(table, store=store), rows(range(0, 300, 3), number), ON_ID).table
    assert runs_of(table)


def test_runs_of_removed_files_are_deleted() -> None:
    """Compactions replace all files, and runs of old ones would outgrow the table."""
    ds = lance_stream.Dataset(indexed(table_of(12)))
    before = runs_of(ds.table)
    for number in range(12):
        ds = ds.upsert(rows(range(600), number), "id").compact()
    footers = [run_files.footer_if_sound(ds.table.store, path) for path in runs_of(ds.table)]
    assert sum(footer.num_keys for footer in footers if footer) < 600 * 5
    assert not set(before) & set(runs_of(ds.table))


def test_merges_leave_few_runs() -> None:
    """Every run costs requests in each new process, so their number must stay small."""
    ds = lance_stream.Dataset(indexed(table_of(2)))
    for number in range(20):
        ds = ds.append(rows(range(1000 + number * 60, 1060 + number * 60), 0))
        ds = ds.upsert(rows([5, 100 + number], number), "id")
    assert len(runs_of(ds.table)) <= 10
    assert key_index.key_index_of(ds.table, ["id"]).num_saved_runs <= 10
    restart()
    table, store = watched(ds.table)
    upsert(table, rows(range(300), 77), ON_ID)
    assert num_read(store) < 10


def test_runs_of_current_files_stay() -> None:
    """Alone it cannot become smaller, and its bytes would be written at each merge."""
    table = table_of(2)
    index_keys(table, ["id"], (5, 6), [0, 1])
    (path,) = runs_of(table)
    merge_runs(table, ["id"], (5, 6), [path])
    assert runs_of(table) == [path]


def test_foreign_runs_are_not_merged() -> None:
    """A file may be replaced under the name of a run after the listing, with hashes of other
    seeds.
    """
    table = table_of(4)
    store = table.store
    for fragment in range(4):
        index_keys(table, ["id"], (5, 6), [fragment])
    listed = shared_index(table, ["id"])
    (group,) = listed.to_merge()
    index_keys(table, ["id"], (7, 8), [2])
    (foreign,) = set(runs_of(table)) - set(group)
    (path,) = (path for path in group if listed.runs[path].files == footer_of(store, foreign).files)
    store.write(path, store.read(foreign))
    store.delete(foreign)
    merge_runs(table, ["id"], listed.seeds, group)
    restart()
    result = upsert(table, rows(range(200), 1), ON_ID)
    assert (result.num_updated, result.num_inserted) == (200, 0)


def footer_of(store: Store, path: str) -> RunFooter:
    footer = run_files.footer_if_sound(store, path)
    assert footer is not None
    return footer


def test_processes_share_their_runs() -> None:
    """Two streams on one table should not index every file twice."""
    ds = lance_stream.Dataset(indexed(table_of()))
    ours = key_index.key_index_of(ds.table, ["id"])
    for number in range(3):
        ds = ds.upsert(rows([5], number), "id")
    restart()  # another process, which reads what is new, and saves it
    ds = ds.append(rows(range(300, 400), 0))
    for number in range(3):
        ds = ds.upsert(rows([6], number), "id")
    assert len(runs_of(ds.table)) == 2
    key_index._indices.put((ds.table.store.uri, ((0, "string"),)), ours)  # the first one again
    table, store = watched(ds.table)
    result = upsert(table, rows(range(300, 400), 9), ON_ID)
    assert result.num_updated == 100
    assert num_read(store) <= 3
    assert ours.num_saved_runs == 2


def test_indices_of_other_keys_stay_separate() -> None:
    """Two streams may use different keys of one table, and a run of one says nothing about the
    other.
    """
    table = indexed(table_of())
    ds = lance_stream.Dataset(table)
    for _ in range(3):
        ds = ds.upsert(rows(range(50), 1), ["id", "seq"])
    index = key_index.key_index_of(table, ["id", "seq"])
    assert index.num_saved_runs
    assert all(run.footer.columns.field_ids == (0, 1) for run in index._saved.values())
    result = upsert(table, rows(range(300), 2), ON_ID)
    assert result.num_updated == ds.count_rows() > 300  # an id has several rows now


def test_cleanup_removes_runs_of_removed_files() -> None:
    """A run stays as long as a version may need it, however old it is."""
    ds = lance_stream.Dataset(indexed(table_of()))
    week = timedelta(days=8) // timedelta(microseconds=1) * 1000
    later = replace(MACHINE, now_nanos=lambda: MACHINE.now_nanos() + week)
    rules = CleanupRules(older_than=None)
    cleanup(ds.table, rules, environment=later)
    (path,) = runs_of(ds.table)
    damaged = f"_lance_stream/key_index/0-{'5' * 32}.keys"
    ds.table.store.write(damaged, bytes(ds.table.store.read(path))[:-1])
    assert not cleanup(ds.table, rules).num_files  # which may be of another release, in use
    assert cleanup(ds.table, rules, environment=later).num_files == {"indices of keys": 1}
    assert runs_of(ds.table) == [path]
    ds = ds.overwrite(rows(range(5), 0))
    assert cleanup(ds.table, rules, environment=later).num_files["data files"] >= 6
    assert runs_of(ds.table) == [path]  # of a file that was there when the cleanup began
    assert cleanup(ds.table, rules, environment=later).num_files == {"indices of keys": 1}
    assert not runs_of(ds.table)


# --- damage


@pytest.mark.parametrize("what", ["deleted", "cut", "flipped", "empty", "zeros", "another"])
def test_damaged_runs_are_not_used(what: str) -> None:
    """A wrong entry would update the wrong row or insert a duplicate, while a missing index only
    costs time.
    """
    table = indexed(table_of())
    (path,) = runs_of(table)
    data = bytearray(table.store.read(path))
    if what == "deleted":
        table.store.delete(path)
    else:
        middle = len(data) // 3
        data[middle] ^= 1
        damaged = {"cut": data[: len(data) // 2], "empty": b"", "zeros": bytes(len(data))}
        table.store.write(path, bytes(damaged.get(what, data)))
    if what == "another":
        other = indexed(table_of())
        table.store.write(path, bytes(other.store.read(runs_of(other)[0])))
    for number in range(1, 4):
        result = upsert(table, rows(range(305), number), ON_ID)
        assert result.num_updated == (300 if number == 1 else 305)
        table = result.table


def test_runs_damaged_after_opening_are_unused() -> None:
    """The footer has been read by then, but the chunks have not."""
    table = indexed(table_of())
    (path,) = runs_of(table)
    table = upsert(table, rows([1000], 5), ON_ID).table  # a few chunks are copied
    data = bytearray(table.store.read(path))
    data[: len(data) // 2] = bytes(len(data) // 2)
    table.store.write(path, bytes(data))
    result = upsert(table, rows(range(300), 6), ON_ID)
    assert (result.num_updated, result.num_inserted) == (300, 0)
    assert path not in runs_of(table)  # so that no process tries again


def run_of(
    store: MemoryStore, columns: KeyColumns, dice: random.Random, num_files: int = 3
) -> tuple[run_files.IndexRun, list[tuple[int, int, int]]]:
    """Return a run of random keys, many of them equal; and its words, others and rows."""
    counts = [dice.randrange(0, 60) for _ in range(num_files)]
    files = [
        CoveredFile((FileColumn(uuid.UUID(int=dice.getrandbits(128)).bytes, at),), count)
        for at, count in enumerate(counts)
    ]
    entries = sorted(
        (dice.choice([7, dice.randrange(60), dice.getrandbits(64)]), dice.getrandbits(32), row)
        for row in range(sum(counts))
        if dice.random() < 0.9
    )
    words = np.array([row[0] for row in entries], np.uint64)
    others = None if columns.is_exact else np.array([row[1] for row in entries], np.uint32)
    keys = Keys(words, others, np.array([row[2] for row in entries], np.uint32))
    run = write_run(store, columns, files, [RenumberedKeys(keys, None)])
    assert run is not None
    return run, entries


@pytest.mark.floors
@pytest.mark.parametrize("columns", [TEXTS, NUMBERS])
def test_words_are_found_at_any_position(columns: KeyColumns) -> None:
    """Duplicate words may span chunks, and the first and last word of a chunk are easily missed."""
    dice = random.Random(3)
    for _ in range(30):
        store = MemoryStore(f"/{uuid.uuid4()}")
        written, entries = run_of(store, columns, dice)
        footer = run_files.footer_if_sound(store, written.path)
        assert footer is not None
        assert footer.files == written.footer.files
        opened = run_files.open_run(written.path, footer, 0)
        assert opened is not None
        requested = sorted(
            {7, 8, 0, (1 << 64) - 1, *(row[0] for row in entries[:: dice.randrange(1, 9)])}
        )
        for run in (written, opened, opened):  # the first time, in passing
            hits = run.find(store, np.array(requested, np.uint64))
            result = sorted(
                (requested[one], row)
                for one, row in zip(hits.which.tolist(), hits.rows.tolist(), strict=True)
            )
            assert result == sorted((word, row) for word, _, row in entries if word in requested)


@pytest.mark.floors
def test_runs_may_have_no_key() -> None:
    """Files whose keys are all null are covered as well."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    column = FileColumn(bytes(16), 0)
    none = Keys(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint32))
    written = write_run(store, TEXTS, [CoveredFile((column,), 9)], [RenumberedKeys(none, None)])
    assert written is not None
    footer = run_files.read_footer(store, written.path)
    opened = run_files.open_run(written.path, footer, 0)
    assert opened is not None
    for run in (written, opened):
        assert len(run.find(store, np.arange(5, dtype=np.uint64)).which) == 0


def test_full_disks_fall_back_to_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not fail the upsert, and keys in memory must still be used."""
    table = indexed(table_of())
    monkeypatch.setattr(run_files, "_MAX_OF_FREE", 0.0)
    for number in range(1, 5):
        table, store = watched(table)
        result = upsert(table, rows(range(300), number), ON_ID)
        assert result.num_updated == 300
        table = result.table
    assert key_index.key_index_of(table, ["id"]).num_saved_runs == 0
    assert num_read(store) == 0  # what is remembered stays in memory


def test_full_temporary_directories_fail_no_upsert(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other programs may fill the disk after a run was opened, when its chunks are copied."""
    table = upsert(indexed(table_of()), rows([1000], 5), ON_ID).table  # searched, hardly copied
    (path,) = runs_of(table)

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(run_files.os, "pwrite", refuse)
        result = upsert(table, rows(range(305), 1), ON_ID)
    assert (result.num_updated, result.num_inserted) == (300, 5)
    assert "cannot copy a run" in caplog.text
    assert path in runs_of(result.table)  # it is not damaged


@pytest.mark.parametrize("columns", [TEXTS, NUMBERS])
def test_merged_runs_keep_their_files_rows(columns: KeyColumns) -> None:
    """Merging renumbers files and drops removed ones, and a shifted row would match another key."""
    dice = random.Random(4)
    for _ in range(20):
        store = MemoryStore(f"/{uuid.uuid4()}")
        runs = [run_of(store, columns, dice) for _ in range(dice.randrange(1, 5))]
        expected = [
            (word, other, file, row - int(run.starts[index]))
            for run, entries in runs
            for word, other, row in entries
            for index in [int(np.searchsorted(run.starts, row, "right")) - 1]
            for file in [run.footer.files[index]]
        ]
        survivors = {file for run, _ in runs for file in run.footer.files if dice.random() < 0.7}
        sources = [(run, run.footer.files) for run, _ in runs]
        files, parts = planned_parts([*sources, sources[0]], survivors)
        assert set(files) == survivors
        starts = np.concatenate([[0], np.cumsum([file.num_rows for file in files])])
        result = [
            (
                int(word),
                0 if keys.others is None else int(keys.others[at]),
                files[index],
                int(row) - int(starts[index]),
            )
            for keys in merged(parts)
            for at, (word, row) in enumerate(zip(keys.words, keys.rows, strict=True))
            for index in [int(np.searchsorted(starts, row, "right")) - 1]
        ]
        assert [row[0] for row in result] == sorted(row[0] for row in result)
        remaining = [
            (word, 0 if columns.is_exact else other, file, offset)
            for word, other, file, offset in expected
            if file in survivors
        ]
        assert sorted(result) == sorted(remaining)


def encoded(columns: KeyColumns) -> bytes:
    dice = random.Random(5)
    store = MemoryStore(f"/{uuid.uuid4()}")
    run, _ = run_of(store, columns, dice, 2)
    return bytes(store.read(run.path))


def find_all(data: bytes) -> list[Any]:
    """Return all that a run says; None if it is not what was written."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    path = f"_lance_stream/key_index/0-{'0' * 32}.keys"
    store.write(path, data)
    footer = run_files.footer_if_sound(store, path)
    if footer is None:
        return []
    run = run_files.open_run(path, footer, 0)
    assert run is not None
    try:
        run.fetch_all(store)
    except RunUnavailableError as lost:
        return [] if lost.is_damaged else [lost]
    return [run.words.tolist(), run.rows.tolist(), footer.files]


def test_any_changed_byte_is_noticed() -> None:
    """Stores and disks return wrong bytes, and no part of a run may lack a digest."""
    data = encoded(TEXTS)
    assert find_all(data)
    for at in range(0, len(data), 5):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        assert not find_all(bytes(damaged))
        assert not find_all(data[:at])


@pytest.mark.parametrize(
    "edit",
    [
        lambda footer: footer._replace(num_keys=1 << 40),
        lambda footer: footer._replace(num_keys=-1),
        lambda footer: footer._replace(firsts=footer.firsts[::-1]),
        lambda footer: footer._replace(checks=footer.checks[:-1]),
        lambda footer: footer._replace(files=footer.files[:1] * 0),
        lambda footer: footer._replace(files=(footer.files[0]._replace(num_rows=0),)),
        lambda footer: footer._replace(
            files=(footer.files[0]._replace(num_rows=footer.num_keys // 2 - 1),) * 2
        ),
        lambda footer: footer._replace(columns=NUMBERS),
        lambda footer: footer._replace(columns=TEXTS._replace(seeds=(1 << 64, 1))),
    ],
)
def test_footers_with_valid_digests_are_checked(edit: Callable[[Any], Any]) -> None:
    """A digest proves that bytes are unchanged, not that the values make sense."""
    data = encoded(TEXTS)
    size = run_format.footer_bytes(data[-48:])
    footer = run_format.decode_footer(data[-48 - size : -48], data[-48:], len(data))
    new = run_format.encode_footer(edit(footer))
    trailer = len(new).to_bytes(8, "little") + run_format._digest(new) + data[-8:]
    assert not find_all(data[: -48 - size] + new + trailer)


@pytest.mark.parametrize("size", [0, 8, 15, 47])
def test_truncated_trailers_are_refused(size: int) -> None:
    """A store may answer a request for the end of a file with fewer bytes."""
    trailer = encoded(TEXTS)[-48:]
    with pytest.raises(CorruptDataError, match="not a key index run"):
        run_format.footer_bytes(trailer[len(trailer) - size :])


def test_the_footer_has_a_greatest_size() -> None:
    """A reader allocates it before it can check anything else."""
    trailer = encoded(TEXTS)[-48:]
    greatest = run_format.MAX_FOOTER_BYTES
    assert run_format.footer_bytes(greatest.to_bytes(8, "little") + trailer[8:]) == greatest
    with pytest.raises(CorruptDataError, match="more than"):
        run_format.footer_bytes((greatest + 1).to_bytes(8, "little") + trailer[8:])


@pytest.mark.parametrize(
    ("words", "numbers", "first", "num_rows", "error"),
    [
        ([3, 3, 9], [0, 4, 2], 3, 5, ""),
        ([3, 9, 8], [0, 1, 2], 3, 5, "not sorted, or a row number"),
        ([3, 3, 9], [0, 1, 2], 2, 5, "not sorted, or a row number"),
        ([3, 3, 9], [0, 5, 2], 3, 5, "not sorted, or a row number"),
        ([3, 3], [0, 1], 3, 5, "has 24 bytes, but its footer states 36"),
        ([3, 3, 9, 9], [0, 1, 2, 3], 3, 5, "has 48 bytes"),
    ],
)
def test_chunks_with_valid_checksums_are_checked(
    words: list[int], numbers: list[int], first: int, num_rows: int, error: str
) -> None:
    """Unsorted words would hide a key, and a row that does not exist would be updated."""
    keys = Keys(np.array(words, np.uint64), None, np.array(numbers, np.uint32))
    data = run_format.encode_chunk(keys)
    footer = RunFooter(
        NUMBERS,
        3,
        (CoveredFile((FileColumn(bytes(24), 0),), num_rows),),
        np.array([first], np.uint64),
        np.array([zlib.crc32(data)], np.uint32),
    )
    if not error:
        decoded = run_format.decode_chunk(data, footer, 0)
        assert (decoded.words.tolist(), decoded.rows.tolist()) == (words, numbers)
        for damaged in data[:-1], data + b"\0", bytes([data[0] ^ 1]) + data[1:]:
            with pytest.raises(CorruptDataError):
                run_format.decode_chunk(damaged, footer, 0)
        return
    with pytest.raises(CorruptDataError, match=error):
        run_format.decode_chunk(data, footer, 0)


def test_random_bytes_are_refused() -> None:
    """Any bytes may appear under the name of a run, and only CorruptDataError leads to its
    removal.
    """
    dice = random.Random(6)
    for _ in range(300):
        data = dice.randbytes(dice.randrange(200))
        trailer = len(data).to_bytes(8, "little") + run_format._digest(data) + b"LSKEYS02"
        with pytest.raises(CorruptDataError):
            run_format.decode_footer(data, trailer, len(data) + 48)


def test_the_hash_of_a_key_stays() -> None:
    """Runs of older releases are searched with this hash, so a change needs another magic word."""
    words = words_of([pa.array(["a", "key 0001", "a longer key, of 24 b"])], (1, 2))
    assert [f"{word:x}" for word in words.words.tolist()] == WORDS
    assert words.others is not None
    assert [f"{other:x}" for other in words.others.tolist()] == OTHERS


WORDS = ["4041777c098001a", "7d1a447ed755138a", "9e96820a06f501f6"]
OTHERS = ["101d3f57", "99db76d1", "73ad8e4b"]


def test_the_layout_of_runs_is_fixed() -> None:
    """Processes of different releases share the runs, so a changed byte needs
    another magic word.
    """
    encoder = RunEncoder(TEXTS, [CoveredFile((FileColumn(bytes(range(16)), 3),), 9)])
    keys = Keys(np.array([5], np.uint64), np.array([6], np.uint32), np.array([8], np.uint32))
    data = b"".join([*encoder.add(keys), *encoder.end()])
    header = b'{"fields": [0], "types": ["string"], "exact": false, "seeds": [5, 6], '
    header += b'"keys": 1, "files": 1}'
    assert data[:16] == bytes([5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 8, 0, 0, 0])
    assert data[16 : 20 + len(header)] == len(header).to_bytes(4, "little") + header
    rest = data[20 + len(header) : -48]
    assert rest[:8] == (5).to_bytes(8, "little")
    assert rest[12:16] == (9).to_bytes(4, "little")
    assert rest[16:] == bytes(range(16)) + (3).to_bytes(4, "little")
    assert data[-8:] == b"LSKEYS02"


# --- histories


@pytest.mark.quick_cases(one_in=10)
@pytest.mark.parametrize("seed", range(40))
def test_histories_survive_a_damaged_index(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the index between any two steps, the table must match the model."""
    dice = random.Random(seed)
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", dice.choice([1, 20, 100]))
    monkeypatch.setattr(key_index, "MAX_SAVED_ROWS", dice.choice([40, 1000]))
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    states: dict[int, dict[str, int]] = {ds.version: {}}
    model: dict[str, int] = {}
    old_runs: dict[str, bytes] = {}
    num_matches = 0
    prepared: PreparedCompaction | None = None
    for number in range(30):
        step = dice.choice(STEPS)
        some = dice.sample(range(300), dice.randrange(1, 60))
        if step == "upsert":
            disturbed = with_suffering(ds.table, dice, old_runs)
            result = upsert(disturbed, rows(some, number), ON_ID)
            names = rows(some, number)["id"].to_pylist()
            assert result.num_inserted == len(set(names) - set(model))
            num_matches += result.num_updated
            ds = lance_stream.Dataset(replace(result.table, store=ds.table.store))
            model = model | dict.fromkeys(names, number)
        elif step == "append":
            new = [key for key in some if rows([key], 0)["id"][0].as_py() not in model]
            if new:
                ds = ds.append(rows(new, number))
                model = model | dict.fromkeys(rows(new, 0)["id"].to_pylist(), number)
        elif step == "delete":
            removed = dice.randrange(90000)
            ds = ds.delete(f"id >= 'key {removed:05d}' AND id < 'key {removed + 9000:05d}'")
            model = {
                key: x for key, x in model.items() if not removed <= int(key[4:]) < removed + 9000
            }
        elif step == "compact":
            ds = ds.compact()
        elif step == "compact elsewhere":
            restart()
            ds = ds.compact()
            restart()
        elif step == "prepare":
            prepared = prepare(with_suffering(ds.table, dice, old_runs))
        elif step == "commit" and prepared is not None:
            commit_prepared(prepared)
            ds, prepared = lance_stream.open_dataset(ds.table.store.uri), None
        elif step == "kill":
            kill_a_compaction(ds.table, dice)
            ds = lance_stream.open_dataset(ds.table.store.uri)
        elif step == "restore":
            version = dice.choice([*states])
            ds, model = ds.restore(version), states[version]
        elif step == "restart":
            restart()
        elif step == "cleanup":
            ds.cleanup(older_than=timedelta(0))
            states = {}
        else:
            suffer(ds.table, step, dice, old_runs)
        old_runs |= {path: bytes(ds.table.store.read(path)) for path in runs_of(ds.table)}
        states[ds.version] = model
        stored = lance_stream.open_dataset(ds.table.store.uri).to_table().to_pydict()
        pairs = sorted(zip(stored["id"], stored["x"], strict=True))
        assert pairs == sorted(model.items()), (seed, number, step)
    assert num_matches
    assert old_runs


SUFFERING = ["lose", "damage", "return", "swap"]
STEPS = [
    *["upsert"] * 7, *["restart"] * 3, "append", "append", "delete", "compact", "restore",
    "compact elsewhere", "prepare", "prepare", "commit", "commit", "kill",
    "cleanup", *SUFFERING,
]  # fmt: skip


def with_suffering(table: TableVersion, dice: random.Random, old: dict[str, bytes]) -> TableVersion:
    """Return a table whose runs are deleted, damaged or exchanged at some request, or are not."""
    num_calls_to_go = dice.randrange(1, 80)

    def disturb(call: str, path: str) -> None:
        nonlocal num_calls_to_go
        num_calls_to_go -= 1
        if num_calls_to_go == 0:
            suffer(table, dice.choice(SUFFERING), dice, old)

    return replace(table, store=WatchedStore(table.store, before=disturb))


class KilledError(BaseException):
    """The process is gone."""


def kill_a_compaction(table: TableVersion, dice: random.Random) -> None:
    """Compact, and kill the process at some request, or let that one fail."""
    num_calls_to_go, is_killed = dice.randrange(60), dice.random() < 0.5

    def end(call: str, path: str) -> None:
        nonlocal num_calls_to_go
        num_calls_to_go -= 1
        if num_calls_to_go == 0 or (num_calls_to_go < 0 and is_killed):
            raise KilledError if is_killed else OSError("gone")

    store = WatchedStore(table.store, before=end)
    with suppress(KilledError, OSError):
        commit_prepared(prepare(replace(table, store=store, log=ObjectStoreLog(store))))
    if is_killed:
        restart()


def suffer(table: TableVersion, step: str, dice: random.Random, old: dict[str, bytes]) -> None:
    """Delete a run, damage one, put an old one back, or give one to another table."""
    paths = runs_of(table)
    if step == "return" and old:
        path = dice.choice([*old])
        table.store.write(path, old[path])
    elif paths and step == "lose":
        table.store.delete(dice.choice(paths))
    elif paths and step == "damage":
        path = dice.choice(paths)
        data = bytearray(table.store.read(path))
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        table.store.write(path, bytes(data))
    elif len(paths) > 1 and step == "swap":
        one, other = dice.sample(paths, 2)
        data = table.store.read(one)
        table.store.write(one, table.store.read(other))
        table.store.write(other, data)


@pytest.mark.parametrize(
    "entry",
    [{"keys": 1e999}, {"seeds": []}, {"seeds": [1e999, 0]}, {"fields": [1e999]}, {"fields": []}],
)
def test_headers_of_wrong_values_are_damage(entry: dict[str, Any]) -> None:
    """Only damage makes a cleanup remove the run."""
    header = {"fields": [0], "types": [], "exact": True, "seeds": [0, 0], "keys": 0, "files": 0}
    text = json.dumps(header | entry).encode()
    footer = len(text).to_bytes(4, "little") + text
    trailer = len(footer).to_bytes(8, "little") + run_format._digest(footer) + b"LSKEYS02"
    store = MemoryStore(f"/{uuid.uuid4()}")
    store.write("a.keys", footer + trailer)
    with pytest.raises(CorruptDataError):
        run_files.read_footer(store, "a.keys")
    assert run_files.is_useless(store, "a.keys", ())


@pytest.mark.parametrize("forged", ["one row for all keys", "each key twice"])
def test_runs_with_duplicate_rows_are_dropped(forged: str) -> None:
    """The digests are correct, but a row that is found twice would be written twice."""
    table = indexed(table_of())
    (path,) = runs_of(table)
    footer = run_files.read_footer(table.store, path)
    run = run_files.open_run(path, footer, 0)
    assert run is not None
    run.fetch_all(table.store)
    half = np.sort(np.concatenate([np.arange(len(run.words) // 2)] * 2))
    at = half if forged == "each key twice" else np.arange(len(run.words))
    rows_of = run.rows[at] if forged == "each key twice" else np.zeros(len(at), np.uint32)
    keys = Keys(run.words[at], None if run.others is None else run.others[at], rows_of)
    encoder = RunEncoder(footer.columns, footer.files)
    table.store.write(path, b"".join([*encoder.add(keys), *encoder.end()]))
    result = upsert(table, rows(range(300), 6), ON_ID)
    assert (result.num_updated, result.num_inserted) == (300, 0)
    assert lance_stream.Dataset(result.table).count_rows() == 300
    assert path not in runs_of(table)


def test_runs_with_equal_keys_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests are correct and rows are unique, but the matches would exhaust the memory."""
    table = indexed(table_of())
    (path,) = runs_of(table)
    footer = run_files.read_footer(table.store, path)
    run = run_files.open_run(path, footer, 0)
    assert run is not None
    run.fetch_all(table.store)
    position = int(np.flatnonzero(run.rows == 7)[0])
    others = None if run.others is None else np.full(len(run.words), run.others[position])
    keys = Keys(np.full(len(run.words), run.words[position]), others, np.sort(run.rows))
    encoder = RunEncoder(footer.columns, footer.files)
    table.store.write(path, b"".join([*encoder.add(keys), *encoder.end()]))
    monkeypatch.setattr(run_files, "MAX_HITS", 299)
    result = upsert(table, rows(range(300), 6), ON_ID)
    assert (result.num_updated, result.num_inserted) == (300, 0)
    assert path in runs_of(table)  # its keys may be equal


def test_first_lookups_copy_nothing() -> None:
    """A process that applies one batch and ends would not use the copy."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    written, entries = run_of(store, TEXTS, random.Random(8))
    run = run_files.open_run(written.path, written.footer, 0)
    assert run is not None
    requested = np.array(sorted({row[0] for row in entries}), np.uint64)
    num_missing = []
    for _ in range(2):
        hits = run.find(store, requested)
        assert sorted(hits.rows.tolist()) == sorted(row for _, _, row in entries)
        num_missing.append(run.num_missing)
    assert num_missing == [written.footer.num_keys, 0]


@pytest.mark.parametrize("num_before", [0, 1])
def test_too_many_hits_disable_the_run(num_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds both for a streamed run and for its copy in memory."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    written, entries = run_of(store, TEXTS, random.Random(9))
    run = run_files.open_run(written.path, written.footer, 0)
    assert run is not None
    requested = np.array(sorted({row[0] for row in entries}), np.uint64)
    for _ in range(num_before):
        run.find(store, requested)
    monkeypatch.setattr(run_files, "MAX_HITS", len(entries))
    other = run_files.open_run(written.path, written.footer, 0)
    assert other is not None
    assert len(other.find(store, requested).rows) == len(entries)
    monkeypatch.setattr(run_files, "MAX_HITS", len(entries) - 1)
    with pytest.raises(RunUnavailableError) as lost:
        run.find(store, requested)
    assert not lost.value.is_damaged


def test_failed_listings_cost_only_time() -> None:
    """The index is optional, so without a listing keys are read from the data files."""

    def refuse(call: str, path: str) -> None:
        if "list" in call and "key_index" in path:
            raise OSError("away")

    table = indexed(table_of())
    failing = replace(table, store=WatchedStore(table.store, before=refuse))
    index = shared_index(failing, ["id"])
    assert index.runs == {}
    assert len(index.lacking(failing)) == len(table.manifest.fragments)
    assert run_files.indexed_columns(failing.store) == []
    assert run_files.indexed_columns(table.store) != []
    result = upsert(failing, rows(range(0, 310, 7), 9), ON_ID)
    assert (result.num_updated, result.num_inserted) == (43, 2)


FILES = [CoveredFile((FileColumn(bytes([number]) * 16, 0),), 20) for number in range(3)]
IDS = Field("id", "int64", 0)


def saved_run(
    store: MemoryStore, files: Sequence[CoveredFile], columns: KeyColumns = NUMBERS
) -> run_files.IndexRun:
    """Write a run in which each row's key is its number."""
    words = np.arange(sum(file.num_rows for file in files), dtype=np.uint64)
    numbers = words.astype(np.uint32)
    keys = Keys(words, None if columns.is_exact else numbers, numbers)
    run = write_run(store, columns, files, [RenumberedKeys(keys, None)])
    assert run is not None
    return run


def collected(index: KeyIndex, file: CoveredFile) -> Collector:
    collector = index.collector(file.file, file.num_rows)
    collector.add_keys([pa.array(range(file.num_rows))])
    return collector


def knows(index: KeyIndex) -> list[bool]:
    return [index.knows(file) for file in FILES]


def test_dropped_runs_keep_shared_files() -> None:
    """Two processes may have saved the keys of one file; two threads may find one damage."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    for files in (FILES[:2], FILES[1:]):
        saved_run(store, files)
    index = KeyIndex([IDS])
    index.refresh(store)
    assert (index.num_saved_runs, knows(index)) == (2, [True] * 3)
    first, second = index._saved.values()
    for _ in range(2):
        index.drop_run(RunUnavailableError(second, is_damaged=False), store)
        assert knows(index) == [file in first.footer.files for file in FILES]
    index.refresh(store)
    assert list(index._saved.values()) == [first]


def test_runs_without_news_stay_closed() -> None:
    """Each run takes room on the disk and time in each lookup."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    index = KeyIndex([IDS])
    index.add(collected(index, file) for file in FILES[:2])
    saved_run(store, FILES[:2])
    index.refresh(store)
    assert (index.num_saved_runs, knows(index)) == (0, [True, True, False])
    saved_run(store, FILES[1:])
    index.refresh(store)
    assert (index.num_saved_runs, knows(index)) == (1, [True] * 3)


def test_saved_seeds_replace_those_in_memory() -> None:
    """Runs of different seeds could never be merged."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    index = KeyIndex([Field("id", "string", 0)], (1, 2))
    index.add([Collector(FILES[0].file, 0, (1, 2))])
    assert index.num_files == 1
    saved_run(store, FILES[1:], TEXTS)
    index.refresh(store)
    assert (index.num_files, index.columns(index._seeds)) == (2, TEXTS)
    saved_run(store, FILES[:1], TEXTS._replace(seeds=(3, 4)))
    index.refresh(store)
    assert (knows(index), index.columns(index._seeds)) == ([True] * 3, TEXTS)


def test_merges_keep_other_seeds_apart() -> None:
    """Another process began its own index before it could see the first one. A merged run of both
    would miss keys, which would be inserted again.
    """
    table = table_of(0)
    store = table.store
    assert isinstance(store, MemoryStore)
    files = [CoveredFile((FileColumn(bytes([number]) * 16, 0),), 20) for number in range(8)]
    index = KeyIndex([Field("id", "string", 0)])
    for file in files[:4]:
        saved_run(store, [file], TEXTS)
        index.refresh(store)
    theirs = [saved_run(store, [file], TEXTS._replace(seeds=(3, 4))).path for file in files[4:]]
    index.refresh(store)
    assert (index.num_saved_runs, index.columns(index._seeds)) == (8, TEXTS)
    index._compact(table)  # which has none of these files
    assert sorted(runs_of(table)) == sorted(theirs)
    assert [index.knows(file) for file in files] == [False] * 4 + [True] * 4


def test_merged_runs_are_forgotten() -> None:
    """Another process merges and deletes runs at any time, also while this one lists them."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    index = KeyIndex([IDS])
    for is_dropped_meanwhile in (False, True):
        run = saved_run(store, FILES)
        index.refresh(store)
        (run,) = index._saved.values()
        store.delete(run.path)

        def drop(call: str, _: str, run: run_files.IndexRun = run) -> None:
            if call == "list_names":
                index.drop_run(RunUnavailableError(run, is_damaged=False), store)

        index.refresh(WatchedStore(store, before=drop) if is_dropped_meanwhile else store)
        assert (index.num_saved_runs, knows(index)) == (0, [False] * 3)


def test_failed_merges_keep_their_runs() -> None:
    """The merged run is the only copy of the keys after its sources are deleted."""

    def refuse(call: str, _: str) -> None:
        if call == "open_writer":
            raise OSError("full")

    table = table_of(2)
    for position in range(2):
        index_keys(table, ["id"], (5, 6), [position])
    before = runs_of(table)
    failing = replace(table, store=WatchedStore(table.store, before=refuse))
    merge_runs(failing, ["id"], (5, 6), before)
    assert runs_of(table) == before
    merge_runs(table, ["id"], (5, 6), [*before, "_lance_stream/key_index/none.keys"])
    assert len(runs_of(table)) == 1
    merge_runs(table, ["id"], (7, 8), runs_of(table))
    merge_runs(table, ["id"], (5, 6), [])
    assert len(runs_of(table)) == 1


def test_other_columns_runs_are_not_read() -> None:
    """The directory has the runs of all key columns, and a user may put a file there."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    paths = {
        number: saved_run(store, FILES, NUMBERS._replace(field_ids=(number,))).path
        for number in (0, 10)
    }
    store.write("_lance_stream/key_index/0-notes.txt", b"notes")
    watched_store = WatchedStore(store)
    assert run_files.list_runs(watched_store, [0]) == [paths[0]]
    assert run_files.list_runs(watched_store, [10, 0]) == [paths[10]]
    store.write(f"_lance_stream/key_index/0-{'f' * 32}.keys", b"damaged")
    columns = run_files.indexed_columns(watched_store)
    assert sorted(column.field_ids for column in columns) == [(0,), (10,)]
    assert not [path for _, path in watched_store.calls if "notes" in path]


@pytest.mark.parametrize("end_bytes", [run_format.TRAILER_BYTES, 64, 1 << 18])
def test_footers_of_any_size_are_read(end_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request covers most of them, but not those of runs of many files."""
    monkeypatch.setattr(run_files, "_END_BYTES", end_bytes)
    store = MemoryStore(f"/{uuid.uuid4()}")
    run = saved_run(store, FILES)
    footer = run_files.read_footer(store, run.path)
    assert footer.files == tuple(FILES)
    assert footer.firsts.tolist() == run.footer.firsts.tolist()


@pytest.mark.parametrize("columns", [TEXTS, NUMBERS])
def test_smaller_words_have_no_hits(columns: KeyColumns) -> None:
    """A batch of new, smaller keys concerns no chunk."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    words = np.arange(100, 140, dtype=np.uint64)
    numbers = np.arange(40, dtype=np.uint32)
    keys = Keys(words, None if columns.is_exact else numbers, numbers)
    files = [FILES[0]._replace(num_rows=40)]
    written = write_run(store, columns, files, [RenumberedKeys(keys, None)])
    assert written is not None
    run = run_files.open_run(written.path, written.footer, 0)
    assert run is not None
    for words_to_find, expected in ([5, 99], []), ([5, 100, 139, 140], [0, 39]):
        hits = run.find(store, np.array(words_to_find, np.uint64))
        assert hits.rows.tolist() == expected
        assert len(hits.which) == len(expected)


@pytest.mark.parametrize(
    ("min_chunks", "bytes_per_request", "is_copied"),
    [(2, 0, False), (2, 1 << 16, False), (2, (1 << 16) + 1, True), (3, 0, False), (4, 0, True)],
)
def test_cheap_lookups_copy_nothing_at_first(
    min_chunks: int, bytes_per_request: int, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading chunks again costs little in a fast store; a few chunks are copied anyway."""
    monkeypatch.setattr(run_files, "_MANY_CHUNKS", min_chunks)
    monkeypatch.setattr(MemoryStore, "bytes_per_request", bytes_per_request)
    store = MemoryStore(f"/{uuid.uuid4()}")
    written = saved_run(store, [FILES[0]._replace(num_rows=48)])  # 3 chunks
    run = run_files.open_run(written.path, written.footer, 0)
    assert run is not None
    assert len(run.find(store, np.arange(48, dtype=np.uint64)).rows) == 48
    assert run.num_missing == (0 if is_copied else 48)


def test_copies_leave_room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full temporary directory would stop other programs, too."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    run = saved_run(store, FILES)
    size = run.num_bytes
    monkeypatch.setattr(run_files, "MAX_LOCAL_BYTES", size + 5)
    opened = [run_files.open_run(run.path, run.footer, num_open) for num_open in (5, 6)]
    assert [run is not None for run in opened] == [True, False]
    for num_free, is_open in ((2 * size, True), (2 * size - 1, False)):
        usage = SimpleNamespace(free=num_free)
        monkeypatch.setattr(run_files.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert (run_files.open_run(run.path, run.footer, 0) is not None) == is_open


@pytest.mark.parametrize("columns", [TEXTS, NUMBERS])
@pytest.mark.parametrize("size", [1, 5, 16, 33])
def test_keys_may_arrive_in_pieces(columns: KeyColumns, size: int) -> None:
    """A merge yields keys in steps that do not end where chunks do."""
    words, numbers = np.arange(70, dtype=np.uint64), np.arange(70, dtype=np.uint32)[::-1].copy()
    others = None if columns.is_exact else numbers
    encoder = RunEncoder(columns, [FILES[0]._replace(num_rows=70)])
    data = b""
    for start in range(0, 70, size):
        part = slice(start, start + size)
        keys = Keys(words[part], None if others is None else others[part], numbers[part])
        data += b"".join(encoder.add(keys))
    data += b"".join(encoder.end())
    whole = RunEncoder(columns, [FILES[0]._replace(num_rows=70)])
    assert data == b"".join([*whole.add(Keys(words, others, numbers)), *whole.end()])
