"""Compaction beside batches: threads meet at events, so that each order is the one described."""

import logging
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from lance_stream.maintenance.compaction import automatic, background
from lance_stream.maintenance.compaction.automatic import AUTO
from lance_stream.maintenance.compaction.background import (
    BackgroundCompaction,
    Round,
    StoppedError,
    Turns,
)
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import RewriteTask, write_locally, write_task
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])
PATIENCE = 30.0


def rows(*ids: int, x: int = 0) -> pa.Table:
    return pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=SCHEMA)


def new_table() -> Dataset:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)


def newest(ds: Dataset) -> Callable[[], TableVersion]:
    return lambda: ds.table


def num_files(table: TableVersion) -> int:
    return len(table.store.list("data"))


class Writer:
    """Signals when it has begun, and writes when it is allowed to."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        yield from write_locally(tasks)


def last_round(compaction: BackgroundCompaction) -> Round:
    assert compaction.wait(PATIENCE)
    assert compaction.last_round is not None
    return compaction.last_round


def test_compaction_runs_every_n_batches() -> None:
    """The option promises a period in batches, which users choose to bound the number of files."""
    compaction = BackgroundCompaction(4)
    ds = new_table()
    for batch_id in range(11):
        with compaction.batch():
            ds = ds.append(rows(batch_id))
        began = compaction.after_batch(batch_id, newest(ds))
        assert began == (batch_id in {3, 7})
        if began:
            assert last_round(compaction).error is None
    final = lance_stream.open_dataset(ds.uri)
    assert [fragment.physical_rows for fragment in final.table.manifest.fragments] == [8, 1, 1, 1]
    assert verify(final.table) == []


def test_rounds_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Operators search logs by line, and need version and effect of a round in one of them."""
    compaction = BackgroundCompaction(1)
    ds = new_table().append(rows(*range(1000))).append(rows(*range(1000, 2000)))
    with caplog.at_level(logging.INFO, "lance_stream.compaction"):
        compaction.after_batch(0, newest(ds))
        result = last_round(compaction)
    (line,) = caplog.messages
    assert f"version={result.version}, num_removed=2, num_added=1" in line
    assert len(line) < 500


def test_compaction_by_steps_rewrites_less() -> None:
    """Compacting at every batch must merge as a binary counter does, not rewrite everything each
    time.
    """
    compaction = BackgroundCompaction(1)
    ds = new_table()
    removed = []
    for batch_id in range(8):
        ds = ds.append(rows(batch_id))
        compaction.after_batch(batch_id, newest(ds))
        removed.append(last_round(compaction).num_removed)
    assert removed == [0, 2, 0, 3, 0, 2, 0, 4]


def test_restarted_streams_keep_their_rounds() -> None:
    """Spark creates a sink for each batch, and the count of batches must survive that."""
    ds = new_table()
    began = []
    for batch_id in range(9):
        ds = ds.append(rows(batch_id))
        compaction = BackgroundCompaction(4)
        if compaction.after_batch(batch_id, newest(ds)):
            began.append(batch_id)
            assert last_round(compaction).error is None
    assert began == [3, 7]


def test_skipped_batches_delay_no_round() -> None:
    """A batch without rows commits no version, and may have the id that would start a round."""
    compaction = BackgroundCompaction(4)
    ds = new_table()
    began = []
    for batch_id in (0, 1, 2, 4, 5, 6, 8, 9, 10, 11):
        ds = ds.append(rows(batch_id))
        if compaction.after_batch(batch_id, newest(ds)):
            began.append(batch_id)
            assert last_round(compaction).error is None
    assert began == [4, 9, 11]


def test_commits_take_turns_with_commits() -> None:
    """Indices are committed beside the same stream, and would conflict with a compaction."""
    turns, stop, began = Turns(), threading.Event(), threading.Event()

    def commit() -> None:
        with turns.of_commit(stop):
            began.set()

    other = threading.Thread(target=commit)
    with turns.of_commit(stop):
        assert not turns._has_room_for_commit()
        other.start()
        assert not began.wait(0.05)
    assert began.wait(PATIENCE)
    other.join()
    with turns.of_batch():
        assert not turns._has_room_for_commit()
    assert turns._has_room_for_commit()


def test_batches_continue_during_a_compaction() -> None:
    """Its commit waits for the end of a batch and follows what the batches changed."""
    compaction, write = BackgroundCompaction(4), Writer()
    ds = new_table()
    for batch_id in range(4):
        ds = ds.append(rows(batch_id, batch_id + 10))
    assert compaction.after_batch(3, newest(ds), write)
    assert write.begun.wait(PATIENCE)
    with compaction.batch():
        ds = ds.upsert(rows(1, 2, 30, x=1), on=["id"])
    with compaction.batch():
        ds = ds.delete("id = 13")
        write.go_on.set()
        # the files are there soon, but the batch is not over
        assert not compaction.wait(0.2)
        ds = ds.upsert(rows(2, x=2), on=["id"])
    outcome = last_round(compaction)
    assert (outcome.num_removed, outcome.num_added, outcome.version) == (4, 1, ds.version + 1)
    result = lance_stream.open_dataset(ds.uri, version=outcome.version)
    expected = sorted(ds.to_table().to_pylist(), key=lambda row: row["id"])
    assert sorted(result.to_table().to_pylist(), key=lambda row: row["id"]) == expected
    assert result.changes(ds.version).read_all().num_rows == 0
    assert verify(result.table) == []


def test_back_to_back_batches_admit_commits() -> None:
    """A stream without pauses must not starve the commit of a finished round."""
    compaction = BackgroundCompaction(2)
    ds = new_table().append(rows(1)).append(rows(2))
    stop = threading.Event()
    in_batch = threading.Event()

    def batches() -> None:
        while not stop.is_set():
            with compaction.batch():
                in_batch.set()

    stream = threading.Thread(target=batches)
    stream.start()
    try:
        assert in_batch.wait(PATIENCE)
        compaction.after_batch(1, newest(ds))
        result = last_round(compaction)
    finally:
        stop.set()
        stream.join()
    assert result.num_removed == 2


def test_parallel_batches_do_not_deadlock() -> None:
    """A commit waits for the first batch; the second does not wait for the commit."""
    compaction = BackgroundCompaction(2)
    ds = new_table().append(rows(1)).append(rows(2))
    entered = threading.Event()

    def second() -> None:
        with compaction.batch():
            entered.set()

    with compaction.batch():
        compaction.after_batch(1, newest(ds))
        assert not compaction.wait(0.2)
        other = threading.Thread(target=second)
        other.start()
        assert entered.wait(PATIENCE)
    other.join()
    assert last_round(compaction).error is None


def test_failed_rounds_are_logged_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failure costs one round, not the stream, and the next period tries again with all
    fragments.
    """
    compaction = BackgroundCompaction(2)
    ds = new_table().append(rows(1)).append(rows(2))

    def fail(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        for _ in write_locally(tasks):
            raise UnsupportedFeatureError("this cannot be read")
        yield []

    with caplog.at_level(logging.WARNING, "lance_stream.compaction"):
        compaction.after_batch(1, newest(ds), fail)
        actual = last_round(compaction)
    assert isinstance(actual.error, UnsupportedFeatureError)
    assert "a compaction failed; the stream continues" in caplog.text
    ds = ds.append(rows(3)).append(rows(4))
    assert compaction.after_batch(3, newest(ds))
    assert last_round(compaction).num_removed == 4


@pytest.mark.parametrize("where", ["before the first group", "between two groups"])
def test_stopped_rounds_leave_no_files(where: str) -> None:
    """Stopping a query in mid-round must not leave files that no version names."""
    compaction = BackgroundCompaction(1, CompactionRules(2, max_deleted_fraction=-1.0))
    ds = new_table().append(rows(1, 2)).append(rows(3, 4))
    before = num_files(ds.table)
    at, go_on = threading.Event(), threading.Event()

    def write(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        assert len(tasks) == 2
        if where == "between two groups":
            yield next(write_locally(tasks))
            assert num_files(ds.table) == before + 1
        at.set()
        assert go_on.wait(PATIENCE)
        yield from write_locally(tasks if where == "before the first group" else tasks[1:])

    compaction.after_batch(0, newest(ds), write)
    assert at.wait(PATIENCE)
    assert not compaction.stop(0.0)
    go_on.set()
    assert isinstance(last_round(compaction).error, StoppedError)
    assert num_files(ds.table) == before
    assert ds.table.log.latest() == ds.version


@pytest.mark.parametrize("where", ["in the thread", "on workers"])
def test_stopped_rounds_write_no_more(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing all files takes minutes, for which the end of a program must not wait."""
    rules = CompactionRules(2, max_deleted_fraction=-1.0)
    compaction, stop = BackgroundCompaction(1, rules), threading.Event()
    table = new_table().append(rows(1, 2)).append(rows(3, 4)).table
    begun: list[RewriteTask] = []

    def write_until_stopped(task: RewriteTask, **checks: Any) -> list[Fragment]:
        begun.append(task)
        stop.set()
        return write_task(task, **checks)

    def write_all(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        yield from map(write_until_stopped, tasks)

    monkeypatch.setattr(background, "write_task", write_until_stopped)
    on_workers = write_all if where == "on workers" else None
    outcome = compaction._run(table, rules, on_workers, stop)
    assert isinstance(outcome.error, StoppedError)
    assert len(begun) == 1
    assert num_files(table) == 2


def test_unreadable_tables_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cause must reach the log, since no exception reaches the user."""

    def fail() -> TableVersion:
        raise NotFoundError("the table is gone")

    with caplog.at_level(logging.WARNING, "lance_stream.compaction"):
        assert not BackgroundCompaction(1).after_batch(0, fail)
    assert "the table is gone" in caplog.text


def test_a_waiting_round_stops_at_once() -> None:
    """A round whose files are written waits for the batch, and a stop must not wait for that as
    well.
    """
    compaction = BackgroundCompaction(1)
    ds = new_table().append(rows(1)).append(rows(2))
    before = num_files(ds.table)
    with compaction.batch():
        compaction.after_batch(0, newest(ds))
        assert not compaction.wait(0.2)
        assert num_files(ds.table) == before + 1
        assert compaction.stop(PATIENCE)
        assert num_files(ds.table) == before
    with compaction.batch():
        assert ds.table.log.latest() == ds.version


def test_only_one_sink_compacts_a_table() -> None:
    """Two rounds on one table would conflict and waste one of them; another table must not wait."""
    one, other, write = BackgroundCompaction(1), BackgroundCompaction(1), Writer()
    ds = new_table().append(rows(1)).append(rows(2))
    assert one.after_batch(0, newest(ds), write)
    assert write.begun.wait(PATIENCE)
    assert not other.after_batch(0, newest(ds))
    elsewhere = new_table().append(rows(1))
    assert other.after_batch(0, newest(elsewhere))
    write.go_on.set()
    assert last_round(one).error is None
    assert last_round(other).error is None
    assert other.after_batch(1, newest(ds))
    assert last_round(other).error is None


def test_pickling_omits_the_thread() -> None:
    """Spark pickles the sink, and threads and results of rounds belong to one process."""
    compaction = BackgroundCompaction(2)
    ds = new_table().append(rows(1)).append(rows(2))
    compaction.after_batch(1, newest(ds))
    assert last_round(compaction).error is None
    copy = pickle.loads(pickle.dumps(compaction))
    assert (copy.every, copy.rules, copy.last_round) == (2, compaction.rules, None)


@pytest.mark.floors
@pytest.mark.parametrize("every", [1, AUTO])
def test_compaction_races_lose_no_change(every: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams change different keys in the same fragments while these are compacted."""
    monkeypatch.setattr(automatic, "BATCHES_BETWEEN_CHECKS", 1)
    monkeypatch.setattr(automatic, "FAN_IN", 2)
    ds = new_table().append(rows(*range(20))).append(rows(*range(20, 40)))
    model: dict[int, int] = dict.fromkeys(range(40), 0)
    compactions = [
        BackgroundCompaction(every, CompactionRules(1000, max_deleted_fraction=0.1))
        for _ in range(2)
    ]
    errors: list[BaseException] = []

    def stream(parity: int) -> None:
        dice = random.Random(parity)
        changes, compaction = {}, compactions[parity]
        try:
            for batch_id in range(1, 10):
                keys = dice.sample(range(parity, 60, 2), 4)
                with compaction.batch():
                    if batch_id % 4:
                        result = ds.upsert(rows(*keys, x=batch_id), on=["id"])
                        changes.update(dict.fromkeys(keys, batch_id))
                    else:
                        result = ds.delete(f"id IN ({', '.join(map(str, keys))})")
                        changes.update(dict.fromkeys(keys, -1))
                if compaction.after_batch(batch_id, newest(result)) and batch_id % 3 == 0:
                    assert compaction.wait(PATIENCE)
        except BaseException as error:
            errors.append(error)
        model.update(changes)

    threads = [threading.Thread(target=stream, args=(parity,)) for parity in range(2)]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert errors == []
    assert all(compaction.wait(PATIENCE) for compaction in compactions)
    rounds = [
        compaction.last_round for compaction in compactions if compaction.last_round is not None
    ]
    assert [value.error for value in rounds] == [None] * len(rounds)
    final = lance_stream.open_dataset(ds.uri)
    expected = {key: x for key, x in model.items() if x >= 0}
    content = final.to_table().to_pylist()
    assert {row["id"]: row["x"] for row in content} == expected
    assert len(content) == len(expected)
    assert verify(final.table) == []
    assert "Rewrite" in {version.operation for version in final.versions()}
    by_feed: dict[int, int] = {}
    for change in final.changes(0, pre_images=False).read_all().to_pylist():
        if change["_change_type"] == "delete":
            del by_feed[change["id"]]
        else:
            by_feed[change["id"]] = change["x"]
    assert by_feed == expected


@pytest.mark.parametrize("cause", ["a stop", "the end of the program", "the store"])
def test_failures_after_a_stop_are_silent(
    cause: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop interrupts the round wherever it is, which is no reason to alarm anyone."""
    table = new_table().append(rows(1)).append(rows(2)).table
    compaction, stop = BackgroundCompaction(1, CompactionRules(1000)), threading.Event()
    ended = Mock(is_alive=Mock(return_value=False))

    def fail(_tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        if cause == "a stop":
            stop.set()
        if cause == "the end of the program":
            monkeypatch.setattr(background.threading, "main_thread", lambda: ended)
        raise OSError("the connection was closed")

    with caplog.at_level(logging.INFO):
        compaction._run(table, compaction.rules, fail, stop)
    assert compaction.last_round is not None
    assert isinstance(compaction.last_round.error, OSError)
    levels = {record.levelno for record in caplog.records}
    assert (logging.WARNING in levels) == (cause == "the store")


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "10"])
def test_invalid_intervals_are_refused(every: Any) -> None:
    """A text or zero must fail at the start of the query, not at the first round."""
    with pytest.raises(
        InvalidInputError, match='compact must be "auto" or a number of batches of at least 1'
    ):
        BackgroundCompaction(every)


@pytest.mark.slow
def test_exiting_mid_compaction_leaves_no_file(tmp_path: Path) -> None:
    """The interpreter waits for the round at exit, which has to give up and delete its files
    without noise.
    """
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, SCHEMA)
    for number in range(4):
        ds = ds.append(rows(*range(number * 1000, number * 1000 + 1000)))
    before = num_files(ds.table)
    program = f"""
        import threading
        import time
        import lance_stream
        from lance_stream.maintenance.compaction.background import BackgroundCompaction
        from lance_stream.maintenance.compaction.plan import CompactionRules
        from lance_stream.maintenance.compaction.rewrites import write_locally

        writing = threading.Event()

        def write(tasks):
            yield from write_locally(tasks[:1])
            print("one of", len(tasks), flush=True)
            writing.set()
            while threading.main_thread().is_alive():
                time.sleep(0.01)
            yield from write_locally(tasks[1:])

        compaction = BackgroundCompaction(1, CompactionRules(2000))
        compaction.after_batch(0, lambda: lance_stream.open_dataset({uri!r}).table, write)
        writing.wait()
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stdout, process.stderr) == (0, "one of 2\n", "")
    assert num_files(ds.table) == before
    assert ds.table.log.latest() == ds.version
