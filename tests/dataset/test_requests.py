"""How many requests each action sends to an object store: docs/operations/stores.md describes them.

The service counts (`contracts.object_service`); tests/oracle/test_requests.py asks the same of a
server, beside pylance.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.caches import Cache
from lance_stream.commit import manifest_files
from lance_stream.commit.manifest_files import ManifestCache
from lance_stream.errors import NotFoundError
from lance_stream.feed import intervals
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.newest_version import POLLS_PER_LISTING
from lance_stream.feed.following.positions import Limits, Position
from lance_stream.feed.rules import FeedRules
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.index.key_index import clear_key_indices
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage import protocols
from lance_stream.storage.protocols import StoreKind
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert as apply_upsert
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import write_fragments, write_target
from tests.contracts.object_service import ObjectService

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
NUM_FRAGMENTS = 5
URI = "test://bucket/t"

Kinds = dict[str, int]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have cached."""
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the caches of manifests, key bounds, keys and deleted rows, as in a new process."""
    cached_key_bounds._columns.clear()
    clear_key_indices()
    clear_deleted_offsets()
    monkeypatch.setattr(manifest_files, "MANIFESTS", ManifestCache())


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectService]:
    service = ObjectService()
    monkeypatch.setitem(protocols.PROTOCOLS, "test", StoreKind("test", lambda *_: service.store()))
    yield service
    assert not any("hint" in key for key in service.objects)


@pytest.fixture
def ds(service: ObjectService) -> Dataset:
    """Version 1 is empty, each of the next five appends ten rows."""
    ds = lance_stream.create_dataset(URI, SCHEMA)
    for number in range(NUM_FRAGMENTS):
        ds = ds.append(rows(*range(10 * number, 10 * number + 10)))
    service.clear()
    return ds


def requests_of(service: ObjectService, act: Callable[[], object]) -> Kinds:
    service.clear()
    act()
    return service.kinds()


def test_creating_a_table_takes_four_requests(service: ObjectService) -> None:
    """Requests cost money and time; the numbers in the documentation are checked here."""
    result = requests_of(service, lambda: lance_stream.create_dataset(URI, SCHEMA))
    assert result == {"list": 2, "put once": 2}


# --- opening


def test_uncached_opens_cost_two_requests(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One listing finds the newest version, and one request reads it."""
    forget(monkeypatch)
    assert requests_of(service, lambda: lance_stream.open_dataset(URI)) == {"list": 1, "get": 1}


def test_cached_opens_cost_one_listing(service: ObjectService, ds: Dataset) -> None:
    """The listing's ETag shows that the manifest in memory is still the one."""
    assert requests_of(service, lambda: lance_stream.open_dataset(URI)) == {"list": 1}
    ds.append(rows(100))
    assert requests_of(service, lambda: lance_stream.open_dataset(URI)) == {"list": 1}


def test_foreign_etags_need_one_read(service: ObjectService, ds: Dataset) -> None:
    """Where an ETag is not a digest, the end of the manifest is read once to identify it."""
    service.etag_of = lambda data: f"not-md5-{hash(data)}"
    assert requests_of(service, lambda: lance_stream.open_dataset(URI)) == {"list": 1, "get": 1}
    assert requests_of(service, lambda: lance_stream.open_dataset(URI)) == {"list": 1}
    ds = ds.append(rows(100))
    append = requests_of(service, lambda: ds.append(rows(101)))
    assert append == {"put": 1, "put once": 2, "list": 1, "get": 1}


def test_without_etags_manifests_are_read_again(service: ObjectService, ds: Dataset) -> None:
    """Without an ETag a re-created table could not be told from the cached one."""
    service.etag_of = lambda _data: ""
    for _ in range(2):
        assert requests_of(service, lambda: lance_stream.open_dataset(URI)) == {"list": 1, "get": 1}


def test_numbered_versions_open_without_listing(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a manifest follows from its number."""
    forget(monkeypatch)
    assert requests_of(service, lambda: lance_stream.open_dataset(URI, version=2)) == {"get": 1}
    assert requests_of(service, lambda: ds.checkout(3)) == {"get": 1}


def test_tagged_versions_open_without_listing(service: ObjectService, ds: Dataset) -> None:
    """One request reads the tag and one the manifest that it names."""
    ds.tags.create("gold", 2)
    assert requests_of(service, lambda: lance_stream.open_dataset(URI, version="gold")) == {
        "get": 2
    }


def test_listing_versions_reads_each_manifest_once(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of n versions takes n requests at most, and a limit one more than it shows."""
    forget(monkeypatch)
    ds = lance_stream.open_dataset(URI)
    assert requests_of(service, ds.versions) == {"list": 1, "get": ds.version}
    ds = ds.delete("id = 1").upsert(rows(2, 3, 999), on="id").delete("id = 2")
    forget(monkeypatch)
    assert requests_of(service, ds.versions) == {"list": 1, "get": ds.version}
    assert all(version.row_counts for version in ds.versions())
    forget(monkeypatch)
    assert requests_of(service, lambda: ds.versions(3)) == {"list": 1, "get": 4}


# --- writing


def written(num_files: int, first: int = 1000) -> list[Fragment]:
    """Write files as so many workers do."""
    target = write_target(open_newest(URI))
    return [
        fragment
        for number in range(num_files)
        for fragment in write_fragments(rows(first + number).to_batches(), target)
    ]


def test_appends_take_four_requests(service: ObjectService, ds: Dataset) -> None:
    """The order matters as well: the transaction precedes the listing, and the manifest comes
    last.
    """
    for number in range(3):
        service.clear()
        ds = ds.append(rows(100 + number))
        kinds = [request.kind for request in service.requests]
        assert sorted(kinds) == ["list", "put", "put once", "put once"]
        assert kinds.index("put once") < kinds.index("list"), "a cleanup is to see the transaction"
        assert kinds[-1] == "put once", "the data file may be on its way until then"


def test_appends_behind_others_read_one_manifest(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the version in between has to be read for the conflict check."""
    cached = manifest_files.MANIFESTS
    forget(monkeypatch)  # another process's
    lance_stream.open_dataset(URI).append(rows(100))
    monkeypatch.setattr(manifest_files, "MANIFESTS", cached)
    append = requests_of(service, lambda: ds.append(rows(101)))
    assert append == {"put": 1, "put once": 2, "list": 1, "get": 1}


@pytest.mark.parametrize("num_files", [1, 4])
def test_micro_batches_commit_in_four_requests(
    service: ObjectService, ds: Dataset, num_files: int
) -> None:
    """The number of files must not change the cost of the commit."""
    first = PendingBatch.of("app", 0, "query")
    append_fragments(open_newest(URI), written(1), first)
    assert requests_of(service, lambda: written(num_files)) == {"list": 1, "put": num_files}
    fragments = written(num_files)

    def take_in() -> None:
        table = open_newest(URI)
        batch = PendingBatch.of("app", 1, "query")
        assert batch.find_in(table) is None
        assert append_fragments(table, fragments, batch).is_new

    assert requests_of(service, take_in) == {"list": 2, "put once": 2}


def test_finding_a_replay_costs_an_open(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is in the manifest, so finding a batch needs no further request."""
    batch = PendingBatch.of("app", 0, "query")
    append_fragments(open_newest(URI), written(1), batch)
    forget(monkeypatch)
    find = requests_of(service, lambda: batch.find_in(open_newest(URI)))
    assert find == {"list": 1, "get": 1}


def test_deletes_read_each_fragment_once(service: ObjectService, ds: Dataset) -> None:
    """A filter without an index has to read its column in each fragment, and nothing else."""
    delete = requests_of(service, lambda: ds.delete("id = 13"))
    assert delete == {"list": 2, "get": NUM_FRAGMENTS, "put": 1, "put once": 2}


def test_upserts_get_cheaper_with_learned_keys(service: ObjectService, ds: Dataset) -> None:
    """Bounds and keys learned from earlier batches replace reads of data files."""

    def upsert(*ids: int) -> Kinds:
        newest = lance_stream.open_dataset(URI)
        return requests_of(service, lambda: newest.upsert(rows(*ids), on="id"))

    # The bounds of each file's keys are learnt the first time.
    assert upsert(49, 50) == {
        "list": 2, "get": 1 + NUM_FRAGMENTS, "put": 2, "put once": 2,
    }  # fmt: skip
    assert upsert(23, 51) == {"list": 2, "get": 1, "put": 2, "put once": 2}
    # The second time, keys themselves. The deletion file of this file's fragment is not read: this
    # process has written it.
    assert upsert(24, 52) == {"list": 2, "put": 2, "put once": 2}
    assert upsert(53) == {"list": 2, "put": 1, "put once": 2}


def test_upserts_use_the_sinks_version(service: ObjectService, ds: Dataset) -> None:
    """The sink has just listed the versions; a newer one leads to a second attempt."""
    ds = ds.upsert(rows(49), on="id").upsert(rows(50), on="id")
    table = ds.table
    rules = UpsertRules(("id",))
    sent = requests_of(service, lambda: apply_upsert(table, rows(53), rules, is_current=True))
    assert sent == {"list": 1, "put": 1, "put once": 2}
    result = apply_upsert(table, rows(53, 54), rules, is_current=True)
    assert (result.attempts, result.num_updated, result.num_inserted) == (2, 1, 1)


# --- reading


def opened() -> Dataset:
    """Return the table as a process that has just opened it sees it."""
    clear_deleted_offsets()
    return lance_stream.open_dataset(URI)


def test_rows_by_id_cost_one_request(service: ObjectService, ds: Dataset) -> None:
    """The location follows from the manifest, and pages that were read are cached."""
    ds = opened()
    assert requests_of(service, lambda: ds.take(row_ids=[13])) == {"get": 1}
    assert requests_of(service, lambda: ds.take(row_ids=[15])) == {}, "what was read is kept"


def test_taking_a_row_reads_deletion_files(service: ObjectService, ds: Dataset) -> None:
    """A lookup must read the deletion file of the row's fragment, and no other one."""
    ds.delete("id % 10 = 3")
    ds = opened()
    assert requests_of(service, lambda: ds.take(row_ids=[15])) == {"get": 2}
    assert ds.take(row_ids=[15, 49]).column("id").to_pylist() == [15, 49]
    with pytest.raises(NotFoundError):
        ds.take(row_ids=[13])


def test_column_scans_read_fragments_once(service: ObjectService, ds: Dataset) -> None:
    """Footers are small enough to come with the column's pages in one request."""
    ds = opened()
    assert requests_of(service, lambda: ds.to_table(["id"])) == {"get": NUM_FRAGMENTS}


def test_counting_rows_reads_no_data(service: ObjectService, ds: Dataset) -> None:
    """The manifest states the numbers, unless a filter needs a column."""
    ds = opened()
    assert requests_of(service, ds.count_rows) == {}
    assert requests_of(service, lambda: ds.count_rows("id > 7")) == {"get": NUM_FRAGMENTS}


# --- following


def following() -> tuple[TableFollower, Position]:
    """Return a follower that has read everything."""
    followed = TableFollower(URI, None, FollowerRules(FeedRules()))
    return followed, batch(followed, Position(0))[0]


def batch(followed: TableFollower, start: Position, limits: Limits | None = None) -> Any:
    """Plan a batch as Spark does, and return where it ends and its work units."""
    end = followed.advance(start, limits or Limits())
    followed.lag(end)
    return end, followed.units(start, end)


def test_idle_polls_transfer_no_bytes(service: ObjectService, ds: Dataset) -> None:
    """Streams poll all day, and a missing version costs an empty answer only."""
    followed, position = following()
    service.clear()
    for _ in range(POLLS_PER_LISTING):
        assert followed.advance(position) == position
        followed.lag(position)
    assert service.kinds() == {"get": POLLS_PER_LISTING}
    assert {value.num_bytes for value in service.requests} == {0}
    assert requests_of(service, lambda: followed.advance(position)) == {"list": 1}


def test_polling_one_version_takes_three_requests(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latency of a stream is the sum of these requests."""
    followed, position = following()
    for number in range(3):
        cached = manifest_files.MANIFESTS
        forget(monkeypatch)  # another process's
        ds = ds.append(rows(100 + number))
        monkeypatch.setattr(manifest_files, "MANIFESTS", cached)
        service.clear()
        position, units = batch(followed, position)
        assert service.kinds() == {"get": 1, "list": 1}
        service.clear()
        assert sum(change.num_rows for change in read_changes(units)) == 1
        assert service.kinds() == {"get": 1}


@pytest.mark.parametrize("limits", [Limits(), Limits(rows=1000)])
@pytest.mark.parametrize(("num_versions", "lists"), [(3, 1), (6, 1), (40, 2)])
def test_long_batches_list_versions_once_more(
    service: ObjectService,
    ds: Dataset,
    limits: Limits,
    num_versions: int,
    lists: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch with more versions than one poll lists needs one more listing."""
    followed, position = following()
    for number in range(num_versions):
        ds = ds.append(rows(100 + number))
    forget(monkeypatch)
    service.clear()
    end, units = batch(followed, position, limits)
    assert (end.version, len(units)) == (ds.version, num_versions)
    manifests = [request.key for request in service.requests if request.kind == "get"]
    assert len(set(manifests)) == num_versions + 1, "and the one before"
    assert service.kinds() == {"get": num_versions + lists, "list": lists}


def test_replanning_elsewhere_reads_earlier_timestamps(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timestamps are made monotonic from earlier versions, as far back as clocks may differ."""
    monkeypatch.setattr(intervals, "CLOCK_SKEW", 0)
    monkeypatch.setattr(intervals, "_commit_times", Cache(8))
    followed, position = following()
    ds.append(rows(100)).append(rows(101))
    end = followed.advance(position)
    forget(monkeypatch)
    monkeypatch.setattr(intervals, "_commit_times", Cache(8))
    another = TableFollower(URI, None, FollowerRules(FeedRules()))
    plan = requests_of(service, lambda: another.units(position, end))
    assert plan == {"list": 1, "get": 3 + 1}


def test_few_manifests_identify_unchanged_columns(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following columns through every version would read a long history."""
    for number in range(70):
        ds = ds.append(rows(100 + number))
    forget(monkeypatch)
    followed = TableFollower(URI, None, FollowerRules(FeedRules()))
    columns = FeedColumns(followed.table(), None)
    end = followed.advance(Position(1), Limits(versions=1))
    service.clear()
    assert len(followed.units(Position(1), end, lambda _last: columns)) == 1
    assert service.kinds()["get"] <= 5


def test_manifests_are_read_in_parallel(
    service: ObjectService, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files are rewritten, each version has to be looked at to identify the columns."""
    for number in range(35):
        ds = ds.append(rows(100 + number)).compact()
    forget(monkeypatch)
    followed = TableFollower(URI, None, FollowerRules(FeedRules()))
    columns = FeedColumns(followed.table(), None)
    end = followed.advance(Position(1), Limits(versions=1))
    service.clear()
    service.seconds, service.max_at_once = 0.02, 0
    assert len(followed.units(Position(1), end, lambda _last: columns)) == 1
    assert service.kinds()["get"] <= 2 * ds.version, "each manifest once, with its transaction"
    assert service.max_at_once > 4
    shared = {id(columns.ids_in(followed.table(number))) for number in range(2, ds.version + 1)}
    assert len(shared) == 1, "versions with the same columns take no memory for them"
