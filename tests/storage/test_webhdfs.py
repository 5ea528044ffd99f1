"""HDFS by WebHDFS, on a namenode and a datanode."""

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import (
    InvalidInputError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.storage.locations import open_store
from lance_stream.storage.object_store import ObjectStore
from lance_stream.storage.store import Store
from tests.contracts.object_stores import (
    NUM_RACERS,
    NUM_ROUNDS,
    every_request,
    limit_puts,
    race_processes,
    race_threads,
)
from tests.contracts.stores import StoreContract
from tests.servers.fault_proxy import FaultProxy
from tests.servers.hdfs_cluster import HdfsCluster
from tests.servers.store_faults import CutAfter, CutBefore, Forge
from tests.servers.store_requests import StoreRequest

# A Java with a namenode and a datanode, in which nothing is quick.
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROW = pa.table({"id": pa.array([1], pa.int64())})


def opened(uri: str, **options: str) -> ObjectStore:
    store = open_store(f"{uri}/some where/t", options)
    assert isinstance(store, ObjectStore)
    return store


@pytest.fixture
def proxy(hdfs: HdfsCluster) -> Iterator[FaultProxy]:
    """Before the namenode; datanodes are asked directly."""
    with FaultProxy(hdfs.endpoint) as proxy:
        yield proxy


@pytest.fixture
def behind(hdfs: HdfsCluster, proxy: FaultProxy) -> ObjectStore:
    here, there = urlsplit(hdfs.endpoint).netloc, urlsplit(proxy.url).netloc
    return opened(hdfs.new_uri().replace(here, there))


def renames(request: StoreRequest) -> bool:
    return "op=RENAME" in request.target


class TestWebHdfs(StoreContract):
    @pytest.fixture
    def store(self, hdfs: HdfsCluster) -> Store:
        return opened(hdfs.new_uri())


@pytest.mark.parametrize("name", ["a b", "a%20b", "100%", "a+b", "é\N{SNOWMAN}", "a&b=c;d,e", "#?"])
def test_any_name_is_a_name(hdfs: HdfsCluster, name: str) -> None:
    store = opened(hdfs.new_uri())
    assert store.create_once(f"{name}/x {name}", b"once")
    assert not store.create_once(f"{name}/x {name}", b"twice")
    assert store.list_names(name) == [f"x {name}"]
    assert [each.path for each in store.list()] == [f"{name}/x {name}"]
    assert open_store(store.uri).read(f"{name}/x {name}") == b"once"


def test_of_many_threads_who_create_one_name_one_succeeds(hdfs: HdfsCluster) -> None:
    store = opened(hdfs.new_uri())
    race_threads(store, num_racers=NUM_RACERS, num_rounds=NUM_ROUNDS, num_bytes=5000)


@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks")
def test_of_many_processes_that_create_one_name_one_succeeds(hdfs: HdfsCluster) -> None:
    store = opened(hdfs.new_uri())
    race_processes(store, num_racers=NUM_RACERS, num_rounds=NUM_ROUNDS, num_bytes=5000)


def test_of_many_who_create_one_large_file_one_succeeds(hdfs: HdfsCluster) -> None:
    small = limit_puts(opened(hdfs.new_uri()), 1 << 20)
    race_threads(small, num_racers=4, num_rounds=2, num_bytes=17 << 20)


def test_a_file_in_parts_is_one_file_and_nothing_is_left_aside(hdfs: HdfsCluster) -> None:
    store = opened(hdfs.new_uri())
    piece = os.urandom(1 << 20)
    with store.open_writer("data/a") as writer:
        for _ in range(200):
            writer.write(piece)
        assert [each.path for each in store.list() if each.path == "data/a"] == []
    assert store.read("data/a") == piece * 200
    assert [each.path for each in store.list()] == ["data/a"]
    writer = store.open_writer("data/b")
    for _ in range(200):
        writer.write(piece)
    writer.abort()
    assert [each.path for each in store.list()] == ["data/a"]


@pytest.mark.parametrize("num_bytes", [5000, 17 << 20])
def test_a_lost_answer_is_told_from_a_lost_race(
    behind: ObjectStore, proxy: FaultProxy, num_bytes: int
) -> None:
    store = limit_puts(behind, 1 << 20)
    ours, theirs = os.urandom(num_bytes), os.urandom(num_bytes)
    proxy.add(CutAfter(), matches=renames)
    assert store.create_once("v/1", ours)
    proxy.add(CutAfter(), matches=renames)
    assert not store.create_once("v/1", theirs)
    assert store.read("v/1") == ours
    assert [each.path for each in store.list()] == ["v/1"]


def test_parts_whose_joining_got_no_answer_are_joined_once(
    behind: ObjectStore, proxy: FaultProxy
) -> None:
    data = os.urandom(1 << 20) * 150
    rule = proxy.add(CutAfter(), matches=lambda request: "op=CONCAT" in request.target)
    with behind.open_writer("a") as writer:
        writer.write(data)
    assert rule.num_fired == 1
    assert behind.read("a") == data
    assert [each.path for each in behind.list()] == ["a"]


@pytest.mark.parametrize("fault", [Forge(500), Forge(503), CutBefore(), CutAfter()])
def test_what_fails_twice_succeeds_the_third_time(
    behind: ObjectStore, proxy: FaultProxy, fault: object
) -> None:
    for attempt in every_request(behind):
        proxy.clear()
        rule = proxy.add(fault, times=2)
        attempt()
        assert rule.num_fired == 2, proxy.story()


def test_a_refusal_is_not_asked_for_again(behind: ObjectStore, proxy: FaultProxy) -> None:
    for attempt in every_request(behind):
        proxy.clear()
        rule = proxy.add(Forge(403), times=None)
        with pytest.raises(StoreRefusedError, match="403"):
            attempt()
        assert rule.num_fired <= 2, proxy.story()  # the file aside is deleted after a refusal


def test_a_namenode_that_is_not_there_is_named() -> None:
    store = opened("webhdfs://127.0.0.1:1/d", client_max_retries="1")
    with pytest.raises(StoreUnavailableError, match=r"2 times.*127\.0\.0\.1:1"):
        store.read("a")


def test_a_table_is_written_and_followed(hdfs: HdfsCluster) -> None:
    uri = f"{hdfs.new_uri()}/t"
    table = lance_stream.create_dataset(uri, ROW.schema)
    for _ in range(3):
        table = table.append(ROW)
    table.delete("id = 1")
    assert lance_stream.open_dataset(uri).version == 5
    assert lance_stream.open_dataset(uri, version=4).to_table().num_rows == 3


def test_who_asks_is_told_by_name_or_by_a_token_that_nobody_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    assert "user='ann'" in repr(opened("webhdfs://h:9870/d").settings)
    assert "user='bob'" in repr(opened("webhdfs://h:9870/d", user="bob").settings)
    shown = repr(opened("swebhdfs://h:9871/d", token="very secret"))
    assert "user=None" in shown
    assert "very secret" not in shown
    with pytest.raises(InvalidInputError, match="fetchdt"):
        opened("webhdfs://h:9870/d", kerberos="true")
