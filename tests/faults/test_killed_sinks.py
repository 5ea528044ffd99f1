"""A stream into several tables at once, whose process is killed at any moment, and restarted."""

import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_stream
from lance_stream.errors import NotFoundError
from tests.faults.killed_processes import NUM_ROUNDS, is_alive, run_until_it_ends, say, streaming

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly]

ROWS_PER_FILE = 20
NUM_KILLS = 3 * NUM_ROUNDS
NUM_FILES = 12 * NUM_KILLS


def add_files(folder: Path) -> None:
    """Write files of 20 rows each, with ids of their own."""
    (folder / "files").mkdir()
    for number in range(NUM_FILES):
        first = number * ROWS_PER_FILE
        ids = range(first, first + ROWS_PER_FILE)
        rows = pa.table({"id": ids, "value": [str(number)] * ROWS_PER_FILE, "seq": ids})
        path = folder / "files" / f"{number:05}.parquet"
        pq.write_table(rows.append_column("op", pa.array(["u"] * ROWS_PER_FILE)), path)
        os.utime(path, (number, number))  # Spark takes files in the order of their times


def num_batches(folder: Path) -> int:
    """Return how many files are in both tables, of which none is there in part."""
    options = {"manifest_store": f"sqlite://{folder}/manifests.db"}
    uris = [str(folder / "several-keys"), str(folder / "several-rows")]
    try:
        keys, rows = lance_stream.open_together(uris, options)
    except NotFoundError:
        return 0
    ids = sorted(rows.to_table()["id"].to_pylist())
    assert ids == sorted(keys.to_table()["id"].to_pylist()) == [*range(len(ids))]
    assert len(ids) % ROWS_PER_FILE == 0
    return len(ids) // ROWS_PER_FILE


def test_killed_streams_leave_no_partial_batch(tmp_path: Path) -> None:
    """Spark's checkpoint and several tables must agree after a kill at any moment."""
    add_files(tmp_path)
    dice = random.Random(NUM_KILLS)
    committed = 0
    for _ in range(NUM_KILLS):
        with streaming(["several"], tmp_path) as process:
            say(process, "go")
            deadline = time.monotonic() + 300
            while (now := num_batches(tmp_path)) < committed + 2 and is_alive(process):
                assert time.monotonic() < deadline
            time.sleep(dice.random())
        assert num_batches(tmp_path) >= now
        committed = num_batches(tmp_path)
    assert committed < NUM_FILES  # so the last kill met it at work
    run_until_it_ends(["several"], tmp_path)
    assert num_batches(tmp_path) == NUM_FILES
