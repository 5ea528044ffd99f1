"""SIGKILL of processes that commit several tables together: readers see all of a batch, or none."""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import lance_stream
from tests.commit.table_groups import TableGroup
from tests.faults import group_process
from tests.servers.buckets import Bucket
from tests.servers.moto import DynamoTable

NAMES = ("orders", "lines", "totals")
NUM_ROUNDS = int(os.environ.get("KILL_ROUNDS", "1"))
NUM_KILLS = int(os.environ.get("GROUP_KILLS", str(34 * NUM_ROUNDS)))
"""How often a writer is killed at any moment; in `make soak` a thousand times."""

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [group_process.__name__, "lance_stream.storage.engine.requests", "psycopg", "botocore.session"]
)


def group_of_kind(kind: str, request: pytest.FixtureRequest, folder: Path) -> TableGroup:
    """Return tables that exist and are empty."""
    options: dict[str, str] = {}
    uris = {name: str(folder / name) for name in NAMES}
    if kind.endswith("S3"):
        bucket: Bucket = request.getfixturevalue("s3_bucket")
        options = dict(bucket.storage_options)
        uris = {name: f"{bucket.uri}/dir/{name}" for name in NAMES}
    if kind.startswith("sqlite"):
        options["manifest_store"] = f"sqlite://{folder}/m.db"
    elif kind.startswith("postgresql"):
        options["manifest_store"] = request.getfixturevalue("postgresql_url")
    else:
        fixture = "dynamodb_local_table" if "local" in kind else "dynamodb_table"
        table: DynamoTable = request.getfixturevalue(fixture)
        options |= table.storage_options
        uris = {
            name: f"{uri.replace('s3:', 's3+ddb:')}?ddbTableName={table.name}"
            for name, uri in uris.items()
        }
    group = TableGroup(uris, options)
    group.create()
    return group


KINDS = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.server("postgresql")),
    pytest.param("postgresql, on S3", marks=pytest.mark.server("postgresql", "moto")),
    pytest.param("dynamodb, on S3", marks=pytest.mark.server("moto")),
    pytest.param("dynamodb local, on S3", marks=pytest.mark.server("dynamodb_local", "moto")),
]


@contextmanager
def process(target: Any, *arguments: Any) -> Iterator[Connection]:
    """Start a process, and kill it at the end of the block."""
    hears, says = _PROCESSES.Pipe(duplex=False)
    started = _PROCESSES.Process(target=target, args=(says, *arguments))
    started.start()
    says.close()
    try:
        yield hears
    finally:
        started.kill()
        started.join()
        hears.close()


def check_is_whole(group: TableGroup) -> None:
    for uri in group.uris.values():
        assert lance_stream.open_dataset(uri, storage_options=group.options).verify() == []


@pytest.mark.quick_cases(one_in=8)
@pytest.mark.some_cases(one_in=6)
@pytest.mark.parametrize("table", ["orders", "totals"])
@pytest.mark.parametrize("step", group_process.STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_groups_leave_all_or_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, step: str, table: str
) -> None:
    """One request publishes all tables, and a reader has to finish the rest for each of them."""
    group = group_of_kind(kind, request, tmp_path)
    group.commit(0)
    with process(group_process.commit_and_stop, group, 1, step, table) as hears:
        assert hears.poll(120), "it says nothing"
        assert hears.recv() == "stopped"
    expected = [0] if step in ("staged", "put all") else [0, 1]
    assert group.batches() == [expected] * 3
    for name in NAMES:  # a table that is opened by itself shows the same
        assert group.batches_of(name) == expected
    group.commit(1)
    group.commit(2)
    assert group.batches() == [[0, 1, 2]] * 3
    check_is_whole(group)


class Reader:
    """Opens the tables together, again and again, until the end of the block."""

    def __init__(self, group: TableGroup) -> None:
        self.num_reads = 0
        self.torn: list[Any] = []
        self._group, self._ended = group, threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        newest = [0] * len(NAMES)
        try:
            while not self._ended.is_set():
                datasets = lance_stream.open_together(
                    [*self._group.uris.values()], self._group.options
                )
                batches = [{*value.to_table()["batch"].to_pylist()} - {-1} for value in datasets]
                self.num_reads += 1
                versions = [version.version for version in datasets]
                if any(batch != batches[0] for batch in batches) or versions < newest:
                    self.torn.append((versions, batches))
                newest = versions
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


def kill_often(group: TableGroup, num_kills: int, *, with_others: bool) -> tuple[int, int, int]:
    """Kill a writer repeatedly, and check that each batch is in every table exactly once.

    Args:
        group: The tables.
        num_kills: The number of kills.
        with_others: Whether another process appends to each table as well.

    Returns:
        The number of committed batches, of reads, and of kills whose unreported batch turned out to
        be committed.
    """
    dice = random.Random(num_kills)
    num_unreported = 0
    done = -1
    with Reader(group) as reader:
        others = _PROCESSES.Process(target=group_process.append_by_themselves, args=(group, 0.05))
        if with_others:
            others.start()
        try:
            for _ in range(num_kills):
                with process(group_process.commit_until_killed, group, done + 1) as hears:
                    assert hears.poll(120), "it says nothing"
                    time.sleep(dice.random() * dice.choice([0.01, 0.05, 0.1]))
                    # killed here
                    while hears.poll(0):
                        done = hears.recv()
                last = max(group.batches()[0], default=-1)
                assert last in (done, done + 1, last if last > done else None)
                num_unreported += last > done
        finally:
            if with_others:
                others.kill()
                others.join()
    assert reader.torn == []
    group.commit(done + 1)
    batches = [sorted(set(batch)) for batch in group.batches()]
    counts = [len([value for value in of if value >= 0]) for of in group.batches()]
    newest = batches[0][-1]
    assert counts == [newest + 1] * 3  # none is missing, and none is there twice
    assert all([value for value in of if value >= 0] == [*range(newest + 1)] for of in batches)
    return newest + 1, reader.num_reads, num_unreported


@pytest.mark.slow
@pytest.mark.parametrize("with_others", [False, True], ids=["alone", "with other writers"])
def test_readers_never_see_partial_batches(
    request: pytest.FixtureRequest, tmp_path: Path, with_others: bool
) -> None:
    """Kills at random moments with concurrent readers find gaps between the steps that are tested
    one by one.
    """
    remaining = NUM_KILLS // 2
    while remaining > 0:  # on new tables now and then, whose readers are faster
        num_kills = min(remaining, 50)
        folder = tmp_path / str(remaining)
        folder.mkdir()
        group = group_of_kind("sqlite", request, folder)
        num_batches, num_reads, num_unreported = kill_often(
            group, num_kills, with_others=with_others
        )
        print(f"{num_kills} kills, {num_batches} batches: {num_unreported} unreported")
        assert num_batches >= num_kills // 4
        assert num_reads
        remaining -= num_kills


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS[1:])
def test_server_readers_never_see_partial_batches(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """PostgreSQL and DynamoDB have transactions and snapshots with rules of their own."""
    group = group_of_kind(kind, request, tmp_path)
    assert all(kill_often(group, 5 * NUM_ROUNDS, with_others=True)[:2])
