"""What a client of Spark Connect is told about a sink before its first batch."""

import pickle
from typing import Any

import pytest
from pyspark.cloudpickle import dumps

from lance_stream.errors import InvalidInputError
from lance_stream.monitoring import PrometheusMetrics
from lance_stream.spark import lance_sink
from lance_stream.spark.arguments import python_values, writer_calls
from lance_stream.spark.session import connect as remote


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (python_values, writer_calls, remote):
        monkeypatch.setattr(module, "is_remote", lambda: True)


@pytest.mark.usefixtures("client")
@pytest.mark.floors
def test_a_client_has_to_name_its_stream() -> None:
    with pytest.raises(InvalidInputError, match="app_id='orders'"):
        lance_sink("t")
    sink = pickle.loads(dumps(lance_sink("t", app_id="orders", mode="upsert", on="id")))
    assert (sink.app_id, sink.arguments.mode) == ("orders", "upsert")


def test_a_sink_that_was_made_before_the_session_is_refused_when_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = lance_sink("t")
    dumps(sink)
    monkeypatch.setattr(remote, "is_remote", lambda: True)
    with pytest.raises(InvalidInputError, match="app_id='orders'"):
        dumps(sink)
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")  # a process of the server
    dumps(sink)
    lance_sink("t")


@pytest.mark.usefixtures("client")
def test_what_is_called_on_the_server_can_be_sent_there() -> None:
    pytest.importorskip("prometheus_client", reason="of an extra")
    from prometheus_client import CollectorRegistry

    def report(commit: Any) -> None:
        print(commit)

    lance_sink("t", app_id="orders", on_commit=report)
    metrics = PrometheusMetrics(CollectorRegistry())
    with pytest.raises(InvalidInputError, match=r"metrics\.watch\(uri\)"):
        lance_sink("t", app_id="orders", on_commit=metrics)
