"""A table of 10,000 versions and 10,000 fragments needs as few requests as a small one.

Its history is generated: thousands of versions with one fragment, one version with 10,000 fragments
that share a data file, and a few versions that are committed after it. The tests run on a service
that counts requests without a server, and on moto, with 2,500 versions (10,000 in `make soak`).
"""

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.commit import manifest_files
from lance_stream.commit.manifest_files import ManifestCache
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.positions import Position
from lance_stream.feed.rules import FeedRules
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage import protocols
from lance_stream.storage.protocols import StoreKind
from lance_stream.table.fragments.fragment_list import FragmentNumbers
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.manifest import FragmentList, Manifest, encode_manifest
from lance_stream.table.paths import manifest_path
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import write_fragments, write_target
from tests.contracts.object_service import ObjectService
from tests.sampling import ALL_CASES
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import MotoServer

pytestmark = pytest.mark.xdist_group("long histories")  # one process forges what all look at

NUM_VERSIONS = NUM_FRAGMENTS = 10_000
NUM_VERSIONS_ON_MOTO = NUM_VERSIONS if ALL_CASES else 2_500
NUM_COMMITTED = 5
ROWS = 10
FEW_BYTES = 20_000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(first: int) -> pa.Table:
    ids = list(range(first, first + ROWS))
    return pa.table({"id": ids, "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


@dataclass
class LongTable:
    """The location of the table, and the requests to it since the last look.

    Attributes:
        uri: The location.
        options: Settings of the store.
        put: Writes many objects at once, by their paths relative to the table.
        look: Returns the number of requests of each kind, and the bytes sent and received.
        num_versions: The number of generated versions.
        page_bytes: The maximum size of a listing's answer: services return up to 1,000 names,
            however few of them are read.
    """

    uri: str
    options: dict[str, str]
    put: Callable[[dict[str, bytes]], None]
    look: Callable[[], tuple[dict[str, int], int]]
    num_versions: int
    size: int = field(default=0)
    page_bytes: int = field(default=0)

    def count_requests(self, act: Callable[[], object]) -> tuple[dict[str, int], int]:
        self.look()
        act()
        return self.look()

    def few_bytes(self, requests: dict[str, int]) -> int:
        """Return the number of bytes that may be sent and received, except manifests."""
        return FEW_BYTES + self.page_bytes * requests.get("list", 0)

    def open(self) -> Dataset:
        return lance_stream.open_dataset(self.uri, storage_options=self.options)


@pytest.fixture(
    scope="module",
    params=["counted", pytest.param("moto", marks=[pytest.mark.slow, pytest.mark.server("moto")])],
)
def long_table(request: pytest.FixtureRequest) -> Iterator[LongTable]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_files, "MANIFESTS", ManifestCache())
        where = counted(patch) if request.param == "counted" else on_moto(request)
        for value in where:
            forge(value)
            yield value


def counted(patch: pytest.MonkeyPatch) -> Iterator[LongTable]:
    service = ObjectService()
    patch.setitem(protocols.PROTOCOLS, "test", StoreKind("test", lambda *_: service.store("t")))

    def look() -> tuple[dict[str, int], int]:
        counts = service.kinds(), sum(request.num_bytes for request in service.requests)
        service.clear()
        return counts

    def put(files: dict[str, bytes]) -> None:
        service.objects.update({f"t/{path}": data for path, data in files.items()})

    yield LongTable("test://bucket/t", {}, put, look, NUM_VERSIONS)


def on_moto(request: pytest.FixtureRequest) -> Iterator[LongTable]:
    moto: MotoServer = request.getfixturevalue("moto")
    bucket = moto.new_bucket()
    with FaultProxy(moto.endpoint) as proxy:

        def look() -> tuple[dict[str, int], int]:
            counts = proxy.kinds(), sum(proxy.num_bytes())
            proxy.clear()
            return counts

        def put_some(files: list[tuple[str, bytes]]) -> None:
            connection = http.client.HTTPConnection(urlsplit(moto.endpoint).netloc)
            for path, data in files:
                connection.request("PUT", f"/{bucket.name}/t/{path}", data)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200

        def put(files: dict[str, bytes]) -> None:
            some = list(files.items())
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(put_some, [some[number::4] for number in range(4)]))

        options = {**bucket.storage_options, "aws_endpoint": proxy.url}
        yield LongTable(
            f"{bucket.uri}/t", options, put, look, NUM_VERSIONS_ON_MOTO, page_bytes=240_000
        )


def forge(long_table: LongTable) -> None:
    """Generate the table's history, except for its last versions, which are committed."""
    small_table = lance_stream.create_dataset(
        long_table.uri, SCHEMA, storage_options=long_table.options
    )
    small_table = small_table.append(rows(0))
    small = small_table.table.manifest
    last = long_table.num_versions - NUM_COMMITTED
    history = {
        manifest_path(version): encode_manifest(_at(small, version)) for version in range(3, last)
    }
    (fragment,) = small.fragments
    fragments = (
        replace(
            fragment,
            id=number,
            row_ids=encode_row_ids(RowIdSequence.from_range(number * ROWS, (number + 1) * ROWS)),
        )
        for number in range(NUM_FRAGMENTS - NUM_COMMITTED)
    )
    large = replace(
        _at(small, last),
        fragments=FragmentList.of(fragments),
        max_fragment_id=NUM_FRAGMENTS - NUM_COMMITTED - 1,
        next_row_id=(NUM_FRAGMENTS - NUM_COMMITTED) * ROWS,
    )
    data = encode_manifest(large)
    long_table.size = len(data)
    long_table.put({**history, manifest_path(last): data})
    ds = long_table.open()
    assert ds.version == last
    for _ in range(NUM_COMMITTED):
        ds = ds.append(rows(1_000_000))
    assert (ds.version, len(ds.table.manifest.fragments)) == (
        long_table.num_versions,
        NUM_FRAGMENTS,
    )


def _at(manifest: Manifest, version: int) -> Manifest:
    assert manifest.timestamp_nanos is not None
    nanos = manifest.timestamp_nanos + version * 1_000_000
    return replace(manifest, version=version, timestamp_nanos=nanos)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_files, "MANIFESTS", ManifestCache())


def test_opening_costs_listing_and_manifest(
    long_table: LongTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening must not depend on the number of versions, and a manifest in the cache is not
    fetched again.
    """
    forget(monkeypatch)
    requests, num_bytes = long_table.count_requests(long_table.open)
    assert requests == {"list": 1, "get": 1}
    assert long_table.size < num_bytes < 1.01 * long_table.size + long_table.few_bytes(requests)
    requests, num_bytes = long_table.count_requests(long_table.open)
    assert requests == {"list": 1}
    assert num_bytes < long_table.few_bytes(requests)


def test_versions_open_by_their_number(
    long_table: LongTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path follows from the number, so no listing is needed."""
    forget(monkeypatch)
    requests, num_bytes = long_table.count_requests(
        lambda: lance_stream.open_dataset(long_table.uri, 1711, long_table.options)
    )
    assert requests == {"get": 1}
    assert num_bytes < long_table.few_bytes(requests)


def test_appends_send_little_but_the_manifest(long_table: LongTable) -> None:
    """A commit writes the whole manifest, and anything else that grew with the table would
    double that.
    """
    ds = long_table.open()
    requests, num_bytes = long_table.count_requests(lambda: ds.append(rows(2_000_000)))
    assert requests == {"put": 1, "put once": 2, "list": 1}
    assert num_bytes < 1.01 * long_table.size + long_table.few_bytes(requests)


def test_finding_a_committed_batch_is_cheap(long_table: LongTable) -> None:
    """A sink asks at every start whether its batch is in the table, which must not read the
    history.
    """
    batch = PendingBatch.of("app", 0, "query")
    table = open_newest(long_table.uri, long_table.options)
    append_fragments(table, write_fragments(rows(0).to_batches(), write_target(table)), batch)
    actual = []

    def find() -> None:
        actual.append(batch.find_in(open_newest(long_table.uri, long_table.options)))

    requests, num_bytes = long_table.count_requests(find)
    assert requests == {"list": 1}
    assert num_bytes < long_table.few_bytes(requests)
    assert actual != [None]


def test_row_lookups_cost_one_request(long_table: LongTable) -> None:
    """The row id leads to its fragment in memory, whatever their number."""
    ds = long_table.open()
    taken = []
    requests, num_bytes = long_table.count_requests(lambda: taken.append(ds.take(row_ids=[43_217])))
    assert requests == {"get": 1}
    assert num_bytes < long_table.few_bytes(requests)
    assert taken[0]["id"].to_pylist() == [7]


def test_deletes_by_row_id_read_nothing(long_table: LongTable) -> None:
    """A deletion by id needs no data file, and must not look through all fragments."""
    ds = long_table.open()
    requests, num_bytes = long_table.count_requests(lambda: ds.delete("_rowid = 43219"))
    assert requests == {"list": 2, "put": 1, "put once": 2}
    assert num_bytes < 1.01 * long_table.size + long_table.few_bytes(requests)


def test_versions_are_listed_by_thousands(long_table: LongTable) -> None:
    """A page of a listing has 1,000 names, which is the lower bound of requests."""
    table = open_newest(long_table.uri, long_table.options)
    versions: list[int] = []
    requests, _ = long_table.count_requests(lambda: versions.extend(table.log.versions()))
    assert len(versions) >= long_table.num_versions
    assert requests == {"list": -(-len(versions) // 1000)}


def test_following_costs_little_per_version(
    long_table: LongTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following costs one small request, and for each version its manifest."""
    followed = TableFollower(long_table.uri, long_table.options, FollowerRules(FeedRules()))

    def batch(start: Position) -> Position:
        end = followed.advance(start)
        followed.lag(end)
        units = followed.units(start, end)
        assert sum(change.num_rows for change in read_changes(units)) == ROWS
        return end

    ds = long_table.open().append(rows(3_000_000))
    position = batch(followed.position_after(ds.version - 1))
    for _ in range(3):
        requests, num_bytes = long_table.count_requests(lambda: followed.advance(position))
        assert requests == {"get": 1}
        assert num_bytes < long_table.few_bytes(requests)
    cached = manifest_files.MANIFESTS
    forget(monkeypatch)  # another process's
    long_table.open().append(rows(4_000_000))
    monkeypatch.setattr(manifest_files, "MANIFESTS", cached)
    requests, num_bytes = long_table.count_requests(lambda: batch(position))
    assert requests == {"get": 2, "list": 1}
    assert num_bytes < 1.01 * long_table.size + long_table.few_bytes(requests)


def test_listing_versions_decodes_fragments_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring versions share their fragments, and decoding all for each version would be
    quadratic.
    """
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([("id", pa.int64())]))
    for number in range(20):
        ds = ds.append(pa.table({"id": [number, -number]}))
    ds = ds.delete("id = -3")
    requests: list[bytes] = []
    real = FragmentNumbers.of
    monkeypatch.setattr(manifest_files, "MANIFESTS", ManifestCache())
    ds = lance_stream.open_dataset(tmp_path / "t")
    monkeypatch.setattr(
        FragmentNumbers, "of", classmethod(lambda _cls, raws: requests.extend(raws) or real(raws))
    )
    assert [version.num_rows for version in ds.versions()] == [*range(0, 41, 2), 39]
    assert len(requests) == len(set(requests)) == 20 + 1
