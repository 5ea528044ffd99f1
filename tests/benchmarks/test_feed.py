"""The benchmark of the change feed."""

import re
from pathlib import Path

import pytest

from benchmarks.feed import measure_history


def test_the_feed_benchmark_compares_histories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes minutes, so nobody would notice before a release that it fails."""
    measure_history(tmp_path, [2, 9], 1)
    lines = re.findall(r"^ +(\d+) +[\d.]+ ms +[\d.]+ x$", capsys.readouterr().out, re.MULTILINE)
    assert lines == ["2", "9"] * 2
