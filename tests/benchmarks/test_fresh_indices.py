import re
from pathlib import Path

import lance
import numpy as np
import pytest

import lance_stream
from benchmarks.fresh_indices import Rows, Side, index, missing_of, searches, show
from tests.benchmarks.test_benchmarks import run


def test_ratios_compare_with_and_without_refresh(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Means and medians differ here, so a swapped or wrong statistic shows."""
    without = Side([0.2, 0.4, 0.9], 0.4, 0.4, 0.0, {"vector": 0.025})
    fresh = Side([0.22, 0.44, 0.84], 0.05, 0.01, 3.0, {"vector": 0.006}, 7, 12.0)
    show(
        {"before": {"vector": 0.003}, "fresh": {"vector": 0.005}}
        | {"without": without, "with": fresh}
    )
    output = capsys.readouterr().out
    assert re.search(r"batch, median .* ratio 1\.10\n", output)
    assert re.search(r"batch, mean .* ratio 1\.00\n", output)
    assert "without 40.0%   with 5.0%   after 3.0 s of waiting 1.0%" in output
    assert "ratios to new: without 5.0, with 1.20" in output


@pytest.mark.oracle
def test_searches_work_while_coverage_shrinks(tmp_path: Path) -> None:
    """The benchmark needs searches that succeed and a coverage that really drops."""
    rows = Rows(8)
    uri = str(tmp_path / "t")
    lance_stream.create_dataset(uri, rows.of(np.arange(2000)), primary_key=["id"])
    index(uri, 2000, 8)
    assert missing_of(uri) == 0
    for search in searches(rows).values():
        assert search(lance.dataset(uri), 0).num_rows == 10
    lance_stream.open_dataset(uri).upsert(rows.of(np.arange(500)), on="id")
    assert missing_of(uri) == 0.25


@pytest.mark.oracle
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
def test_the_refresh_benchmark_prints_its_ratios() -> None:
    """The small run must show unindexed rows with the stream running, and none after waiting."""
    size = ("--rows", "6000", "--batches", "8", "--changes", "300", "--dimensions", "16")
    output = run("benchmarks.fresh_indices", *size)
    assert len(re.findall(r"ratio \d+\.\d\d", output)) == 2, output
    assert "with 0.0%" not in output.split("after")[0], output
    assert re.search(r"of waiting 0\.0%", output), output
