"""Upserts skip fragments whose key bounds exclude all of their keys."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.bounds.cached_key_bounds import key_bounds
from lance_stream.keys.index import key_index
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.paths import key_bounds_path
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.float64())])
ON_ID = UpsertRules(("id",))
NUM_FRAGMENTS, ROWS = 12, 100


@pytest.fixture(autouse=True)
def _a_process_that_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(key_index, "MAX_BYTES", 0)  # or else nothing would be read twice
    cached_key_bounds._columns.clear()
    yield
    cached_key_bounds._columns.clear()


def rows(start: int, stop: int, x: float = 0.0) -> pa.Table:
    return pa.table({"id": np.arange(start, stop), "x": np.full(stop - start, x)}, SCHEMA)


def ordered_by_time() -> TableVersion:
    """A table to which rows were appended in the order of their keys, 100 per fragment."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    for number in range(NUM_FRAGMENTS):
        ds = ds.append(rows(number * ROWS, (number + 1) * ROWS))
    return ds.table


def watched(table: TableVersion) -> tuple[TableVersion, WatchedStore]:
    store = WatchedStore(table.store)
    return replace(table, store=store), store


def data_files_read(store: WatchedStore) -> set[str]:
    return {path for call, path in store.calls if call == "read_ranges" and "data/" in path}


def path_of(table: TableVersion, index: int) -> str:
    return f"data/{table.manifest.fragments[index].files[0].path}"


def values(table: TableVersion) -> dict[int, float]:
    columns = lance_stream.Dataset(table).to_table().to_pydict()
    assert len(set(columns["id"])) == len(columns["id"])
    return dict(zip(columns["id"], columns["x"], strict=True))


def test_recent_keys_open_few_fragments() -> None:
    """Keys often grow with time, and a batch of new ones should not read the whole table."""
    table = ordered_by_time()
    first, store = watched(table)
    result = upsert(first, rows(550, 560, 1.0), ON_ID)
    assert data_files_read(store) == {path_of(table, index) for index in range(NUM_FRAGMENTS)}
    now, store = watched(result.table)
    result = upsert(now, rows(1150, 1250, 2.0), ON_ID)
    assert data_files_read(store) == {path_of(table, 11)}
    assert (result.num_updated, result.num_inserted) == (50, 50)
    now, store = watched(result.table)
    result = upsert(now, rows(1200, 1210, 3.0), ON_ID)
    written = path_of(now, len(now.manifest.fragments) - 1)
    assert data_files_read(store) == {written}
    stored = values(result.table)
    assert [stored[key] for key in (549, 550, 1149, 1150, 1199, 1200, 1209, 1210)] == [
        0, 1, 0, 2, 2, 3, 3, 2
    ]  # fmt: skip
    assert len(stored) == 1250


def test_distant_keys_skip_fragments_between() -> None:
    """The minimum and maximum of the batch alone would select every fragment in between."""
    table = upsert(ordered_by_time(), rows(-1, 0), ON_ID).table
    now, store = watched(table)
    keys = pa.table({"id": [5, 1105, 5000], "x": [1.0, 1.0, 1.0]}, SCHEMA)
    result = upsert(now, keys, ON_ID)
    assert data_files_read(store) == {path_of(table, index) for index in (0, 11)}
    assert (result.num_updated, result.num_inserted) == (2, 1)


def test_upserts_of_new_keys_open_nothing() -> None:
    """A batch beyond all bounds consists of inserts, for which no file needs to be read."""
    table = upsert(ordered_by_time(), rows(-1, 0), ON_ID).table
    now, store = watched(table)
    result = upsert(now, rows(9000, 9010), ON_ID)
    assert data_files_read(store) == set()
    assert (result.num_updated, result.num_inserted) == (0, 10)


def test_unknown_fragments_are_read() -> None:
    """A fragment that another writer has appended has no bounds yet and may hold any key."""
    table = upsert(ordered_by_time(), rows(-1, 0), ON_ID).table
    theirs = lance_stream.Dataset(table).append(rows(9000, 9010))
    result = upsert(table, rows(9005, 9006, 1.0), ON_ID)
    assert (result.num_updated, result.num_inserted) == (1, 0)
    assert result.table.version == theirs.version + 1


def test_restored_rows_are_found() -> None:
    """Bounds of a file include its deleted rows, since a restore brings them back."""
    ds = lance_stream.Dataset(ordered_by_time())
    deleted = ds.delete("id % 100 < 90")
    result = upsert(deleted.table, rows(95, 96, 1.0), ON_ID)
    assert result.num_updated == 1
    restored = lance_stream.Dataset(result.table).restore(ds.version)
    now, store = watched(restored.table)
    result = upsert(now, rows(205, 206, 1.0), ON_ID)
    assert (result.num_updated, result.num_inserted) == (1, 0)
    assert data_files_read(store) == {path_of(now, 2)}


def test_compacted_files_inherit_their_bounds() -> None:
    """Every compaction would otherwise cause a scan of the new files."""
    table = upsert(ordered_by_time(), rows(9000, 9001), ON_ID).table
    ds = lance_stream.Dataset(table).delete("id >= 300 and id < 350").compact(target_rows=300)
    assert len(ds.table.manifest.fragments) < NUM_FRAGMENTS // 2
    now, store = watched(ds.table)
    result = upsert(now, rows(340, 360, 1.0), ON_ID)
    assert (result.num_updated, result.num_inserted) == (10, 10)
    assert len(data_files_read(store)) == 1


def test_deleted_rows_are_not_matched() -> None:
    """The keys of deleted rows are read to compute the bounds, but must not match."""
    deleted = lance_stream.Dataset(ordered_by_time()).delete("id < 5")
    result = upsert(deleted.table, rows(3, 7, 1.0), ON_ID)
    assert (result.num_updated, result.num_inserted) == (2, 2)
    assert len(values(result.table)) == 1197


def test_another_process_uses_saved_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted stream should not read the keys of the whole table again."""
    monkeypatch.setattr(cached_key_bounds, "MIN_UNSAVED_WORK", 1)
    table = upsert(ordered_by_time(), rows(-1, 0), ON_ID).table
    assert table.store.exists(key_bounds_path(table.schema.fields[0].id))
    cached_key_bounds._columns.clear()
    now, store = watched(table)
    upsert(now, rows(700, 710, 1.0), ON_ID)
    # and the one that was written since it was saved
    assert data_files_read(store) == {path_of(table, 7), path_of(table, NUM_FRAGMENTS)}


def test_bounds_of_other_tables_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is re-created at the same location has other files with other names."""
    monkeypatch.setattr(cached_key_bounds, "MIN_UNSAVED_WORK", 1)
    old, new = ordered_by_time(), ordered_by_time()
    old = upsert(old, rows(-1, 0), ON_ID).table
    path = key_bounds_path(old.schema.fields[0].id)
    new.store.write(path, old.store.read(path))
    bounds = key_bounds(new, ["id"])
    assert bounds.columns[0].num_files == NUM_FRAGMENTS
    assert bounds.are_unknown(new.manifest.fragments).all()
    assert upsert(new, rows(0, 1200, 1.0), ON_ID).num_updated == 1200


def test_unwritable_bounds_do_not_fail_upserts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some users may write data but not the package's own directory, and bounds only save time."""
    monkeypatch.setattr(cached_key_bounds, "MIN_UNSAVED_WORK", 1)

    def refuse(call: str, path: str) -> None:
        if "_lance_stream/key_bounds" in path:
            raise PermissionError(path)

    table = ordered_by_time()
    store = WatchedStore(table.store, before=refuse)
    result = upsert(replace(table, store=store), rows(0, 10, 1.0), ON_ID)
    assert result.num_updated == 10
    assert ("write", key_bounds_path(table.schema.fields[0].id)) in store.calls


LONG = "https://example.com/a/path/that/is/longer/than/what/is/looked/at/of/a/text/"
KEYS: dict[str, tuple[pa.Schema, Callable[[int], tuple[Any, ...]]]] = {
    "numbers": (pa.schema([("a", pa.int16())]), lambda key: (key - 20,)),
    "texts": (pa.schema([("a", pa.string())]), lambda key: (f"{key:03d}",)),
    "long texts": (pa.schema([("a", pa.large_string())]), lambda key: (f"{LONG}{key}",)),
    "pairs": (
        pa.schema([("a", pa.uint8()), ("b", pa.binary(2))]),
        lambda key: (key % 3, bytes([key // 3, 0])),
    ),
    "a pair with a dictionary": (
        pa.schema([("a", pa.dictionary(pa.int8(), pa.string())), ("b", pa.date32())]),
        lambda key: (str(key % 3), key // 3),
    ),
}


@pytest.mark.quick_cases(one_in=5)
@pytest.mark.parametrize("kind", list(KEYS))
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("remembered_bytes", [0, 2_000, 1 << 20])
def test_upserts_match_a_dictionary(
    kind: str, seed: int, remembered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result must not depend on the table's history or on how many keys fit in memory."""
    monkeypatch.setattr(cached_key_bounds, "MIN_UNSAVED_WORK", 20_000)
    monkeypatch.setattr(key_index, "MAX_BYTES", remembered_bytes)
    monkeypatch.setattr(key_index, "_FORGET_FROM", 3)
    key_index.clear_key_indices()
    schema, key_of = KEYS[kind]
    rules = UpsertRules(tuple(schema.names))
    schema = schema.append(pa.field("n", pa.int64())).append(pa.field("x", pa.int64()))

    def batch(keys: list[int], x: int) -> pa.Table:
        columns = list(zip(*((*key_of(key), key, x) for key in keys), strict=True))
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema,
        )

    dice = np.random.default_rng(seed)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    model: dict[int, int] = {}
    history = {ds.version: model}
    num_skipped = 0
    for step in range(25):
        around = int(dice.integers(0, 40))
        keys = dice.choice(np.arange(around, around + 8), int(dice.integers(1, 6)), replace=False)
        action = dice.choice(["upsert"] * 6 + ["append", "delete", "restore", "compact", "forget"])
        if action == "upsert":
            lookup = KeyLookup(
                batch(keys.tolist(), step).combine_chunks().to_batches()[0].columns[:-2]
            )
            may = key_bounds(ds.table, rules.on).may_hold(ds.table.manifest.fragments, lookup)
            num_skipped += int(np.count_nonzero(~may))
            result = upsert(ds.table, batch(keys.tolist(), step), rules)
            assert result.num_updated == len(model.keys() & set(keys.tolist()))
            ds = lance_stream.Dataset(result.table)
            model = {**model, **dict.fromkeys(keys.tolist(), step)}
        elif action == "append":
            new = [key for key in keys.tolist() if key not in model]
            if new:
                ds = ds.append(batch(new, step))
                model = {**model, **dict.fromkeys(new, step)}
        elif action == "delete":
            ds = ds.delete(f"n % 4 = {step % 4}")
            model = {key: x for key, x in model.items() if key % 4 != step % 4}
        elif action == "restore":
            version = int(dice.choice(list(history)))
            ds, model = ds.restore(version), history[version]
        elif action == "compact":
            ds = ds.compact()
        elif step % 2:
            cached_key_bounds._columns.clear()
        else:
            key_index.clear_key_indices()
        history[ds.version] = model
        stored = ds.to_table().to_pydict()
        assert dict(zip(stored["n"], stored["x"], strict=True)) == model
        assert len(stored["n"]) == len(model)
    assert num_skipped > 0 or kind == "long texts"


def test_watched_stores_have_separate_readers() -> None:
    """A shared reader would answer from a cache, and the counts above would miss the reads."""
    table, store = watched(ordered_by_time())
    assert isinstance(table.files, OpenFiles)
    assert table.files.store is store
