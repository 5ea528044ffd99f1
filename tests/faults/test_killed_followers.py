"""Followers that are killed at random moments, while the table goes on."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from tests.faults import following_process

NUM_KILLS = 5 * int(os.environ.get("KILL_ROUNDS", "1"))


def change(ds: lance_stream.Dataset, dice: random.Random) -> lance_stream.Dataset:
    """Commit one more version."""
    ids = pa.array(sorted(dice.sample(range(200), 20)), pa.int64())
    rows = pa.table({"id": ids, "x": [dice.randrange(1000) for _ in ids]})
    match dice.randrange(4):
        case 0:
            return ds.delete(f"id % 7 = {dice.randrange(7)}")
        case 1:
            return ds.compact()
        case _:
            return ds.upsert(rows, on="id")


@pytest.mark.parametrize("consumer", [None, "trainer"])
def test_killed_followers_lose_no_row(tmp_path: Path, consumer: str | None) -> None:
    """Stored positions give each row once, a consumer at least once, wherever the process dies."""
    dice = random.Random(f"{NUM_KILLS} {consumer}")
    uri, output = str(tmp_path / "t"), tmp_path / "output.json"
    ds = lance_stream.create_dataset(
        uri, pa.table({"id": pa.array(range(200), pa.int64()), "x": [0] * 200})
    )
    kills = 0
    for attempt in range(20 * NUM_KILLS):
        seed = str(attempt) if kills < NUM_KILLS else ""
        ds = change(ds, dice) if seed else ds
        command = [sys.executable, following_process.__file__, uri, str(output), seed]
        command += [consumer] if consumer else []
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert process.stderr == ""
        kills += process.returncode != 0
        if not seed:
            break
    assert (process.stdout, kills) == ("done\n", NUM_KILLS)
    rows = [tuple(row) for row in json.loads(output.read_text())["rows"]]
    begun = min(version for *_, version in rows)  # the version of the snapshot
    expected: list[Any] = [
        (row["id"], row["x"], "insert", begun) for row in ds.checkout(begun).to_table().to_pylist()
    ]
    expected += [
        (row["id"], row["x"], row["_change_type"], row["_commit_version"])
        for row in ds.changes(begun).read_all().to_pylist()
    ]
    if consumer is None:
        assert rows == expected
    else:
        assert list(dict.fromkeys(rows)) == expected
