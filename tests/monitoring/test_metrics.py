"""Metrics: what reports add to them, their names, and the numbers of watched tables."""

import re
import shutil
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.environment import MACHINE
from lance_stream.maintenance.consumers import protect_start, record_progress
from lance_stream.monitoring import (
    OpenTelemetryMetrics,
    PrometheusMetrics,
    opentelemetry,
    prometheus,
)
from lance_stream.monitoring import measures as measuring
from lance_stream.monitoring import metrics as table_of_metrics
from lance_stream.monitoring.measures import ConsumerLag, TableWatch
from lance_stream.monitoring.metrics import KINDS, MAX_NAMES, ROWS, Metric, samples_of
from lance_stream.spark.metrics import FeedListener, lag_of
from lance_stream.spark.sink.reports import SinkCommit
from tests.contracts.object_service import ObjectService

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])


def rows(*ids: int, x: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=SCHEMA)


@pytest.fixture
def ds() -> Dataset:
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    return ds.append(rows(1, 2, 3)).upsert(rows(3, 4, x="b"), on="id").delete("id = 1")


REPORT = SinkCommit(
    batch_id=7,
    app_id="a",
    version=3,
    rows_in=9,
    rows_inserted=4,
    rows_updated=3,
    rows_deleted=1,
    rows_late=1,
    num_files=2,
    bytes_written=500,
    attempts=2,
    seconds={"write": 0.5, "commit": 0.25, "a new phase": 0.1},
    table="s3://b/t",
    indices={"by_vector": "fresh", "by_text": "damaged", "by_id": "fresh"},
)

ALL = [
    item
    for value in vars(table_of_metrics).values()
    for item in (value.values() if isinstance(value, dict) else [value])
    if isinstance(item, Metric)
]


def collected(reader: InMemoryMetricReader) -> dict[tuple[str, frozenset[Any]], Any]:
    """Return the values by name and attributes; a histogram's are its count and sum."""
    data = reader.get_metrics_data()
    return {
        (metric.name, frozenset(point.attributes.items())): (
            point.value if hasattr(point, "value") else (point.count, point.sum)
        )
        for resource in (data.resource_metrics if data else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def otel(reader: InMemoryMetricReader) -> OpenTelemetryMetrics:
    meter = MeterProvider([reader]).get_meter("test")
    return OpenTelemetryMetrics(meter, max_age_seconds=0)


def test_names_follow_both_systems_conventions() -> None:
    """Prometheus and OpenTelemetry have rules for names and units, which dashboards depend on."""
    assert len(ALL) == len({entry.name for entry in ALL}) > 20
    for value in ALL:
        name = prometheus.name_of(value)
        assert re.fullmatch(r"lance_stream_[a-z_]+", name)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info"))
        assert name.endswith("_seconds") == (value.unit == "s")
        assert name.endswith("_bytes") == (value.unit == "By")
        assert re.fullmatch(r"lance_stream(\.[a-z_]+)+", opentelemetry.name_of(value))
        assert value.help.endswith(".")
        # a name is not also the namespace of another one
        assert not [other for other in ALL if other.name.startswith(f"{value.name}.")]


def test_the_documentation_lists_all_metrics() -> None:
    """Operators build alerts from this page."""
    text = (Path(__file__).parents[2] / "docs" / "operations" / "metrics.md").read_text(
        encoding="utf-8"
    )
    listed = {name.removesuffix("_total") for name in re.findall(r"`(lance_stream_[a-z_]+)`", text)}
    assert listed == {prometheus.name_of(value) for value in ALL}


def test_opentelemetry_gets_what_a_batch_reports(
    reader: InMemoryMetricReader, otel: OpenTelemetryMetrics
) -> None:
    """The numbers of a report must arrive under the right attributes, skipped batches apart from
    committed ones.
    """
    otel(REPORT)
    otel(replace(REPORT, skipped=True, rows_inserted=0, attempts=0, seconds={}))
    table = ("lance_stream.table", "s3://b/t")
    actual = collected(reader)

    def value(name: str, **labels: str) -> Any:
        attributes = {(f"lance_stream.{key}", text) for key, text in labels.items()}
        return actual[f"lance_stream.{name}", frozenset({table, *attributes})]

    assert value("sink.batches", outcome="committed") == 1
    assert value("sink.batches", outcome="skipped") == 1
    assert value("sink.rows", kind="inserted") == 4
    assert value("sink.rows", kind="late") == 2
    assert value("sink.commit.attempts") == 2
    assert value("sink.phase.duration", phase="write") == (1, 0.5)
    assert value("sink.phase.duration", phase="other") == (1, 0.1)


def test_both_systems_get_equal_metrics(
    reader: InMemoryMetricReader, otel: OpenTelemetryMetrics, ds: Dataset, tmp_path: Path
) -> None:
    """One table of metrics feeds both, and a metric missing in one would surprise whoever
    changes systems.
    """
    ds = lance_stream.create_dataset(tmp_path / "t", ds).append(ds.to_table())
    record_progress(ds.table.refs, "warehouse", 2)
    lance.dataset(ds.uri).create_scalar_index(ds.schema.names[0], "BTREE")
    registry = CollectorRegistry()
    both = [otel, PrometheusMetrics(registry, max_age_seconds=0)]
    for value in both:
        value.watch(ds.uri)
        value(replace(REPORT, table=ds.uri))
        value.feed("prices", num_rows=3, versions=1, rows=None, seconds=2.0)
    text = generate_latest(registry).decode()
    theirs = {name for name, _ in collected(reader)}
    for metric in ALL:
        assert f"# TYPE {prometheus.name_of(metric)}" in text.replace("_total ", " ")
        has_value = metric is not table_of_metrics.FEED_ROWS  # whose value was None
        assert (opentelemetry.name_of(metric) in theirs) == has_value, metric


def test_duplicate_metrics_are_explained() -> None:
    """Running a cell of a notebook again registers the same metrics twice."""
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    with pytest.raises(InvalidInputError, match="share it between all sinks and tables"):
        PrometheusMetrics(registry)


def test_metric_labels_are_bounded() -> None:
    """Each new label value is a time series for ever, so many tables must share one."""
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    for number in range(MAX_NAMES + 50):
        metrics(replace(REPORT, table=f"t{number}"))
        metrics.feed(f"s{number}", num_rows=1)
    text = generate_latest(registry).decode()
    tables = set(re.findall(r'table="([^"]*)"', text))
    streams = set(re.findall(r'stream="([^"]*)"', text))
    assert len(tables) == len(streams) == MAX_NAMES + 1
    count = 'lance_stream_sink_batches_total{outcome="committed",table="(others)"} 50.0'
    assert count in text


def test_every_row_count_becomes_a_metric() -> None:
    """A number of rows that is added to the report must not be forgotten here."""
    numbers = {name for name in vars(REPORT) if name.startswith("rows_")}
    assert numbers - set(KINDS.values()) == {"rows_in", "rows_differ"}


def test_numbers_by_reason_are_added_up() -> None:
    """Reasons are the user's words, and as labels they would create unbounded time series."""
    report: Any = SimpleNamespace(
        **vars(REPORT) | {"rows_quarantined": {"price > 0": 2, "null": 3}}
    )
    actual = {
        value.labels: value.value for value in samples_of(report, "t") if value.metric is ROWS
    }
    assert actual["t", "quarantined"] == 5
    assert actual["t", "inserted"] == 4


def test_measurements_equal_the_tables_state(ds: Dataset) -> None:
    """The numbers come from the manifest alone and must equal what the table has."""
    measured = TableWatch(ds.uri).measure()
    fragments = ds.table.manifest.fragments
    assert (measured.version, measured.rows, measured.deleted_rows) == (4, 3, 2)
    assert measured.fragments == len(fragments) == measured.small_fragments
    assert measured.data_bytes == sum(
        file.size_bytes for fragment in fragments for file in fragment.files
    )
    assert measured.age_seconds is not None
    assert 0 <= measured.age_seconds < 60
    compacted = ds.compact()
    assert compacted.version > 4
    watch = TableWatch(ds.uri)
    assert (watch.measure().small_fragments, watch.measure().deleted_rows) == (0, 0)


def test_consumer_lag_counts_unread_changes(ds: Dataset) -> None:
    """Alerts fire on this number, so a first snapshot, a current and a lagging consumer must
    differ.
    """
    later = replace(MACHINE, now_nanos=lambda: MACHINE.now_nanos() + 3600 * 10**9)
    watch = TableWatch(ds.uri, environment=later)
    assert watch.measure().consumers == ()
    refs = ds.table.refs
    record_progress(refs, "behind", 2)
    record_progress(refs, "current", 4)
    protect_start(refs, "starting", 2)
    lags = {consumer.name: consumer for consumer in watch.measure().consumers}
    assert lags["current"] == ConsumerLag("current", 0, 0, 0.0)
    assert (lags["behind"].versions, lags["behind"].rows) == (2, 3)
    assert (lags["starting"].versions, lags["starting"].rows) == (3, 6)
    assert timedelta(hours=1) <= timedelta(seconds=lags["behind"].seconds or 0)
    ds.append(rows(9))
    lags = {consumer.name: consumer for consumer in watch.measure().consumers}
    assert (lags["current"].versions, lags["current"].rows) == (1, 1)


def test_row_counts_need_all_versions(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting is spread over several scrapes, and a partial sum would look like progress."""
    monkeypatch.setattr(measuring, "COUNTED_PER_CALL", 2)
    record_progress(ds.table.refs, "behind", 1)
    watch = TableWatch(ds.uri)
    assert [watch.measure().consumers[0].rows for _ in range(2)] == [None, 6]


def test_restores_count_like_the_feed(ds: Dataset) -> None:
    """The lag promises the number of changes that a consumer will receive."""
    record_progress(ds.table.refs, "behind", 4)
    ds.restore(2)
    (lag,) = TableWatch(ds.uri).measure().consumers
    changes = ds.checkout(None).changes(after=4, pre_images=False).read_all()
    assert lag.rows == changes.num_rows


def test_repeated_measurements_cost_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus scrapes every few seconds, all day."""
    from lance_stream.storage import protocols
    from lance_stream.storage.protocols import StoreKind

    service = ObjectService()
    monkeypatch.setitem(protocols.PROTOCOLS, "test", StoreKind("test", lambda *_: service.store()))
    uri = "test://bucket/t"
    ds = lance_stream.create_dataset(uri, SCHEMA)
    for number in range(20):
        ds = ds.append(rows(number))
    record_progress(ds.table.refs, "behind", 2)
    watch = TableWatch(uri)
    first = watch.measure()
    service.clear()
    assert replace(watch.measure(), age_seconds=0, consumers=()) == replace(
        first, age_seconds=0, consumers=()
    )
    requests = service.kinds()
    assert sum(requests.values()) <= 6, requests


def test_recreated_tables_are_measured_anew(tmp_path: Path) -> None:
    """The new table may have more versions than the old one, whose counts must not be mixed in."""
    watch = TableWatch(str(tmp_path / "t"))
    for num_versions, num_rows in ((5, 2), (2, 1), (7, 3)):
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
        for number in range(num_versions):
            ds = ds.append(rows(*range(number, number + num_rows)))
        record_progress(ds.table.refs, "behind", 1)
        measured = watch.measure()
        assert (measured.version, measured.rows) == (ds.version, num_rows * num_versions)
        assert measured.consumers[0].rows == measured.rows


def test_unreadable_tables_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning at each scrape would flood the log, while the metric continues to report the
    problem.
    """
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, max_age_seconds=0)
    metrics.watch("memory://nowhere/t")
    for _ in range(3):
        text = generate_latest(registry).decode()
        assert 'lance_stream_table_readable{table="memory://nowhere/t"} 0.0' in text
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries are optional, and an ImportError would not tell which extra to install."""
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(InvalidInputError, match=r"lance-stream\[prometheus\]"):
        PrometheusMetrics()
    with pytest.raises(InvalidInputError, match=r"lance-stream\[opentelemetry\]"):
        OpenTelemetryMetrics()


@pytest.mark.parametrize("offset", [None, "", "3", '{"a": 1}', '["x"]', {"versionsBehind": "2"}])
def test_other_sources_are_not_counted(offset: object) -> None:
    """A listener sees every source of a query, whose offsets have any form."""
    assert lag_of(offset) is None


def test_the_listener_times_a_streams_lag() -> None:
    """The duration restarts whenever the stream has caught up, and a strange event must not fail
    the query.
    """
    reports: list[dict[str, Any]] = []

    class Metrics:
        def feed(self, stream: str, **numbers: Any) -> None:
            reports.append({"stream": stream, **numbers})

    class Source:
        def __init__(self, behind: int) -> None:
            self.latestOffset = f'{{"version": 9, "versionsBehind": {behind}, "rowsBehind": 4}}'
            self.numInputRows = 3

    class Progress:
        name, id = None, "the-id"

        def __init__(self, behind: int) -> None:
            self.sources = [Source(behind)]

    class Event:
        def __init__(self, behind: int) -> None:
            self.progress = Progress(behind)

    now = iter([10.0, 15.0, 20.0, 30.0])
    listener = FeedListener(Metrics(), clock=lambda: next(now))  # type: ignore[arg-type]  # as much of an event as is looked at
    for behind in (2, 1, 0, 5):
        listener.onQueryProgress(Event(behind))  # type: ignore[arg-type]  # as much of an event as is looked at
    assert [row["seconds"] for row in reports] == [0.0, 5.0, 0.0, 10.0]
    assert reports[0] == {
        "stream": "the-id",
        "num_rows": 3,
        "versions": 2,
        "rows": 4,
        "seconds": 0.0,
    }
    listener.onQueryProgress(object())  # type: ignore[arg-type]  # never fails the query
