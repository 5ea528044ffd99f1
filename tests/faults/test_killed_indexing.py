"""A writer that keeps indices fresh is killed at any moment: searches stay right."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle.indexed_table import IndexedTable

PROCESS = Path(__file__).parent / "indexing_process.py"
ROOT = Path(__file__).parents[2]
NUM_ROUNDS = 5 * int(os.environ.get("KILL_ROUNDS", "1"))
NUM_BATCHES = 12


@pytest.mark.oracle
@pytest.mark.slow
def test_indices_survive_kills_at_any_moment(tmp_path: Path) -> None:
    """An index that misses rows or names moved ones gives wrong search results without an error."""
    dice = random.Random(48)
    table = IndexedTable(str(tmp_path / "t"), 48, stable_row_ids=True)
    num_batches = num_killed = 0
    for _ in range(NUM_ROUNDS):
        num_batches += NUM_BATCHES
        num_killed += not run(table, num_batches, dice.uniform(0.2, 3.0))
        table.check()
        assert table.ours.verify() == []
    assert num_killed > NUM_ROUNDS // 4
    assert run(table, num_batches + 1, None)
    table.check()
    ds = table.ours
    assert ds.verify() == []
    assert {coverage.rows_unindexed for coverage in ds.index_coverage()} == {0}
    assert ds.ledger()["app"].batch_id == num_batches
    assert ds.count_rows() == 30 + num_batches + 1


def run(table: IndexedTable, num_batches: int, seconds: float | None) -> bool:
    """Run the process, kill it after a while; return whether it came to its end."""
    process = subprocess.Popen(
        [sys.executable, str(PROCESS), table.uri, str(num_batches)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode == 0
