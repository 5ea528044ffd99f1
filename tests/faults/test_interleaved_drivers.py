"""Two drivers, stopped at every step: a batch is written once, and of two batches none is lost."""

import uuid
from collections.abc import Callable, Iterator
from itertools import count, product

import pytest

from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from tests.faults.drivers import (
    APP,
    FIRST_VERSION,
    MODES,
    START,
    Driver,
    all_orders,
    batch_for,
    check_sound,
    copy_table,
    make_table,
    newest_batch,
    open_dataset,
    rows_at,
    take_in,
    versions_of,
)
from tests.sampling import some_of

OTHER_APP = "trains"


@pytest.fixture
def copy() -> Callable[[], str]:
    """A function that gives a fresh table, each time the same."""
    root = f"memory://{uuid.uuid4()}"
    original = make_table(f"{root}/table")
    numbers = count()
    return lambda: copy_table(original, f"{root}/copy-{next(numbers)}")


def driver(uri: str, mode: str, app_id: str = APP, batch_id: int = 0) -> Driver:
    def act(store: Store) -> None:
        take_in(mode, uri, store, app_id, batch_id)

    return Driver(act, open_store(uri))


def count_steps(copy: Callable[[], str], mode: str) -> int:
    alone = driver(copy(), mode)
    alone.finish()
    return alone.num_calls


def stops(copy: Callable[[], str], mode: str, seed: str = "") -> list[int]:
    """Return after how many steps a driver is stopped; `make soak` stops it after any."""
    steps = some_of(range(count_steps(copy, mode)), one_in=2, seed=f"{mode} {seed}")
    assert len(steps) > 3
    return steps


def grid(copy: Callable[[], str], ours: str, theirs: str) -> Iterator[tuple[int, int]]:
    """Yield after how many steps the first driver stops, and the second meanwhile.

    There are about a thousand such pairs for each two modes; `make soak` plays them all.
    """
    steps = product(range(count_steps(copy, ours)), range(1, count_steps(copy, theirs) + 1))
    chosen = some_of(steps, one_in=12)
    assert len(chosen) > 4
    yield from chosen


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_two_drivers_commit_a_batch_once(mode: str, copy: Callable[[], str]) -> None:
    """The steps of the two drivers are interleaved in every way."""
    expected = MODES[mode].model(START, batch_for(mode, APP, 0))
    for first, second in grid(copy, mode, mode):
        uri = copy()
        one, other = driver(uri, mode), driver(uri, mode)
        one.go_on(first)
        other.go_on(second)
        one.finish()
        other.finish()
        assert rows_at(uri) == expected, (first, second)
        assert versions_of(uri) == FIRST_VERSION + 1
        assert newest_batch(uri) == 0
        check_sound(uri)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(("ours", "theirs"), list(product(MODES, MODES)))
def test_two_streams_are_serializable(ours: str, theirs: str, copy: Callable[[], str]) -> None:
    """One stream commits at any step of the other, and the rows must be those of some serial
    order.
    """
    orders = all_orders(
        START, [(ours, batch_for(ours, APP, 0)), (theirs, batch_for(theirs, OTHER_APP, 0))]
    )
    met = set()
    for first in stops(copy, ours, seed=theirs):
        uri = copy()
        one = driver(uri, ours)
        one.go_on(first)
        take_in(theirs, uri, app_id=OTHER_APP)
        one.finish()
        check_both_in(uri, orders)
        met.add(tuple(rows_at(uri)))
    assert tuple(orders[1]) in met, "theirs came first"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs"), [("upsert", "upsert"), ("cdc", "cdc"), ("append", "overwrite")]
)
def test_mutually_interrupted_streams_are_serializable(
    ours: str, theirs: str, copy: Callable[[], str]
) -> None:
    """Both streams plan on versions that the other one replaces."""
    orders = all_orders(
        START, [(ours, batch_for(ours, APP, 0)), (theirs, batch_for(theirs, OTHER_APP, 0))]
    )
    for first, second in grid(copy, ours, theirs):
        uri = copy()
        one, other = driver(uri, ours), driver(uri, theirs, OTHER_APP)
        one.go_on(first)
        other.go_on(second)
        one.finish()
        other.finish()
        check_both_in(uri, orders)


def check_both_in(uri: str, orders: list[list[tuple[int, str, int]]]) -> None:
    assert rows_at(uri) in orders
    assert (newest_batch(uri), newest_batch(uri, OTHER_APP)) == (0, 0)
    check_sound(uri)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.essential
def test_a_late_zombie_changes_nothing(mode: str, copy: Callable[[], str]) -> None:
    """The zombie wakes up after its successor has continued."""
    for stopped_at in stops(copy, mode):
        uri = copy()
        zombie = driver(uri, mode)
        zombie.go_on(stopped_at)
        for batch_id in range(3):
            take_in(mode, uri, batch_id=batch_id)
        before = (rows_at(uri), versions_of(uri))
        zombie.finish()
        assert (rows_at(uri), versions_of(uri)) == before, stopped_at
        assert newest_batch(uri) == 2
        check_sound(uri)


@pytest.mark.parametrize("mode", MODES)
def test_zombies_learn_late_of_their_commit(mode: str, copy: Callable[[], str]) -> None:
    """The zombie stops just after publishing, and its successor continues from there."""
    num_steps = count_steps(copy, mode)
    uri = copy()
    zombie = driver(uri, mode)
    zombie.go_on(num_steps - 1)  # all but hearing of it
    assert versions_of(uri) == FIRST_VERSION + 1
    for batch_id in range(3):
        take_in(mode, uri, batch_id=batch_id)
    before = rows_at(uri)
    zombie.finish()
    assert rows_at(uri) == before
    assert versions_of(uri) == FIRST_VERSION + 3
    check_sound(uri)


@pytest.mark.parametrize("mode", MODES)
def test_nested_drivers_commit_a_batch_once(mode: str, copy: Callable[[], str]) -> None:
    """A cluster manager may start a third driver before the first two are gone."""
    expected = MODES[mode].model(START, batch_for(mode, APP, 0))
    num_steps = count_steps(copy, mode)
    for first in stops(copy, mode):
        uri = copy()
        drivers = [driver(uri, mode) for _ in range(3)]
        for number, value in enumerate(drivers):
            value.go_on((first + 3 * number) % num_steps)
        for item in drivers:
            item.finish()
        assert rows_at(uri) == expected
        assert versions_of(uri) == FIRST_VERSION + 1
        check_sound(uri)


@pytest.mark.parametrize("mode", MODES)
def test_an_overtaking_zombie_loses_nothing(mode: str, copy: Callable[[], str]) -> None:
    """Batch 0 is committed, and a zombie repeats it while the successor is in the middle of batch
    1.
    """
    batches = [batch_for(mode, APP, batch_id) for batch_id in range(2)]
    expected = MODES[mode].model(MODES[mode].model(START, batches[0]), batches[1])
    for stopped_at in stops(copy, mode):
        uri = copy()
        take_in(mode, uri)
        successor = driver(uri, mode, batch_id=1)
        successor.go_on(stopped_at)
        take_in(mode, uri)  # the zombie
        successor.finish()
        assert rows_at(uri) == expected
        assert versions_of(uri) == FIRST_VERSION + 2
        check_sound(uri)


@pytest.mark.parametrize("mode", ["upsert", "cdc"])
def test_united_deletion_files_are_cleaned_up(mode: str, copy: Callable[[], str]) -> None:
    """Another row of the fragment is deleted at each step, so the batch is rebased or planned
    again.
    """
    expected = [row for row in MODES[mode].model(START, batch_for(mode, APP, 0)) if row[0] != 5]
    for first in stops(copy, mode):
        uri = copy()
        one = driver(uri, mode)
        one.go_on(first)
        open_dataset(uri).delete("id = 5")
        one.finish()
        assert rows_at(uri) == expected
        check_sound(uri)
