"""Streams whose process is killed or suspended at any moment, and restarted."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lance_stream.errors import NotFoundError
from lance_stream.maintenance.consumers import list_consumers
from tests.faults.changing_tables import Writer, content, follows, states_of
from tests.faults.drivers import Batch, Change, Rows, followed, open_dataset, rows_at, to_arrow
from tests.faults.killed_processes import (
    NUM_ROUNDS,
    is_alive,
    kill,
    log_of,
    run_to_the_end,
    run_until_it_ends,
    say,
    streaming,
)
from tests.faults.locations import folder_on, on, open_table, options_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SINKS = ("append", "upsert", "format", "scd1", "scd2")
ROWS_PER_FILE = 40
MIN_PENDING = 6
"""Files that a stream has still before it at least, so that a kill meets it at work."""

NUM_ROUNDS_OF_REPLICAS = int(os.environ.get("KILL_ROUNDS", "2"))
MAX_AHEAD = 10
"""How often a table is changed before one of its followers moves."""


class Streams:
    """The files of the streams, their tables, and the process that runs them.

    Args:
        folder: Where all of them lie.
        seed: Of the files' rows.
        tables: Where the tables lie, if elsewhere; the process reads it from the folder.
    """

    def __init__(self, folder: Path, seed: int, tables: str | None = None) -> None:
        self.folder = folder
        self.tables = tables or str(folder)
        location = {"uri": self.tables, "options": dict(options_of(self.tables))}
        (folder / "tables.json").write_text(json.dumps(location))
        self.random = random.Random(seed)
        self.batches: list[Batch] = []
        (folder / "files").mkdir()

    def uri(self, name: str) -> str:
        return f"{self.tables}/{name}"

    def add_file(self) -> None:
        """Let a file arrive: new rows of its own, and changes of older ones."""
        number = len(self.batches)
        first = number * ROWS_PER_FILE
        ids = [*range(first, first + ROWS_PER_FILE // 2)]
        ids += self.random.sample(range(max(first, ROWS_PER_FILE)), ROWS_PER_FILE - len(ids))
        batch = [
            Change(key, f"file {number}", first + index, deletes=self.random.random() < 0.1)
            for index, key in enumerate(dict.fromkeys(ids))
        ]
        self.batches.append(batch)
        rows = to_arrow(batch).append_column(
            "op", pa.array(["d" if change.deletes else "u" for change in batch])
        )
        hidden = self.folder / "files" / f".{number:05}.parquet"
        pq.write_table(rows, hidden)
        os.utime(hidden, (number, number))  # Spark takes files in the order of their times
        hidden.rename(hidden.with_name(hidden.name[1:]))

    def process(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Start a process, which waits for a word; after the block nothing of it is left."""
        return streaming(SINKS, self.folder)

    def versions(self) -> list[int]:
        return [versions_of(self.uri(name)) for name in SINKS]

    def states(self, name: str) -> list[list[tuple[Any, ...]]]:
        """Return what a table may hold: the rows after no file, one file, two files..."""
        if name == "scd2":
            return [history_of(self.batches[:stop]) for stop in range(len(self.batches) + 1)]
        states: list[Rows] = [[]]
        for batch in self.batches:
            if name != "append":
                states.append(followed(states[-1], batch))
            else:
                states.append(sorted([*states[-1], *((row[:3]) for row in batch)]))
        return [list(state) for state in states]

    def wait_for_versions(self, more: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until the tables have so many more versions together."""
        target = sum(self.versions()) + more
        deadline = time.monotonic() + 300
        while sum(self.versions()) < target:
            assert process.poll() is None, log_of(process)
            assert time.monotonic() < deadline, f"no progress: {log_of(process)}"
            time.sleep(0.02)


def history_of(batches: Sequence[Batch]) -> list[tuple[Any, ...]]:
    """Return the rows of a history: id, value, start and end."""
    rows: list[tuple[Any, ...]] = []
    current: dict[int, tuple[str, int]] = {}
    for change in (value for batch in batches for value in batch):  # in order of their sequences
        if change.id in current:
            value, start = current.pop(change.id)
            rows.append((change.id, value, start, change.seq))
        if not change.deletes:
            current[change.id] = change.value, change.seq
    return sorted([*rows, *((key, *row, None) for key, row in current.items())], key=by_start)


def by_start(row: tuple[Any, ...]) -> tuple[int, int]:
    return row[0], row[2]


def rows_in(name: str, uri: str, version: int | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of the table of a sink."""
    if name != "scd2":
        return list(rows_at(uri, version))
    table = open_table(uri, version).to_table(["id", "value", "__START_AT", "__END_AT"])
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=by_start)


def versions_of(uri: str) -> int:
    try:
        return open_table(uri).version
    except NotFoundError:
        return 0


def check_history(streams: Streams) -> None:
    """Each version holds a whole number of files, never fewer than the one before."""
    for name in SINKS:
        states = streams.states(name)
        table = open_table(streams.uri(name))
        num_files = 0
        num_steps = 0
        for info in table.versions():
            rows = rows_in(name, table.uri, info.version)
            before, num_files = num_files, states.index(rows, num_files)
            num_steps += num_files > before
            if info.operation in ("Append", "Update"):
                assert num_files > before, f"version {info.version} of {name} does a batch again"
        assert num_files == len(streams.batches)
        assert 1 < num_steps <= len(streams.batches)  # a kill may put two files into one batch
        assert table.verify() == []


@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("kind", [on("local"), on("s3")])
def test_randomly_killed_streams_lose_nothing(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Each kill ends an append and four upserts somewhere between two of their commits."""
    streams = Streams(tmp_path, 7, folder_on(kind, request))
    with ExitStack() as processes:
        spare = processes.enter_context(streams.process())
        for _ in range(NUM_ROUNDS):
            process, spare = spare, processes.enter_context(streams.process())
            while len(streams.batches) < max(streams.versions()) + MIN_PENDING:
                streams.add_file()
            say(process, "go")
            streams.wait_for_versions(streams.random.randrange(1, 5), process)
            time.sleep(streams.random.uniform(0, 0.5))
            assert process.poll() is None, log_of(process)
            kill(process)
            for name in SINKS:
                if versions_of(streams.uri(name)):
                    assert rows_in(name, streams.uri(name)) in streams.states(name)
        run_to_the_end(spare)
    check_history(streams)


@pytest.mark.nightly
def test_a_paused_zombie_changes_nothing(tmp_path: Path) -> None:
    """The zombie was stopped while its successor ran, and it continues afterwards."""
    streams = Streams(tmp_path, seed=8)
    for _ in range(10):
        streams.add_file()
    with (
        streams.process() as zombie,
        streams.process() as successor,
        streams.process() as last,
    ):
        say(zombie, "go")
        streams.wait_for_versions(6, zombie)
        os.killpg(zombie.pid, signal.SIGSTOP)
        run_to_the_end(successor)
        before = streams.versions()
        check_history(streams)
        os.killpg(zombie.pid, signal.SIGCONT)
        streams.add_file()  # it takes it for the next one of its own, and meets the successor's log
        assert zombie.wait(timeout=300) != 0
        assert streams.versions() == before
        run_to_the_end(last)
    check_history(streams)


# --- from table to table


def check_replica(folder: Path, writer: Writer) -> None:
    """The replica is the source, and was one of its states at each of its own versions."""
    replica = open_dataset(str(folder / "replica"))
    assert content(replica) == content(writer.ds)
    assert follows(states_of(replica), [{}, *writer.states.values()])
    assert replica.verify() == []


def check_log(folder: Path, writer: Writer) -> None:
    """The log has each change of the source once."""
    log = open_dataset(str(folder / "log"))
    columns = [log.to_table()[name].to_pylist() for name in ("change", "version", "row_id", "x")]
    names = ("_change_type", "_commit_version", "_rowid", "x")
    expected = [tuple(change[name] for name in names) for change in writer.changes]
    assert Counter(zip(*columns, strict=True)) == Counter(expected)


@pytest.mark.nightly
def test_killed_replicas_get_each_change_once(tmp_path: Path) -> None:
    """The replicas follow a table that is changed in every way, compacted and cleaned up."""
    dice = random.Random(11)
    writer = Writer(str(tmp_path / "source"), dice)
    names = ("replica", "log")
    refs = writer.ds.table.refs

    def versions() -> int:
        return sum(versions_of(str(tmp_path / name)) for name in names)

    with ExitStack() as processes:
        spare = processes.enter_context(streaming(names, tmp_path))
        for number in range(NUM_ROUNDS_OF_REPLICAS):
            process = spare
            if number + 1 < NUM_ROUNDS_OF_REPLICAS:
                spare = processes.enter_context(streaming(names, tmp_path))
            say(process, "go")
            target = versions() + dice.randrange(2, 6)
            deadline = time.monotonic() + 300
            seen, ahead = versions(), 0
            while versions() < target and is_alive(process):
                assert time.monotonic() < deadline, f"no progress: {log_of(process)}"
                seen, ahead = versions(), ahead if versions() == seen else 0
                if ahead < MAX_AHEAD:
                    writer.change()
                    ahead += 1
                begun = {consumer.name for consumer in list_consumers(refs)}
                if begun == set(names) and dice.random() < 0.3:
                    writer.ds.cleanup(retain_versions=1)
                time.sleep(0.1)
            time.sleep(dice.uniform(0, 0.5))
            kill(process)
            if versions_of(str(tmp_path / "replica")):
                assert content(open_dataset(str(tmp_path / "replica"))) in writer.states.values()
    run_until_it_ends(names, tmp_path)
    check_replica(tmp_path, writer)
    check_log(tmp_path, writer)
    assert len(writer.ds.versions()) < writer.ds.version
