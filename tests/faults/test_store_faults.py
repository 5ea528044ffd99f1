"""A fault at each request of a commit in turn, on each kind of store: one commit or a clear error.

A single fault is overcome at once, and not reported above the store. A fault that lasts from
some request on ends in an error of `lance_stream.errors`, soon; then the table holds what
it held before or what it shall hold, and the next attempt finds out which. In no case does a batch
go in twice, or a version name what is not there.
"""

from collections.abc import Iterable, Iterator

import pytest

from tests.faults.faulty_buckets import (
    ACTIONS,
    HASTY,
    QUICK,
    Case,
    FaultyBucket,
    Options,
    Proxies,
    check_ends_clearly,
    check_is_overcome,
    run_at_every_request,
)
from tests.sampling import is_its_turn, some_of
from tests.servers.buckets import Bucket
from tests.servers.store_faults import CutAfter, CutBefore, CutBody, Forge, Hold, Repeat, Slow

ONCE_KINDS = ("put once", "start upload once", "complete once")


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


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    """Clients are kept for each proxy: a module's tests share them."""
    created = Proxies()
    yield created
    created.close()


def cases(faults: Iterable[str]) -> list[object]:
    """Return stores, actions and faults that belong together, the slow ones marked.

    Of the slow ones each is played on one of the stores, in turn; `make soak` plays all.
    """
    stores = list(STORES)
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
        for row, action in enumerate(ACTIONS)
        for column, fault in enumerate(faults)
        if (
            (fault in FEW_FAULTS and store == "s3_bucket")
            if action in LIKE_OTHERS
            else (action, fault) in FAST or is_its_turn(store, stores, row + column)
        )
    ]


@pytest.fixture
def bucket(request: pytest.FixtureRequest, store: str) -> Bucket:
    created = request.getfixturevalue(store)
    assert isinstance(created, Bucket)
    return created


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize(("store", "action_name", "fault"), cases(ONCE))
@pytest.mark.essential
def test_commits_overcome_single_faults(
    bucket: Bucket, proxies: Proxies, action_name: str, fault: str
) -> None:
    """A fault at any request of a commit is overcome at once."""
    action, case = ACTIONS[action_name], ONCE[fault]
    run_at_every_request(
        proxies,
        bucket.endpoint,
        lambda proxy: FaultyBucket(bucket, proxy),
        action,
        case,
        check_is_overcome(action, case),
        choose=lambda numbers: some_of(numbers, 2 if action_name == "append" else 4),
    )


@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize(("store", "action_name", "fault"), cases(FOR_EVER))
def test_lasting_faults_end_in_clear_errors(
    bucket: Bucket, proxies: Proxies, action_name: str, fault: str
) -> None:
    """The store fails from any request on, and the next attempt finds out whether the commit took
    effect.
    """
    action, case = ACTIONS[action_name], FOR_EVER[fault]
    run_at_every_request(
        proxies,
        bucket.endpoint,
        lambda proxy: FaultyBucket(bucket, proxy),
        action,
        case,
        check_ends_clearly(action, case),
        choose=lambda numbers: some_of(numbers, 2 if action_name == "append" else 4),
    )
