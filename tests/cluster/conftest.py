"""A cluster for all tests of this folder, and a proxy in front of its store."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.drivers import Site
from tests.cluster.machines import WORKERS, Machine, find_problem, lock_machines
from tests.cluster.standalone import Cluster, started
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import MotoServer


@pytest.fixture(scope="session")
def proxy(moto: MotoServer) -> Iterator[FaultProxy]:
    """The way of all machines to the store."""
    with FaultProxy(moto.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def machines(proxy: FaultProxy) -> Iterator[FaultProxy]:
    """The right to start machines, and what they reach the store by."""
    with lock_machines():
        problem = find_problem()
        if problem is not None and os.environ.get("CI") == "true":
            pytest.fail(problem, pytrace=False)
        if problem is not None:
            pytest.skip(problem)
        yield proxy


@pytest.fixture(scope="session")
def whole_cluster(machines: FaultProxy) -> Iterator[Cluster]:
    """The cluster, as the last test has left it."""
    with ExitStack() as stack:
        workers = [Machine(name, endpoint=machines.url) for name in WORKERS]
        yield stack.enter_context(
            started("master", [stack.enter_context(worker) for worker in workers])
        )


@pytest.fixture(scope="session")
def driver(machines: FaultProxy) -> Iterator[Machine]:
    """A machine for drivers."""
    with Machine("driver", endpoint=machines.url) as machine:
        yield machine


@pytest.fixture
def site(
    whole_cluster: Cluster, driver: Machine, proxy: FaultProxy, s3_bucket: Bucket
) -> Iterator[Site]:
    """The whole cluster, and an empty bucket."""
    whole_cluster.restore()
    proxy.clear()
    yield Site(whole_cluster, driver, proxy, s3_bucket)
    proxy.clear()
