import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.long_life.picture import draw
from benchmarks.long_life.windows import by_window, curves
from benchmarks.long_life.with_spark import lines, windows
from benchmarks.long_life.workload import KEY_KINDS, Workload

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("keys", KEY_KINDS)
def test_workload_batches_add_up(keys: str) -> None:
    """The benchmark checks each table by these sums, so they must follow from the batches."""
    workload = Workload(rows=1000, updates=90, inserts=10, keys=keys, seed=3)
    first = workload.first_rows()
    stored = dict(zip(first["key"].to_pylist(), first["value"].to_pylist(), strict=True))
    for number in (1, 2, 3):
        batch = workload.batch(number)
        assert batch.num_rows == 100
        num_updates = sum(key in stored for key in batch["key"].to_pylist())
        assert num_updates == 90
        stored.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
    assert len(stored) == workload.num_rows(3) == 1030
    assert sum(stored.values()) == workload.sum_of_values(3)
    assert set(workload.some_keys(50, 3)) <= set(stored)


def test_updates_are_scattered_over_rows() -> None:
    """Updates must reach all rows, in another order each time."""
    workload = Workload(rows=10_000, updates=1000, inserts=0, keys="ascending")
    first, second = (workload.batch(number)["key"].to_numpy() for number in (1, 2))
    for keys in (first, second):
        assert np.histogram(keys, bins=10, range=(0, 10_000))[0].min() > 50
        assert np.count_nonzero(np.diff(keys) == 1) < 20
    assert set(first) != set(second)


def test_windows_are_medians_of_their_batches() -> None:
    """One slow batch must not shift a point of the curve."""
    costs = [1.0, 9.0, 2.0, 4.0, 5.0]
    batches = [
        {"batch ms": cost, "batch CPU ms": cost, "compaction CPU ms": cost} for cost in costs
    ]
    windows = by_window(batches, 3)
    assert [window.batch for window in windows] == [2.0, 4.5]
    assert [window.compaction_cpu for window in windows] == [4.0, 4.5]
    assert windows[0].after is batches[2]


def test_curves_are_drawn_to_scale() -> None:
    """The drawing is published, and a wrong scale would mislead."""
    batch = {"batch ms": 1.0, "compaction CPU ms": 0.0}
    slow = [batch | {"batch CPU ms": 10.0 * n, "manifest bytes": 1e6 * n} for n in range(1, 9)]
    fast = [number | {"batch CPU ms": 10.0} for number in slow]
    svg = draw(curves({"slow & old": slow, "fast": fast}, window=2))
    root = ElementTree.fromstring(svg)
    lines = [
        [tuple(map(float, point.split(","))) for point in element.attrib["points"].split()]
        for element in root.iter("{http://www.w3.org/2000/svg}polyline")
    ]
    assert [len(line) for line in lines] == [4] * 4
    growing, flat = lines[:2]
    heights = [y for _, y in growing]
    assert np.diff(heights) == pytest.approx([heights[1] - heights[0]] * 3, abs=0.2)
    assert {y for _, y in flat} == {flat[0][1]}
    assert [x for x, _ in growing] == [x for x, _ in flat]
    assert "slow &amp; old" in svg


def test_spark_runs_compare_with_their_start() -> None:
    """The first batch starts Spark's workers, and is left out."""
    upserts = {"ours": [9.0, 0.1, 0.1, 0.3, 0.2, 0.2], "theirs": [9.0, 1.0, 3.0, 2.0, 6.0, 4.0]}
    assert windows(upserts["theirs"], 3) == [2.0, 5.0]
    output = [re.split(r" {2,}", line.strip()) for line in lines(upserts, 3)]
    assert output == [
        ["batches", "ours", "theirs"],
        ["4", "100 ms, 1.00 x", "2000 ms, 1.00 x"],
        ["6", "200 ms, 2.00 x", "5000 ms, 2.50 x"],
    ]


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.nightly
def test_long_life_measures_every_contender(tmp_path: Path) -> None:
    """A contender that silently does nothing would look fast."""
    names = ["ours", "pylance", "ours:2", "pylance:2"]
    sizes = ["--rows", "2000", "--updates", "100", "--inserts", "10"]
    figures = tmp_path / "figures.json"
    command = [*sizes, "--batches", "5", "--window", "2", "--json", str(figures)]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.long_life", *command, "--contenders", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    measured = json.loads(figures.read_text())["batches"]
    assert list(measured) == names
    for name in names:
        assert len(measured[name]) == 5
        last = measured[name][-1]
        assert min(last[name] for name in ("manifest bytes", "open", "point read", "feed")) > 0
        assert re.search(rf"^ +4 {name} ", process.stdout, re.MULTILINE), process.stdout
    assert measured["ours"][-1]["dead rows"] == 500
    assert measured["ours:2"][3]["fragments"] < measured["ours"][3]["fragments"]


def test_rows_have_requested_vectors() -> None:
    """A batch of rows with vectors has new ones, in the schema that creates the table."""
    workload = Workload(rows=100, updates=9, inserts=1, vector=16)
    batch = workload.batch(1)
    assert batch.schema == workload.schema
    assert batch.schema.field("vector").type == pa.list_(pa.float32(), 16)
    assert batch["vector"] != workload.batch(2)["vector"]
