"""Indices are brought up to date beside batches, which never wait for the work."""

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

import lance_stream
from lance_stream import IndexBuildError, RetryableConflictError
from lance_stream.environment import MACHINE
from lance_stream.maintenance.compaction.background import begin_work, end_work
from lance_stream.maintenance.indices import background, child
from lance_stream.maintenance.indices.background import BackgroundIndexing, IndexRound
from lance_stream.maintenance.indices.building import UNCHANGED, Built
from lance_stream.maintenance.indices.child import StoppedChildError, build_in_child
from lance_stream.maintenance.indices.coverage import index_coverage
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
from lance_stream.maintenance.indices.update_indices import request_of
from lance_stream.maintenance.upkeep import Upkeep
from lance_stream.snapshot.table_version import TableVersion
from tests.maintenance.indices.tables import (
    ANY_ROW,
    Gate,
    append_and_index,
    damage,
    missing,
    missing_by_name,
    rows,
)

pytestmark = pytest.mark.oracle


@pytest.fixture
def newest(uri: str) -> Callable[[], TableVersion]:
    return lambda: lance_stream.open_dataset(uri).table


def test_child_processes_update_indices(uri: str, newest: Callable[[], TableVersion]) -> None:
    """The new rows must be indexed in a version that Lance itself can search."""
    indexing = BackgroundIndexing(ANY_ROW)
    with indexing.batch():
        ds = lance_stream.open_dataset(uri).append(rows(60, 90))
    indexing.after_batch(newest)
    assert indexing.wait(60)
    last_round = indexing.last_round
    assert last_round is not None
    assert last_round.error is None
    assert last_round.version == ds.version + 1
    assert last_round.reasons["id_idx"] == "id_idx lacks 30 rows (33.3%)"
    assert last_round.seconds["build"] > 0
    assert missing(uri) == {0}
    assert lance.dataset(uri).to_table(filter="id = 77").num_rows == 1


def test_nothing_is_done_below_the_limit(
    uri: str, newest: Callable[[], TableVersion], gate: Gate
) -> None:
    """A refresh for a few rows would cost more than scanning them."""
    indexing = BackgroundIndexing(RefreshPolicy(rows=31))
    version = lance_stream.open_dataset(uri).append(rows(60, 90)).version
    indexing.after_batch(newest)
    assert indexing.wait(60)
    assert indexing.last_round is None
    assert newest().version == version


def test_rounds_without_work_hide_no_other(uri: str) -> None:
    """A round that finds the indices up to date must not replace the report of one that did
    work.
    """
    indexing = BackgroundIndexing(RefreshPolicy(rows=31))
    result = IndexRound(reasons={"id_idx": "rows"})
    for outcome in (result, IndexRound()):
        indexing._report(outcome)
    assert indexing.last_round is result


def test_batches_do_not_await_indexing(
    uri: str, newest: Callable[[], TableVersion], gate: Gate
) -> None:
    """Building an index takes minutes, during which the stream goes on and its rows are added by
    the next round.
    """
    indexing = BackgroundIndexing(ANY_ROW)
    lance_stream.open_dataset(uri).append(rows(60, 90))
    indexing.after_batch(newest)
    assert gate.is_reached.wait(30)
    for number in range(90, 100):
        with indexing.batch():
            lance_stream.open_dataset(uri).upsert(rows(number - 5, number + 1), on="id")
        indexing.after_batch(newest)
    assert gate.num_built == 0
    gate.is_open.set()
    assert indexing.wait(60)
    assert gate.num_built == 2
    assert missing(uri) == {0}
    assert lance.dataset(uri).count_rows("id >= 85") == 15


def test_commits_wait_for_the_running_batch(
    uri: str, newest: Callable[[], TableVersion], gate: Gate
) -> None:
    """A commit in the middle of a batch would make the batch plan again."""
    indexing = BackgroundIndexing(ANY_ROW)
    version = lance_stream.open_dataset(uri).append(rows(60, 90)).version
    indexing.after_batch(newest)
    with indexing.batch():
        gate.is_open.set()
        assert not indexing.wait(0.3)
        assert newest().version == version
    assert indexing.wait(60)
    assert newest().version == version + 1


def test_waiting_skips_pauses_between_rounds(
    uri: str, newest: Callable[[], TableVersion], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause bounds the load of continuous refreshing, but whoever waits wants the result
    now.
    """
    monkeypatch.setattr(background, "PAUSE", 1000.0)
    gate.is_open.set()
    indexing = BackgroundIndexing(ANY_ROW)
    for number in (60, 90):
        lance_stream.open_dataset(uri).append(rows(number, number + 30))
        indexing.after_batch(newest)
        time.sleep(0.5)
    assert gate.num_built == 1
    assert indexing.wait(60)
    assert gate.num_built == 2
    assert missing(uri) == {0}


def test_a_round_waits_for_a_compaction(
    uri: str, newest: Callable[[], TableVersion], gate: Gate
) -> None:
    """A compaction moves rows, so an index built beside it would be out of date at once."""
    gate.is_open.set()
    indexing = BackgroundIndexing(ANY_ROW)
    lance_stream.open_dataset(uri).append(rows(60, 90))
    assert begin_work(newest().store.uri)
    indexing.after_batch(newest)
    assert not indexing.wait(0.3)
    assert gate.num_built == 0
    end_work(newest().store.uri)
    assert indexing.wait(60)
    assert gate.num_built == 1


def test_moved_rows_restart_the_round(
    uri: str, newest: Callable[[], TableVersion], gate: Gate
) -> None:
    """The index names row addresses that the compaction has replaced."""
    indexing = BackgroundIndexing(ANY_ROW)
    lance_stream.open_dataset(uri).append(rows(60, 90))
    indexing.after_batch(newest)
    assert gate.is_reached.wait(30)
    lance_stream.open_dataset(uri).delete("id < 30").compact()
    gate.is_open.set()
    assert indexing.wait(60)
    assert gate.num_built == 2
    assert indexing.last_round is not None
    assert indexing.last_round.error is None
    assert missing(uri) == {0}


def test_errors_do_not_reach_the_stream(
    uri: str,
    newest: Callable[[], TableVersion],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An index is an optimisation: its failure is logged, kept for the report, and tried again."""

    def fail(*_: Any) -> None:
        raise RetryableConflictError("others are faster")

    indexing = BackgroundIndexing(ANY_ROW)
    lance_stream.open_dataset(uri).append(rows(60, 90))
    with monkeypatch.context() as patch:
        patch.setattr(background, "build_in_child", fail)
        indexing.after_batch(newest)
        assert indexing.wait(60)
    assert indexing.last_round is not None
    assert str(indexing.last_round.error) == "others are faster"
    assert "the stream continues" in caplog.text
    indexing.after_batch(newest)
    assert indexing.wait(60)
    assert missing(uri) == {0}


def test_a_stopped_round_commits_nothing(
    uri: str, newest: Callable[[], TableVersion], gate: Gate
) -> None:
    """After a stop the query's owner expects no further versions, and the written files must go."""
    indexing = BackgroundIndexing(ANY_ROW)
    version = lance_stream.open_dataset(uri).append(rows(60, 90)).version
    folders = len(newest().store.list("_indices"))
    indexing.after_batch(newest)
    assert gate.is_reached.wait(30)
    assert indexing.stop(60)
    assert newest().version == version
    gate.is_open.set()
    with indexing.batch():  # it waits for its turn, with its files written
        indexing.after_batch(newest)
        assert not indexing.wait(1.0)
        assert gate.num_built == 1
        assert indexing.stop(60)
    assert newest().version == version
    assert len(newest().store.list("_indices")) == folders


def test_stopping_kills_the_child(uri: str, newest: Any) -> None:
    """pylance cannot be interrupted, so only the end of its process frees memory and cores."""
    lance_stream.open_dataset(uri).append(rows(60, 90))
    table = newest()
    stop = threading.Event()
    stop.set()
    request = request_of(table, ["id_idx"])
    with pytest.raises(StoppedChildError):
        build_in_child(request, table.store.uri, {}, stop)


def test_a_child_that_dies_is_reported(newest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without exit code and stderr nobody could tell a lack of memory from a bug."""
    table = newest()
    request = request_of(table, ["id_idx"])
    monkeypatch.setattr(child, "_PROGRAM", "import sys; sys.exit('no memory')")
    with pytest.raises(IndexBuildError, match=r"ended with code 1.*no memory"):
        build_in_child(request, table.store.uri, {}, threading.Event())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(IndexBuildError, match="cannot be started"):
        build_in_child(request, table.store.uri, {}, threading.Event())


def test_child_errors_keep_their_class(newest: Any) -> None:
    """An error crosses the process boundary as data, and must come out as ours with its text."""
    table = newest()
    request = replace(request_of(table, ["id_idx"]), version=99)
    with pytest.raises(IndexBuildError, match="pylance could not open version 99"):
        build_in_child(request, table.store.uri, {}, threading.Event())


def test_compactions_and_indices_share_the_turns(
    uri: str, newest: Callable[[], TableVersion]
) -> None:
    """Both run beside one stream and conflict with each other; every search must stay correct."""
    upkeep = Upkeep(2, ANY_ROW)
    for number in range(6):
        with upkeep.batch():
            lance_stream.open_dataset(uri).upsert(rows(number * 7, number * 7 + 20), on="id")
        upkeep.after_batch(number, newest)
        assert upkeep.compaction is not None
        assert upkeep.indexing is not None
        assert upkeep.compaction.wait(60)
        assert upkeep.indexing.wait(60)
    assert upkeep.compaction is not None
    assert upkeep.compaction.last_round is not None
    assert upkeep.compaction.last_round.error is None
    assert missing(uri) == {0}
    assert lance_stream.open_dataset(uri).verify() == []
    assert lance.dataset(uri).count_rows("g = 1") == sum(number % 3 == 1 for number in range(60))


def test_pickled_upkeep_starts_fresh() -> None:
    """Spark pickles the sink with its settings, while threads and state belong to one process."""
    upkeep = pickle.loads(pickle.dumps(Upkeep("auto", ANY_ROW)))
    assert upkeep.compaction.every == "auto"
    assert upkeep.indexing.policy == ANY_ROW
    assert pickle.loads(pickle.dumps(upkeep.indexing)).policy == ANY_ROW
    assert upkeep.indexing.wait()


PROGRAM = """
import sys, lance_stream, pyarrow as pa
from lance_stream.maintenance.indices.background import BackgroundIndexing, IndexRound
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
indexing = BackgroundIndexing(RefreshPolicy(rows=1))
lance_stream.open_dataset(sys.argv[1]).append(pa.table({"id": range(60, 90), "g": [1] * 30}))
indexing.after_batch(lambda: lance_stream.open_dataset(sys.argv[1]).table)
"""


def test_ending_programs_stop_the_work(uri: str) -> None:
    """A daemon thread with a child process must not delay or disturb the end of the program."""
    start = time.monotonic()
    process = subprocess.run([sys.executable, "-c", PROGRAM, uri], capture_output=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, b"")
    assert time.monotonic() - start < 30
    assert lance_stream.open_dataset(uri).count_rows() == 90
    assert lance.dataset(uri).count_rows("id >= 60") == 30


def test_damaged_indices_do_not_block_others(
    uri: str, newest: Callable[[], TableVersion], gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """One damaged file would otherwise keep all indices of the table out of date."""
    gate.is_open.set()
    damage(uri, "g_idx")
    indexing = BackgroundIndexing(ANY_ROW)
    result = append_and_index(uri, indexing, 60, 90)
    assert result is not None
    assert set(result.reasons) == {"id_idx", "g_idx"}
    assert set(result.problems) == {"g_idx"}
    assert result.version == newest().version
    assert missing_by_name(uri) == {"g_idx": 30, "id_idx": 0}
    assert "the index g_idx was not updated; the stream continues" in caplog.text
    outcomes = indexing.take_outcomes()
    assert outcomes["id_idx"] == "fresh"
    assert outcomes["g_idx"] == result.problems["g_idx"]
    assert indexing.take_outcomes() == {}


def test_damaged_indices_are_retried_later(uri: str, gate: Gate) -> None:
    """A retry at every round would waste a build each time, while a rebuilt index is tried at
    once.
    """
    gate.is_open.set()
    damage(uri, "g_idx")
    indexing = BackgroundIndexing(ANY_ROW)
    for number in range(60, 90, 10):
        result = append_and_index(uri, indexing, number, number + 10)
        assert result is not None
        assert set(result.reasons) == ({"id_idx", "g_idx"} if number == 60 else {"id_idx"})
    lance.dataset(uri).create_scalar_index("g", "BITMAP")  # it is another one now
    append_and_index(uri, indexing, 90, 100)
    assert missing(uri) == {0}


def test_crashing_indices_do_not_block_others(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash names no index, so the round has to find out which one by building them
    separately.
    """
    program = (
        "import os, signal\n"
        "from lance_stream.maintenance.indices import child\n"
        "build = child.build\n"
        "def die(request, store):\n"
        "    if 'g_idx' in request.names: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return build(request, store)\n"
        "child.build = die\n"
        "child.main()\n"
    )
    monkeypatch.setattr(child, "_PROGRAM", program)
    indexing = BackgroundIndexing(ANY_ROW)
    result = append_and_index(uri, indexing, 60, 90)
    assert result is not None
    assert result.error is None
    assert "ended with code -9" in result.problems["g_idx"]
    assert missing_by_name(uri) == {"g_idx": 30, "id_idx": 0}


def test_age_limits_fire_between_batches(
    uri: str, newest: Callable[[], TableVersion], gate: Gate
) -> None:
    """When the source falls silent the last rows would stay unindexed past their limit."""
    gate.is_open.set()
    now = [time.time_ns() - 10**12]  # before the indices were made
    environment = replace(MACHINE, now_nanos=lambda: now[0])
    policy = RefreshPolicy(age=timedelta(seconds=0.2))
    indexing = BackgroundIndexing(policy, environment=environment)
    lance_stream.open_dataset(uri).append(rows(60, 90))
    indexing.after_batch(newest)
    assert indexing.wait(60)  # what will be due later is not waited for
    assert gate.num_built == 0
    indexing.after_batch(newest)
    now[0] += 10**13
    deadline = time.monotonic() + 60
    while missing(uri) != {0} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert missing(uri) == {0}
    assert indexing.stop(30)


def test_unused_sinks_end_their_thread(
    uri: str, newest: Callable[[], TableVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that opens many sinks must not collect threads."""
    monkeypatch.setattr(background, "_MAX_WAIT_SECONDS", 0.1)
    indexing = BackgroundIndexing(RefreshPolicy(age=timedelta(days=1)))
    lance_stream.open_dataset(uri).append(rows(60, 90))
    indexing.after_batch(newest)
    thread = indexing._thread
    assert thread is not None
    thread.join(0.5)
    assert thread.is_alive()
    del indexing
    thread.join(30)
    assert not thread.is_alive()


def test_rounds_without_effect_are_not_repeated(
    uri: str, newest: Callable[[], TableVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pylance may decline to update an index, and asking again at every batch would waste
    builds.
    """
    requests: list[Any] = []

    def build_nothing(request: Any, *_: Any) -> Built:
        requests.append(request)
        return Built(problems=dict.fromkeys(request.names, UNCHANGED))

    monkeypatch.setattr(background, "build_in_child", build_nothing)
    indexing = BackgroundIndexing(ANY_ROW)
    for number in range(60, 90, 10):
        lance_stream.open_dataset(uri).append(rows(number, number + 10))
        indexing.after_batch(newest)
        assert indexing.wait(60)
    assert len(requests) == 1
    assert "pylance left it unchanged" in indexing.take_outcomes()["id_idx"]


@pytest.mark.parametrize(
    ("before", "after", "is_problem"),
    [
        (9, 9, True),
        (9, 10, True),
        (9, 8, False),
        (9, 0, False),
        (0, 0, False),
        (None, 1, True),
        (None, 0, False),
    ],
)
def test_only_missing_progress_is_a_problem(
    newest: Callable[[], TableVersion],
    monkeypatch: pytest.MonkeyPatch,
    before: int | None,
    after: int,
    is_problem: bool,
) -> None:
    """An index that covers more rows than before is worth its next round."""
    table = newest()
    coverage = index_coverage(table)[0]
    covered = [replace(coverage, rows_unindexed=after)]
    monkeypatch.setattr(background, "index_coverage", lambda _: covered)
    monkeypatch.setattr(Built, "names", frozenset({coverage.name}))
    following = replace(table, manifest=table.manifest.successor())
    problems = BackgroundIndexing(ANY_ROW)._without_effect(
        [replace(coverage, rows_unindexed=before)], Built(), table, following
    )
    assert problems == ({coverage.name: f"it still lacks {after} rows"} if is_problem else {})


def test_missing_threads_do_not_stop_streams(
    uri: str, newest: Callable[[], TableVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an exhausted machine no thread may start for a moment; the stream goes on and a later
    round succeeds.
    """

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    indexing = BackgroundIndexing(ANY_ROW)
    lance_stream.open_dataset(uri).append(rows(60, 90))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        indexing.after_batch(newest)
    assert indexing.wait(1)
    indexing.after_batch(newest)
    assert indexing.wait(60)
    assert missing(uri) == {0}


ORPHAN = """
import sys, threading, lance_stream
from lance_stream.maintenance.indices import child
from lance_stream.maintenance.indices.update_indices import request_of
child._PROGRAM = (
    "import os, time; from lance_stream.maintenance.indices import child\\n"
    "child.build = lambda *_: (os.write(2, b'begun'), time.sleep(600))\\n"
    "child.main()"
)
popen = child.subprocess.Popen
def shown(*arguments, **named):
    made = popen(*arguments, **{**named, "stderr": None})
    print(made.pid, flush=True)
    return made
child.subprocess.Popen = shown
table = lance_stream.open_dataset(sys.argv[1]).table
child.build_in_child(request_of(table, ["id_idx"]), table.store.uri, {}, threading.Event())
"""


def test_children_end_soon_after_parents(uri: str) -> None:
    """A killed driver cannot clean up, and an orphan would go on using memory and cores."""
    arguments = [sys.executable, "-c", ORPHAN, uri]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        pid = int(parent.stdout.readline())
        assert parent.stderr.read(5) == b"begun"
        parent.kill()
    deadline = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # where nobody waits for orphans
