"""A fault at each request of a commit in turn, on each kind of store: one commit or a clear error.

What goes wrong once is overcome at once: nobody above the store hears of it. What goes wrong from
some request on for ever ends in an error of `lance_stream.errors`, soon; then the table holds what
it held before or what it shall hold, and the next attempt finds out which. In no case does a batch
go in twice, or a version name what is not there.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from lance_stream.errors import (
    CommitUncertainError,
    LanceStreamError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from tests.faults.faulty_places import (
    ACTIONS,
    HASTY,
    QUICK,
    Action,
    Options,
    Place,
    check_done,
    rows_there,
)
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import (
    CutAfter,
    CutBefore,
    CutBody,
    Fault,
    Forge,
    Hold,
    Repeat,
    Slow,
)
from tests.servers.store_requests import StoreRequest

ONCE_KINDS = ("put once", "start upload once", "complete once")


class Case(NamedTuple):
    """A fault, and which requests can meet it."""

    fault: Fault
    kinds: tuple[str, ...] = ()
    patience: Options = QUICK

    def can_meet(self, request: StoreRequest) -> bool:
        return not self.kinds or request.kind in self.kinds


ONCE = {
    "cut before": Case(CutBefore()),
    "cut after by a reset": Case(CutAfter(reset=True)),
    "cut in the body": Case(CutBody()),
    "sent twice": Case(Repeat()),
    "500 and done all the same": Case(Forge(500, landed=True)),
    "503": Case(Forge(503)),
    "429": Case(Forge(429)),
    "409 of two at once": Case(Forge(409), ONCE_KINDS),
    "412 though nothing is there": Case(Forge(412), ONCE_KINDS),
    "arrives late": Case(Hold(1.0), (), HASTY),
    "done, and the answer is late": Case(Slow(1.0), (), HASTY),
}
"""Met by one request."""

BRIEF: Options = {**QUICK, "client_max_retries": "1"}
FOR_EVER = {
    "cut before": Case(CutBefore(reset=True), (), BRIEF),
    "cut after": Case(CutAfter(), (), BRIEF),
    "503": Case(Forge(503), (), BRIEF),
    "403": Case(Forge(403), (), BRIEF),
    "500 and done all the same": Case(Forge(500, landed=True), (), BRIEF),
    "409 of two at once": Case(Forge(409), ONCE_KINDS, BRIEF),
    "412 though nothing is there": Case(Forge(412), ONCE_KINDS, BRIEF),
    "arrives late": Case(Hold(0.8), (), {**HASTY, "client_max_retries": "1"}),
}
"""Met by all requests from one on."""

STORES = {"s3_bucket": "moto", "google_bucket": "fake_gcs", "azure_container": "azurite"}

# What is done in each run of the tests; the rest is slow.
FAST = {("append", "cut before"), ("append", "cut after by a reset"), ("append", "403")}
# They ask a store nothing that others do not: a few faults, on one store.
LIKE_OTHERS = ("overwrite", "delete", "replay")
FEW_FAULTS = ("cut after by a reset", "cut after", "500 and done all the same", "403")

BOUND_SECONDS = 30.0
NUM_AT_ONCE = 4


class Proxies:
    """Some proxies before each server, so that several tables can be at work at once."""

    def __init__(self) -> None:
        self._idle: dict[str, list[FaultProxy]] = {}
        self._all: list[FaultProxy] = []

    @contextmanager
    def before(self, bucket: Bucket) -> Iterator[Place]:
        """Lend a proxy before the server of a bucket."""
        idle = self._idle.setdefault(bucket.endpoint, [])
        try:
            proxy = idle.pop()
        except IndexError:
            url = urlsplit(bucket.endpoint)
            proxy = FaultProxy(f"{url.scheme}://{url.netloc}")
            self._all.append(proxy)
        proxy.clear()
        yield Place(bucket, proxy)
        proxy.clear()
        proxy.quiet()
        idle.append(proxy)

    def close(self) -> None:
        for each in self._all:
            each.close()


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    """Clients are kept for each proxy: a module's tests share them."""
    made = Proxies()
    yield made
    made.close()


def num_requests(action: Action, case: Case, place: Place) -> int:
    """Return how many requests of an action can meet a fault."""
    uri = action.new_table(place)
    place.proxy.clear()
    action.act(uri, place.through(case.patience))
    check_done(action, uri, place.direct, place.proxy.story())
    return sum(map(case.can_meet, place.proxy.requests))


def at_each_request(
    proxies: Proxies,
    bucket: Bucket,
    action: Action,
    case: Case,
    try_at: Callable[[Place, int], None],
) -> None:
    """Try something at each request that can meet a fault, with a table and a proxy for each."""

    def at(number: int) -> None:
        with proxies.before(bucket) as place:
            try_at(place, number)

    with proxies.before(bucket) as place:
        numbers = range(1, num_requests(action, case, place) + 1)
    assert numbers or case.kinds
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(at, numbers))


def cases(faults: Iterable[str]) -> list[object]:
    """Return stores, actions and faults that belong together, the slow ones marked."""
    return [
        pytest.param(
            store,
            action,
            fault,
            marks=[
                pytest.mark.server(server),
                *([] if (action, fault) in FAST else [pytest.mark.slow]),
            ],
        )
        for store, server in STORES.items()
        for action in ACTIONS
        for fault in faults
        if action not in LIKE_OTHERS or (fault in FEW_FAULTS and store == "s3_bucket")
    ]


@pytest.fixture
def bucket(request: pytest.FixtureRequest, store: str) -> Bucket:
    made = request.getfixturevalue(store)
    assert isinstance(made, Bucket)
    return made


@pytest.mark.parametrize(("store", "action_name", "fault"), cases(ONCE))
def test_a_fault_at_any_request_of_a_commit_is_overcome_at_once(
    bucket: Bucket, proxies: Proxies, action_name: str, fault: str
) -> None:
    action, case = ACTIONS[action_name], ONCE[fault]

    def try_at(place: Place, number: int) -> None:
        proxy, options = place.proxy, place.through(case.patience)
        uri = action.new_table(place)
        rule = proxy.add(case.fault, at=number, matches=case.can_meet)
        action.act(uri, options)
        proxy.quiet()
        told = f"at {number}:\n{proxy.story()}"
        assert rule.num_fired == 1, told
        action.act(uri, options)
        check_done(action, uri, place.direct, told)

    at_each_request(proxies, bucket, action, case, try_at)


@pytest.mark.parametrize(("store", "action_name", "fault"), cases(FOR_EVER))
def test_a_store_that_fails_from_any_request_on_ends_in_a_clear_error_and_the_next_try_finds_out(
    bucket: Bucket, proxies: Proxies, action_name: str, fault: str
) -> None:
    action, case = ACTIONS[action_name], FOR_EVER[fault]

    def try_at(place: Place, number: int) -> None:
        proxy, options = place.proxy, place.through(case.patience)
        uri = action.new_table(place)
        rule = proxy.add(case.fault, at=number, times=None, matches=case.can_meet)
        started = time.monotonic()
        error = attempt(action, uri, options)
        seconds = time.monotonic() - started
        proxy.heal()
        proxy.quiet()
        told = f"at {number}, {seconds:.1f} s, {error!r}:\n{proxy.story()}"
        assert rule.num_fired, told
        assert seconds < BOUND_SECONDS, told
        there = rows_there(uri, place.direct)
        assert there in (action.before, action.after), told
        if error is None:
            assert there == action.after, told
        else:
            check_is_clear(error, case, told)
        action.act(uri, options)
        check_done(action, uri, place.direct, told)

    at_each_request(proxies, bucket, action, case, try_at)


def attempt(action: Action, uri: str, options: Options) -> LanceStreamError | None:
    """Do it; return the error it ends with. Others than ours are not caught."""
    try:
        action.act(uri, options)
    except LanceStreamError as error:
        return error
    return None


def check_is_clear(error: LanceStreamError, case: Case, told: str) -> None:
    """The error says what was asked, of whom and how often; or what the store said no to."""
    assert isinstance(error, StoreError | CommitUncertainError), told
    text = str(error)
    if isinstance(case.fault, Forge) and case.fault.status == 403:
        assert isinstance(error, StoreRefusedError), told
        assert "403" in text, told
    if isinstance(error, StoreUnavailableError):
        assert re.search(r"\d+ (times|names)", text), told
        assert re.search(r"127\.0\.0\.1:\d+|://", text), told
    if isinstance(error, CommitUncertainError):
        assert "again" in text, told
    assert not re.search(r"test-secret|Eby8vdM0|test-token", text), told
