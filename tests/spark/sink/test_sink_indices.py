"""The sink keeps the indices of its table up to date beside the batches."""

import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

import lance_stream
from lance_stream import InvalidInputError
from lance_stream.maintenance.indices import building
from lance_stream.monitoring import PrometheusMetrics
from lance_stream.spark import lance_sink

pytestmark = pytest.mark.spark

KEYS = {"mode": "upsert", "on": "id", "app_id": "a"}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    rows = pa.table({"id": range(100), "x": [f"x {number}" for number in range(100)]})
    lance_stream.create_dataset(uri, rows)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).create_scalar_index("x", "INVERTED")
    return uri


def test_indices_follow_a_stream(spark: Any, uri: str) -> None:
    """Appends leave an index incomplete and compaction moves its rows, so searches by pylance must
    still find every row.
    """
    sink = lance_sink(uri, **KEYS, keep_indices_fresh={"rows": 10}, compact=3)
    for number in range(5):
        rows = [(key, f"y {key}") for key in range(number * 10, number * 10 + 15)]
        sink(spark.createDataFrame(rows, "id long, x string"), number)
        assert sink.wait_for_compaction(60)
        assert sink.wait_for_indices(60)
    assert sink.last_index_round is not None
    assert sink.last_index_round.error is None
    ds = lance_stream.open_dataset(uri)
    assert {coverage.rows_unindexed for coverage in ds.index_coverage()} <= {0, 5}
    operations = [version.operation for version in ds.versions()]
    assert operations.count("CreateIndex") >= 3
    assert "Rewrite" in operations
    matches = lance.dataset(uri).to_table(full_text_query="y", columns=["id"])["id"].to_pylist()
    assert sorted(matches) == list(range(55))
    assert lance.dataset(uri).count_rows("id >= 40 and id < 60") == 20
    assert ds.verify() == []


def test_reports_and_metrics_show_index_outcomes(spark: Any, uri: str) -> None:
    """A damaged index must not stop the stream or the other indices, and the operator has to see
    which one failed.
    """
    store = lance_stream.open_dataset(uri).table.store
    for file in store.list("_indices"):
        if "page" in file.path:  # of the BTREE
            store.delete(file.path)
    registry = CollectorRegistry()
    sink = lance_sink(
        uri, **KEYS, keep_indices_fresh={"rows": 10}, on_commit=PrometheusMetrics(registry)
    )
    for number in range(2):
        rows = [(key, f"y {key}") for key in range(200 + 20 * number, 220 + 20 * number)]
        sink(spark.createDataFrame(rows, "id long, x string"), number)
        assert sink.wait_for_indices(60)
    assert sink.last_commit is not None
    assert sink.last_commit.indices["x_idx"] == "fresh"
    assert "are missing in" in sink.last_commit.indices["id_idx"]
    json.dumps(asdict(sink.last_commit))
    for outcome in ("fresh", "failed"):
        labels = {"table": uri, "outcome": outcome}
        assert registry.get_sample_value("lance_stream_sink_index_updates_total", labels) == 1


def test_tables_without_indices_are_left_alone(spark: Any, tmp_path: Path) -> None:
    """Keeping indices fresh must never create one that the user did not ask for."""
    uri = str(tmp_path / "new")
    sink = lance_sink(uri, keep_indices_fresh=True, app_id="a")
    sink(spark.range(5000), 0)
    assert sink.wait_for_indices(60)
    assert sink.last_index_round is None
    operations = [version.operation for version in lance_stream.open_dataset(uri).versions()]
    assert "CreateIndex" not in operations


def test_missing_pylance_is_reported_at_once(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """pylance is optional, and without it the background thread would fail after every batch."""
    monkeypatch.setattr(building, "is_installed", lambda _: False)
    with pytest.raises(InvalidInputError, match=r"pip install 'lance-stream\[index\]'"):
        lance_sink(uri, keep_indices_fresh=True)
    assert lance_sink(uri, keep_indices_fresh=False).wait_for_indices()


def test_invalid_index_policies_are_refused(uri: str) -> None:
    """A misspelt limit would silently leave the indices stale."""
    with pytest.raises(InvalidInputError, match="has no limit 'share'"):
        lance_sink(uri, keep_indices_fresh={"share": 1})


def test_pickling_keeps_the_index_policy(uri: str) -> None:
    """Spark Connect sends the sink to the server, which has to keep the indices fresh."""
    sink = pickle.loads(pickle.dumps(lance_sink(uri, keep_indices_fresh={"rows": 7}, app_id="a")))
    assert sink.arguments.keep_indices_fresh.rows == 7
    assert sink.last_index_round is None
    assert sink.wait_for_indices()
