"""Streams whose process dies, or stands still, at any moment, and starts again."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lance_stream.errors import NotFoundError
from tests.faults import streaming_process
from tests.faults.drivers import Batch, Change, Rows, followed, open_dataset, rows_at, to_arrow

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TESTS = Path(__file__).parent.parent
NUM_ROUNDS = int(os.environ.get("KILL_ROUNDS", "4"))
"""How often a process is killed; `make soak` does it 30 times."""

ROWS_PER_FILE = 40
MIN_PENDING = 6
"""Files that a stream has still before it at least, so that a kill meets it at work."""


class Streams:
    """The files of two streams, their tables, and the process that runs them.

    Args:
        folder: Where all of them lie.
        seed: Of the files' rows.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.batches: list[Batch] = []
        (folder / "files").mkdir()

    def uri(self, name: str) -> str:
        return str(self.folder / name)

    def add_file(self) -> None:
        """Let a file arrive: new rows of its own, and changes of older ones."""
        number = len(self.batches)
        first = number * ROWS_PER_FILE
        ids = [*range(first, first + ROWS_PER_FILE // 2)]
        ids += self.random.sample(range(max(first, ROWS_PER_FILE)), ROWS_PER_FILE - len(ids))
        batch = [
            Change(key, f"file {number}", first + place, deletes=self.random.random() < 0.1)
            for place, key in enumerate(dict.fromkeys(ids))
        ]
        self.batches.append(batch)
        rows = to_arrow(batch).append_column(
            "op", pa.array(["d" if each.deletes else "u" for each in batch])
        )
        hidden = self.folder / "files" / f".{number:05}.parquet"
        pq.write_table(rows, hidden)
        os.utime(hidden, (number, number))  # Spark takes files in the order of their times
        hidden.rename(hidden.with_name(hidden.name[1:]))

    @contextmanager
    def process(self, java_options: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """Start a process, which waits for a word; after the block nothing of it is left."""
        environment = {
            **os.environ,
            "SPARK_CONF_DIR": str(TESTS / "spark" / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(TESTS.parent),
        }
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, streaming_process.__file__, str(self.folder), java_options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Python and its JVM are killed together
            )
        try:
            yield process
        finally:
            kill(process)

    def log(self) -> str:
        return (self.folder / "log").read_text()[-3000:]

    def versions(self) -> list[int]:
        return [versions_of(self.uri(name)) for name in streaming_process.SINKS]

    def states(self, name: str) -> list[Rows]:
        """Return what a table may hold: the rows after no file, one file, two files..."""
        states: list[Rows] = [[]]
        for batch in self.batches:
            if name == "upsert":
                states.append(followed(states[-1], batch))
            else:
                states.append(sorted([*states[-1], *((each[:3]) for each in batch)]))
        return states

    def wait_for_versions(self, more: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until the tables have so many more versions together."""
        wanted = sum(self.versions()) + more
        deadline = time.monotonic() + 300
        while sum(self.versions()) < wanted:
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"no progress: {self.log()}"
            time.sleep(0.02)


def versions_of(uri: str) -> int:
    try:
        return open_dataset(uri).version
    except NotFoundError:
        return 0


def say(process: subprocess.Popen[bytes], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n".encode())
    process.stdin.flush()


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def run_to_the_end(streams: Streams, process: subprocess.Popen[bytes]) -> None:
    say(process, "all")
    assert process.wait(timeout=600) == 0, streams.log()


@pytest.fixture(scope="module")
def quick_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The option of a JVM that starts in half the time: its classes come from an archive."""
    folder = tmp_path_factory.mktemp("classes")
    archive = folder / "classes.jsa"
    streams = Streams(folder, seed=1)
    streams.add_file()
    with streams.process(f"-XX:ArchiveClassesAtExit={archive}") as process:
        run_to_the_end(streams, process)
    yield f"-XX:SharedArchiveFile={archive}"
    archive.unlink(missing_ok=True)  # 150 MB


def check_history(streams: Streams) -> None:
    """Each version holds a whole number of files, never fewer than the one before."""
    for name in streaming_process.SINKS:
        states = streams.states(name)
        table = open_dataset(streams.uri(name))
        num_files = 0
        num_steps = 0
        for info in table.versions():
            rows = rows_at(table.uri, info.version)
            before, num_files = num_files, states.index(rows, num_files)
            num_steps += num_files > before
            if info.operation in ("Append", "Update"):
                assert num_files > before, f"version {info.version} of {name} does a batch again"
        assert num_files == len(streams.batches)
        assert 1 < num_steps <= len(streams.batches)  # a kill may put two files into one batch
        assert table.verify() == []


def test_streams_killed_at_random_moments_lose_and_double_nothing(
    tmp_path: Path, quick_start: str
) -> None:
    """Each kill is the end of an append and an upsert, somewhere between two of their commits."""
    streams = Streams(tmp_path, seed=7)
    with ExitStack() as processes:
        spare = processes.enter_context(streams.process(quick_start))
        for _ in range(NUM_ROUNDS):
            process, spare = spare, processes.enter_context(streams.process(quick_start))
            while len(streams.batches) < max(streams.versions()) + MIN_PENDING:
                streams.add_file()
            say(process, "go")
            streams.wait_for_versions(streams.random.randrange(1, 5), process)
            time.sleep(streams.random.uniform(0, 0.5))
            assert process.poll() is None, streams.log()
            kill(process)
            for name in streaming_process.SINKS:
                if versions_of(streams.uri(name)):
                    assert rows_at(streams.uri(name)) in streams.states(name)
        run_to_the_end(streams, spare)
    check_history(streams)


def test_a_zombie_that_was_stopped_while_its_successor_ran_changes_nothing(
    tmp_path: Path, quick_start: str
) -> None:
    streams = Streams(tmp_path, seed=8)
    for _ in range(10):
        streams.add_file()
    with (
        streams.process(quick_start) as zombie,
        streams.process(quick_start) as successor,
        streams.process(quick_start) as last,
    ):
        say(zombie, "go")
        streams.wait_for_versions(6, zombie)
        os.killpg(zombie.pid, signal.SIGSTOP)
        run_to_the_end(streams, successor)
        before = streams.versions()
        check_history(streams)
        os.killpg(zombie.pid, signal.SIGCONT)
        streams.add_file()  # it takes it for the next one of its own, and meets the successor's log
        assert zombie.wait(timeout=300) != 0
        assert streams.versions() == before
        run_to_the_end(streams, last)
    check_history(streams)
