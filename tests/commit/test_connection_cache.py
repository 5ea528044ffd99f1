"""Connections to manifest stores: renewing credentials does not accumulate them."""

import threading
from contextlib import contextmanager
from typing import Any

import pytest

from lance_stream.commit.manifest_stores import dynamodb, postgresql
from lance_stream.commit.manifest_stores.connection_cache import MAX_CONNECTIONS, ConnectionCache


def test_least_recently_used_connection_is_closed() -> None:
    """Closing a connection in frequent use would reconnect with every commit."""
    closed: list[int] = []
    cache: ConnectionCache[str, int] = ConnectionCache(closed.append)
    for number in range(MAX_CONNECTIONS):
        cache[str(number)] = number
    assert cache["0"] == 0
    cache["one more"] = 99
    assert closed == [1]
    assert len(cache) == MAX_CONNECTIONS


def test_clients_of_dynamodb_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every renewed session token makes another client, and a stream runs for months."""

    class Client:
        closed = 0

        def describe_table(self, **_: Any) -> Any:
            return {"Table": {}}

        def close(self) -> None:
            Client.closed += 1

    monkeypatch.setattr(dynamodb, "_clients", ConnectionCache(lambda client: client.close()))
    monkeypatch.setattr(dynamodb, "_new_client", lambda _: Client())
    monkeypatch.setattr(dynamodb, "_check_keys", lambda *_: None)
    for number in range(MAX_CONNECTIONS + 5):
        renewed = dynamodb.DynamoDBManifests("t", token=f"session {number}")
        assert dynamodb._checked_client(renewed) is dynamodb._checked_client(renewed)
    assert len(dynamodb._clients) == MAX_CONNECTIONS
    assert Client.closed == 5


class Connection:
    """Stands in for psycopg's."""

    num_open = 0

    def __init__(self) -> None:
        self.closed = False
        Connection.num_open += 1

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            Connection.num_open -= 1


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> type[Connection]:
    class Library:
        connect = staticmethod(lambda *_, **__: Connection())

    monkeypatch.setattr(Connection, "num_open", 0)
    monkeypatch.setattr(postgresql, "_connections", ConnectionCache(postgresql._drop))
    monkeypatch.setattr(postgresql, "_import_psycopg", lambda _: Library)
    return Connection


@contextmanager
def borrowed(number: int) -> Any:
    manifests = postgresql.PostgresManifests(f"password={number}")
    with postgresql._exclusive_connection(manifests) as connection:
        yield connection


def test_connections_to_postgresql_are_bounded(connections: type[Connection]) -> None:
    """A PostgreSQL server accepts only a limited number of connections."""
    for number in range(MAX_CONNECTIONS + 5):
        with borrowed(number) as connection:
            assert not connection.closed
    assert connections.num_open == MAX_CONNECTIONS


def test_connections_in_use_are_closed_afterwards(connections: type[Connection]) -> None:
    """Closing a connection under a running request would leave the outcome of a commit unknown."""
    with borrowed(0) as connection:
        for number in range(1, MAX_CONNECTIONS + 3):
            thread = threading.Thread(target=lambda n=number: borrowed(n).__enter__())
            thread.start()
            thread.join()
        assert not connection.closed
    assert connection.closed
