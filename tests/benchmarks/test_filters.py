import re
from pathlib import Path

import pytest

import lance_stream
from benchmarks.filters import CONTENDERS, make, questions, show
from lance_stream.expressions.predicates import parse_expression
from lance_stream.read.indices.candidates import candidate_rows
from tests.benchmarks.test_benchmarks import run


def test_ratios_compare_with_pylance_and_scans(capsys: pytest.CaptureFixture[str]) -> None:
    """Swapped contenders would turn a loss into a gain."""
    show("one", dict(zip(CONTENDERS, (0.002, 0.01, 0.001, 0.005), strict=True)))
    output = capsys.readouterr().out
    assert re.search(r"one +2\.0 +10\.0 +1\.0 +5\.0 +2\.00x +0\.20x\n", output)


@pytest.mark.oracle
def test_indices_serve_selective_filters(tmp_path: Path) -> None:
    """Otherwise the benchmark would compare two scans."""
    uri, plain = make(tmp_path, 60_000, 3)
    ds = lance_stream.open_dataset(uri)
    served = {
        name
        for name, condition in questions(60_000).items()
        if candidate_rows(ds.table, parse_expression(condition)) is not None
    }
    assert served == set(questions(60_000)) - {"4 keys", "half of all", "no index"}
    assert (
        candidate_rows(lance_stream.open_dataset(plain).table, parse_expression("id = 5")) is None
    )


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.nightly
def test_the_filters_benchmark_prints_its_ratios() -> None:
    """A benchmark that fails unnoticed is found only on the day of a release."""
    output = run("benchmarks.filters", "--rows", "40000", "--fragments", "2", "--rounds", "1")
    assert len(re.findall(r"\d+\.\d\dx +\d+\.\d\dx", output)) == 10, output
