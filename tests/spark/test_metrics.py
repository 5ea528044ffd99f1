"""What a running sink and a running stream of changes report to Prometheus, and to `on_commit`."""

import json
import logging
import re
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import lance_stream
from lance_stream import InvalidInputError
from lance_stream.maintenance.consumers import record_progress
from lance_stream.monitoring import PrometheusMetrics
from lance_stream.spark import SinkCommit, lance_sink, register
from lance_stream.spark.metrics import FeedListener

pytestmark = pytest.mark.spark

BOARD = Path(__file__).parents[2] / "docs" / "operations" / "grafana.json"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def address(registry: CollectorRegistry) -> Iterator[str]:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def scrape(address: str) -> Scraped:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(scraped: Scraped, name: str, **labels: str) -> float:
    return scraped[f"lance_stream_{name}", frozenset(labels.items())]


def names_on_board() -> set[str]:
    """Return the metrics in all expressions and queries of variables of the board."""
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += [
        row["query"]["query"] for row in board["templating"]["list"] if row["type"] == "query"
    ]
    names_of_texts = [re.findall(r"\blance_stream_\w+", text) for text in texts]
    assert all(names_of_texts)
    return {name for names in names_of_texts for name in names}


def test_a_scrape_has_all_dashboard_metrics(
    spark: Any, file_stream: Any, registry: CollectorRegistry, address: str, uri: str
) -> None:
    """A panel whose metric does not exist stays empty without an error; reporting must also cost
    less than 1 % of a batch.
    """
    metrics = PrometheusMetrics(registry, max_age_seconds=0)
    metrics.watch(uri)
    assert value(scrape(address), "table_readable", table=uri) == 0  # there is no table yet
    shares: list[float] = []

    def timed(report: SinkCommit) -> None:
        start = time.thread_time()
        metrics(report)
        shares.append((time.thread_time() - start) / sum(report.seconds.values()))

    sink = lance_sink(uri, mode="upsert", on=["id"], on_commit=timed)
    for batch in (rows(1, 2, 3), rows(3, 4)):
        file_stream.add(batch)
    file_stream.run(sink)
    table = lance_stream.open_dataset(uri).table
    record_progress(table.refs, "warehouse", 1)
    metrics.feed("prices", num_rows=3, versions=1, rows=2, seconds=4.0)

    scraped = scrape(address)
    missing = names_on_board() - {name for name, _ in scraped}
    assert missing == set()
    assert value(scraped, "sink_batches_total", table=uri, outcome="committed") == 2
    assert value(scraped, "sink_rows_total", table=uri, kind="inserted") == 4
    assert value(scraped, "sink_rows_total", table=uri, kind="updated") == 1
    assert value(scraped, "table_rows", table=uri) == 4
    assert value(scraped, "table_deleted_rows", table=uri) == 1
    assert value(scraped, "table_small_fragments", table=uri) == 2
    assert value(scraped, "consumer_lag_rows", table=uri, consumer="warehouse") == 2
    assert value(scraped, "consumer_lag_versions", table=uri, consumer="warehouse") == 1
    assert 0 <= value(scraped, "table_age_seconds", table=uri) < 600
    commits = value(scraped, "sink_phase_duration_seconds_count", table=uri, phase="commit")
    assert commits == 2
    assert min(shares) < 0.01  # of the time that the batch took in this run


@pytest.mark.essential
def test_on_commit_receives_each_batch_report(file_stream: Any, uri: str) -> None:
    """Users forward these reports to their monitoring, so none may be missing or belong to another
    batch.
    """
    reports: list[SinkCommit] = []
    sink = lance_sink(uri, on_commit=reports.append)
    for batch in (rows(1, 2), rows(3)):
        file_stream.add(batch)
    file_stream.run(sink)
    assert [(report.version, report.rows_inserted, report.table) for report in reports] == [
        (1, 2, uri),
        (2, 1, uri),
    ]
    assert sink.last_commit is reports[-1]
    with pytest.raises(
        InvalidInputError, match="on_commit must be a function that takes a batch's report"
    ):
        lance_sink(uri, on_commit="print")  # type: ignore[arg-type]  # what is refused


def test_on_commit_errors_are_only_logged(
    file_stream: Any, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is already committed, and broken monitoring must not stop the stream."""
    calls = []

    def raises(report: SinkCommit) -> None:
        calls.append(report.batch_id)
        raise ValueError("the metrics are broken")

    for batch in (rows(1, 2), rows(3)):
        file_stream.add(batch)
    with caplog.at_level(logging.ERROR, "lance_stream.sink"):
        file_stream.run(lance_sink(uri, on_commit=raises))
    assert calls == [0, 1]
    assert lance_stream.open_dataset(uri).count_rows() == 3
    logged = [record for record in caplog.records if record.name == "lance_stream.sink"]
    assert [record.levelname for record in logged] == ["ERROR", "ERROR"]
    assert "the batch is committed, and the stream continues" in logged[0].getMessage()
    assert "the metrics are broken" in str(logged[0].exc_info)


@pytest.mark.nightly
def test_a_change_stream_reports_its_lag(
    spark: Any,
    registry: CollectorRegistry,
    address: str,
    uri: str,
    tmp_path: Path,
    pyspark_has_read_limits: bool,
) -> None:
    """An alert on the lag works only if it counts down to zero while the stream catches up."""
    if not pyspark_has_read_limits:
        pytest.skip("PySpark 4.1 does not report how far a source is behind")
    register(spark)
    ds = lance_stream.create_dataset(uri, rows(1, 2))
    ds.append(rows(3)).append(rows(4, 5))
    listener = FeedListener(PrometheusMetrics(registry))
    spark.streams.addListener(listener)
    name = f"feed_{uuid.uuid4().hex[:8]}"
    try:
        query = (
            spark.readStream.format("lance")
            .option("readChangeFeed", "true")
            .option("startingVersion", 1)
            .option("maxVersionsPerTrigger", 1)
            .load(uri)
            .writeStream.foreachBatch(lambda df, _: df.count())
            .queryName(name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        counter = ("lance_stream_feed_rows_total", frozenset({("stream", name)}))
        deadline = time.monotonic() + 30  # events arrive a little later
        while scrape(address).get(counter) != 5 and time.monotonic() < deadline:
            time.sleep(0.1)
        scraped = scrape(address)
    finally:
        spark.streams.removeListener(listener)
    assert scraped[counter] == 5
    assert value(scraped, "feed_lag_versions", stream=name) == 0
    assert value(scraped, "feed_lag_rows", stream=name) == 0
    assert value(scraped, "feed_lag_duration_seconds", stream=name) == 0
