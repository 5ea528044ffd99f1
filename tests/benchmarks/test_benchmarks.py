import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.column_kinds import KINDS
from benchmarks.stores import ACTS

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return process.stdout


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.nightly
def test_the_tables_benchmark_prints_its_ratios() -> None:
    """There is one ratio for each file version and direction."""
    output = run("benchmarks.tables", "--rows", "3000", "--rounds", "1", "--file-versions", "2.2")
    ratios = re.findall(r"([\d.]+)x pylance, +([\d.]+)x parquet", output)
    assert len(ratios) == 3, output
    assert all(float(ratio) > 0 for pair in ratios for ratio in pair)


@pytest.mark.nightly
@pytest.mark.oracle
@pytest.mark.slow
def test_the_files_benchmark_prints_its_ratios() -> None:
    """There are five ratios for each kind of column and file version."""
    some = ("ids", "maps")
    output = run("benchmarks.files", "--rows", "2000", "--turns", "1", "--kinds", *some)
    lines = {line[:19].strip(): line[29:] for line in output.splitlines() if line[29:].strip()}
    expected = {f"{name:15} {version}" for name in some for version in KINDS[name].versions}
    assert expected <= set(lines), output
    for name in expected:
        if "refused" not in lines[name]:
            ratios = [float(part.strip("*")) for part in lines[name].split()]
            assert len(ratios) == 5, lines[name]
            assert min(ratios) > 0, lines[name]
    assert "refused" not in lines[f"{'ids':15} 2.2"]
    assert re.search(r"geometric mean of all speeds: \d+\.\d\d", output)


@pytest.mark.parametrize("name", KINDS)
def test_column_kinds_have_valid_values(name: str) -> None:
    """Invalid or random data would make runs incomparable."""
    table = KINDS[name].table(1000)
    table.validate(full=True)
    assert table.num_rows == 1000
    assert table.equals(KINDS[name].table(1000))


@pytest.mark.nightly
@pytest.mark.oracle
@pytest.mark.slow
def test_the_growth_benchmark_compares_fragment_counts() -> None:
    """A benchmark that fails unnoticed is found only on the day of a release."""
    output = run("benchmarks.growth", "--no-spark", "--fragments", "3", "40", "--rounds", "2")
    for line in ("commit, ours", "commit, pylance", "bytes, ours"):
        cells = re.search(rf"^{line} +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
        assert cells is not None, output
        assert all(float(group) > 0 for group in cells.groups())
    assert re.search(r"commit: -?[\d.]+ x; target: below 1\.5", output), output


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.server("moto")
def test_the_stores_benchmark_prints_its_ratios() -> None:
    """Each action has a ratio of time and one of requests."""
    output = run("benchmarks.stores", "--rounds", "1", "--latency-ms", "0")
    ratios = re.findall(r"^(\S.*?) {2,}.* ([\d.]+) x +([\d.]+) x$", output, re.MULTILINE)
    assert [name.replace(" ", "_") for name, _, _ in ratios] == list(ACTS), output
    assert all(float(time) > 0 for _, time, _ in ratios)
    fewer = {name: float(requests) for name, _, requests in ratios}
    assert max(fewer[name] for name in ("open", "append", "idle poll")) <= 1


@pytest.mark.nightly
@pytest.mark.oracle
@pytest.mark.slow
def test_the_small_commits_benchmark_counts_flushes() -> None:
    """Flushes explain the times of each contender, which are compared with pylance's."""
    words = ("--appends", "2", "--rounds", "1", "--most", "20")
    output = run("benchmarks.small_commits", *words)
    flushes = re.findall(r"^  ([a-z -]+?) +[\d.]+ +[\d.]+ +(\d+|none) ", output, re.MULTILINE)
    once = {"lance-stream": "2", "durable": "6", "flushing nothing": "0", "as the sink": "2"}
    others = [("pylance", "none"), ("bare flushes", "2")]
    assert flushes == 2 * [*once.items(), *others], output


@pytest.mark.nightly
@pytest.mark.slow
def test_the_quarantine_benchmark_prints_four_times() -> None:
    """Decision 067 quotes them, with the number of files."""
    output = run("benchmarks.quarantine", "--batches", "3", "--compact")
    times = re.findall(r"^(\w+) +[\d.]+ s CPU$", output, re.MULTILINE)
    assert times == ["batches", "compact", "list", "replay"], output
    assert "t_quarantine.lance: 10 files" in output


@pytest.mark.nightly
@pytest.mark.slow
def test_the_tables_benchmark_compares_three_ways() -> None:
    """The documentation quotes its three lines."""
    output = run("benchmarks.several_tables", "--tables", "3", "--batches", "2")
    assert re.findall(r"^(\D+?) +[\d.]+ ms +[\d.]+ ms CPU$", output, re.MULTILINE) == [
        "in order",
        "side by side",
        "read_together",
    ]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_key_index_benchmark_compares_sizes() -> None:
    """Its ratios prove that lookups do not grow with the table."""
    output = run("benchmarks.key_index", "--millions", "1", "2", "--rounds", "1", "--keys", "1000")
    ratios = re.findall(r"^(\w+).* ([\d.]+) x$", output, re.MULTILINE)
    assert [name for name, _ in ratios] == ["running", "running", "first"], output
    assert "2 M: 1 runs" in output
    assert "in 1 runs of 1 million rows" in run("benchmarks.key_index", "--look-up", "1")
    assert "write and merge the index" in run("benchmarks.key_index", "--writes", "2")
    output = run("benchmarks.key_index", "--compaction", "1", "--rounds", "1")
    assert "carried over" in output
    assert "read again" in output


@pytest.mark.nightly
@pytest.mark.slow
def test_the_dimensions_benchmark_prints_every_kind() -> None:
    """Costs of history are judged against those of a plain upsert."""
    arguments = ("--rows", "1000", "--changes", "50", "--batches", "2")
    output = run("benchmarks.slowly_changing", *arguments)
    for kind in ("upsert", "scd1", "scd2", "scd2 late"):
        match = re.search(rf"^{kind} +([\d.]+) +([\d.]+) +([\d,]+)$", output, re.MULTILINE)
        assert match is not None, output
        assert float(match[1]) > 0
