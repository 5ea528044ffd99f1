"""A server of Spark Connect on the cluster, and a client on a machine of its own."""

from collections.abc import Iterator

import pytest

from tests.cluster.connect import Server, serving
from tests.cluster.drivers import Site, finish, machine_of, start_program
from tests.cluster.events import after
from tests.cluster.jobs import MODES, stream_job
from tests.cluster.machines import CONNECT, Machine
from tests.cluster.standalone import Cluster
from tests.servers.fault_proxy import FaultProxy

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

RANGES = [[1, 2], [2, 4], [1, 4]]


@pytest.fixture(scope="module")
def server(whole_cluster: Cluster, machines: FaultProxy) -> Iterator[Server]:
    """A server whose workers are those of the cluster."""
    whole_cluster.restore()
    with serving(whole_cluster, machines.url) as server:
        yield server


@pytest.fixture(scope="module")
def client(machines: FaultProxy) -> Iterator[Machine]:
    """A machine for clients."""
    with Machine("client", packages=CONNECT, endpoint=machines.url) as machine:
        yield machine


def test_connect_clients_stream_read_and_compact(
    site: Site, server: Server, client: Machine
) -> None:
    """The client has neither the store's libraries nor the outcomes of batches, so all work has to
    happen on the server.
    """
    site.add_events(seed=16)
    modes = [mode for mode in MODES if mode != "overwrite"]
    upsert = f"{site.folder}/upsert"
    feed_job = {"kind": "feed", "table": upsert, "ranges": RANGES}
    streams = [
        {**stream_job(mode, site.folder), "checkpoints": server.checkpoints} for mode in modes
    ]
    jobs = [
        *streams,
        {**feed_job, "name": "before"},
        {"kind": "compact", "table": upsert, "target_rows": 60},
        {**feed_job, "name": "after"},
        {"kind": "cleanup", "table": f"{site.folder}/append", "retain_versions": 1},
    ]
    messages = finish(start_program(client, {"remote": server.url, "conf": {}, "jobs": jobs}))
    site.check(*modes)
    site.check_only_workers_read("format_upsert")
    ended = {
        message["ended"]: message["knows_commit"] for message in messages if "ended" in message
    }
    assert ended == dict.fromkeys(modes, False), "the server has the outcomes of the batches"
    (compacted,) = [message["version"] for message in messages if "compacted" in message]
    assert compacted > len(site.batches), "there was something to compact"
    ranges = [message for message in messages if "feed" in message]
    assert len(ranges) == 2 * len(RANGES)
    for span in ranges:
        before = site.snapshot("upsert", span["first"] - 1)
        assert after(before, span["rows"]) == site.snapshot("upsert", span["last"])
    streamed = [after({}, message["rows"]) for message in messages if "streamed" in message]
    assert streamed == 2 * [site.snapshot("upsert", compacted)]
    assert len(site.open("append").versions()) == 1
    assert [str(request) for request in requests_of_client(site, "format_append")] == []
    assert requests_of_client(site, "upsert"), "the client plans and commits compactions itself"


def requests_of_client(site: Site, table: str) -> list[object]:
    """Return the requests of the client for a table."""
    seen = site.proxy.seen(key=site.key(f"{table}/"))
    return [request for request in seen if machine_of(request) == "client"]
