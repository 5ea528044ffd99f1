"""When `compact="auto"` begins a round, and what a table looks like after many batches."""

import random
import threading
import uuid
from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.maintenance.compaction import automatic
from lance_stream.maintenance.compaction.automatic import (
    AUTO,
    FAN_IN,
    Accumulation,
    CompactionTrigger,
    accumulation_of,
)
from lance_stream.maintenance.compaction.background import ROUND, BackgroundCompaction
from lance_stream.maintenance.compaction.plan import CompactionRules, plan
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.opening import open_newest

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])
PATIENCE = 30.0


def rows(ids: Iterable[int], x: int = 0) -> pa.Table:
    keys = list(ids)
    return pa.table({"id": keys, "x": [x] * len(keys)}, schema=SCHEMA)


def new_table(num_rows: int = 0) -> Dataset:
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA, primary_key=["id"])
    return ds.append(rows(range(num_rows))) if num_rows else ds


def reason(trigger: CompactionTrigger, ds: Dataset) -> str | None:
    cause = trigger.reason(ds.table)
    return None if cause is None else cause.text


def test_small_fragments_are_merged_in_groups() -> None:
    """Merging at every batch would write each row again and again; a fan-in bounds that to a
    logarithm.
    """
    trigger, ds = CompactionTrigger(ROUND), new_table()
    for number in range(FAN_IN):
        assert reason(trigger, ds) is None
        ds = ds.append(rows([number]))
    assert reason(trigger, ds) == "small fragments"
    trigger.record_round(ds.table, None)
    assert reason(trigger, ds) is None


def test_other_writers_compactions_reset_the_count() -> None:
    """An overwrite can remove fragments that the last round left, and must not delay the next
    round.
    """
    trigger, ds = CompactionTrigger(ROUND), new_table()
    for number in range(20):
        ds = ds.append(rows([number]))
    trigger.record_round(ds.table, None)
    ds = ds.overwrite(rows([0]))
    assert reason(trigger, ds) is None
    for number in range(1, FAN_IN + 1):
        ds = ds.append(rows([number]))
    assert reason(trigger, ds) == "small fragments"


def test_deleted_share_of_fragments_triggers_compaction() -> None:
    """Scans pay for deleted rows in proportion to their fragment, so a round starts at a share
    of it.
    """
    trigger, ds = CompactionTrigger(ROUND), new_table(1000)
    ds = ds.delete("id < 240")
    assert reason(trigger, ds) is None
    ds = ds.delete("id < 260")
    assert reason(trigger, ds) == "deleted rows"


def test_deleted_rows_count_per_fragment() -> None:
    """A share of the whole table grows with it, so a fragment full of deleted rows could wait
    for ever.
    """
    rules = CompactionRules(target_rows=80, max_deleted_fraction=0.25)
    trigger, ds = CompactionTrigger(rules), new_table(100)
    ds = ds.delete("id < 30")
    for number in range(5):
        ds = ds.append(rows(range(1000 * number, 1000 * number + 500)))
    assert reason(trigger, ds) == "deleted rows"


def test_doubled_manifests_start_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit writes the whole manifest, and scattered updates lengthen it through row ids
    and versions.
    """
    monkeypatch.setattr(automatic, "SMALL_MANIFEST", 500)
    trigger, ds = CompactionTrigger(ROUND), new_table(2000)
    assert reason(trigger, ds) is None
    ds = ds.upsert(rows(random.Random(0).sample(range(2000), 400), 1), on="id")
    actual = trigger.reason(ds.table)
    assert actual is not None
    assert actual.text == "manifest"
    assert actual.rules.shortens_lineage
    trigger.record_round(ds.table, 1.0)
    assert reason(trigger, ds) is None


def test_slow_lookups_start_a_worthwhile_round() -> None:
    """A round pays off when the extra time of lookups has reached its own duration; a lasting
    slowness is no reason again.
    """
    trigger, ds = CompactionTrigger(ROUND), new_table(10)
    trigger.record_round(ds.table, seconds=1.0)
    for _ in range(10):
        trigger.after_batch(0.5)
    assert reason(trigger, ds) is None
    trigger.after_batch(1.0)
    assert reason(trigger, ds) is None
    trigger.after_batch(1.2)
    assert reason(trigger, ds) == "lookups"
    trigger.record_round(ds.table, None)
    trigger.after_batch(1.2)  # as fast as it gets
    assert reason(trigger, ds) is None


def test_the_table_is_checked_periodically() -> None:
    """Opening the newest version costs requests, so it happens at every fourth batch only."""
    trigger = CompactionTrigger(ROUND)
    assert [trigger.after_batch(None) for _ in range(9)] == [True, *[False] * 3] * 2 + [True]


def test_remaining_work_is_counted_without_decoding() -> None:
    """The decision runs on the stream's driver and must stay cheap for manifests of many
    fragments.
    """
    ds = new_table(100).delete("id < 40").append(rows([500]))
    fragments = open_newest(ds.uri).manifest.fragments
    actual = accumulation_of(ds.table, CompactionRules(50, max_deleted_fraction=0.25))
    assert (actual.num_live, actual.num_small, actual.num_deleted) == (61, 1, 40)
    assert actual.manifest_bytes == sum(map(len, fragments.raws))


def test_few_fragments_wait_for_more() -> None:
    """Fewer small fragments than the fan-in are not worth a rewrite, unless neighbours bring
    deletions.
    """
    ds = new_table()
    for number in range(5):
        ds = ds.append(rows([number]))
    assert plan(ds.table, CompactionRules(fan_in=6)) == []
    assert plan(ds.table, CompactionRules(fan_in=5)) == [(0, 1, 2, 3, 4)]
    ds = ds.delete("id = 3").append(rows(range(10, 20))).delete("id < 15 AND id > 9")
    assert plan(ds.table, CompactionRules(fan_in=6)) == [(0, 1, 2, 3, 4)]


@pytest.mark.parametrize("num_rows", [pytest.param(0, marks=pytest.mark.slow), 3000])
def test_many_batches_leave_little_behind(num_rows: int) -> None:
    """Few fragments may remain, while no row is rewritten more often than its fragment doubles
    in size.
    """
    compaction = BackgroundCompaction(
        AUTO, CompactionRules(4096, max_deleted_fraction=0.25, by_steps=True)
    )
    ds, dice = new_table(num_rows), random.Random(5)
    model = dict.fromkeys(range(num_rows), 0)
    begun = []
    for number in range(1, 49):
        new = range(num_rows + 10 * number, num_rows + 10 * number + 10)
        ids = [*dice.sample(sorted(model), min(len(model), 40)), *new]
        ds = lance_stream.open_dataset(ds.uri)
        with compaction.batch():
            ds.upsert(rows(ids, number), on="id")
        model.update(dict.fromkeys(ids, number))
        if compaction.after_batch(number, partial(open_newest, ds.uri), lookup_seconds=0.0):
            assert compaction.wait(PATIENCE)
            last_round = compaction.last_round
            if last_round is not None:
                assert last_round.error is None
                begun.append(last_round.reason)
    final = lance_stream.open_dataset(ds.uri)
    assert {row["id"]: row["x"] for row in final.to_table().to_pylist()} == model
    assert verify(final.table) == []
    fragments = final.table.manifest.fragments
    assert len(fragments) <= 3 * FAN_IN
    physical = sum(fragment.physical_rows for fragment in fragments)
    assert physical <= 1.6 * len(model)
    assert set(begun) <= {"small fragments", "deleted rows", "manifest"}
    rewritten = [version for version in final.versions() if version.operation == "Rewrite"]
    assert 3 <= len(rewritten) <= 12


def test_batches_do_not_wait_for_checks() -> None:
    """The table is opened in another thread, and a slow store must not hold up this batch or the
    next one.
    """
    compaction = BackgroundCompaction(AUTO)
    ds = new_table(10)
    go_on, looked = threading.Event(), threading.Event()

    def slowly() -> object:
        looked.set()
        assert go_on.wait(PATIENCE)
        return ds.table

    assert compaction.after_batch(0, slowly)  # type: ignore[arg-type]  # as much of a dataset as is looked at
    assert looked.wait(PATIENCE)
    for batch_id in range(1, 10):
        with compaction.batch():
            assert not compaction.after_batch(batch_id, slowly)  # type: ignore[arg-type]  # as much of a dataset as is looked at
    go_on.set()
    assert compaction.wait(PATIENCE)
    assert compaction.last_round is None


def test_unreadable_tables_fail_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    """Compaction is housekeeping: a store that fails for a moment must not stop ingestion."""
    compaction = BackgroundCompaction(AUTO)

    def fail() -> object:
        raise OSError("the store is unavailable")

    assert compaction.after_batch(0, fail)  # type: ignore[arg-type]  # as much of a dataset as is looked at
    assert compaction.wait(PATIENCE)
    assert "a compaction cannot start; the stream continues" in caplog.text


def test_limits_of_accumulation_are_exact() -> None:
    """A fragment at a limit is neither small nor full of deleted rows."""
    ds = new_table(100)
    rules = CompactionRules(target_rows=75, max_deleted_fraction=0.25)
    for deleted, expected in ((24, 0), (25, 0), (26, 26)):
        current = accumulation_of(ds.delete(f"id < {deleted}").table, rules)
        assert current.num_deleted == expected
        assert current.num_small == (1 if 100 - deleted < 75 else 0)
        assert current.num_live == 100 - deleted


@pytest.mark.parametrize(
    ("target_rows", "num_deleted", "is_due"),
    [(80, 9, False), (80, 10, True), (8000, 4, False), (8000, 5, True), (1, 0, False)],
)
def test_deleted_rows_reach_a_limit(
    monkeypatch: pytest.MonkeyPatch, target_rows: int, num_deleted: int, is_due: bool
) -> None:
    """An eighth of a full fragment, or a twentieth of the table if that is less."""
    num_live = 100 if target_rows == 8000 else 1000
    current = Accumulation(num_live, 0, num_deleted, 0)
    monkeypatch.setattr(automatic, "accumulation_of", lambda *_: current)
    trigger = CompactionTrigger(CompactionRules(target_rows))
    assert (trigger.reason(new_table().table) is not None) == is_due


@pytest.mark.parametrize("outcome", ["moved", "nothing to do", "failed"])
def test_only_rounds_that_write_are_timed(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    """A round that wrote nothing says nothing about the cost of the next one."""
    ds = new_table(10)
    if outcome != "nothing to do":
        ds = ds.append(rows([20])).append(rows([21]))
    compaction = BackgroundCompaction(AUTO)
    trigger = CompactionTrigger(ROUND)
    reason = automatic.Reason("lookups", CompactionRules(100))
    monkeypatch.setattr(trigger, "reason", lambda _: reason)
    seconds: list[float | None] = []
    monkeypatch.setattr(trigger, "record_round", lambda _, value: seconds.append(value))

    def fail(_tasks: Any) -> Any:
        raise OSError("the disk is full")

    compaction._run_if_worthwhile(
        trigger, lambda: ds.table, fail if outcome == "failed" else None, threading.Event()
    )
    assert compaction.last_round is not None
    assert compaction.last_round.reason == "lookups"
    assert (compaction.last_round.error is not None) == (outcome == "failed")
    written = compaction.last_round.seconds.get("write")
    assert seconds == [written if outcome == "moved" else None]
    assert (seconds[0] is not None) == (outcome == "moved")


def test_stopped_checks_begin_no_round() -> None:
    """The query has ended while the table was opened."""
    ds = new_table()
    for number in range(FAN_IN):
        ds = ds.append(rows([number]))
    compaction, stop = BackgroundCompaction(AUTO), threading.Event()
    for is_stopped in (True, False):
        if is_stopped:
            stop.set()
        else:
            stop.clear()
        compaction._run_if_worthwhile(CompactionTrigger(ROUND), lambda: ds.table, None, stop)
        assert (compaction.last_round is None) == is_stopped
