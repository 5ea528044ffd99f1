"""Two drivers of histories, stopped at every step: each batch counts once, and none is lost."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from lance_stream.upsert.change_rules import ChangeRules
from lance_stream.upsert.upsert import upsert
from tests.faults.drivers import WITHOUT_WAITING, Driver, check_sound, copy_table
from tests.sampling import some_of
from tests.upsert.histories import dimension_models as model
from tests.upsert.histories.dimension_models import Change, batch_of, states
from tests.upsert.histories.test_histories import HISTORY

RULES = ChangeRules(
    True, ("id",), ("seq",), "op = 'd'", except_column_list=("seq", "op")
).upsert_rules()

START = [Change(1, "Ulm", "x", 10, "u"), Change(2, "Bonn", "x", 10, "u")]
START += [Change(2, None, None, 30, "d")]
OURS = [Change(1, "Bonn", "x", 20, "u"), Change(2, None, None, 20, "d")]
OURS += [Change(3, "Ulm", "x", 5, "u"), Change(4, None, None, 9, "d")]

THEIRS = {
    "the rows of a key": [Change(1, "Trier", "x", 15, "u"), Change(2, "Ulm", "x", 25, "u")],
    "the same new key": [Change(3, "Trier", "x", 7, "u")],
    "a key of which a delete is hidden": [Change(4, "Ulm", "x", 3, "u")],
    "a delete of a new key": [Change(3, None, None, 5, "d"), Change(4, None, None, 2, "d")],
    "a repeat of a new key": [Change(3, "Ulm", "x", 8, "u")],
    "a key between two rows": [Change(2, "Ulm", "x", 40, "u"), Change(2, "Bonn", "x", 9, "u")],
}


@pytest.fixture
def copy() -> Callable[[], str]:
    """A function that gives a fresh table, each time the same."""
    root = f"memory://{uuid.uuid4()}"
    ds = lance_stream.create_dataset(f"{root}/table", HISTORY)
    result = upsert(ds.table, batch_of(START), RULES)
    numbers = count()
    return lambda: copy_table(result.table.uri, f"{root}/copy-{next(numbers)}")


def take_in(
    uri: str, changes: list[Change], app_id: str, store: Store | None = None, batch_id: int = 0
) -> None:
    table = open_newest(uri)
    if store is not None:
        table = replace(table, store=store, log=ObjectStoreLog(store))
    micro_batch = PendingBatch.of(app_id, batch_id, "a query")
    upsert(table, batch_of(changes), RULES, micro_batch, environment=WITHOUT_WAITING)


def driver(uri: str, changes: list[Change], app_id: str = "ours") -> Driver:
    return Driver(lambda store: take_in(uri, changes, app_id, store), open_store(uri))


def check(uri: str, *batches: list[Change]) -> None:
    rows = states(lance_stream.open_dataset(uri).to_table())
    assert rows == model.history([change for batch in (START, *batches) for change in batch])
    check_sound(uri)


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.essential
def test_writers_may_commit_at_any_step(theirs: str, copy: Callable[[], str]) -> None:
    """Another writer's events change the intervals that the batch has planned to close."""
    alone = driver(copy(), OURS)
    alone.finish()
    for step in some_of(range(alone.num_calls), one_in=2, seed=theirs):
        uri = copy()
        one = driver(uri, OURS)
        one.go_on(step)
        take_in(uri, THEIRS[theirs], "theirs")
        one.finish()
        check(uri, OURS, THEIRS[theirs])


@pytest.mark.essential
def test_two_drivers_commit_a_batch_once(copy: Callable[[], str]) -> None:
    """A history with an event applied twice would have overlapping intervals."""
    alone = driver(copy(), OURS)
    alone.finish()
    for step in range(alone.num_calls):
        uri = copy()
        zombie = driver(uri, OURS)
        zombie.go_on(step)
        take_in(uri, OURS, "ours")
        take_in(uri, THEIRS["the rows of a key"], "ours", batch_id=1)
        before = lance_stream.open_dataset(uri).version
        zombie.finish()
        assert lance_stream.open_dataset(uri).version == before
        check(uri, OURS, THEIRS["the rows of a key"])


def test_compactions_may_commit_at_any_step(copy: Callable[[], str]) -> None:
    """Compaction moves the rows whose intervals the batch is about to close."""
    alone = driver(copy(), OURS)
    alone.finish()
    for step in range(alone.num_calls):
        uri = copy()
        one = driver(uri, OURS)
        one.go_on(step)
        lance_stream.open_dataset(uri).compact()
        one.finish()
        rows = states(lance_stream.open_dataset(uri).to_table())
        assert rows == model.history([*START, *OURS])
