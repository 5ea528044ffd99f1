"""All metrics: their names, units and labels, and how the report of a batch changes them.

Prometheus and OpenTelemetry get the same metrics, with names that follow their conventions:

    here              sink.rows, unit row, a counter
    Prometheus        lance_stream_sink_rows_total
    OpenTelemetry     lance_stream.sink.rows, unit {row}

The number of labels is limited: after the first `MAX_NAMES` tables, streams, consumers and indices,
the others share the label "(others)" or are omitted. All other labels have a few fixed values.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from lance_stream.errors import LanceStreamError
from lance_stream.monitoring.measures import TableMeasures, TableWatch

_log = logging.getLogger(__name__)

MAX_NAMES: Final = 200
"""The maximum number of tables, streams, consumers and indices with a separate label."""

OTHERS: Final = "(others)"

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The bounds of the histogram of phases."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: The name, without the package's prefix.
        unit: The unit: "s", "By" (bytes), or what is counted, such as "row".
        help: A description.
        labels: The names of the labels.
    """

    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ("table",)


_KIND, _OUTCOME, _PHASE = ("table", "kind"), ("table", "outcome"), ("table", "phase")
_CONSUMER = ("table", "consumer")
_INDEX = ("table", "index")

BATCHES: Final = Metric("sink.batches", "batch", "Micro-batches, by outcome.", _OUTCOME)
ROWS: Final = Metric("sink.rows", "row", "Rows of micro-batches, by outcome.", _KIND)
ATTEMPTS: Final = Metric("sink.commit.attempts", "attempt", "Commit attempts.")
FILES: Final = Metric("sink.written.files", "file", "Data files written by micro-batches.")
BYTES: Final = Metric("sink.written.size", "By", "Bytes of data files written by micro-batches.")
INDEX_UPDATES: Final = Metric(
    "sink.index.updates",
    "index",
    "Successful and failed updates of indices by a sink.",
    _OUTCOME,
)
FED_ROWS: Final = Metric("feed.rows", "row", "Rows that streams of changes read.", ("stream",))

COUNTERS: Final = (BATCHES, ROWS, ATTEMPTS, FILES, BYTES, INDEX_UPDATES, FED_ROWS)

PHASES: Final = Metric("sink.phase.duration", "s", "Duration of the phases of a batch.", _PHASE)

LAST_COMMIT: Final = Metric("sink.commit.timestamp", "s", "Time of the last committed batch.")
FEED_VERSIONS: Final = Metric(
    "feed.lag.versions",
    "version",
    "Versions that a stream of changes has yet to read.",
    ("stream",),
)
FEED_ROWS: Final = Metric(
    "feed.lag.rows", "row", "Rows that a stream of changes has yet to read.", ("stream",)
)
FEED_SECONDS: Final = Metric(
    "feed.lag.duration", "s", "Time since a stream of changes had read all versions.", ("stream",)
)

GAUGES: Final = (LAST_COMMIT, FEED_VERSIONS, FEED_ROWS, FEED_SECONDS)

TABLE_GAUGES: Final = {
    "version": Metric("table.version", "version", "The number of the newest version."),
    "rows": Metric("table.rows", "row", "Live rows."),
    "deleted_rows": Metric(
        "table.deleted_rows", "row", "Deleted rows that are still in data files."
    ),
    "fragments": Metric("table.fragments", "fragment", "Fragments."),
    "small_fragments": Metric(
        "table.small_fragments", "fragment", "Fragments that a compaction would rewrite."
    ),
    "data_bytes": Metric("table.data.size", "By", "Size of the data files of the newest version."),
    "committed_at": Metric("table.commit.timestamp", "s", "Commit time of the newest version."),
    "age_seconds": Metric("table.age", "s", "Age of the newest version."),
}
"""By attribute of `TableMeasures`."""

CONSUMER_GAUGES: Final = {
    "versions": Metric(
        "consumer.lag.versions", "version", "Versions that a consumer has yet to read.", _CONSUMER
    ),
    "rows": Metric(
        "consumer.lag.rows",
        "row",
        "Rows changed by versions that a consumer has yet to read.",
        _CONSUMER,
    ),
    "seconds": Metric(
        "consumer.lag.duration",
        "s",
        "Age of the oldest version that a consumer has yet to read.",
        _CONSUMER,
    ),
}
"""By attribute of `ConsumerLag`."""

INDEX_GAUGES: Final = {
    "unindexed_rows": Metric(
        "index.unindexed.rows", "row", "Live rows that an index does not cover.", _INDEX
    ),
    "coverage": Metric(
        "index.coverage", "", "The fraction of the live rows that an index covers, 0 to 1.", _INDEX
    ),
}
"""By attribute of `IndexMeasure`."""

READABLE: Final = Metric(
    "table.readable", "", "1 if the table could be read at the last attempt, else 0."
)

KINDS: Final = {
    "inserted": "rows_inserted",
    "updated": "rows_updated",
    "deleted": "rows_deleted",
    "unchanged": "rows_unchanged",
    "late": "rows_late",
    "ignored": "rows_ignored",
    "quarantined": "rows_quarantined",
}
"""The attributes of a batch's report by label: a number, or numbers by reason."""

_PHASES: Final = frozenset({"plan", "collect", "scan", "write", "commit", "replay"})


class BatchReport(Protocol):
    """The report of a batch: `lance_stream.spark.SinkCommit`."""

    @property
    def table(self) -> str:
        """The table's location."""
        ...

    @property
    def version(self) -> int | None:
        """The version that contains the batch."""
        ...

    @property
    def skipped(self) -> bool:
        """Whether the batch had already been committed."""
        ...

    @property
    def attempts(self) -> int:
        """The number of commit attempts."""
        ...

    @property
    def num_files(self) -> int:
        """The number of data files written."""
        ...

    @property
    def bytes_written(self) -> int:
        """The size of the data files."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """The duration of each phase."""
        ...


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class Instruments(Protocol):
    """Publishes values: by Prometheus or OpenTelemetry."""

    def add(self, sample: Sample) -> None:
        """Add to a counter."""
        ...

    def observe(self, sample: Sample) -> None:
        """Add a value to a histogram."""
        ...

    def set(self, sample: Sample) -> None:
        """Set a gauge."""
        ...


class Metrics:
    """Updates metrics from reports; the base class of the publishers.

    It can be called with the report of a batch, as `lance_sink(..., on_commit=...)` does.

    Args:
        instruments: Publishes the values.
        max_age_seconds: The maximum age of the measures of a watched table.
    """

    def __init__(self, instruments: Instruments, max_age_seconds: float) -> None:
        self._instruments = instruments
        self._max_age_seconds = max_age_seconds
        self._watches: dict[str, _WatchedTable] = {}
        self._names = {label: _Names() for label in ("table", "stream")}

    def __call__(self, report: BatchReport) -> None:
        """Count a batch."""
        table = self._names["table"].bounded(report.table)
        for sample in samples_of(report, table):
            instruments = self._instruments
            (instruments.observe if sample.metric is PHASES else instruments.add)(sample)
        if report.version is not None and not report.skipped:
            self._instruments.set(Sample(LAST_COMMIT, (table,), time.time()))

    def watch(self, uri: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Also publish the measures of a table and its consumers.

        They are read when the metrics are collected, not by the stream's batches, and at most once
        in `max_age_seconds`.

        Args:
            uri: The table's location; the table may not exist yet.
            storage_options: Settings of its store.
        """
        self._watches.setdefault(uri, _WatchedTable(TableWatch(uri, storage_options)))

    def feed(
        self,
        stream: str,
        *,
        num_rows: int = 0,
        versions: int | None = None,
        rows: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Count the rows that a stream of changes read, and publish its lag; None if unknown.

        Args:
            stream: The query's name.
            num_rows: The number of rows of its last batch.
            versions: The number of versions that it has yet to read.
            rows: The number of row changes in them.
            seconds: The time since the stream had read all versions.
        """
        labels = (self._names["stream"].bounded(stream),)
        self._instruments.add(Sample(FED_ROWS, labels, num_rows))
        lags = ((FEED_VERSIONS, versions), (FEED_ROWS, rows), (FEED_SECONDS, seconds))
        for metric, value in lags:
            self._instruments.set(Sample(metric, labels, float("nan") if value is None else value))

    def table_samples(self) -> Iterator[Sample]:
        """Yield the measures of the watched tables, and read those that are too old."""
        names = self._names["table"]
        for uri, watched in list(self._watches.items()):
            table = names.bounded(uri)
            if table == OTHERS:
                continue
            measures = watched.measures(self._max_age_seconds)
            yield Sample(READABLE, (table,), float(measures is not None))
            if measures is not None:
                yield from _samples_of_table(table, measures)


def samples_of(report: BatchReport, table: str) -> Iterator[Sample]:
    """Yield the values that the report of a batch adds to counters and histograms."""
    outcome = "skipped" if report.skipped else "empty" if report.version is None else "committed"
    yield Sample(BATCHES, (table, outcome), 1)
    for kind, attribute in KINDS.items():
        number = getattr(report, attribute, 0)
        total = sum(number.values()) if isinstance(number, Mapping) else number
        yield Sample(ROWS, (table, kind), total)
    yield Sample(ATTEMPTS, (table,), report.attempts)
    yield Sample(FILES, (table,), report.num_files)
    yield Sample(BYTES, (table,), report.bytes_written)
    for problem in getattr(report, "indices", {}).values():
        yield Sample(INDEX_UPDATES, (table, "fresh" if problem == "fresh" else "failed"), 1)
    for phase, seconds in report.seconds.items():
        yield Sample(PHASES, (table, phase if phase in _PHASES else "other"), seconds)


def _samples_of_table(table: str, measures: TableMeasures) -> Iterator[Sample]:
    for attribute, metric in TABLE_GAUGES.items():
        value = getattr(measures, attribute)
        if value is not None:
            yield Sample(metric, (table,), value)
    for consumer in measures.consumers[:MAX_NAMES]:
        for attribute, metric in CONSUMER_GAUGES.items():
            value = getattr(consumer, attribute)
            if value is not None:
                yield Sample(metric, (table, consumer.name), value)
    for index in measures.indices[:MAX_NAMES]:
        for attribute, metric in INDEX_GAUGES.items():
            yield Sample(metric, (table, index.name), getattr(index, attribute))


class _Names:
    """The values of a label, limited to `MAX_NAMES`; all others share one value."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def bounded(self, name: str) -> str:
        if name not in self._names:
            if len(self._names) >= MAX_NAMES:
                return OTHERS
            self._names.add(name)
        return name


class _WatchedTable:
    """The cached measures of a table."""

    def __init__(self, watch: TableWatch) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._until = 0.0
        self._last: TableMeasures | None = None
        self._problems: Counter[str] = Counter()

    def measures(self, max_age_seconds: float) -> TableMeasures | None:
        """Return the table's measures, possibly cached; None if the table cannot be read."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._last = self._read()
                self._until = time.monotonic() + max_age_seconds
            return self._last

    def _read(self) -> TableMeasures | None:
        try:
            return self._watch.measure()
        except (LanceStreamError, OSError) as error:
            problem = type(error).__name__
            self._problems[problem] += 1
            level = logging.WARNING if self._problems[problem] == 1 else logging.DEBUG
            _log.log(level, "%s cannot be measured: %s", self._watch.uri, error)
            return None
