"""A kill, a lost reply or a rival at each step of a commit: no row is lost or duplicated."""

import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lance_stream.commit import rebasing
from lance_stream.commit.committer import CommittedTransaction, commit
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import (
    CommitUncertainError,
    IncompatibleConflictError,
    RetryableConflictError,
)
from lance_stream.ledger.lookup import has_batch_id
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.store import Store
from lance_stream.table.config import ledger_entries
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.rows import Append
from lance_stream.table.operations.transaction import Transaction
from tests.commit.tables import (
    append,
    commit_to,
    configure,
    create,
    delete,
    live_ids,
    make_environment,
    new_fragment,
)
from tests.contracts.watched_stores import WatchedStore

pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks"),
]

APP, QUERY = "flights", "4b1a"
NUM_ROWS = 7


def take_in(store: Store, batch_id: int, version: int | None = None) -> str:
    """What a sink does with a micro-batch: data files, then one Append with the ledger's entry."""
    log = ObjectStoreLog(store)
    fragment = new_fragment(NUM_ROWS)
    with store.open_writer(f"data/{os.getpid()}-{fragment.files[0].path}") as writer:
        writer.write(b"rows " * 1000)

    batch = MicroBatch(APP, batch_id, QUERY)

    def is_in(manifest: Manifest | None) -> str | None:
        assert manifest is not None
        return "taken in" if has_batch_id(manifest.config, batch, "memory://table") else None

    result = commit(
        log,
        Transaction(version or log.latest(), batch.uuid, Append((fragment,))),
        before_attempt=is_in,
        config_entries=lambda _newest, new_version: ledger_entries.config_entries(
            APP, ledger_entries.LedgerEntry(batch_id, QUERY, new_version)
        ),
        environment=make_environment(),
    )
    return "committed" if isinstance(result, CommittedTransaction) else result.reason


def count_calls(act: Callable[[Store], object], store: Store) -> int:
    watched = WatchedStore(store)
    act(watched)
    return len(watched.calls)


def at_call(number: int, act: Callable[[], None]) -> Callable[[str, str], None]:
    """Return a watch that acts at one call, counted from 0."""
    numbers = count()

    def watch(_call: str, _path: str) -> None:
        if next(numbers) == number:
            act()

    return watch


def in_child(act: Callable[[], None]) -> int:
    """Run something in a process of its own, and return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def check_whole(store: Store, num_batches: int) -> None:
    """The table holds each batch once, and every version of it can be read."""
    log = ObjectStoreLog(store)
    expected = 3 + num_batches * NUM_ROWS
    assert live_ids(log) == list(range(expected))
    versions = log.versions()
    assert versions == list(range(1, len(versions) + 1))
    for version in versions:
        live_ids(log, version)
    entry = ledger_entries.read_entry(log.read_latest().config, APP)
    assert (entry.batch_id if entry else -1) == num_batches - 1


# data file, newest version (2), transaction, manifest, hint
NUM_CALLS = 7


def test_micro_batches_make_the_assumed_calls(tmp_path: Path) -> None:
    """The tests below kill the writer at each of these calls, so an additional call would be left
    out.
    """
    store = LocalStore(str(tmp_path))
    create(3, store=store)
    assert count_calls(lambda watched: take_in(watched, 0), store) == NUM_CALLS


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_sinks_commit_batches_once(tmp_path: Path, when: str) -> None:
    """The sink is killed at each step, and started again."""
    store = LocalStore(str(tmp_path))
    create(3, store=store)
    for batch_id in range(NUM_CALLS):

        def die(batch_id: int = batch_id) -> None:
            watched = WatchedStore(store)
            setattr(watched, when, at_call(batch_id, kill_self))
            take_in(watched, batch_id)

        assert in_child(die) == signal.SIGKILL
        landed = (when == "after" and batch_id >= NUM_CALLS - 2) or batch_id == NUM_CALLS - 1
        check_whole(store, batch_id + landed)
        assert take_in(store, batch_id) == ("taken in" if landed else "committed")
        check_whole(store, batch_id + 1)
    assert ObjectStoreLog(store).latest() == NUM_CALLS + 1


@pytest.mark.parametrize(
    ("name", "nth", "landed"),
    [
        ("open", 2, False),  # 1 is the data file, 2 the transaction's
        ("link", 1, False),
        ("link", 2, False),
        ("fsync", 1, False),  # of the manifest, before it is linked
        ("fsync", 2, True),  # of the folder, after
    ],
)
def test_kills_within_stores_tear_nothing(
    tmp_path: Path, name: str, nth: int, landed: bool
) -> None:
    """A local write consists of several system calls, and a half-written manifest must never be
    visible under its name.
    """
    store = LocalStore(str(tmp_path))
    create(3, store=store)

    def die() -> None:
        real, numbers = getattr(os, name), count(1)

        def deadly(*arguments: Any, **options: Any) -> Any:
            is_new = name != "open" or arguments[1] & os.O_EXCL
            if is_new and next(numbers) == nth:
                kill_self()
            return real(*arguments, **options)

        setattr(os, name, deadly)
        take_in(store, 0)

    assert in_child(die) == signal.SIGKILL
    check_whole(store, int(landed))
    leftovers = [file.path for file in store.list() if file.path.endswith(".tmp")]
    assert len(leftovers) == (name != "open")
    assert take_in(store, 0) == ("taken in" if landed else "committed")
    check_whole(store, 1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(NUM_CALLS))
def test_errors_at_any_call_are_harmless(when: str, number: int) -> None:
    """No row is lost and none is duplicated, whichever call fails."""
    store = create(3).store

    def fail() -> None:
        raise OSError("the wire is cut")

    watched = WatchedStore(store)
    setattr(watched, when, at_call(number, fail))
    try:
        first = take_in(watched, 0)
    except OSError:
        first = "failed"
    assert first == ("failed" if number < 5 else "committed")
    check_whole(store, first == "committed")
    assert take_in(store, 0) == ("committed" if first == "failed" else "taken in")
    check_whole(store, 1)


def test_lost_replies_among_rivals_are_ours() -> None:
    """Another writer commits before the error arrives in place of the reply."""
    log = create(3)
    store = WatchedStore(log.store)

    def move_on_and_fail(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            commit_to(log, append(2, 1))
            raise OSError("the wire is cut")

    store.after = move_on_and_fail
    result = commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert isinstance(result, CommittedTransaction)
    assert result.manifest.version == 2
    assert live_ids(log) == list(range(9))


def test_requests_sent_twice_are_ours() -> None:
    """HTTP clients repeat a request on their own, and the second one finds the name taken."""
    log = create(3)
    store = WatchedStore(log.store)
    real = store.create_once

    def sent_twice(path: str, data: Any, **named: Any) -> bool:
        return real(path, data, **named) and real(path, data, **named)

    store.create_once = sent_twice
    result = commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert isinstance(result, CommittedTransaction)
    assert result.manifest.version == 2
    assert live_ids(log) == list(range(8))


def test_errors_after_losing_are_losses() -> None:
    """Another writer has taken the version, so this commit has to be tried again."""
    log = create(3)
    store = WatchedStore(log.store)

    def lose_and_fail(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest") and log.latest() == 1:
            commit_to(log, append(1, 1))
            raise OSError("the wire is cut")

    store.before = lose_and_fail
    result = commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert isinstance(result, CommittedTransaction)
    assert (result.manifest.version, result.attempts) == (3, 2)
    assert live_ids(log) == list(range(9))


def test_an_unresponsive_store_leaves_uncertainty() -> None:
    """The version may have been published, so no file may be deleted."""
    log = create(3)
    store = WatchedStore(log.store)

    def fail(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            raise OSError("the wire is cut")

    store.before = fail
    with pytest.raises(CommitUncertainError, match="may or may not have been published") as caught:
        commit(ObjectStoreLog(store), append(1, 5), environment=make_environment())
    assert "the wire is cut" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert [call for call, _ in store.calls if call == "delete"] == []
    assert log.versions() == [1]


def test_unreadable_versions_leave_uncertainty() -> None:
    """Reporting failure would make the caller write the rows again, although they are in the
    table.
    """
    log = create(3)
    store = WatchedStore(log.store)
    planned = append(1, 5)

    def cut(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            store.before = fail
            raise OSError("the wire is cut")

    def fail(_call: str, _path: str) -> None:
        raise OSError("nothing can be reached")

    store.after = cut
    with pytest.raises(CommitUncertainError, match="cannot be read"):
        commit(ObjectStoreLog(store), planned, environment=make_environment())
    assert live_ids(log) == list(range(8))
    again = commit(log, planned, environment=make_environment())
    assert not isinstance(again, CommittedTransaction)
    assert live_ids(log) == list(range(8))


Plan = Callable[[ObjectStoreLog], Transaction]
PLANS: dict[str, Plan] = {
    "append": lambda _log: append(1, 5),
    "delete": lambda log: delete(log, 1, [0, 11]),
    "other delete": lambda log: delete(log, 1, [1, 2]),
    "config": lambda _log: configure(1, key="value"),
}
CONFLICTS = {("delete", "delete"), ("other delete", "other delete"), ("config", "config")}


@pytest.mark.parametrize("theirs", PLANS)
@pytest.mark.parametrize("ours", PLANS)
def test_two_committers_interleave_at_every_step(ours: str, theirs: str) -> None:
    """Each pair of operations must end as if one came after the other, wherever one interrupts the
    other.
    """
    killed = {"delete": [0, 11], "other delete": [1, 2]}
    deleted = {*killed.get(ours, []), *killed.get(theirs, [])}
    num_appended = 5 * ((ours == "append") + (theirs == "append"))
    for step in count():
        log, landed, num_calls = meet(step, PLANS[ours], PLANS[theirs])
        if num_calls <= step:
            break
        assert sorted(landed) == [(ours, theirs) not in CONFLICTS, True], step
        assert live_ids(log) == [n for n in range(15 + num_appended) if n not in deleted], step
        assert log.versions() == list(range(1, 2 + sum(landed)))
    assert step >= 4


def meet(step: int, ours: Plan, theirs: Plan) -> tuple[ObjectStoreLog, list[bool], int]:
    """Commit ours, and at one of its calls theirs; return which landed, and how many calls."""
    log = create(10, 5)
    our_plan, their_plan = ours(log), theirs(log)
    landed: list[bool] = []
    store = WatchedStore(
        log.store, before=at_call(step, lambda: landed.append(land(log, their_plan)))
    )
    landed.append(land(ObjectStoreLog(store), our_plan))
    return log, landed, len(store.calls)


def land(log: ObjectStoreLog, planned: Transaction) -> bool:
    try:
        return isinstance(
            commit(log, planned, environment=make_environment()), CommittedTransaction
        )
    except (RetryableConflictError, IncompatibleConflictError):
        return False


def test_three_nested_committers_lose_no_row() -> None:
    """Two further writers commit within each step of the first."""
    for first in range(6):
        for second in range(6):
            log = create(10)

            def third(log: ObjectStoreLog = log) -> None:
                commit_to(log, append(1, 3))

            def other(log: ObjectStoreLog = log, second: int = second) -> None:
                store = WatchedStore(log.store, before=at_call(second, third))
                commit_to(ObjectStoreLog(store), append(1, 2))

            store = WatchedStore(log.store, before=at_call(first, other))
            result = commit(ObjectStoreLog(store), append(1, 1), environment=make_environment())
            assert isinstance(result, CommittedTransaction)
            expected = 10 + 1 + 2 * (len(store.calls) > first)
            assert live_ids(log) == list(range(len(live_ids(log))))
            assert len(live_ids(log)) in (expected, expected + 3)
            assert log.versions() == list(range(1, log.latest() + 1))


def test_failed_deletion_files_stop_the_rebase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Publishing a manifest that names a missing deletion file would make the table unreadable."""
    log = create(10)
    ours, theirs = delete(log, 1, [0]), delete(log, 1, [1])
    commit_to(log, theirs)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rebasing, "write_deletion_file", full)
    with pytest.raises(OSError, match="No space"):
        commit(log, ours, environment=make_environment())
    assert log.latest() == 2
