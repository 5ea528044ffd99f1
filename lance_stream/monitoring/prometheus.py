"""Metrics for Prometheus, through its client library.

    metrics = PrometheusMetrics()
    metrics.watch(uri)
    prometheus_client.start_http_server(9464)
    stream.writeStream.foreachBatch(lance_sink(uri, on_commit=metrics))

Names follow Prometheus's conventions: base units, and `_total` at the end of a counter.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lance_stream.errors import InvalidInputError
from lance_stream.monitoring.metrics import (
    CONSUMER_GAUGES,
    COUNTERS,
    GAUGES,
    INDEX_GAUGES,
    PHASES,
    READABLE,
    SECONDS,
    TABLE_GAUGES,
    Metric,
    Metrics,
    Sample,
)
from lance_stream.storage.extras import requires_extra

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

_UNITS: Final = {"s": "_seconds", "By": "_bytes"}


def name_of(metric: Metric) -> str:
    """Return the name of a metric, without the `_total` that the client adds to counters."""
    return f"lance_stream_{metric.name.replace('.', '_')}{_UNITS.get(metric.unit, '')}"


class PrometheusMetrics(Metrics):
    """Publishes metrics of sinks, tables and feeds in a registry of Prometheus's client library.

    Pass it to `lance_sink` as `on_commit`. All sinks and tables of a process can share one.

    Args:
        registry: The registry; None for the default one, which `start_http_server` serves.
        max_age_seconds: The maximum age of the measures of a watched table when they are scraped.

    Raises:
        InvalidInputError: The library is missing: pip install 'lance-stream[prometheus]'. Or the
            registry already has these metrics: create one object per registry.
    """

    def __init__(
        self, registry: "CollectorRegistry | None" = None, max_age_seconds: float = 15.0
    ) -> None:
        with requires_extra("prometheus", "PrometheusMetrics"):
            import prometheus_client
        registry = prometheus_client.REGISTRY if registry is None else registry
        try:
            registered = _RegisteredMetrics(registry)
        except ValueError as error:
            raise InvalidInputError(
                "the registry already has the metrics of a PrometheusMetrics. Create one per "
                "process and share it between all sinks and tables, or pass a separate registry to "
                f"each: registry=prometheus_client.CollectorRegistry() ({error})"
            ) from None
        super().__init__(registered, max_age_seconds)
        registry.register(_Tables(self))


class _RegisteredMetrics:
    """The metrics that reports update."""

    def __init__(self, registry: "CollectorRegistry") -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._counters: dict[Metric, Counter] = {
            counter: Counter(name_of(counter), counter.help, counter.labels, registry=registry)
            for counter in COUNTERS
        }
        self._gauges: dict[Metric, Gauge] = {
            gauge: Gauge(name_of(gauge), gauge.help, gauge.labels, registry=registry)
            for gauge in GAUGES
        }
        self._phases = Histogram(
            name_of(PHASES), PHASES.help, PHASES.labels, registry=registry, buckets=SECONDS
        )

    def add(self, sample: Sample) -> None:
        self._counters[sample.metric].labels(*sample.labels).inc(sample.value)

    def observe(self, sample: Sample) -> None:
        self._phases.labels(*sample.labels).observe(sample.value)

    def set(self, sample: Sample) -> None:
        self._gauges[sample.metric].labels(*sample.labels).set(sample.value)


class _Tables:
    """The metrics of watched tables, which are read at a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> "list[GaugeMetricFamily]":
        """Return the metrics without values, so that the registry can check their names."""
        return list(self._families().values())

    def collect(self) -> "Iterator[GaugeMetricFamily]":
        """Yield the metrics with their values."""
        families = self._families()
        for sample in self._metrics.table_samples():
            families[sample.metric].add_metric(sample.labels, sample.value)
        yield from families.values()

    def _families(self) -> "dict[Metric, GaugeMetricFamily]":
        from prometheus_client.core import GaugeMetricFamily

        metrics = (
            *TABLE_GAUGES.values(),
            *CONSUMER_GAUGES.values(),
            *INDEX_GAUGES.values(),
            READABLE,
        )
        return {
            metric: GaugeMetricFamily(name_of(metric), metric.help, labels=metric.labels)
            for metric in metrics
        }
