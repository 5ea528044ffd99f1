"""Tables by their names in Lance namespaces: directories, REST services, and vended credentials."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
import pytest
from lance.namespace import RestAdapter

import lance_stream
from lance_stream.cli import main as program
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    StoreError,
    StoreUnavailableError,
    UnsupportedFeatureError,
)
from lance_stream.spark.arguments.reader_options import parse_reader_options
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.storage.engine.azure_options import azure_settings
from lance_stream.storage.engine.connection import ObstoreService
from lance_stream.storage.engine.credentials import FixedCredentials
from lance_stream.storage.engine.google import google_settings
from lance_stream.storage.engine.s3 import s3_settings
from lance_stream.storage.namespaces import vended_credentials
from lance_stream.storage.namespaces.client import NamespaceTable, TableLocation
from lance_stream.storage.namespaces.locating import locate
from lance_stream.storage.objects.object_requests import TryAgainError
from tests.servers.issuing_namespace import IssuingNamespace
from tests.servers.moto import MotoServer

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def directory(tmp_path: Path) -> dict[str, str]:
    return {"impl": "dir", "root": str(tmp_path / "root")}


@pytest.fixture
def rest(directory: dict[str, str]) -> Iterator[dict[str, str]]:
    """A REST service in front of the directory, from the reference implementation."""
    with RestAdapter("dir", {"root": directory["root"]}, port=0) as adapter:
        yield {"impl": "rest", "uri": f"http://127.0.0.1:{adapter.port}"}


def test_names_create_and_open_tables(directory: dict[str, str]) -> None:
    """The namespace has to know the table afterwards, so that other programs find it."""
    lance_stream.create_dataset(None, ROWS, table_id="events", namespace=directory)
    ds = lance_stream.open_dataset(table_id=["events"], namespace=directory).append(ROWS)
    assert lance_stream.open_dataset(table_id="events", namespace=directory).version == ds.version
    assert lance.dataset(namespace_client=_client(directory), table_id=["events"]).count_rows() == 4
    assert ds.verify() == []


def test_other_programs_tables_are_opened(directory: dict[str, str]) -> None:
    """pylance declares the table and writes it."""
    lance.write_dataset(
        ROWS, namespace_client=_client(directory), table_id=["theirs"], mode="create"
    )
    ds = lance_stream.open_dataset(table_id="theirs", namespace=directory)
    assert ds.to_table().equals(ROWS)


def test_nested_tables_are_found_over_rest(directory: dict[str, str], rest: dict[str, str]) -> None:
    """A service and the directory that it shows name the same table."""
    _client(rest).create_namespace(lance_namespace.CreateNamespaceRequest(id=["db"]))
    lance_stream.create_dataset(None, ROWS, table_id=["db", "events"], namespace=rest)
    ds = lance_stream.open_dataset(table_id="db.events", namespace=directory)
    assert ds.count_rows() == 2


def test_missing_tables_are_not_found(rest: dict[str, str]) -> None:
    """The error is that of tables that are named by location."""
    with pytest.raises(NotFoundError, match=r"'nobody'.*\(rest\)"):
        lance_stream.open_dataset(table_id="nobody", namespace=rest)


def test_silent_services_are_unavailable() -> None:
    """Callers retry this error."""
    with pytest.raises(StoreUnavailableError, match="namespace"):
        locate(None, None, "events", {"impl": "rest", "uri": "http://127.0.0.1:9"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"uri": "t", "table_id": "t", "namespace": {"impl": "dir"}}, "name a table by its loc"),
        ({"table_id": "t"}, "name a table by its location, or by table_id and namespace"),
        ({"namespace": {"impl": "dir"}}, "name a table by its location"),
        ({}, "name a table by its location"),
        ({"table_id": "t", "namespace": {"root": "x"}}, "a namespace is a mapping with the impl"),
        ({"table_id": "t", "namespace": "dir"}, "a namespace is a mapping"),
        ({"table_id": "t", "namespace": {"impl": "glue"}}, "implementations are 'dir', 'rest'"),
        ({"table_id": "t", "namespace": {"impl": "dir"}}, "'root'"),
        ({"table_id": "", "namespace": {"impl": "dir", "root": "x"}}, "table_id is the name"),
        ({"table_id": ["a", 1], "namespace": {"impl": "dir", "root": "x"}}, "table_id is the"),
    ],
)
def test_contradictory_names_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A table is named once, and the error shows how."""
    with pytest.raises(InvalidInputError, match=message):
        lance_stream.open_dataset(**arguments)


def _create(table_id: str, namespace: dict[str, str]) -> object:
    return lance_stream.create_dataset(None, ROWS, table_id=table_id, namespace=namespace)


def _open(table_id: str, namespace: dict[str, str]) -> object:
    return lance_stream.open_dataset(table_id=table_id, namespace=namespace)


def _read(table_id: str, namespace: dict[str, str]) -> object:
    return parse_reader_options({"table": table_id}, namespace)


def _write(table_id: str, namespace: dict[str, str]) -> object:
    return parse_writer_options({"table": table_id}, False, namespace)


@pytest.mark.parametrize("name_table", [_create, _open, _read, _write])
def test_managed_versions_are_refused_by_name(
    name_table: Callable[[str, dict[str, str]], object], directory: dict[str, str]
) -> None:
    """Two ways to publish a version would not see each other's commits."""
    managed = {**directory, "table_version_tracking_enabled": "true"}
    _client(managed).declare_table(lance_namespace.DeclareTableRequest(id=["t"]))
    with pytest.raises(UnsupportedFeatureError, match=r"'t' itself \(managed_versioning\)"):
        name_table("t", managed)


def test_dropped_tables_leave_no_files(directory: dict[str, str], rest: dict[str, str]) -> None:
    """A name that is used again must not show rows of the table that had it before."""
    _client(rest).create_namespace(lance_namespace.CreateNamespaceRequest(id=["db"]))
    for namespace in (rest, directory):
        lance_stream.create_dataset(None, ROWS, table_id="db.t", namespace=namespace)
        folder = lance_stream.open_dataset(table_id="db.t", namespace=rest).uri
        lance_stream.drop_table(["db", "t"], namespace)
        assert not Path(folder.removeprefix("file://")).exists()
        with pytest.raises(NotFoundError, match="db"):
            lance_stream.drop_table("db.t", namespace)
    again = lance_stream.create_dataset(None, ROWS, table_id="db.t", namespace=rest)
    assert (again.version, again.count_rows()) == (1, 2)


def test_names_that_pylance_misplaces_are_refused(directory: dict[str, str]) -> None:
    """pylance does not delete the files of such a table, so the next one would have its rows."""
    for name in ("größe", "50%", "a/b", "['db', 'events']"):
        with pytest.raises(InvalidInputError, match="directory namespace"):
            lance_stream.create_dataset(None, ROWS, table_id=[name], namespace=directory)
    for name in ("a b", "$&'()+,-.:;=@_!"):
        lance_stream.create_dataset(None, ROWS, table_id=[name], namespace=directory)
        lance_stream.drop_table([name], directory)
    assert [path.name for path in Path(directory["root"]).iterdir()] == ["__manifest"]
    client = _client(directory)
    lance.write_dataset(ROWS, namespace_client=client, table_id=["größe"], mode="create")
    assert lance_stream.open_dataset(table_id=["größe"], namespace=directory).count_rows() == 2
    with pytest.raises(StoreError, match="Delete its folder"):
        lance_stream.drop_table(["größe"], directory)


def test_commands_take_names(directory: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Users of a namespace know no locations."""
    _client(directory).create_namespace(lance_namespace.CreateNamespaceRequest(id=["db"]))
    for table_id in ("a", "db.events"):
        lance_stream.create_dataset(None, ROWS, table_id=table_id, namespace=directory)
    settings = [word for pair in directory.items() for word in ("--namespace", "=".join(pair))]
    assert program.main(["ls", *settings]) == 0
    assert capsys.readouterr().out == "a\ndb.events\n"
    assert program.main(["ls", "db", "--json", *settings]) == 0
    assert json.loads(capsys.readouterr().out) == {"table_id": ["db", "events"]}
    assert program.main(["query", "db.events", "--count", *settings]) == 0
    assert capsys.readouterr().out == "2\n"
    assert program.main(["show", "nobody", *settings]) == 3
    assert program.main(["drop", "db.events", "--json", *settings]) == 0
    assert json.loads(capsys.readouterr().out) == {"dropped": "db.events"}
    assert program.main(["drop", "db.events", *settings]) == 3
    assert program.main(["drop", directory["root"]]) == 2
    assert "To remove any other table, delete its directory" in capsys.readouterr().err
    assert program.main(["ls", "memory://t"]) == 2
    assert "--namespace impl=dir --namespace root=memory://t" in capsys.readouterr().err
    assert program.main(["ls", "--namespace", "dir"]) == 2


# --- credentials


@pytest.fixture
def issuing(moto: MotoServer) -> Iterator[IssuingNamespace]:
    namespace = IssuingNamespace(moto.new_bucket(), life_seconds=1.0)
    yield namespace
    namespace.close()


@pytest.mark.server("moto")
def test_writers_replace_expired_keys(issuing: IssuingNamespace) -> None:
    """A stream runs longer than any key lives."""
    ds = lance_stream.create_dataset(None, ROWS, table_id="db.t", namespace=issuing.settings)
    end, number = time.monotonic() + 30, 0
    while len(issuing.used) < 4:
        assert time.monotonic() < end, issuing.keys
        ds, number = ds.append(ROWS), number + 1
        time.sleep(0.1)
    assert ds.count_rows() == 2 * (number + 1)


@pytest.mark.server("moto")
def test_expiring_keys_stay_out_of_options(issuing: IssuingNamespace) -> None:
    """Options are pickled with tasks and compared to reuse connections."""
    uri, options = locate(None, None, "db.t", issuing.settings)
    assert (uri, options) == locate(None, None, "db.t", issuing.settings)
    assert uri == f"{issuing.bucket.uri}/db/t.lance"
    assert options is not None
    assert "KEY" not in json.dumps(dict(options))
    assert options["aws_region"] == "us-east-1"


@pytest.mark.server("moto")
def test_users_credentials_take_precedence(issuing: IssuingNamespace) -> None:
    """A mixture would sign with the key of one and the secret of the other."""
    user_options = {"key": "mine", "secret": "my secret"}
    _, options = locate(None, user_options, "db.t", issuing.settings)
    assert options is not None
    assert {name: options[name] for name in user_options} == user_options
    assert "namespace_table" not in options
    assert not {"aws_access_key_id", "aws_session_token"} & options.keys()


@pytest.mark.parametrize(("life", "before"), [("1 h", 300), ("8 s", 2)])
def test_keys_are_renewed_before_they_expire(
    life: str, before: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is under way when its key expires would fail."""
    seconds = 3600 if life == "1 h" else 8
    expires_at = datetime.now(UTC) + timedelta(seconds=seconds)
    location = TableLocation("s3://b/t", {"token": "T"}, expires_at)
    monkeypatch.setattr(vended_credentials, "describe", lambda _table: location)
    table = NamespaceTable((("impl", "rest"),), ("t",))
    credentials = vended_credentials.VendedCredentials(table.encode(), FixedCredentials)
    assert credentials.fetch() == {"token": "T", "expires_at": expires_at}
    assert credentials._renewed_before.total_seconds() == pytest.approx(before, abs=0.2)


def test_silent_namespaces_keep_valid_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace that restarts must not stop streams whose keys are still accepted."""
    answers: list[Any] = [datetime.now(UTC) + timedelta(seconds=3), "silent", "silent"]

    def answer(_table: object) -> TableLocation:
        expires_at = answers.pop(0)
        if expires_at == "silent":
            raise StoreUnavailableError("the namespace did not answer")
        return TableLocation("s3://b/t", {"token": "T"}, expires_at)

    monkeypatch.setattr(vended_credentials, "describe", answer)
    table = NamespaceTable((("impl", "rest"),), ("t",)).encode()
    credentials = vended_credentials.VendedCredentials(table, FixedCredentials)
    asyncio.run(credentials.ready())
    assert credentials.fetch()["token"] == "T"
    assert credentials.rejected(credentials.number)
    with pytest.raises(TryAgainError, match="did not answer"):
        credentials.fetch()


def _google(options: Mapping[str, Any]) -> ObstoreService:
    return google_settings(options)


def _azure(options: Mapping[str, Any]) -> ObstoreService:
    return azure_settings("az", "", {"account_name": "us", **options}, {})


@pytest.mark.parametrize(
    ("open_service", "options", "credentials"),
    [
        (s3_settings, {"key": "K", "secret": "S", "token": "T"}, {"access_key_id": "K"}),
        (_google, {"google_storage_token": "T"}, {"token": "T"}),
        (_azure, {"bearer_token": "T"}, {"token": "T"}),
        (_azure, {"sas_token": "sig=1"}, {"sas_token": [("sig", "1")]}),
        (_azure, {"account_key": "a2V5"}, {"access_key": "a2V5"}),
    ],
)
def test_every_service_takes_vended_credentials(
    open_service: Callable[[Mapping[str, Any]], ObstoreService],
    options: dict[str, str],
    credentials: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A namespace states them by the names of storage options, and each service has its own."""
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    location = TableLocation("s3://b/t", options, expires_at)
    monkeypatch.setattr(vended_credentials, "describe", lambda _table: location)
    table = NamespaceTable((("impl", "rest"), ("header.Authorization", "secret")), ("t",))
    service = open_service({"namespace_table": table.encode()})
    assert "secret" not in repr(service)
    answer = service.credentials()
    assert isinstance(answer, vended_credentials.VendedCredentials)
    assert {**answer.fetch(), **credentials} == answer.fetch()
    assert answer.fetch()["expires_at"] == expires_at
    assert {*service.lance_credentials().values()} == {*options.values()}


def _client(settings: dict[str, str]) -> lance_namespace.LanceNamespace:
    properties = dict(settings)
    return lance_namespace.connect(properties.pop("impl"), properties)
