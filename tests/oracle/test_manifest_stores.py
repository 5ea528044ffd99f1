"""Tables on S3 with DynamoDB that pylance and we write, each finishing what the other left."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lance
import pytest

import lance_stream
from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.opening import open_log
from tests.contracts.shared_tables import SCHEMA, Place, SharedTables, both_see, rows
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import DynamoTable
from tests.servers.store_faults import CutAfter, CutBefore, Forge

pytestmark = [pytest.mark.oracle, pytest.mark.server("moto")]


def with_dynamodb(bucket: Bucket, table: DynamoTable, path: str, url: str | None = None) -> Place:
    options = {**bucket.storage_options, **table.storage_options}
    if url is not None:
        options |= {"aws_endpoint": url, "dynamodb_endpoint": url}
    return Place(f"s3+ddb://{bucket.name}/{path}?ddbTableName={table.name}", options)


@pytest.mark.repeats_contract
class TestTablesOnS3WithDynamoDB(SharedTables):
    @pytest.fixture
    def places(self, s3_bucket: Bucket, dynamodb_table: DynamoTable) -> Callable[[str], Place]:
        return lambda path: with_dynamodb(s3_bucket, dynamodb_table, path)

    @pytest.fixture(autouse=True)
    def is_finished(self, place: Place) -> Iterator[None]:
        yield
        check_is_finished(place)


class TestTablesOnS3WithDynamoDBLocal(SharedTables):
    @pytest.fixture
    def places(
        self, s3_bucket: Bucket, dynamodb_local_table: DynamoTable
    ) -> Callable[[str], Place]:
        return lambda path: with_dynamodb(s3_bucket, dynamodb_local_table, path)


def log_of(place: Place) -> ExternalLog:
    log = open_log(place.uri, place.options)
    assert isinstance(log, ExternalLog)
    return log


def check_is_finished(place: Place) -> None:
    """Every version has an item with its final path, and nothing is staged."""
    log = log_of(place)
    items = log.manifests.items(log.base_uri)
    assert [item.version for item in items] == log.versions()
    for item in items:
        path = log.manifest_path(item.version)
        assert item.path == f"{log.base_uri}/{path}"
        assert item.size_bytes == log.store.size(path)
    names = log.store.list_names("_versions")
    assert [name for name in names if not name.endswith(".manifest")] == []


# --- what each leaves when it dies at a step


@dataclass(frozen=True)
class Left:
    """What a writer leaves of version 3.

    Attributes:
        is_staged: Whether the item still has the staged path.
        has_staged: Whether the staged file is there.
        has_final: Whether the final one is.
    """

    is_staged: bool
    has_staged: bool
    has_final: bool

    def make(self, place: Place) -> None:
        """Undo some steps of the newest version's commit."""
        log = log_of(place)
        final = log.manifest_path(3)
        data = log.store.read(final)
        staged = f"{final}-10c61e1d-36f2-4b3f-8f1a-2f1a3c5f6a7b"
        item = log.manifests.get(log.base_uri, 3)
        assert item is not None
        if self.has_staged:
            log.store.write(staged, data)
        if not self.has_final:
            log.store.delete(final)
        if self.is_staged:
            log.manifests.put_if_exists(
                log.base_uri, item._replace(path=f"{log.base_uri}/{staged}")
            )


LEFT = {
    "after step 2": Left(True, True, False),
    "after step 3": Left(True, True, True),
    "after step 3, and the staged file is gone": Left(True, False, True),
    "after step 4": Left(False, True, True),
}


@pytest.fixture
def place(s3_bucket: Bucket, dynamodb_table: DynamoTable) -> Place:
    return with_dynamodb(s3_bucket, dynamodb_table, "dir/a table.lance")


def made_by(place: Place, writer: str) -> None:
    """Make a table of versions 1 to 3, with rows 1 to 3."""
    if writer == "pylance":
        lance.write_dataset(rows(1), place.uri, storage_options=place.options)
        place.they_append(rows(2))
        place.they_append(rows(3))
    else:
        lance_stream.create_dataset(place.uri, SCHEMA, storage_options=place.options)
        place.we_append(rows(1, 2))
        place.we_append(rows(3))


READERS: dict[str, Callable[[Place], object]] = {
    "pylance reads": lambda place: place.theirs().to_table(),
    "we read": lambda place: place.ours().to_table(),
    "pylance appends": lambda place: place.they_append(rows(4)),
    "we append": lambda place: place.we_append(rows(4)),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.some_cases(one_in=4)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("writer", ["pylance", "we"])
def test_each_finishes_the_others_commits(
    place: Place, writer: str, left: str, reader: str
) -> None:
    """A writer may die between DynamoDB and S3, at any of the three steps."""
    made_by(place, writer)
    LEFT[left].make(place)
    READERS[reader](place)
    log = log_of(place)
    item = log.manifests.get(log.base_uri, 3)
    assert item is not None
    assert item.path == f"{log.base_uri}/{log.manifest_path(3)}"
    assert set(both_see(place)) == {1, 2, 3, *([4] if "append" in reader else [])}
    plain = Place(place.uri.replace("s3+ddb", "s3").partition("?")[0], place.options)
    assert both_see(plain) == both_see(place)


@pytest.mark.parametrize("writer", ["pylance", "we"])
def test_a_lost_manifest_loads_nowhere(place: Place, writer: str) -> None:
    """Falling back to the version before would silently lose a commit."""
    made_by(place, writer)
    Left(True, False, False).make(place)
    with pytest.raises(lance_stream.CorruptDataError, match="version 3"):
        place.ours()
    with pytest.raises(ValueError, match="not found"):
        place.theirs()


def test_items_of_both_are_alike(place: Place, dynamodb_table: DynamoTable) -> None:
    """Each program finishes commits by the items of the other."""
    import botocore.session

    made_by(place, "pylance")
    place.we_append(rows(4))
    client: Any = botocore.session.get_session().create_client(
        "dynamodb", **dynamodb_table.client_options
    )
    items = client.scan(TableName=dynamodb_table.name)["Items"]
    theirs, ours = (next(item for item in items if item["version"]["N"] == n) for n in ("3", "4"))
    assert theirs.keys() == ours.keys()
    assert {name: list(value) for name, value in theirs.items()} == {
        name: list(value) for name, value in ours.items()
    }
    assert theirs["base_uri"] == ours["base_uri"] == {"S": "dir/a table.lance"}
    assert theirs["committer"] == ours["committer"]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", ["t.lance", "d/tüte.lance", "d/100%.lance", "a%20b", "x+y", "a~b"])
def test_both_use_one_key_for_a_table(
    s3_bucket: Bucket, dynamodb_table: DynamoTable, name: str
) -> None:
    """Two spellings of one URI would be two tables in DynamoDB."""
    place = with_dynamodb(s3_bucket, dynamodb_table, name)
    lance.write_dataset(rows(1), place.uri, storage_options=place.options)
    place.we_append(rows(2))
    assert set(both_see(place)) == {1, 2}
    check_is_finished(place)


# --- others without the manifest store


def plain(place: Place) -> Place:
    return Place(place.uri.replace("s3+ddb", "s3").partition("?")[0], place.options)


def test_appends_that_bypass_dynamodb_are_kept(place: Place) -> None:
    """A writer without the option must not have its rows overwritten."""
    made_by(place, "we")
    plain(place).they_append(rows(4))
    assert set(both_see(place)) == {1, 2, 3}  # neither of us sees it yet
    place.we_append(rows(5))
    assert set(both_see(place)) == {1, 2, 3, 4, 5}
    plain(place).they_append(rows(6))
    place.they_append(rows(7))
    assert set(both_see(place)) == {1, 2, 3, 4, 5, 6, 7}
    assert both_see(plain(place)) == both_see(place)


def test_pylance_tables_can_adopt_dynamodb(place: Place) -> None:
    """Users add the store to existing tables, after which plain commits must be refused."""
    lance.write_dataset(rows(1), plain(place).uri, storage_options=place.options)
    plain(place).they_append(rows(2))
    place.we_append(rows(3))
    place.they_append(rows(4))
    assert set(both_see(place)) == {1, 2, 3, 4}
    with pytest.raises(lance_stream.InvalidInputError, match="manifest_store"):
        plain(place).we_append(rows(5))


def test_a_table_can_leave_dynamodb(place: Place) -> None:
    """Plain writers must be allowed again, and no version may be lost."""
    made_by(place, "pylance")
    place.we_append(rows(4))
    lance_stream.leave_manifest_store(place.uri, place.options)
    plain(place).we_append(rows(5))
    plain(place).they_append(rows(6))
    assert set(both_see(plain(place))) == set(both_see(place)) == {1, 2, 3, 4, 5, 6}


# --- requests that go wrong, of one writer in a table that both write


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("fault", [CutBefore(), CutAfter(), Forge(503), Forge(500, landed=True)])
def test_every_commit_fault_ends_in_one_version(
    s3_bucket: Bucket, dynamodb_table: DynamoTable, fault: Any
) -> None:
    """Each request can fail before or after it takes effect."""
    whole = with_dynamodb(s3_bucket, dynamodb_table, "t")
    made_by(whole, "pylance")
    with FaultProxy(dynamodb_table.endpoint) as proxy:
        place = with_dynamodb(s3_bucket, dynamodb_table, "t", proxy.url)
        ds = place.ours()
        proxy.clear()
        ds = ds.append(rows(4))
        num_requests = len(proxy.story().splitlines())
        assert num_requests == 10
        for number in range(1, num_requests + 1):
            proxy.clear()
            proxy.add(fault, at=number, times=1)
            ds = ds.append(rows(100 + number))
            place.they_append(rows(200 + number))
    found = both_see(whole)
    assert set(found) == {1, 2, 3, 4, *range(101, 111), *range(201, 211)}
    assert whole.ours().version == 24
