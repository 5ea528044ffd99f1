"""Tables on S3 with DynamoDB: pylance and we finish each other's interrupted commits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lance
import pytest

import lance_stream
from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.opening import open_log
from tests.contracts.shared_tables import SCHEMA, SharedTable, SharedTables, both_see, rows
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import DynamoTable
from tests.servers.store_faults import CutAfter, CutBefore, Forge

pytestmark = [pytest.mark.oracle, pytest.mark.server("moto")]


def with_dynamodb(
    bucket: Bucket, table: DynamoTable, path: str, url: str | None = None
) -> SharedTable:
    options = {**bucket.storage_options, **table.storage_options}
    if url is not None:
        options |= {"aws_endpoint": url, "dynamodb_endpoint": url}
    return SharedTable(f"s3+ddb://{bucket.name}/{path}?ddbTableName={table.name}", options)


@pytest.mark.repeats_contract
class TestTablesOnS3WithDynamoDB(SharedTables):
    @pytest.fixture
    def new_table(
        self, s3_bucket: Bucket, dynamodb_table: DynamoTable
    ) -> Callable[[str], SharedTable]:
        return lambda path: with_dynamodb(s3_bucket, dynamodb_table, path)

    @pytest.fixture(autouse=True)
    def is_finished(self, table: SharedTable) -> Iterator[None]:
        yield
        check_is_finished(table)


class TestTablesOnS3WithDynamoDBLocal(SharedTables):
    @pytest.fixture
    def new_table(
        self, s3_bucket: Bucket, dynamodb_local_table: DynamoTable
    ) -> Callable[[str], SharedTable]:
        return lambda path: with_dynamodb(s3_bucket, dynamodb_local_table, path)


def log_of(table: SharedTable) -> ExternalLog:
    log = open_log(table.uri, table.options)
    assert isinstance(log, ExternalLog)
    return log


def check_is_finished(table: SharedTable) -> None:
    """Check that every version has an item with its final path, and that nothing is staged."""
    log = log_of(table)
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
class Interruption:
    """The state of version 3 after its writer died.

    Attributes:
        is_staged: Whether the item still has the staged path.
        has_staged: Whether the staged manifest exists.
        has_final: Whether the final manifest exists.
    """

    is_staged: bool
    has_staged: bool
    has_final: bool

    def make(self, table: SharedTable) -> None:
        """Undo some steps of the newest version's commit."""
        log = log_of(table)
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


INTERRUPTIONS = {
    "after step 2": Interruption(True, True, False),
    "after step 3": Interruption(True, True, True),
    "after step 3, and the staged file is gone": Interruption(True, False, True),
    "after step 4": Interruption(False, True, True),
}


@pytest.fixture
def table(s3_bucket: Bucket, dynamodb_table: DynamoTable) -> SharedTable:
    return with_dynamodb(s3_bucket, dynamodb_table, "dir/a table.lance")


def write_versions(table: SharedTable, writer: str) -> None:
    """Create a table of versions 1 to 3, with rows 1 to 3."""
    if writer == "pylance":
        lance.write_dataset(rows(1), table.uri, storage_options=table.options)
        table.they_append(rows(2))
        table.they_append(rows(3))
    else:
        lance_stream.create_dataset(table.uri, SCHEMA, storage_options=table.options)
        table.we_append(rows(1, 2))
        table.we_append(rows(3))


READERS: dict[str, Callable[[SharedTable], object]] = {
    "pylance reads": lambda table: table.theirs().to_table(),
    "we read": lambda table: table.ours().to_table(),
    "pylance appends": lambda table: table.they_append(rows(4)),
    "we append": lambda table: table.we_append(rows(4)),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.some_cases(one_in=4)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("interruption", INTERRUPTIONS)
@pytest.mark.parametrize("writer", ["pylance", "we"])
def test_each_finishes_the_others_commits(
    table: SharedTable, writer: str, interruption: str, reader: str
) -> None:
    """A writer may die between DynamoDB and S3, at any of the three steps."""
    write_versions(table, writer)
    INTERRUPTIONS[interruption].make(table)
    READERS[reader](table)
    log = log_of(table)
    item = log.manifests.get(log.base_uri, 3)
    assert item is not None
    assert item.path == f"{log.base_uri}/{log.manifest_path(3)}"
    assert set(both_see(table)) == {1, 2, 3, *([4] if "append" in reader else [])}
    plain = SharedTable(table.uri.replace("s3+ddb", "s3").partition("?")[0], table.options)
    assert both_see(plain) == both_see(table)


@pytest.mark.parametrize("writer", ["pylance", "we"])
def test_a_lost_manifest_loads_nowhere(table: SharedTable, writer: str) -> None:
    """Falling back to the version before would silently lose a commit."""
    write_versions(table, writer)
    Interruption(True, False, False).make(table)
    with pytest.raises(lance_stream.CorruptDataError, match="version 3"):
        table.ours()
    with pytest.raises(ValueError, match="not found"):
        table.theirs()


def test_items_of_both_are_alike(table: SharedTable, dynamodb_table: DynamoTable) -> None:
    """Each program finishes commits by the items of the other."""
    import botocore.session

    write_versions(table, "pylance")
    table.we_append(rows(4))
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
def test_both_use_equal_table_keys(
    s3_bucket: Bucket, dynamodb_table: DynamoTable, name: str
) -> None:
    """Two spellings of one URI would be two tables in DynamoDB."""
    table = with_dynamodb(s3_bucket, dynamodb_table, name)
    lance.write_dataset(rows(1), table.uri, storage_options=table.options)
    table.we_append(rows(2))
    assert set(both_see(table)) == {1, 2}
    check_is_finished(table)


# --- others without the manifest store


def plain(table: SharedTable) -> SharedTable:
    return SharedTable(table.uri.replace("s3+ddb", "s3").partition("?")[0], table.options)


def test_appends_that_bypass_dynamodb_are_kept(table: SharedTable) -> None:
    """A writer without the option must not have its rows overwritten."""
    write_versions(table, "we")
    plain(table).they_append(rows(4))
    assert set(both_see(table)) == {1, 2, 3}  # neither of us sees it yet
    table.we_append(rows(5))
    assert set(both_see(table)) == {1, 2, 3, 4, 5}
    plain(table).they_append(rows(6))
    table.they_append(rows(7))
    assert set(both_see(table)) == {1, 2, 3, 4, 5, 6, 7}
    assert both_see(plain(table)) == both_see(table)


def test_pylance_tables_can_adopt_dynamodb(table: SharedTable) -> None:
    """Users add the store to existing tables, after which plain commits must be refused."""
    lance.write_dataset(rows(1), plain(table).uri, storage_options=table.options)
    plain(table).they_append(rows(2))
    table.we_append(rows(3))
    table.they_append(rows(4))
    assert set(both_see(table)) == {1, 2, 3, 4}
    with pytest.raises(lance_stream.InvalidInputError, match="manifest_store"):
        plain(table).we_append(rows(5))


def test_a_table_can_leave_dynamodb(table: SharedTable) -> None:
    """Plain writers must be allowed again, and no version may be lost."""
    write_versions(table, "pylance")
    table.we_append(rows(4))
    lance_stream.leave_manifest_store(table.uri, table.options)
    plain(table).we_append(rows(5))
    plain(table).they_append(rows(6))
    assert set(both_see(plain(table))) == set(both_see(table)) == {1, 2, 3, 4, 5, 6}


# --- requests that go wrong, of one writer in a table that both write


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("fault", [CutBefore(), CutAfter(), Forge(503), Forge(500, landed=True)])
def test_commit_faults_end_in_one_version(
    s3_bucket: Bucket, dynamodb_table: DynamoTable, fault: Any
) -> None:
    """Each request can fail before or after it takes effect."""
    whole = with_dynamodb(s3_bucket, dynamodb_table, "t")
    write_versions(whole, "pylance")
    with FaultProxy(dynamodb_table.endpoint) as proxy:
        table = with_dynamodb(s3_bucket, dynamodb_table, "t", proxy.url)
        ds = table.ours()
        proxy.clear()
        ds = ds.append(rows(4))
        num_requests = len(proxy.story().splitlines())
        assert num_requests == 10
        for number in range(1, num_requests + 1):
            proxy.clear()
            proxy.add(fault, at=number, times=1)
            ds = ds.append(rows(100 + number))
            table.they_append(rows(200 + number))
    values = both_see(whole)
    assert set(values) == {1, 2, 3, 4, *range(101, 111), *range(201, 211)}
    assert whole.ours().version == 24
