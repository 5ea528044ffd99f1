"""A store that fails, answers late, or answers after a retry: each batch is written once."""

import uuid
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from lance_stream.errors import CommitUncertainError
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from tests.contracts.watched_stores import WatchedStore
from tests.faults.drivers import (
    APP,
    FIRST_VERSION,
    MODES,
    START,
    Driver,
    batch_for,
    check_sound,
    copy_table,
    make_table,
    named_files,
    newest_batch,
    open_dataset,
    rows_at,
    take_in,
    versions_of,
)

pytestmark = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def copy() -> Callable[[], str]:
    """A function that gives a fresh table, each time the same."""
    root = f"memory://{uuid.uuid4()}"
    original = make_table(f"{root}/table")
    numbers = count()
    return lambda: copy_table(original, f"{root}/copy-{next(numbers)}")


def cut() -> None:
    raise OSError("the wire is cut")


def count_calls(mode: str, uri: str) -> int:
    store = WatchedStore(open_store(uri))
    take_in(mode, uri, store)
    return len(store.calls)


def once_at(number: int, act: Callable[[], None]) -> Callable[[str, str], None]:
    numbers = count()
    return lambda _call, _path: act() if next(numbers) == number else None


def check_in_once(mode: str, uri: str) -> None:
    """The table has the first batch, and no version but its own came to be."""
    assert rows_at(uri) == MODES[mode].model(START, batch_for(mode, APP, 0))
    assert versions_of(uri) == FIRST_VERSION + 1
    assert newest_batch(uri) == 0


def check_whole(uri: str) -> None:
    """Whatever a version names is there, and right; other files may have been left behind."""
    table = open_dataset(uri)
    assert table.verify() == []
    assert named_files(table.table) <= {file.path for file in table.table.store.list()}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("when", ["before", "after"])
def test_retries_after_any_error_commit_once(mode: str, when: str, copy: Callable[[], str]) -> None:
    """An error before and one after the effect of a call look the same to the writer."""
    outcomes = set()
    for number in range(count_calls(mode, copy())):
        uri = copy()
        store = WatchedStore(open_store(uri))
        setattr(store, when, once_at(number, cut))
        try:
            take_in(mode, uri, store)
            outcomes.add("in at once")
        except OSError:
            outcomes.add("failed")
        assert rows_at(uri) in (START, MODES[mode].model(START, batch_for(mode, APP, 0)))
        take_in(mode, uri)
        check_in_once(mode, uri)
        check_whole(uri)
    assert outcomes == {"in at once", "failed"}


@pytest.mark.quick_cases(one_in=2)
def test_recovered_stores_have_batches_once(mode: str, copy: Callable[[], str]) -> None:
    """The store goes away at any call and comes back."""
    landed = set()
    for number in range(count_calls(mode, copy())):
        uri = copy()
        numbers = count()
        store = WatchedStore(
            open_store(uri),
            before=lambda _call, _path, n=number, at=numbers: cut() if next(at) >= n else None,
        )
        try:
            take_in(mode, uri, store)
        except (OSError, CommitUncertainError):
            landed.add(versions_of(uri) > FIRST_VERSION)
        take_in(mode, uri)
        check_in_once(mode, uri)
        check_whole(uri)
    assert landed == {False}, "without an answer to the publication nothing lands in this store"


class LateStore(WatchedStore):
    """A store whose requests to publish time out, and are carried out when `arrive` is called."""

    def create_once(self, path: str, data: Any, **named: Any) -> bool:
        if not path.endswith(".manifest"):
            return super().create_once(path, data, **named)
        self.under_way.append((path, bytes(data)))
        raise TimeoutError("no answer")

    def arrive(self) -> list[bool]:
        return [self.inner.create_once(*value) for value in self.under_way]

    @property
    def under_way(self) -> list[tuple[str, bytes]]:
        return self.__dict__.setdefault("_under_way", [])


def test_successors_notice_late_publications(mode: str, copy: Callable[[], str]) -> None:
    """The publication arrives after the driver has given up."""
    uri = copy()
    late = LateStore(open_store(uri))
    with pytest.raises(CommitUncertainError, match="may or may not have been published"):
        take_in(mode, uri, late)
    assert sum(late.arrive()) == 1
    check_in_once(mode, uri)
    take_in(mode, uri)
    check_in_once(mode, uri)
    check_sound(uri)


@pytest.mark.quick_cases(one_in=2)
def test_late_publications_during_successors_count_once(mode: str, copy: Callable[[], str]) -> None:
    """The publication arrives at any step of the next driver."""
    arrived_first = set()
    for stopped_at in count():
        uri = copy()
        late = LateStore(open_store(uri))
        with pytest.raises(CommitUncertainError):
            take_in(mode, uri, late)

        def act(store: Store, uri: str = uri) -> None:
            take_in(mode, uri, store)

        successor = Driver(act, open_store(uri))
        is_done = successor.go_on(stopped_at)
        arrived_first.add(sum(late.arrive()))
        successor.finish()
        check_in_once(mode, uri)
        check_whole(uri)
        if is_done:
            break
    assert arrived_first == {0, 1}


def test_late_errors_commit_once(mode: str, copy: Callable[[], str]) -> None:
    """The version is published and two more follow before the reply turns out to be an error."""
    uri = copy()

    def move_on(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            take_in(mode, uri, app_id="trains")
            take_in(mode, uri, batch_id=1)
            cut()

    take_in(mode, uri, WatchedStore(open_store(uri), after=move_on))
    expected = START
    for app_id, batch_id in ((APP, 0), ("trains", 0), (APP, 1)):
        expected = MODES[mode].model(expected, batch_for(mode, app_id, batch_id))
    assert rows_at(uri) == expected
    assert versions_of(uri) == FIRST_VERSION + 3
    check_sound(uri)


def test_requests_repeated_by_clients_count_once(mode: str, copy: Callable[[], str]) -> None:
    """The repeated request is refused as taken, although the version is the writer's own."""
    uri = copy()

    class Twice(WatchedStore):
        def create_once(self, path: str, data: Any, **named: Any) -> bool:
            return all(super(Twice, self).create_once(path, data, **named) for _ in range(2))

    take_in(mode, uri, Twice(open_store(uri)))
    check_in_once(mode, uri)
    check_sound(uri)


def test_undeletable_files_of_losers_are_harmless(mode: str, copy: Callable[[], str]) -> None:
    """A writer without the permission to delete must not fail or damage the winner's version."""
    uri = copy()

    def act(store: Store) -> None:
        take_in(mode, uri, store)

    store = WatchedStore(open_store(uri))
    real = store.inner.delete
    failures: list[str] = []

    def fail(path: str) -> None:
        failures.append(path)
        raise PermissionError(path)

    store.delete = fail
    loser = Driver(act, store)
    loser.go_on(4)
    take_in(mode, uri)
    loser.finish()
    assert failures, "the loser had files to delete"
    check_in_once(mode, uri)
    check_whole(uri)
    for path in failures:
        real(path)
    check_sound(uri)
