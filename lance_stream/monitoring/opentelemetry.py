"""Metrics for OpenTelemetry, through its API; the program configures an SDK and its exporters.

    metrics = OpenTelemetryMetrics()
    metrics.watch(uri)
    stream.writeStream.foreachBatch(lance_sink(uri, on_commit=metrics))

Names follow the semantic conventions: dots between namespaces, UCUM units, no unit in a name, and
attributes with the package's namespace.
"""

import math
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

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
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_UCUM: Final = {"s": "s", "By": "By", "": "1"}


def name_of(metric: Metric) -> str:
    """Return the name of a metric."""
    return f"lance_stream.{metric.name}"


def unit_of(metric: Metric) -> str:
    """Return the UCUM unit of a metric; counted things are in braces."""
    return _UCUM.get(metric.unit) or f"{{{metric.unit}}}"


class OpenTelemetryMetrics(Metrics):
    """Publishes metrics of sinks, tables and feeds through a meter of OpenTelemetry.

    Pass it to `lance_sink` as `on_commit`. All sinks and tables of a process can share one.

    Args:
        meter: The meter to use; None for a meter of the program's global provider.
        max_age_seconds: The maximum age of the measures of a watched table when the SDK collects
            them.

    Raises:
        InvalidInputError: The library is missing: pip install 'lance-stream[opentelemetry]'.
    """

    def __init__(self, meter: "Meter | None" = None, max_age_seconds: float = 15.0) -> None:
        with requires_extra("opentelemetry", "OpenTelemetryMetrics"):
            from opentelemetry.metrics import get_meter
        meter = get_meter("lance_stream") if meter is None else meter
        instruments = _Instruments(meter)
        super().__init__(instruments, max_age_seconds)
        for metric in (
            *TABLE_GAUGES.values(),
            *CONSUMER_GAUGES.values(),
            *INDEX_GAUGES.values(),
            READABLE,
        ):
            instruments.observe_when_collected(metric, partial(self._samples_of, metric))

    def _samples_of(self, metric: Metric) -> list[Sample]:
        return [
            table_sample for table_sample in self.table_samples() if table_sample.metric is metric
        ]


class _Instruments:
    def __init__(self, meter: "Meter") -> None:
        self._meter = meter
        self._counters = {
            counter: meter.create_counter(name_of(counter), unit_of(counter), counter.help)
            for counter in COUNTERS
        }
        self._phases = meter.create_histogram(
            name_of(PHASES),
            unit_of(PHASES),
            PHASES.help,
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._values: dict[Metric, dict[tuple[str, ...], Sample]] = {gauge: {} for gauge in GAUGES}
        self._lock = threading.Lock()
        for gauge in GAUGES:
            self.observe_when_collected(gauge, partial(self._last_values, gauge))

    def add(self, sample: Sample) -> None:
        self._counters[sample.metric].add(sample.value, _attributes(sample))

    def observe(self, sample: Sample) -> None:
        self._phases.record(sample.value, _attributes(sample))

    def set(self, sample: Sample) -> None:
        with self._lock:
            self._values[sample.metric][sample.labels] = sample

    def _last_values(self, metric: Metric) -> list[Sample]:
        with self._lock:
            samples = list(self._values[metric].values())
        return [sample for sample in samples if not math.isnan(sample.value)]  # NaN: unknown

    def observe_when_collected(self, metric: Metric, samples: Callable[[], list[Sample]]) -> None:
        from opentelemetry.metrics import Observation

        def observe(_options: "CallbackOptions") -> "Iterable[Observation]":
            return [Observation(sample.value, _attributes(sample)) for sample in samples()]

        self._meter.create_observable_gauge(
            name_of(metric), [observe], unit_of(metric), metric.help
        )


def _attributes(sample: Sample) -> dict[str, str]:
    return {
        f"lance_stream.{name}": value
        for name, value in zip(sample.metric.labels, sample.labels, strict=True)
    }
