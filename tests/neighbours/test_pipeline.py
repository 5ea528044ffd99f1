"""The pipeline of examples/pipeline as a whole: every part is killed once while changes run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.pipeline.__main__ import KILLED, MARK
from tests.recipes import need

ROOT = Path(__file__).parents[2]
SECONDS = 900

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.recipes,
    pytest.mark.spark,
    pytest.mark.server("kafka", "postgresql"),
]


@pytest.mark.usefixtures("spark_for_kafka")
def test_killed_parts_lose_nothing(tmp_path: Path) -> None:
    """The example is what readers build upon, and its promise holds only for all parts together."""
    need("kafka")
    state = tmp_path / "state"
    command = [sys.executable, "-m", "examples.pipeline", "--kill-each", "--seconds", "30"]
    try:
        _run_and_check(command, state)
    finally:
        outside = json.loads((state / MARK).read_text() or "{}").get("postgresql")
        if outside is not None:  # another user may not enter pytest's folders
            shutil.rmtree(outside)


def _run_and_check(command: list[str], state: Path) -> None:
    process = subprocess.run(
        [*command, "--load", "30", "--state", str(state)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": "pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    output = process.stdout[-5000:] + process.stderr[-3000:]
    assert process.returncode == 0, output
    report = json.loads((state / "report.json").read_text())
    assert report["findings"] == []
    assert [row["part"] for row in report["kills"]] == list(KILLED)
    assert all(report["restarts"][name] >= 1 for name in KILLED), report["restarts"]
    assert report["load"]["deletes"] > 100
    fresh = report["fresh"]
    assert fresh["in table"]["count"] > 500
    assert fresh["with its embedding"]["count"] > 300
    assert fresh["found by words"]["count"] > 0
    assert fresh["found by neighbours"]["count"] > 0
