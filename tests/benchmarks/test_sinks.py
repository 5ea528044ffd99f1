import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_stream
from benchmarks.first_batches import report
from benchmarks.rivals.__main__ import bars, table
from benchmarks.rivals.picture import Bar, draw
from benchmarks.sinks.contenders import CONTENDERS, Shared
from benchmarks.sinks.turns import Figures, check_rows, run_turns, warm_median
from benchmarks.sinks.workload import Sums, Workload


def files(folder: Path, verb: str) -> list[pa.Table]:
    return [pq.read_table(path) for path in sorted((folder / verb).iterdir())]


def test_workload_sums_match_the_rows(tmp_path: Path) -> None:
    """Each sink's table is checked by these sums after the run."""
    workload = Workload(table_rows=1000, batch_rows=100, appends=3, upserts=4)
    expected = workload.write(tmp_path)
    stored: dict[int, float] = {}
    for verb in ("load", "append", "upsert"):
        for batch in files(tmp_path, verb):
            stored.update(zip(batch["id"].to_pylist(), batch["value"].to_pylist(), strict=True))
    assert expected == Sums(1000 + 3 * 100 + 4 * 10, sum(stored), int(sum(stored.values())))
    assert len(stored) == expected.num_rows


def test_upserts_are_nine_tenths_updates(tmp_path: Path) -> None:
    """The documentation states this proportion, on which the cost depends."""
    Workload(table_rows=1000, batch_rows=200, appends=1, upserts=2).write(tmp_path)
    batches = files(tmp_path, "upsert")
    assert len(batches) == 2
    for batch in batches:
        ids = batch["id"].to_numpy()
        assert len(np.unique(ids)) == 200
        assert np.count_nonzero(ids < 1000) == 180


def test_files_have_ascending_modification_times(tmp_path: Path) -> None:
    """Spark reads files in this order, and upserts in another order leave other values."""
    Workload(table_rows=100, batch_rows=10, appends=0, upserts=5).write(tmp_path)
    seconds = [int(path.stat().st_mtime) for path in sorted((tmp_path / "upsert").iterdir())]
    assert len(set(seconds)) == 5
    assert seconds == sorted(seconds)


def test_first_batches_are_warm_ups() -> None:
    """A first batch counts only if there is no other."""
    assert warm_median([9.0, 1.0, 3.0, 2.0]) == 2.0
    assert warm_median([9.0]) == 9.0
    assert warm_median([]) is None


NEWEST = Figures({"append": {"lance-stream": [1, 0.1], "parquet": [1, 0.25]}}, {})
THEIRS = Figures({"append": {"lance-stream": [1, 0.2], "Iceberg": [9, 0.4], "Delta": [9, 12]}}, {})


def test_rivals_are_compared_per_pyspark() -> None:
    """Each rival is compared with our figure on the rival's PySpark and on the newest."""
    lines = table(("4.3.0", NEWEST), ("4.1.4", THEIRS))
    assert lines[0] == "| sink | PySpark | load | append | upsert | feed |"
    assert "| parquet | 4.3.0 |  | 250 ms: 2.5x |  |  |" in lines
    assert "| lance-stream | 4.1.4 |  | **200 ms** |  |  |" in lines
    assert "| Iceberg | 4.1.4 |  | 400 ms: 2.0x, 4.0x |  |  |" in lines
    assert "| Delta | 4.1.4 |  | 12.0 s: 60.0x, 120.0x |  |  |" in lines


def test_bars_use_the_newest_pyspark() -> None:
    """Bars show the newest PySpark that a sink supports."""
    drawn = bars(("4.3.0", NEWEST), ("4.1.4", THEIRS))["append"]
    assert [(bar.label, round(bar.value, 6)) for bar in drawn] == [
        ("lance-stream, PySpark 4.3", 1.0),
        ("parquet, PySpark 4.3", 2.5),
        ("Iceberg, PySpark 4.1", 4.0),
        ("Delta, PySpark 4.1", 120.0),
    ]


def test_bars_are_drawn_to_scale() -> None:
    """The drawing is published, and a wrong scale would mislead."""
    svg = draw({"append": [Bar("ours", 1.0, True), Bar("a <rival>", 4.0, False)]})
    space = "{http://www.w3.org/2000/svg}"
    widths = [
        float(element.attrib["width"])
        for element in ElementTree.fromstring(svg).iter(f"{space}rect")
    ]
    assert widths[1] == pytest.approx(4 * widths[0], rel=1e-3)
    assert "a &lt;rival&gt;" in svg


def test_first_batches_compare_with_noop_sink() -> None:
    """Spark's own startup time must not be reported as a cost of the sink."""
    seconds = {"noop": [[2.0, 0.1, 0.1, 0.1]], "append": [[3.0, 9.0, 0.2, 0.2]]}
    assert report(seconds) == [
        "noop     first   2000 ms, warm   100 ms: 20.0 x",
        "append   first   3000 ms, warm   200 ms: 15.0 x, 5.0 more than noop's",
    ]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.oracle
@pytest.mark.slow
def test_shared_tables_keep_their_own_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that pylance appends must not hide lost ones, and the feed is read after each batch."""
    workload = Workload(table_rows=2000, batch_rows=500, appends=0, upserts=3)
    expected = workload.write(tmp_path)
    table = Shared(tmp_path)
    monkeypatch.setattr(Shared, "batches_per_append", 1)
    figures = run_turns(spark, [table], workload, tmp_path, expected, loads=1)
    assert len(figures.phases["upsert"]["feed"]) == 3
    ds = lance_stream.open_dataset(table.target)
    assert ds.count_rows() == expected.num_rows + 3 * Shared.rows_per_append
    with pytest.raises(RuntimeError, match="shared contains"):
        check_rows(spark, [table], workload, expected._replace(ids=0))


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.oracle
@pytest.mark.slow
def test_all_sinks_write_the_same_rows(spark: Any, tmp_path: Path) -> None:
    """A sink that loses rows would look fast, and a wrong sum must be noticed."""
    names = ("lance-stream", "pylance", "parquet", "noop")
    workload = Workload(table_rows=2000, batch_rows=500, appends=2, upserts=2)
    expected = workload.write(tmp_path)
    contenders = [CONTENDERS[name](tmp_path) for name in names]
    figures = run_turns(spark, contenders, workload, tmp_path, expected, loads=2)
    assert {name: len(runs) for name, runs in figures.seconds["load"].items()} == {
        "lance-stream": 2,
        "pylance": 2,
        "parquet": 2,
    }
    assert {name: len(runs) for name, runs in figures.seconds["append"].items()} == dict.fromkeys(
        names, 2
    )
    assert min(run for runs in figures.seconds["append"].values() for run in runs) > 0
    assert {"write", "commit"} <= set(figures.phases["append"])
    assert {name: len(runs) for name, runs in figures.seconds["upsert"].items()} == {
        "lance-stream": 2,
        "pylance": 2,
    }
    assert {"scan", "write", "commit"} <= set(figures.phases["upsert"])
    assert len(figures.seconds["feed"]["lance-stream"]) > 1
    wrong = expected._replace(ids=expected.ids + 1)
    for contender in contenders[:2]:
        with pytest.raises(RuntimeError, match=f"the table of {contender.name} contains"):
            check_rows(spark, [contender], workload, wrong)
