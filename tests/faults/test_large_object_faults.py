"""A fault at each request by which a large object is sent, on each kind of store.

The object is there once and whole, and its creator learns so even if a reply was lost.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lance_stream.errors import StoreUnavailableError
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from tests.faults.faulty_buckets import QUICK, Options, Proxies, through
from tests.sampling import is_its_turn, some_of
from tests.servers.fault_proxy import FaultProxy
from tests.servers.google_front import GoogleFront
from tests.servers.store_faults import (
    CutAfter,
    Fault,
    Forge,
    Hold,
    Repeat,
)

pytestmark = pytest.mark.slow

DATA = np.random.default_rng(7).bytes(18 << 20)
OTHERS_DATA = DATA[::-1]


def write_in_pieces(store: Store, path: str) -> None:
    with store.open_writer(path) as writer:
        for start in range(0, len(DATA), 3_000_000):
            writer.write(DATA[start : start + 3_000_000])


def create_once(store: Store, path: str) -> None:
    assert store.create_once(path, DATA)


def create_once_where_it_is(store: Store, path: str) -> None:
    assert not store.create_once(path, OTHERS_DATA)


STORES = {"s3_bucket": "moto", "google_front": "fake_gcs", "azure_container": "azurite"}
"""Fixtures of buckets, with the server that they need."""

WAYS: dict[str, Callable[[Store, str], None]] = {
    "written in pieces": write_in_pieces,
    "created once": create_once,
    "created once where another is": create_once_where_it_is,
}
FAULTS: dict[str, Fault] = {
    "503": Forge(503),
    "cut after": CutAfter(reset=True),
    "sent twice": Repeat(),
    "arrives late": Hold(4.0),
}


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    created = Proxies()
    yield created
    created.close()


CASES = [
    pytest.param(store, fault, way, marks=pytest.mark.server(server))
    for store, server in STORES.items()
    for row, fault in enumerate(FAULTS)
    for column, way in enumerate(WAYS)
    if is_its_turn(store, list(STORES), row + column)
]
"""Each fault in each way, on one of the stores; `make soak` plays all."""


@pytest.mark.parametrize(("store_name", "fault", "way"), CASES)
def test_faults_of_large_objects_are_overcome(
    request: pytest.FixtureRequest, proxies: Proxies, store_name: str, fault: str, way: str
) -> None:
    """A fault at any request of a large object is overcome."""
    fixture = request.getfixturevalue(store_name)
    bucket = fixture.new_bucket() if isinstance(fixture, GoogleFront) else fixture
    is_late = isinstance(FAULTS[fault], Hold)
    retry_policy: Options = {**QUICK, "request_timeout": "3s"} if is_late else QUICK
    with proxies.before(bucket.endpoint) as proxy:
        direct = open_store(f"{bucket.uri}/large", bucket.storage_options)
        store = open_store(f"{bucket.uri}/large", through(bucket, proxy, retry_policy))
        try_at(proxy, store, direct, way, number=0, fault=None)
        last = len(proxy.requests)
        assert last > (2 if WAYS[way] is write_in_pieces else 0)
        for number in some_of(
            range(1, last + 1), one_in=3 if is_late else 2, seed=f"{fault} {way}"
        ):
            proxy.clear()
            try_at(proxy, store, direct, way, number, FAULTS[fault])


@pytest.mark.parametrize(
    "store_name", [pytest.param(name, marks=pytest.mark.server(STORES[name])) for name in STORES]
)
def test_uploads_that_never_begin_are_abandoned(
    request: pytest.FixtureRequest, proxies: Proxies, store_name: str
) -> None:
    """Starting the upload again must not take longer than the time limit of all
    requests together.
    """
    fixture = request.getfixturevalue(store_name)
    bucket = fixture.new_bucket() if isinstance(fixture, GoogleFront) else fixture
    retry_policy: Options = {**QUICK, "client_max_retries": "100", "client_retry_timeout": "2s"}
    with proxies.before(bucket.endpoint) as proxy:
        store = open_store(f"{bucket.uri}/large", through(bucket, proxy, retry_policy))
        proxy.add(CutAfter(reset=True), times=None)
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="No part of the file is visible"):
            write_in_pieces(store, "object")
        assert time.monotonic() - started < 20
        proxy.quiet()
        assert open_store(f"{bucket.uri}/large", bucket.storage_options).list() == []


def try_at(
    proxy: FaultProxy, store: Store, direct: Store, way: str, number: int, fault: Fault | None
) -> None:
    path = f"object-{number}"
    if WAYS[way] is create_once_where_it_is:
        direct.write(path, DATA)
    if fault is not None:
        proxy.add(fault, at=number)
    WAYS[way](store, path)
    proxy.quiet()
    assert direct.read(path) == DATA, proxy.story()
    assert direct.list_names("") == [path], proxy.story()
    direct.delete(path)
