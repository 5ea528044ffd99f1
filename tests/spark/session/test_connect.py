"""What a client of Spark Connect is told about a sink before its first batch."""

import pickle
from typing import Any

import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql.types import StructType

from lance_stream.errors import InvalidInputError
from lance_stream.monitoring import PrometheusMetrics
from lance_stream.spark import lance_sink
from lance_stream.spark.arguments import python_values, writer_calls
from lance_stream.spark.jobs.arrow_jobs import map_in_arrow
from lance_stream.spark.session import connect as remote


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (python_values, writer_calls, remote):
        monkeypatch.setattr(module, "is_remote", lambda: True)


class FrameWithoutJava:
    """A frame of Spark Connect, as far as a job looks at it; it returns what it would send."""

    columns = ("id",)

    @property
    def _jdf(self) -> object:
        raise AttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")

    def __getitem__(self, name: str) -> str:
        return name

    def mapInArrow(self, function: object, schema: StructType) -> tuple[object, StructType]:  # noqa: N802  # Spark's name
        return function, schema


@pytest.mark.floors
def test_connect_jobs_use_public_interface() -> None:
    """The server calls `foreachBatch` in a process that has no SparkContext, so functions cannot be
    made columns there.
    """
    frame, schema = FrameWithoutJava(), StructType()
    assert map_in_arrow(frame, iter, schema) == (iter, schema)  # type: ignore[arg-type]  # a frame that only records calls


@pytest.mark.usefixtures("client")
@pytest.mark.floors
def test_connect_clients_must_name_their_stream() -> None:
    """A client of Spark Connect cannot see the query's id, so a sink without `app_id` could not
    recognize a replay.
    """
    with pytest.raises(InvalidInputError, match="app_id='orders'"):
        lance_sink("t")
    sink = pickle.loads(dumps(lance_sink("t", app_id="orders", mode="upsert", on="id")))
    assert (sink.app_id, sink.arguments.mode) == ("orders", "upsert")


def test_sinks_older_than_sessions_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a sink could not know that it needs an `app_id`, so the check is repeated when the
    client pickles it; the server must not repeat it.
    """
    sink = lance_sink("t")
    dumps(sink)
    monkeypatch.setattr(remote, "is_remote", lambda: True)
    with pytest.raises(InvalidInputError, match="app_id='orders'"):
        dumps(sink)
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")  # a process of the server
    dumps(sink)
    lance_sink("t")


@pytest.mark.usefixtures("client")
def test_connect_requires_picklable_on_commit() -> None:
    """A registry of Prometheus cannot be sent to the server, and the error has to say what to use
    instead, before the first batch fails.
    """
    pytest.importorskip("prometheus_client", reason="of an extra")
    from prometheus_client import CollectorRegistry

    def report(commit: Any) -> None:
        print(commit)

    lance_sink("t", app_id="orders", on_commit=report)
    metrics = PrometheusMetrics(CollectorRegistry())
    with pytest.raises(InvalidInputError, match=r"metrics\.watch\(uri\)"):
        lance_sink("t", app_id="orders", on_commit=metrics)
