"""PostgreSQL and DynamoDB as manifest stores."""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from lance_stream.commit.manifest_stores import retrying
from lance_stream.commit.manifest_stores.choice import choose
from lance_stream.commit.manifest_stores.dynamodb import DynamoDBManifests
from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore
from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.storage.objects.object_requests import RequestPolicy
from tests.contracts.manifest_stores import NUM_RACERS, URI, ManifestStoreContract, item
from tests.sampling import ALL_CASES
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import KEY_ID, SECRET, DynamoTable, ask_dynamo
from tests.servers.store_faults import CutAfter, CutBefore, Forge

FEW = RequestPolicy(max_attempts=3, first_delay_seconds=0.001, total_seconds=20)


@pytest.fixture
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "POLICY", FEW)


# --- PostgreSQL


def in_postgresql(url: str, query: str = "") -> ManifestStore:
    manifests = choose("/t", {"manifest_store": f"{url}{query}"}).manifests
    assert manifests is not None
    return manifests


def execute(url: str, *statements: str) -> None:
    import psycopg

    with closing(psycopg.connect(url, autocommit=True)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


class TestPostgresql(ManifestStoreContract):
    num_rounds = 100 if ALL_CASES else 30

    @pytest.fixture
    def manifests(self, postgresql_url: str) -> ManifestStore:
        return in_postgresql(postgresql_url)


@pytest.mark.floors
def test_sixteen_threads_can_create_the_table(postgresql_url: str) -> None:
    """`CREATE TABLE IF NOT EXISTS` fails in PostgreSQL when it races, and only one writer may win
    the version.
    """
    for number in range(5):
        line, won = threading.Barrier(NUM_RACERS), []

        def race(number: int = number, line: Any = line, won: Any = won) -> None:
            name = f"&application_name={threading.get_ident()}"  # a connection of its own
            manifests = in_postgresql(postgresql_url, f"?table=t{number}{name}")
            line.wait()
            won.append(manifests.put_if_not_exists(URI, item(1)))

        threads = [threading.Thread(target=race) for _ in range(NUM_RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False] * (NUM_RACERS - 1) + [True]


def test_tables_can_be_in_a_schema(postgresql_url: str) -> None:
    """Database administrators rarely grant writes to the schema `public`."""
    execute(postgresql_url, "CREATE SCHEMA lance")
    manifests = in_postgresql(postgresql_url, "?table=lance.manifests")
    assert manifests.put_if_not_exists(URI, item(1))
    assert in_postgresql(postgresql_url).latest(URI) is None


def test_missing_privileges_name_the_needed_statement(postgresql_url: str) -> None:
    """The administrator needs the statement to run, and the error must not show the password."""
    execute(
        postgresql_url,
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN PASSWORD 'test-secret-2'",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    limited = postgresql_url.replace(
        postgresql_url.partition("//")[2].partition("@")[0], "reader:test-secret-2"
    )
    with pytest.raises(StoreRefusedError, match="CREATE TABLE lance_manifests") as caught:
        in_postgresql(limited).latest(URI)
    assert "test-secret" not in str(caught.value)


@pytest.mark.floors
def test_wrong_passwords_are_refused_at_once(postgresql_url: str) -> None:
    """Retrying cannot help, and the error must not show the password."""
    wrong = postgresql_url.replace("test-secret-of-postgresql", "test-secret-wrong")
    with pytest.raises(StoreRefusedError, match="password authentication failed") as caught:
        in_postgresql(wrong).latest(URI)
    assert "test-secret" not in str(caught.value)
    assert "test-secret" not in repr(caught.value.__cause__)


def test_libpq_can_supply_the_password(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The password may come from libpq's environment variable or its password file."""
    bare = postgresql_url.replace(":test-secret-of-postgresql@", "@")
    with pytest.raises(StoreRefusedError):
        in_postgresql(bare).latest(URI)
    monkeypatch.setenv("PGPASSWORD", "test-secret-of-postgresql")
    assert in_postgresql(bare).latest(URI) is None
    monkeypatch.delenv("PGPASSWORD")
    file = tmp_path / "pgpass"
    file.write_text("*:*:*:*:test-secret-of-postgresql\n")
    file.chmod(0o600)
    assert in_postgresql(bare, f"?passfile={file}").latest(URI) is None


@pytest.mark.floors
def test_closed_connections_are_reopened(postgresql_url: str) -> None:
    """A server or proxy closes idle connections between two batches."""
    manifests = in_postgresql(postgresql_url)
    assert manifests.put_if_not_exists(URI, item(1))
    execute(
        postgresql_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'lance-stream' AND datname = current_database()",
    )
    assert manifests.get(URI, 1) == item(1)


def test_unreachable_servers_are_given_up(
    few_attempts: None,
) -> None:
    """The commit has to end with an error that names the place and hides the password."""
    pytest.importorskip("psycopg", reason="the extra postgresql is not installed")
    away = in_postgresql("postgresql://me:test-secret@127.0.0.1:9/db")
    with pytest.raises(
        StoreUnavailableError, match=r"failed at the table .* 3 attempts in"
    ) as caught:
        away.put_if_not_exists(URI, item(1))
    assert "test-secret" not in str(caught.value)


def test_read_only_replicas_are_refused(postgresql_url: str, few_attempts: None) -> None:
    """A failover may leave the writer connected to a replica for a while."""
    read_only = f"{postgresql_url}?options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(StoreUnavailableError, match="read-only"):
        in_postgresql(read_only).put_if_not_exists(URI, item(1))


# --- DynamoDB


def in_dynamodb(table: DynamoTable, endpoint: str | None = None) -> DynamoDBManifests:
    options = {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "dynamodb_endpoint": endpoint or table.endpoint,
    }
    manifests = choose(f"s3+ddb://bucket/t?ddbTableName={table.name}", options).manifests
    assert isinstance(manifests, DynamoDBManifests)
    return manifests


class TestDynamoDB(ManifestStoreContract):
    @pytest.fixture
    def manifests(self, dynamodb_table: DynamoTable) -> ManifestStore:
        return in_dynamodb(dynamodb_table)


class TestDynamoDBLocal(ManifestStoreContract):
    num_rounds = 100 if ALL_CASES else 30

    @pytest.fixture
    def manifests(self, dynamodb_local_table: DynamoTable) -> ManifestStore:
        return in_dynamodb(dynamodb_local_table)


@pytest.fixture(
    params=[
        pytest.param("dynamodb_table", marks=pytest.mark.server("moto")),
        pytest.param("dynamodb_local_table", marks=pytest.mark.server("dynamodb_local")),
    ]
)
def any_dynamodb(request: pytest.FixtureRequest) -> DynamoTable:
    table = request.getfixturevalue(request.param)
    assert isinstance(table, DynamoTable)
    return table


def client_of(table: DynamoTable) -> Any:
    import botocore.session

    return botocore.session.get_session().create_client("dynamodb", **table.client_options)


def test_our_items_equal_the_references(dynamodb_table: DynamoTable) -> None:
    """Other implementations share the DynamoDB table and need every attribute as they write it."""
    in_dynamodb(dynamodb_table).put_if_not_exists("dir/t.lance", item(3))
    items = client_of(dynamodb_table).scan(TableName=dynamodb_table.name)["Items"]
    assert items == [
        {
            "base_uri": {"S": "dir/t.lance"},
            "version": {"N": "3"},
            "path": {"S": item(3).path},
            "size": {"N": "7"},
            "committer": {"S": "lancedb"},
        }
    ]


@pytest.mark.floors
def test_our_requests_equal_the_references(dynamodb_table: DynamoTable) -> None:
    """Requests are paid for one by one and need permissions that users have granted for the
    reference.
    """
    with FaultProxy(dynamodb_table.endpoint) as proxy:
        manifests = in_dynamodb(dynamodb_table, proxy.url)
        assert manifests.latest(URI) is None
        assert proxy.kinds() == {"DescribeTable": 1, "Query": 1}
        proxy.clear()
        manifests.put_if_not_exists(URI, item(1))
        manifests.put_if_exists(URI, item(1))
        manifests.get(URI, 1)
        manifests.latest(URI)
        assert proxy.kinds() == {"PutItem": 2, "GetItem": 1, "Query": 1}


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"size": {"S": "7"}, "path": {"S": "x"}}, "a number 'size'"),
        ({"size": {"N": "7"}}, "a string 'path'"),
        ({"path": {"N": "7"}}, "a string 'path'"),
    ],
)
def test_damaged_items_are_reported(
    dynamodb_table: DynamoTable, attributes: dict[str, Any], says: str
) -> None:
    """A missing or mistyped attribute must not become a path or size by accident."""
    client_of(dynamodb_table).put_item(
        TableName=dynamodb_table.name,
        Item={"base_uri": {"S": URI}, "version": {"N": "1"}, **attributes},
    )
    with pytest.raises(CorruptDataError, match=says):
        in_dynamodb(dynamodb_table).latest(URI)


def test_foreign_items_may_differ_in_attributes(dynamodb_table: DynamoTable) -> None:
    """Older versions of the reference wrote other attributes and no size."""
    client_of(dynamodb_table).put_item(
        TableName=dynamodb_table.name,
        Item={
            "base_uri": {"S": URI},
            "version": {"N": "1"},
            "path": {"S": "x"},
            "e_tag": {"S": "old"},
        },
    )
    assert in_dynamodb(dynamodb_table).latest(URI) == ManifestItem(1, "x", None)


def make_table(table: DynamoTable, name: str, *keys: tuple[str, str, str]) -> DynamoTable:
    description = {
        "TableName": name,
        "AttributeDefinitions": [
            {"AttributeName": key, "AttributeType": kind} for key, kind, _ in keys
        ],
        "KeySchema": [{"AttributeName": key, "KeyType": role} for key, _, role in keys],
        "BillingMode": "PAY_PER_REQUEST",
    }
    assert ask_dynamo(table.endpoint, "CreateTable", description) == 200
    return DynamoTable(name, table.endpoint, {}, {})


def test_tables_with_wrong_keys_are_refused(
    any_dynamodb: DynamoTable,
) -> None:
    """Without both keys conditions would not protect versions; the error shows the expected and
    the actual keys.
    """
    uri, version = ("base_uri", "S", "HASH"), ("version", "N", "RANGE")
    for number, keys in enumerate(
        [(uri,), (uri, ("version", "S", "RANGE")), (("uri", "S", "HASH"), version)]
    ):
        wrong = make_table(any_dynamodb, f"{any_dynamodb.name}-{number}", *keys)
        with pytest.raises(InvalidInputError, match="the HASH key 'base_uri' of type S") as caught:
            in_dynamodb(wrong).latest(URI)
        for key, kind, role in keys:
            assert f"{role} '{key}' of type {kind}" in str(caught.value)


def test_missing_tables_are_refused_by_name(any_dynamodb: DynamoTable) -> None:
    """The error of botocore does not contain the name of the table."""
    missing = DynamoTable("nowhere", any_dynamodb.endpoint, {}, {})
    with pytest.raises(StoreRefusedError, match=r"'nowhere'.*ResourceNotFoundException"):
        in_dynamodb(missing).latest(URI)


@pytest.mark.parametrize(
    "fault",
    [
        CutBefore,
        lambda: Forge(503),
        lambda: Forge(500),
        lambda: Forge(400, "ProvisionedThroughputExceededException"),
    ],
)
def test_undelivered_requests_are_retried(
    any_dynamodb: DynamoTable, fault: Callable[[], Any], few_attempts: None
) -> None:
    """Throttling and dropped connections are normal and must not fail a commit."""
    with FaultProxy(any_dynamodb.endpoint) as proxy:
        manifests = in_dynamodb(any_dynamodb, proxy.url)
        assert manifests.latest(URI) is None
        proxy.add(fault(), kind="PutItem", at=1, times=1)
        assert manifests.put_if_not_exists(URI, item(1))


@pytest.mark.parametrize("kind", ["Query", "GetItem"])
def test_empty_answers_are_no_missing_items(
    any_dynamodb: DynamoTable, kind: str, few_attempts: None
) -> None:
    """An item that is taken for missing lets its version be published twice."""
    with FaultProxy(any_dynamodb.endpoint) as proxy:
        manifests = in_dynamodb(any_dynamodb, proxy.url)
        assert manifests.put_if_not_exists(URI, item(1))
        proxy.clear()
        proxy.add(Forge(200), kind=kind, at=1, times=1)
        answer = manifests.latest(URI) if kind == "Query" else manifests.get(URI, 1)
        assert answer == item(1)
        assert proxy.kinds()[kind] == 2
        assert manifests.get(URI, 2) is None


@pytest.mark.parametrize("landed", [True, False])
def test_empty_answers_are_no_success(
    any_dynamodb: DynamoTable, landed: bool, few_attempts: None
) -> None:
    """A version would count as published although the store has no item of it."""
    with FaultProxy(any_dynamodb.endpoint) as proxy:
        manifests = in_dynamodb(any_dynamodb, proxy.url)
        proxy.add(Forge(200, landed=landed), kind="DescribeTable", at=1, times=1)
        proxy.add(Forge(200, landed=landed), kind="PutItem", at=1, times=1)
        assert manifests.put_if_not_exists(URI, item(1)) is not landed
        assert manifests.get(URI, 1) == item(1)
        proxy.clear()
        proxy.add(Forge(200, landed=landed), kind="PutItem", at=1, times=1)
        final = ManifestItem(1, f"{URI}/_versions/1.manifest", 7)
        assert manifests.put_if_exists(URI, final)
        assert manifests.get(URI, 1) == final
        proxy.clear()
        proxy.add(Forge(200, landed=landed), kind="BatchWriteItem", at=1, times=1)
        manifests.delete(URI, [1])
        assert manifests.get(URI, 1) is None


@pytest.mark.floors
def test_lost_replies_look_like_lost_races(any_dynamodb: DynamoTable, few_attempts: None) -> None:
    """The retried request finds the item that the first one made, whose path tells the caller that
    the version is its own.
    """
    with FaultProxy(any_dynamodb.endpoint) as proxy:
        manifests = in_dynamodb(any_dynamodb, proxy.url)
        assert manifests.latest(URI) is None
        proxy.add(CutAfter(), kind="PutItem", at=1, times=1)
        assert not manifests.put_if_not_exists(URI, item(1, "ours"))
        assert manifests.get(URI, 1) == item(1, "ours")


def test_silent_services_are_given_up(any_dynamodb: DynamoTable, few_attempts: None) -> None:
    """Retries have to end, with an error that states the attempts and hides the secret."""
    with FaultProxy(any_dynamodb.endpoint) as proxy:
        manifests = in_dynamodb(any_dynamodb, proxy.url)
        assert manifests.latest(URI) is None
        proxy.add(Forge(503), kind="Query", times=None)
        with pytest.raises(
            StoreUnavailableError, match=r"newest item failed at .* 3 attempts"
        ) as it:
            manifests.latest(URI)
        assert "test-secret" not in str(it.value)
        assert len(proxy.seen("Query")) == 1 + 3


def test_expired_keys_of_dynamodb_are_renewed(
    dynamodb_table: DynamoTable, few_attempts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore can find new credentials itself, but keys that the user passed
    have no replacement.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with FaultProxy(dynamodb_table.endpoint) as proxy:
        renewable = DynamoDBManifests(dynamodb_table.name, "us-east-1", proxy.url)
        assert renewable.put_if_not_exists(URI, item(1))
        proxy.choose = lambda request: (
            Forge(400, "ExpiredTokenException")
            if "Credential=old/" in request.headers["authorization"]
            else None
        )
        with pytest.raises(StoreRefusedError, match="ExpiredTokenException"):
            renewable.latest(URI)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
        assert renewable.latest(URI) == item(1)
        fixed = DynamoDBManifests(dynamodb_table.name, "us-east-1", proxy.url, "new", SECRET)
        assert fixed.latest(URI) == item(1)
        proxy.clear()
        proxy.add(Forge(400, "ExpiredTokenException"), kind="Query", times=None)
        with pytest.raises(StoreRefusedError, match="ExpiredTokenException"):
            fixed.latest(URI)
        assert proxy.kinds() == {"Query": 1}
