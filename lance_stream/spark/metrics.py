"""Metrics of streams that read the change feed: their lag.

    spark.streams.addListener(FeedListener(PrometheusMetrics()))

Spark reports after each batch how far each source is behind (`latestOffset` in the progress of a
source); the listener passes it on. A stream's label is the query's name, or else its id: name the
queries, so that the label survives a new checkpoint.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lance_stream.monitoring.metrics import Metrics

_log = logging.getLogger(__name__)


class FeedListener(StreamingQueryListener):
    """Counts what the session's streams of changes read, and how far they are behind.

    Args:
        metrics: `PrometheusMetrics` or `OpenTelemetryMetrics`.
        clock: Returns seconds, never less than before.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._up_to_date_at: dict[str, float] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing: nothing is known before the first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Count a batch. An error is logged and never reaches the query."""
        try:
            progress = event.progress
            self._count(progress.name or str(progress.id), progress.sources)
        except Exception:
            _log.exception("a stream's progress could not be read, and is not counted")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing: an idle query has read everything, which its last progress told."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing: the last values stay, as a stopped stream stays behind."""

    def _count(self, stream: str, sources: list[Any]) -> None:
        lags = [
            (source, lag) for source in sources if (lag := lag_of(source.latestOffset)) is not None
        ]
        if not lags:
            return
        versions = sum(lag["versionsBehind"] for _, lag in lags)
        rows = [lag.get("rowsBehind") for _, lag in lags]
        now = self._clock()
        if versions == 0:
            self._up_to_date_at[stream] = now
        self._metrics.feed(
            stream,
            num_rows=sum(max(source.numInputRows, 0) for source, _ in lags),
            versions=versions,
            rows=None if None in rows else sum(row or 0 for row in rows),
            seconds=now - self._up_to_date_at.setdefault(stream, now),
        )


def lag_of(latest_offset: object) -> Mapping[str, Any] | None:
    """Return how far a source is behind; None for a source that is not a table's change feed."""
    try:
        lag = json.loads(latest_offset) if isinstance(latest_offset, str) else latest_offset
    except ValueError:
        return None
    if isinstance(lag, dict) and isinstance(lag.get("versionsBehind"), int):
        return lag
    return None
