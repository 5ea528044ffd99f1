"""We send no more requests than pylance for the same, counted on their way to moto."""

from collections.abc import Callable, Iterator
from typing import Any

import lance
import numpy as np
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
from lance_stream.snapshot.opening import open_newest
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import write_fragments, write_target
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import MotoServer

pytestmark = pytest.mark.oracle

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])
NUM_VERSIONS = 6


def rows(number: int) -> pa.Table:
    return pa.table(
        {"id": range(100 * number, 100 * number + 100), "x": [0.5] * 100}, schema=SCHEMA
    )


class Beside:
    """A table for us and one for pylance, made by pylance alike, and a count of requests."""

    def __init__(self, bucket: Bucket, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.options = {**bucket.storage_options, "aws_endpoint": proxy.url}
        self.our_uri, self.their_uri = f"{bucket.uri}/ours", f"{bucket.uri}/theirs"
        for uri in (self.our_uri, self.their_uri):
            for number in range(NUM_VERSIONS):
                self.write(uri, number, "append" if number else "create")

    def write(self, uri: str, number: int, mode: str = "append") -> None:
        lance.write_dataset(
            rows(number),
            uri,
            mode=mode,
            storage_options=self.options,
            enable_stable_row_ids=True,
            data_storage_version="2.2",
        )

    def ours(self, version: int | None = None) -> Dataset:
        return lance_stream.open_dataset(self.our_uri, version, self.options)

    def theirs(self, version: int | None = None) -> Any:
        return lance.dataset(self.their_uri, version=version, storage_options=self.options)

    def count_requests(self, act: Callable[[], object]) -> int:
        self.proxy.clear()
        act()
        return len(self.proxy.requests)


@pytest.fixture
def beside(
    moto: MotoServer, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Beside]:
    monkeypatch.setattr(manifest_files, "MANIFESTS", ManifestCache())
    with FaultProxy(moto.endpoint) as proxy:
        yield Beside(s3_bucket, proxy)


def test_opening_a_table_costs_two_requests(beside: Beside) -> None:
    """Readers and sinks open tables all the time, and each request costs money and latency."""
    assert beside.count_requests(beside.ours) == beside.count_requests(beside.theirs) == 2


def test_opening_a_version_costs_one_request(beside: Beside) -> None:
    """The name of its manifest is computed, so no listing is needed."""
    ours, theirs = (
        beside.count_requests(lambda: beside.ours(3)),
        beside.count_requests(lambda: beside.theirs(3)),
    )
    assert (ours, theirs) == (1, 2)


def test_appends_cost_four_requests(beside: Beside) -> None:
    """A stream pays them with each batch."""
    ours, theirs = beside.ours(), beside.theirs()
    assert beside.count_requests(lambda: ours.append(rows(7))) == 4
    assert beside.count_requests(lambda: lance.write_dataset(rows(7), theirs, mode="append")) == 4
    beside.write(beside.our_uri, 8)
    beside.write(beside.their_uri, 8)
    assert beside.count_requests(lambda: ours.append(rows(9))) <= 6
    assert ours.checkout(None).count_rows() == (NUM_VERSIONS + 3) * 100


def test_commits_cost_no_more_than_pylances(beside: Beside) -> None:
    """The driver commits while all executors wait."""
    target = write_target(open_newest(beside.our_uri, beside.options))
    our_files = write_fragments(rows(7).to_batches(), target)
    their_files = lance.fragment.write_fragments(
        rows(7), beside.their_uri, storage_options=beside.options
    )

    def commit() -> None:
        append_fragments(open_newest(beside.our_uri, beside.options), our_files)

    def commit_theirs() -> None:
        ds = beside.theirs()
        lance.LanceDataset.commit(
            ds, lance.LanceOperation.Append(their_files), read_version=ds.version
        )

    assert beside.count_requests(commit) <= beside.count_requests(commit_theirs)


def test_polls_cost_one_request(beside: Beside) -> None:
    """A follower polls for days, mostly without news."""
    followed = TableFollower(beside.our_uri, beside.options, FollowerRules(FeedRules()))
    position = followed.advance(Position(0))
    theirs = beside.theirs()
    for _ in range(3):
        assert beside.count_requests(lambda: followed.advance(position)) == 1
        assert beside.count_requests(lambda: theirs.latest_version) == 1

    def read_news() -> None:
        end = followed.advance(position)
        units = followed.units(position, end)
        assert sum(change.num_rows for change in read_changes(units)) == 100

    def read_theirs() -> None:
        new = f"_row_created_at_version > {theirs.version}"
        theirs.checkout_latest()
        assert theirs.to_table(filter=new).num_rows == 100

    list(read_changes(followed.units(Position(0), position)))
    beside.write(beside.our_uri, 9)
    beside.write(beside.their_uri, 9)
    assert beside.count_requests(read_news) == 3
    assert beside.count_requests(read_theirs) > 3, "they open every file"


def test_reading_costs_one_request_per_file(beside: Beside) -> None:
    """Small files are read in one request each, and counting needs none."""
    ours, theirs = beside.ours(), beside.theirs()
    assert beside.count_requests(lambda: ours.take(row_ids=[150])) == 1
    assert beside.count_requests(lambda: theirs._take_rows([150])) == 1
    ours, theirs = beside.ours(), beside.theirs()
    assert beside.count_requests(lambda: ours.to_table(["x"])) == NUM_VERSIONS
    assert beside.count_requests(lambda: theirs.to_table(["x"])) == NUM_VERSIONS
    assert beside.count_requests(ours.versions) <= beside.count_requests(theirs.versions)
    assert beside.count_requests(ours.count_rows) == beside.count_requests(theirs.count_rows) == 0


def test_deleting_a_row_costs_few_requests(beside: Beside) -> None:
    """A delete reads the condition's column and writes one deletion file."""
    ours, theirs = beside.ours(), beside.theirs()
    our_requests = beside.count_requests(lambda: ours.delete("id = 150"))
    assert our_requests <= 1 + beside.count_requests(lambda: theirs.delete("id = 150"))


NUM_ROWS = 2000


def wide_rows() -> pa.Table:
    dice = np.random.default_rng(0)
    columns: dict[str, Any] = {f"n{number}": dice.random(NUM_ROWS) for number in range(12)}
    parts = [pa.array(dice.random(NUM_ROWS)) for _ in range(3)]
    ends = pa.array(np.arange(0, 5 * NUM_ROWS + 1, 5, dtype=np.int32))
    letters = pa.py_buffer(dice.integers(97, 123, 1024 * NUM_ROWS, np.uint8))
    offsets = pa.py_buffer(np.arange(0, 1024 * NUM_ROWS + 1, 1024, dtype=np.int32))
    vectors = pa.array(dice.random(768 * NUM_ROWS, np.float32))
    return pa.table(
        columns
        | {
            "struct": pa.StructArray.from_arrays(parts, names=list("abc")),
            "list": pa.ListArray.from_arrays(ends, pa.array(dice.random(5 * NUM_ROWS))),
            "text": pa.StringArray.from_buffers(NUM_ROWS, offsets, letters),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 768),
        }
    )


@pytest.mark.parametrize(
    "version",
    [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("legacy", "2.0", "2.1")), "2.2"],
)
def test_batched_scans_cost_few_requests(beside: Beside, version: str) -> None:
    """Batches that share pages must not fetch them again."""
    rows, uri = wide_rows(), f"{beside.our_uri}-wide"
    for mode in ("create", "append"):
        lance.write_dataset(
            rows, uri, mode=mode, storage_options=beside.options, data_storage_version=version
        )

    def compare(columns: list[str] | None, filter: str | None) -> None:
        size = NUM_ROWS // 4
        ours = lance_stream.open_dataset(uri, storage_options=beside.options)
        theirs = lance.dataset(uri, storage_options=beside.options)
        tables: list[Any] = []
        our_requests = beside.count_requests(
            lambda: tables.append(
                pa.Table.from_batches(ours.scan(columns, filter, batch_size=size))
            )
        )
        their_requests = beside.count_requests(
            lambda: tables.append(theirs.to_table(columns, filter, batch_size=size))
        )
        assert our_requests <= their_requests, (columns, filter)
        assert tables[0].equals(tables[1])

    for columns in (None, ["n3"], ["struct", "list"], ["text"], ["vector"]):
        compare(columns, None)
    compare(None, "n0 < 0.3")
    lance.dataset(uri, storage_options=beside.options).delete("n1 < 0.1")
    compare(None, None)
