"""The client of a pipeline ignores metrics among the events of its run."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lance_stream.spark.pipelines import ignore_metrics


class PlanObservedMetrics:
    """Named like the class of PySpark whose instances are no results."""


class Client:
    """Runs a command as PySpark's client does: what is no result is an error."""

    responses: tuple[object, ...] = ()

    def _execute_and_fetch_as_iterator(self, request: str) -> Iterator[object]:
        assert request == "a command"
        yield from self.responses

    def execute_command_as_iterator(self, command: str) -> Iterator[dict[str, int]]:
        for response in self._execute_and_fetch_as_iterator(command):
            if not isinstance(response, dict):
                raise ValueError(f"UNKNOWN_RESPONSE {response!r}")
            yield response


def session_with(*responses: object) -> Any:
    client = Client()
    client.responses = responses
    return SimpleNamespace(client=client)


def test_metrics_among_events_are_ignored() -> None:
    """The client of PySpark stops at a response that it does not know, which ends every pipeline
    with observed metrics.
    """
    events = [{"event": 1}, {"event": 2}]
    spark = session_with(events[0], PlanObservedMetrics(), events[1], PlanObservedMetrics())
    with pytest.raises(ValueError, match="UNKNOWN_RESPONSE"):
        list(spark.client.execute_command_as_iterator("a command"))
    for _ in range(2):  # definitions may be in several files
        ignore_metrics(spark)
        assert list(spark.client.execute_command_as_iterator("a command")) == events


def test_events_arrive_one_by_one() -> None:
    """Collecting the events first would show the progress of a pipeline only at its end."""
    spark = session_with({"event": 1}, "unexpected")
    ignore_metrics(spark)
    events = spark.client.execute_command_as_iterator("a command")
    assert next(events) == {"event": 1}
    with pytest.raises(ValueError, match="UNKNOWN_RESPONSE 'unexpected'"):
        next(events)


def test_classic_sessions_remain_unchanged() -> None:
    """A classic session has no client to patch, and the definitions must load there as well."""
    spark = SimpleNamespace()
    ignore_metrics(spark)
    assert vars(spark) == {}
