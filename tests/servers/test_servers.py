"""The servers themselves: they start, serve a client, and end with their starter."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lance_stream.storage.locations import open_store
from tests.servers.azurite_blobs import KEY
from tests.servers.buckets import Bucket
from tests.servers.environment import forget_credentials
from tests.servers.fixtures import SERVERS
from tests.servers.moto import DynamoTable, MotoServer
from tests.servers.server import HOST, Server, ServerError, ask


def test_bucket_objects_are_created_only_once(any_bucket: Bucket) -> None:
    """Commits rely on conditional writes, so an emulator without them would make every test of
    them meaningless.
    """
    store = open_store(f"{any_bucket.uri}/a b%20c", any_bucket.storage_options)
    assert store.create_once("1.manifest", b"first")
    assert not store.create_once("1.manifest", b"second")
    assert store.read("1.manifest") == b"first"


def test_buckets_show_no_secrets(any_bucket: Bucket) -> None:
    """Fixtures appear in the output of failing tests."""
    for secret in ("test-secret-of-s3", KEY, "test-token"):
        assert secret not in repr(any_bucket)


@pytest.mark.parametrize(
    "table_fixture",
    [
        pytest.param("dynamodb_table", marks=pytest.mark.server("moto")),
        pytest.param("dynamodb_local_table", marks=pytest.mark.server("dynamodb_local")),
    ],
)
def test_items_are_put_once(table_fixture: str, request: pytest.FixtureRequest) -> None:
    """An emulator that ignores the condition would hide lost versions."""
    import botocore.session

    table: DynamoTable = request.getfixturevalue(table_fixture)
    client = botocore.session.get_session().create_client("dynamodb", **table.client_options)
    item = {"base_uri": {"S": "t.lance"}, "version": {"N": "1"}}
    put = {"TableName": table.name, "Item": item}
    put["ConditionExpression"] = "attribute_not_exists(base_uri)"
    client.put_item(**put)
    with pytest.raises(client.exceptions.ConditionalCheckFailedException):
        client.put_item(**put)


def test_every_test_gets_an_empty_database(postgresql: Any, postgresql_url: str) -> None:
    """Tests that share tables depend on their order."""
    import psycopg

    with closing(psycopg.connect(postgresql_url, autocommit=True)) as connection:
        connection.execute("CREATE TABLE manifests (version bigint)")
    with closing(psycopg.connect(postgresql.new_database())) as connection:
        count = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'manifests'")
        assert count.fetchone() == (0,)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(server, marks=pytest.mark.server(server)) for server in SERVERS]
)
def test_servers_listen_only_on_loopback(name: str, request: pytest.FixtureRequest) -> None:
    """Test servers have known passwords and must not be reachable from the network."""
    server: Server = request.getfixturevalue(name)
    listening = Path("/proc/net/tcp")
    if not listening.exists():
        pytest.skip("only Linux tells who listens where in /proc")
    lines = listening.read_text() + Path("/proc/net/tcp6").read_text()
    hosts = {
        line.split()[1].rpartition(":")[0]
        for line in lines.splitlines()
        if line.split()[1].endswith(f":{server.port:04X}") and line.split()[3] == "0A"
    }
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert hosts
    assert hosts <= loopback


STARTER = """
import sys, time
from tests.servers.fixtures import SERVERS
server = SERVERS[sys.argv[1]]().start()
print(server.process_id, flush=True)
time.sleep(600)
"""


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=3)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a program of a death")
@pytest.mark.parametrize(
    "name", [pytest.param(server, marks=pytest.mark.server(server)) for server in SERVERS]
)
def test_servers_end_when_their_starter_dies(name: str) -> None:
    """Interrupted test runs would otherwise fill the machine with servers."""
    root = Path(__file__).parents[2]
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, name], cwd=root, stdout=subprocess.PIPE, text=True
    )
    try:
        assert starter.stdout is not None
        server = int(starter.stdout.readline())
    finally:
        starter.kill()
        starter.communicate()
    assert wait_for_end(server), f"{name} lives on"


def wait_for_end(process: int) -> bool:
    """Whether a process ends within 20 s; a zombie counts as ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


class BrokenServer(MotoServer):
    """Ends at once, whatever its port."""

    name = "broken"

    def command(self) -> list[str]:
        """Return a program that complains."""
        return [sys.executable, "-c", "import sys; sys.exit('the disk is full')"]


def test_failed_servers_report_the_reason() -> None:
    """A server's own message is the only hint when it fails on another machine."""
    server = BrokenServer()
    with pytest.raises(ServerError, match="the disk is full"):
        server.start()


@pytest.mark.server("moto")
def test_stopped_servers_leave_nothing_behind() -> None:
    """Leftover processes and folders accumulate over many runs."""
    with MotoServer() as server:
        folder, process = server.folder, server.process_id
        assert ask("GET", f"{server.endpoint}/moto-api/") == 200
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(process, signal.SIGTERM)


def test_the_machines_credentials_are_hidden() -> None:
    """A test must not reach a developer's real account by accident."""
    environment = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_PROFILE": "work",
        "AZURE_STORAGE_CONNECTION_STRING": "s",
        "GOOGLE_APPLICATION_CREDENTIALS": "/s.json",
        "STORAGE_EMULATOR_HOST": "http://elsewhere",
        "PGPASSWORD": "s",
        "HOME": "/home/me",
    }
    forget_credentials(environment)
    assert {"HOME", "AWS_EC2_METADATA_DISABLED"} <= set(environment)
    assert not {"s", "work", "/s.json", "http://elsewhere"} & set(environment.values())
    assert HOST in environment["NO_PROXY"]


def test_tests_run_without_credentials() -> None:
    """The function above has to be called before any client is made."""
    assert os.environ["AWS_EC2_METADATA_DISABLED"] == "true"
    assert "AWS_ACCESS_KEY_ID" not in os.environ
