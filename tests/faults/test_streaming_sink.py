"""A stream whose process dies, at any moment, and starts again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_stream
from lance_stream.errors import CommitUncertainError, NotFoundError
from lance_stream.spark import lance_sink
from lance_stream.spark.sink import modes as sinks

pytestmark = pytest.mark.spark

PROCESS = Path(__file__).parent / "streaming_process.py"
CONF_DIR = Path(__file__).parent.parent / "spark" / "conf"
NUM_FILES, ROWS_PER_FILE = 24, 400


def ids_of(uri: str) -> list[int]:
    return sorted(lance_stream.open_dataset(uri).to_table(["id"])["id"].to_pylist())


def versions_of(uri: str) -> int:
    try:
        return lance_stream.open_dataset(uri).version
    except NotFoundError:
        return 0


@contextmanager
def sink_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sink until the block ends; then nothing of it is left."""
    arguments = [folder / "files", folder / "table", folder / "checkpoint"]
    environment = {**os.environ, "SPARK_CONF_DIR": str(CONF_DIR), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, PROCESS, *arguments],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # Python and its JVM are killed together
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.slow
def test_a_sink_killed_in_mid_stream_loses_and_doubles_nothing(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for number in range(NUM_FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        rows = pa.table({"id": ids, "name": [f"n{i}" for i in ids]})
        pq.write_table(rows, tmp_path / "files" / f"{number:03}.parquet")
    uri = str(tmp_path / "table")

    for kill_at in (5, 14):
        with sink_process(tmp_path) as process:
            deadline = time.monotonic() + 120
            while versions_of(uri) < kill_at:
                assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
                assert time.monotonic() < deadline, "the sink makes no progress"
                time.sleep(0.005)
    assert len(ids_of(uri)) < NUM_FILES * ROWS_PER_FILE, "it was to be killed in mid-stream"
    with sink_process(tmp_path) as process:
        assert process.wait(timeout=180) == 0, (tmp_path / "log").read_text()[-3000:]

    assert ids_of(uri) == list(range(NUM_FILES * ROWS_PER_FILE))
    table = lance_stream.open_dataset(uri)
    # the table's creation, then one version a batch; a kill may put two files into one batch
    assert table.version <= NUM_FILES + 1
    assert table.verify() == []


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sink_that_dies_around_its_commit_puts_the_batch_in_once(
    file_stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    uri = str(tmp_path / "table")
    commit = sinks.append_fragments
    deaths = [1]

    def die(*args: Any, **kwargs: Any) -> Any:
        if deaths and when == "before":
            deaths.pop()
            raise CommitUncertainError("the power went")
        made = commit(*args, **kwargs)
        if deaths:
            deaths.pop()
            raise CommitUncertainError("the power went")
        return made

    file_stream.add(rows(0, 1))
    file_stream.add(rows(2, 3))
    monkeypatch.setattr(sinks, "append_fragments", die)
    with pytest.raises(Exception, match="the power went"):
        file_stream.run(lance_sink(uri))
    sink = lance_sink(uri)
    file_stream.run(sink)
    assert ids_of(uri) == [0, 1, 2, 3]
    assert versions_of(uri) == 3


def test_another_driver_that_commits_the_batch_first_leaves_nothing_to_do(
    file_stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers write one batch at once: each has looked at the ledger before either commits."""
    uri = str(tmp_path / "table")
    commit = sinks.append_fragments
    rival = lance_sink(uri, app_id="app")
    batches: list[tuple[Any, int]] = []

    def be_late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(sinks, "append_fragments", commit)
        rival(*batches[-1])
        return commit(*args, **kwargs)

    sink = lance_sink(uri, app_id="app")

    def run_with_a_rival(df: Any, batch_id: int) -> None:
        batches.append((df, batch_id))
        monkeypatch.setattr(sinks, "append_fragments", be_late)
        sink(df, batch_id)

    file_stream.add(rows(0, 1))
    file_stream.add(rows(2))
    file_stream.run(run_with_a_rival)
    assert ids_of(uri) == [0, 1, 2]
    assert versions_of(uri) == 3
    assert sink.last_commit is not None
    assert sink.last_commit.skipped
    assert sink.last_commit.rows_inserted == 0
