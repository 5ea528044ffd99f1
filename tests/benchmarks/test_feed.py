"""The benchmark of the change feed."""

import re
from pathlib import Path

import pytest

from benchmarks.feed import measure_history


def test_the_feed_benchmark_compares_histories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark takes minutes, so a failure would show only shortly before a release."""
    measure_history(tmp_path, [2, 9], 1)
    lines = re.findall(r"^ +(\d+) +[\d.]+ ms +[\d.]+ x$", capsys.readouterr().out, re.MULTILINE)
    assert lines == ["2", "9"] * 2
