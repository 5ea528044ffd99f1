"""Histories of keys: any order of changes, in any batches, gives the history of the sorted log."""

import random
import uuid
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream import Dataset
from lance_stream.upsert.change_rules import ChangeRules
from lance_stream.upsert.histories.merge_history import _are_last
from lance_stream.upsert.histories.rebuild_history import NONE, OPEN, StoredRows, first_bad_row
from tests.sampling import ALL_CASES
from tests.upsert.histories import dimension_models as model
from tests.upsert.histories.dimension_models import Change, State, batch_of, states
from tests.upsert.large.running_parts import upsert_by_parts, upsert_staged_rows

STORED = pa.schema([("id", pa.int64()), ("city", pa.string()), ("note", pa.string())])
HISTORY = lance_stream.history_schema(STORED, pa.int64())
RULES: dict[str, Any] = {
    "keys": "id",
    "sequence_by": "seq",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["seq", "op"],
}
seeds = st.integers(0, 2**32 - 1)
some = settings(deadline=None, max_examples=200 if ALL_CASES else 12)


def new_history(**options: Any) -> Dataset:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", HISTORY, **options)


def apply(ds: Dataset, *changes: Change, **rules: Any) -> Dataset:
    return ds.apply_scd2(batch_of(changes), **RULES | rules)


def rows(ds: Dataset) -> list[State]:
    return states(ds.to_table())


def check_feed(older: Dataset, newer: Dataset) -> None:
    """Check snapshot(a) + changes(a, b) = snapshot(b)."""
    expected = {(row.id, row.start): row for row in rows(older)}
    for change in newer.changes(older.version).read_all().to_pylist():
        row = State(*(change[name] for name in ("id", "city", "note", "__START_AT", "__END_AT")))
        if change["_change_type"] in ("update_preimage", "delete"):
            assert expected.pop((row.id, row.start)) == row
        else:
            assert (row.id, row.start) not in expected
            expected[row.id, row.start] = row
    assert [expected[key] for key in sorted(expected)] == rows(newer)


@some
@given(seeds, st.sampled_from([("city", "note"), ("city",), ()]))
def test_any_batching_builds_the_sorted_history(seed: int, tracked: tuple[str, ...]) -> None:
    """Events arrive late and in any division, with other writes in between, and the history must
    not depend on it.
    """
    chance = random.Random(seed)
    log = model.random_log(chance)
    ds, versions = new_history(), []
    for changes in model.in_batches(chance, log):
        older, ds = ds, apply(ds, *changes, track_history_column_list=tracked)
        versions.append((older, ds))
        if chance.random() < 0.2:
            ds = ds.compact()
    # Of a run, values that are not tracked are those of the last event, also after a tie.
    assert rows(ds) == model.history(log, tracked)
    for older, newer in versions:
        check_feed(older, newer)
    assert ds.verify() == []
    assert apply(ds, *log, track_history_column_list=tracked).version == ds.version


@some
@given(seeds)
def test_large_batches_build_equal_histories(seed: int) -> None:
    """Large batches are applied by ranges of keys in several parts, and the history must be the
    same.
    """
    chance = random.Random(seed)
    log = model.random_log(chance, num_keys=9)
    rules = ChangeRules(
        True, ("id",), ("seq",), "op = 'd'", except_column_list=("seq", "op")
    ).upsert_rules()
    ds = new_history()
    table = ds.table
    for changes in model.in_batches(chance, log):
        if len(changes) < 4:
            table = Dataset(table).apply_scd2(batch_of(changes), **RULES).table
            continue
        run = upsert_by_parts if chance.random() < 0.5 else upsert_staged_rows
        table = run(table, batch_of(changes), rules, num_parts=chance.randint(1, 4)).table
    assert rows(Dataset(table)) == model.history(log)


@some
@given(seeds)
def test_missing_columns_merge_no_rows(seed: int) -> None:
    """Rows that differ only in a column that a late change lacks would lose its older values."""
    chance = random.Random(seed)
    ds = apply(new_history(), *model.random_log(chance))
    before = rows(ds)
    late = [
        Change(key, chance.choice(["Ulm", "Bonn", None]), None, chance.randrange(42), "u")
        for key in range(4)
    ]
    after = rows(ds.apply_scd2(batch_of(late).drop_columns(["note"]), **RULES))
    for change in late:
        for moment in range(45):
            old, new = (_row_at(states, change.id, moment) for states in (before, after))
            if old is not None and new is not None and new.city == old.city:
                assert new.note == old.note, (change, moment)
    again = ds.checkout(None).apply_scd2(batch_of(late).drop_columns(["note"]), **RULES)
    assert rows(again) == after


def _row_at(history: list[State], key: int, moment: int) -> State | None:
    valid = [
        row
        for row in history
        if row.id == key and row.start <= moment and (row.end is None or moment < row.end)
    ]
    return valid[0] if valid else None


@some
@given(seeds)
def test_two_writers_build_one_history(seed: int) -> None:
    """A commit that lost to another one is planned again on a history with new intervals."""
    chance = random.Random(seed)
    log = model.random_log(chance)
    opened = new_history()
    # Both hold the version that they have read, so each one's commit is planned again.
    writers = [opened, opened]
    for changes in model.in_batches(chance, log):
        index = chance.randrange(2)
        writers[index] = apply(writers[index], *changes)
    newest = max(writers, key=lambda ds: ds.version)
    assert rows(newest) == model.history(log)


@some
@given(seeds)
def test_type_1_keeps_current_rows(seed: int) -> None:
    """A dimension of type 1 must end with the newest event of each key, whatever the order of
    arrival.
    """
    chance = random.Random(seed)
    log = model.random_log(chance)
    schema = pa.schema([*STORED, ("seq", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for changes in model.in_batches(chance, log):
        ds = ds.apply_scd1(batch_of(changes), **RULES | {"except_column_list": "op"})
    assert model.rows_of(ds.to_table()) == model.current(log)


@some
@given(seeds)
def test_open_rows_equal_type_1(seed: int) -> None:
    """The open rows of a history are the current state, so both types of dimension must agree."""
    chance = random.Random(seed)
    log = model.random_log(chance)
    ds = new_history()
    for changes in model.in_batches(chance, log):
        ds = apply(ds, *changes)
    now = ds.to_table(filter="__END_AT IS NULL")
    assert model.rows_of(now) == model.current(log)


@pytest.mark.parametrize("stable_row_ids", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_pylance_reads_maintained_histories(
    tmp_path: Path, seed: int, stable_row_ids: bool
) -> None:
    """Another reader must see the same intervals after compaction and cleanup by either
    implementation.
    """
    chance = random.Random(seed)
    log = model.random_log(chance, num_keys=20, maximum=20)
    uri = str(tmp_path / "t.lance")
    ds = lance_stream.create_dataset(uri, HISTORY, stable_row_ids=stable_row_ids)
    for number, changes in enumerate(model.in_batches(chance, log)):
        ds = apply(ds, *changes)
        if number % 2:
            ds = ds.compact()
            ds.cleanup(retain_versions=1, older_than=timedelta(0))
            lance.dataset(uri).cleanup_old_versions(timedelta(0))
            ds = lance_stream.open_dataset(uri)
    assert states(lance.dataset(uri).to_table()) == model.history(log) == rows(ds)
    lance.dataset(uri).optimize.compact_files()
    assert rows(lance_stream.open_dataset(uri)) == model.history(log)


def test_invalid_intervals_of_histories_are_detected() -> None:
    """A row must end after its start and before the next row of its key begins, edges included."""

    def is_bad(row: tuple[int, ...], other: tuple[int, ...]) -> bool:
        key, start, end = row
        last = end or 9
        overlaps = key == other[0] and start < (other[2] or 9) and other[1] < last
        return start == OPEN or last <= start or overlaps or (row == other and key == other[0])

    one_row = list(product((0, 1), range(4), range(4)))
    for rows_of_keys in product(one_row, one_row):
        first, second = rows_of_keys
        bad = {n for n, pair in enumerate([(first, second), (second, first)]) if is_bad(*pair)}
        keys, starts, ends = (
            np.array(column, np.int64) for column in zip(*rows_of_keys, strict=True)
        )
        bad_row = first_bad_row(StoredRows(keys, starts, ends, starts, ends))
        assert (bad_row != NONE) == bool(bad), rows_of_keys
        assert bad_row in bad or bad_row == NONE or first[0] == second[0], rows_of_keys


def test_the_last_of_equal_events_counts() -> None:
    """An event that was remembered twice would otherwise be applied twice."""
    for seed in range(20):
        dice = np.random.default_rng(seed)
        keys, ranks = dice.integers(0, 3, (2, 12))
        stores = dice.integers(0, 2, 12).astype(bool)
        events = list(zip(keys.tolist(), ranks.tolist(), stores.tolist(), strict=True))
        expected = [event not in events[index + 1 :] for index, event in enumerate(events)]
        assert _are_last(keys, ranks, stores).tolist() == expected
