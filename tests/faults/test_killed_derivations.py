"""A process that computes derived columns is killed at any moment: each value is of its inputs."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.dataset import Dataset
from tests.faults.deriving_process import NUM_IDS, beside, in_table, value_of

PROCESS = Path(__file__).parent / "deriving_process.py"
ROOT = Path(__file__).parents[2]


def new_table(folder: Path) -> str:
    uri = str(folder / "t.lance")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    ids = range(NUM_IDS)
    lance_stream.create_dataset(uri, schema).append(
        pa.table([ids, [str(n) for n in ids]], schema=schema)
    )
    return uri


def kill_in_the_middle(
    uri: str, seed: int, seconds: float, where: str = "process", *, alone: bool = False
) -> None:
    """Run the process, and kill it some time after its first round.

    Args:
        uri: The table.
        seed: Of its changes.
        seconds: How long after.
        where: Where the function runs: "process" or "tasks".
        alone: Whether Spark's Java outlives it for a moment, with its tasks.
    """
    process = subprocess.Popen(
        [sys.executable, str(PROCESS), uri, str(seed), where],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            if alone:
                process.send_signal(signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def check(uri: str) -> None:
    """Compute the rest: everything is as if computed at once, and nothing is done twice."""
    for derivation, location in ((in_table(uri), uri), (beside(uri), f"{uri}-beside")):
        derivation.run()
        assert derivation.run().num_checked == 0
        ds = lance_stream.open_dataset(location)
        assert values_of(ds) == {
            row["id"]: None if row["text"] == "bad" else value_of(row["text"])
            for row in lance_stream.open_dataset(uri).to_table(["id", "text"]).to_pylist()
        }
        assert ds.verify() == []
        num_bad = lance_stream.open_dataset(uri).count_rows("text = 'bad'")
        assert derivation.status().num_failed == num_bad


def values_of(ds: Dataset) -> dict[int, str | None]:
    rows = ds.to_table(["id", "value"]).to_pylist()
    values = {row["id"]: row["value"] for row in rows}
    assert len(values) == len(rows)
    return values


def check_after_kills(folder: Path, num_kills: int, where: str = "process") -> None:
    dice = random.Random(50)
    uri = new_table(folder)
    longest = 3.0 if where == "tasks" else 0.4
    for number in range(num_kills):
        kill_in_the_middle(uri, number, dice.uniform(0.0, longest), where, alone=number % 2 == 1)
        if number % 5 == 4:
            check(uri)
    check(uri)


@pytest.mark.slow
def test_killed_derivations_store_correct_values(tmp_path: Path) -> None:
    """A value must belong to its row's current inputs, wherever the process died."""
    check_after_kills(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.nightly
def test_values_survive_fifty_kills(tmp_path: Path) -> None:
    """Rare moments, such as between the commits of two parts, are only met by many kills."""
    check_after_kills(tmp_path, 50)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
def test_values_survive_fifty_driver_kills(tmp_path: Path) -> None:
    """With Spark the tasks outlive a killed driver for a while and still write files."""
    check_after_kills(tmp_path, 50, "tasks")
