"""Declarative pipelines: lets `spark-pipelines run` end with success.

The client of Spark Connect reads the events of a run by `execute_command_as_iterator`, which knows
results only. If a run has planned a Python source or writer, ours or any other, the server also
sends metrics of Python's profilers at the end, and the client raises UNKNOWN_RESPONSE: after "Run
is COMPLETED", with everything committed, the program ends with an error. Spark's other ways to run
a command ignore these metrics, and so does the replacement here.

Source: pyspark.sql.connect.client.core and pyspark.sql.worker.utils of PySpark 4.3.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

_METRICS: Final = {"PlanMetrics", "PlanObservedMetrics"}


def is_in_pipeline() -> bool:
    """Return whether this process defines a pipeline, or has done so."""
    return "pyspark.pipelines.graph_element_registry" in sys.modules


def ignore_metrics(spark: Any) -> None:
    """Let a session's client ignore metrics among the events of a run; once is enough.

    Args:
        spark: A session of Spark Connect; nothing happens to another one.
    """
    client = getattr(spark, "client", None)
    if client is None or "execute_command_as_iterator" in vars(client):
        return

    def execute_command_as_iterator(*arguments: Any, **named: Any) -> Iterator[Any]:
        execute: Any = type(client).execute_command_as_iterator
        yield from execute(_WithoutMetrics(client), *arguments, **named)

    client.execute_command_as_iterator = execute_command_as_iterator


class _WithoutMetrics:
    """A client whose responses have no metrics."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _execute_and_fetch_as_iterator(self, *arguments: Any, **named: Any) -> Iterator[Any]:
        for response in self._client._execute_and_fetch_as_iterator(*arguments, **named):
            if type(response).__name__ not in _METRICS:
                yield response
