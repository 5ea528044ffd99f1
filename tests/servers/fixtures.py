"""Fixtures of servers, and what becomes of a test whose server is not there.

A test asks for a place of its own by the name of a fixture:

    s3_bucket             a Bucket on moto
    dynamodb_table        a DynamoTable on moto
    dynamodb_local_table  a DynamoTable on DynamoDB Local
    google_bucket         a Bucket on fake-gcs-server, behind its front
    google_front          the front: `new_bucket()`
    azure_container       a Bucket on Azurite
    postgresql_url        an empty database
    kafka_connect         a worker of Kafka Connect, with Debezium
    any_bucket            each kind of Bucket in turn

or for the server itself: moto, dynamodb_local, fake_gcs, azurite, postgresql, kafka. A server is
started when the first test of a process needs it, and ends with the process. A test that asks for
one in another way is marked `@pytest.mark.server("moto")`; those that use a fixture are marked by
themselves, so that `-m "not server"` leaves all of them out.

Where a server cannot be had, its tests are skipped with the reason. With CI=true they fail.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.recipes import kafka_arguments
from tests.servers.azurite_blobs import Azurite
from tests.servers.buckets import Bucket
from tests.servers.dynamodb import DynamoDBLocal
from tests.servers.environment import forget_credentials
from tests.servers.fake_gcs import FakeGoogleServer
from tests.servers.kafka_broker import KafkaBroker, KafkaConnect
from tests.servers.marks import servers_of
from tests.servers.moto import DynamoTable, MotoServer
from tests.servers.postgresql import PostgreSQL
from tests.servers.server import Server

if TYPE_CHECKING:  # aiohttp comes with the extra gcs
    from tests.servers.google_front import GoogleFront

SERVERS: dict[str, type[Server]] = {
    kind.name: kind
    for kind in (MotoServer, DynamoDBLocal, FakeGoogleServer, Azurite, PostgreSQL, KafkaBroker)
}

_ONE_A_MACHINE = {"dynamodb_local", "kafka"}
"""Those that take long to start: all of their tests run in one process, and not with --quick."""

ServerT = TypeVar("ServerT", bound=Server)
_running: dict[str, Server] = {}
_problems: dict[str, str | None] = {}


def pytest_configure(config: pytest.Config) -> None:
    forget_credentials(os.environ)


@pytest.hookimpl(tryfirst=True)  # before -m chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marked = servers_of(item)
        for name in SERVERS:
            if name in getattr(item, "fixturenames", ()) and name not in marked:
                item.add_marker(pytest.mark.server(name))
        is_grouped = item.get_closest_marker("spark") is not None  # by its session
        for name in () if is_grouped else _ONE_A_MACHINE & servers_of(item):
            item.add_marker(pytest.mark.xdist_group(name))
        if _ONE_A_MACHINE & servers_of(item):
            item.add_marker(pytest.mark.nightly)
        unknown = servers_of(item) - set(SERVERS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} needs {unknown}; servers are {set(SERVERS)}")


def require(name: str) -> None:
    """Skip the test that runs now if a server cannot be had; let it fail where CI is true."""
    if name not in _problems:
        _problems[name] = SERVERS[name].find_problem()
    problem = _problems[name]
    if problem is not None and os.environ.get("CI") == "true":
        pytest.fail(f"needs the server {name}, and this is CI: {problem}", pytrace=False)
    if problem is not None:
        pytest.skip(f"needs the server {name}: {problem}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report = yield
    if report.failed:
        for name in servers_of(item) & set(_running):
            report.sections.append((f"output of {name}", _running[name].output(3_000)))
    return report


def _run(kind: type[ServerT]) -> Iterator[ServerT]:
    require(kind.name)
    with kind() as server:
        _running[kind.name] = server
        yield server
        del _running[kind.name]


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    """S3 and DynamoDB."""
    yield from _run(MotoServer)


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[DynamoDBLocal]:
    """DynamoDB, Amazon's own."""
    yield from _run(DynamoDBLocal)


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[FakeGoogleServer]:
    """Google's storage."""
    yield from _run(FakeGoogleServer)


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azure's blobs."""
    yield from _run(Azurite)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """PostgreSQL."""
    yield from _run(PostgreSQL)


@pytest.fixture(scope="session")
def spark_for_kafka() -> str:
    """PYSPARK_SUBMIT_ARGS of a Spark that reads Kafka: ask for it before a broker is started."""
    return kafka_arguments()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A broker of Kafka, whose topics all tests share."""
    yield from _run(KafkaBroker)


@pytest.fixture
def kafka_connect(kafka: KafkaBroker) -> Iterator[KafkaConnect]:
    """A worker of Kafka Connect of this test alone: it ends before the databases that it reads."""
    with KafkaConnect(kafka) as worker:
        yield worker


@pytest.fixture
def s3_bucket(moto: MotoServer) -> Bucket:
    """A new bucket of S3."""
    return moto.new_bucket()


@pytest.fixture
def google_bucket(google_front: "GoogleFront") -> Bucket:
    """A new bucket of Google's."""
    return google_front.new_bucket()


@pytest.fixture(scope="session")
def google_front(fake_gcs: FakeGoogleServer) -> Iterator["GoogleFront"]:
    """The front of fake-gcs-server, which speaks Google's XML interface."""
    from tests.servers.google_front import GoogleFront

    with GoogleFront(fake_gcs) as front:
        yield front


@pytest.fixture
def azure_container(azurite: Azurite) -> Bucket:
    """A new container of Azure's."""
    return azurite.new_container()


@pytest.fixture(
    params=[
        pytest.param("s3_bucket", marks=pytest.mark.server("moto")),
        pytest.param("google_bucket", marks=pytest.mark.server("fake_gcs")),
        pytest.param("azure_container", marks=pytest.mark.server("azurite")),
    ]
)
def any_bucket(request: pytest.FixtureRequest) -> Bucket:
    """A new bucket of each kind in turn."""
    bucket = request.getfixturevalue(request.param)
    assert isinstance(bucket, Bucket)
    return bucket


@pytest.fixture
def dynamodb_table(moto: MotoServer) -> DynamoTable:
    """A new table of moto's DynamoDB, with the keys of the external manifest store."""
    return moto.new_table()


@pytest.fixture
def dynamodb_local_table(dynamodb_local: DynamoDBLocal) -> DynamoTable:
    """A new table of DynamoDB Local, with the keys of the external manifest store."""
    return dynamodb_local.new_table()


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL) -> str:
    """The URL of a new, empty database."""
    return postgresql.new_database()
