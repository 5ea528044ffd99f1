"""A round that brings indices up to date is killed at each of its steps: searches stay right."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.oracle.indexed_table import IndexedTable

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

PROCESS = Path(__file__).parent / "index_round_process.py"
ROOT = Path(__file__).parents[2]
STEPS = (
    ("parent", "before the child"),
    ("parent", "before files"),
    ("parent", "files written"),
    ("parent", "before the answer"),
    ("parent", "after the child"),
    ("parent", "before the manifest"),
    ("parent", "after the manifest"),
    ("parent", "after the commit"),
    ("child", "before files"),
    ("child", "files written"),
    ("child", "before the answer"),
)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(("victim", "step"), STEPS)
def test_searches_survive_kills_at_any_step(tmp_path: Path, victim: str, step: str) -> None:
    """pylance builds the index in a child process, and parent or child may die with the files half
    written.
    """
    table = IndexedTable(str(tmp_path / "t"), 9, stable_row_ids=True)
    table.upsert()
    table.append()
    version = table.ours.version
    assert run(table.uri, victim, step) == (-signal.SIGKILL if victim == "parent" else 0)
    wait_for_child(Path(table.uri + ".pid"))
    is_committed = step in ("after the manifest", "after the commit")
    assert table.ours.version == version + is_committed
    table.check()
    assert table.ours.verify() == []
    assert run(table.uri, "nobody", "no step") == 0
    assert {coverage.rows_unindexed for coverage in table.ours.index_coverage()} == {0}
    assert table.ours.version == version + 1
    table.check()
    table.upsert()
    table.check()
    assert table.ours.verify() == []


def run(uri: str, victim: str, step: str) -> int:
    """Run the round in a process; return its exit code."""
    arguments = [sys.executable, str(PROCESS), uri, victim, step]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(arguments, env=environment, timeout=200).returncode


def wait_for_child(file: Path) -> None:
    """Wait until the child has ended, as it does soon after its parent."""
    if not file.exists():
        return
    pid, deadline = int(file.read_text()), time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline, f"the child {pid} has outlived its parent"
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
