"""Tables on S3 (moto) with 20 ms of latency added per request: lance-stream and pylance.

    python -m benchmarks.stores [--latency-ms 20] [--rounds 15] [--show]

Both sides do the same in one run, each in its own process and on its own table, in turn. A proxy
between them and moto delays and counts the requests.

    open            the newest version, after another writer's commit
    append          1,000 rows, to an open table
    commit 4 files  open, and commit files of 4 workers
    idle poll       check for a new version; there is none
    feed            check for one and read its 1,000 inserted rows
    take            a row by its id, from an open table; its files are not open
    scan            a column of 32 fragments of 20,000 rows, likewise
    version         open one by its number
    delete          a row by its id, of 32 fragments of 20,000 rows

A wall time ratio above 1 means that ours is faster; a request ratio below 1, that it sends fewer.
`--show` lists the requests of one round of each.
"""

import argparse
import os
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import lance
import numpy as np
import pyarrow as pa

import lance_stream
from benchmarks.side_by_side import Worker
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.positions import Position
from lance_stream.feed.rules import FeedRules
from lance_stream.snapshot.opening import open_newest
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import write_fragments, write_target
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import MotoServer

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])
ROWS = 1000
NUM_FRAGMENTS = 32
ROWS_PER_FRAGMENT = 20_000
NUM_WORKERS = 4

Act = Callable[[], object]


def rows_from(first: int, count: int = ROWS) -> pa.Table:
    """Return rows with ascending ids, and incompressible values."""
    values = np.random.default_rng(first).random(count)
    return pa.table([np.arange(first, first + count), values], schema=SCHEMA)


class Contender(Protocol):
    """One of the programs. Each method prepares an act, untimed, and returns it."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        """Create the tables."""
        ...

    def act(self, name: str) -> Act:
        """Return one of the acts, prepared."""
        return getattr(self, f"prepare_{name}")()  # type: ignore[no-any-return]  # by its name


class Ours(Contender):
    """lance-stream."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self.small, self.large = f"{uri}/small", f"{uri}/large"
        self.ds = lance_stream.create_dataset(self.small, SCHEMA, storage_options=self.options)
        self.ds = self.ds.append(rows_from(0))
        large = lance_stream.create_dataset(self.large, SCHEMA, storage_options=self.options)
        for number in range(NUM_FRAGMENTS):
            large = large.append(rows_from(number * ROWS_PER_FRAGMENT, ROWS_PER_FRAGMENT))
        rules = FollowerRules(FeedRules())
        self.following = TableFollower(self.small, self.options, rules)
        self.position = self.read(Position(0))

    def open(self, uri: str) -> lance_stream.Dataset:
        """Open the newest version."""
        return lance_stream.open_dataset(uri, storage_options=self.options)

    def read(self, start: Position) -> Position:
        """Read the changes after a position; return the position after them."""
        end = self.following.advance(start)
        for batch in read_changes(self.following.units(start, end)):
            assert batch.num_rows
        return end

    def prepare_open(self) -> Act:
        """Return the act `open`; see the module."""
        return lambda: self.open(self.small)

    def prepare_append(self) -> Act:
        """Return the act `append`; see the module."""
        ds, rows = self.open(self.small), rows_from(5)
        return lambda: ds.append(rows)

    def prepare_commit_4_files(self) -> Act:
        """Return the act `commit_4_files`; see the module."""
        target = write_target(open_newest(self.small, self.options))
        fragments = [
            write_fragment
            for number in range(NUM_WORKERS)
            for write_fragment in write_fragments(rows_from(number).to_batches(), target)
        ]
        return lambda: append_fragments(open_newest(self.small, self.options), fragments)

    def prepare_idle_poll(self) -> Act:
        """Return the act `idle_poll`; see the module."""
        self.position = self.read(self.position)
        return lambda: self.following.advance(self.position)

    def prepare_feed(self) -> Act:
        """Return the act `feed`; see the module."""
        self.position = self.read(self.position)

        def feed() -> None:
            self.position = self.read(self.position)

        return feed

    def prepare_take(self) -> Act:
        """Return the act `take`; see the module."""
        ds, row_id = self.open(self.large), random.randrange(NUM_FRAGMENTS * ROWS_PER_FRAGMENT)
        return lambda: ds.take(row_ids=[row_id])

    def prepare_scan(self) -> Act:
        """Return the act `scan`; see the module."""
        ds = self.open(self.large)
        return lambda: ds.to_table(["x"])

    def prepare_version(self) -> Act:
        """Return the act `version`; see the module."""
        version = random.randrange(2, NUM_FRAGMENTS)
        options = self.options
        return lambda: lance_stream.open_dataset(self.large, version, options)

    def prepare_delete(self) -> Act:
        """Return the act `delete`; see the module."""
        ds, row_id = self.open(self.large), random.randrange(NUM_FRAGMENTS * ROWS_PER_FRAGMENT)
        return lambda: ds.delete(f"id = {row_id}")


class Pylance(Contender):
    """pylance."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self.small, self.large = f"{uri}/small", f"{uri}/large"
        how: dict[str, Any] = {
            "storage_options": self.options,
            "enable_stable_row_ids": True,
            "data_storage_version": "2.2",
        }
        lance.write_dataset(rows_from(0), self.small, **how)
        for number in range(NUM_FRAGMENTS):
            rows = rows_from(number * ROWS_PER_FRAGMENT, ROWS_PER_FRAGMENT)
            lance.write_dataset(rows, self.large, mode="append" if number else "create", **how)
        self.followed = self.open(self.small)

    def open(self, uri: str) -> Any:
        """Open the newest version."""
        return lance.dataset(uri, storage_options=self.options)

    def prepare_open(self) -> Act:
        """Return the act `open`; see the module."""
        return lambda: self.open(self.small)

    def prepare_append(self) -> Act:
        """Return the act `append`; see the module."""
        ds, rows = self.open(self.small), rows_from(5)
        return lambda: lance.write_dataset(rows, ds, mode="append")

    def prepare_commit_4_files(self) -> Act:
        """Return the act `commit_4_files`; see the module."""
        fragments = [
            write_fragment
            for number in range(NUM_WORKERS)
            for write_fragment in lance.fragment.write_fragments(
                rows_from(number), self.small, storage_options=self.options
            )
        ]
        operation = lance.LanceOperation.Append(fragments)

        def commit() -> None:
            ds = self.open(self.small)
            lance.LanceDataset.commit(ds, operation, read_version=ds.version)

        return commit

    def prepare_idle_poll(self) -> Act:
        """Return the act `idle_poll`; see the module."""
        return lambda: self.followed.latest_version

    def prepare_feed(self) -> Act:
        """Return the act `feed`; see the module."""
        self.followed = self.open(self.small)

        def feed() -> None:
            seen = self.followed.version
            self.followed.checkout_latest()
            new = f"_row_created_at_version > {seen}"
            new_rows = self.followed.scanner(filter=new, with_row_id=True).to_table()
            assert new_rows.num_rows == ROWS

        return feed

    def prepare_take(self) -> Act:
        """Return the act `take`; see the module."""
        ds, row_id = self.open(self.large), random.randrange(NUM_FRAGMENTS * ROWS_PER_FRAGMENT)
        return lambda: ds._take_rows([row_id])

    def prepare_scan(self) -> Act:
        """Return the act `scan`; see the module."""
        ds = self.open(self.large)
        return lambda: ds.to_table(columns=["x"])

    def prepare_version(self) -> Act:
        """Return the act `version`; see the module."""
        version, options = random.randrange(2, NUM_FRAGMENTS), self.options
        return lambda: lance.dataset(self.large, version=version, storage_options=options)

    def prepare_delete(self) -> Act:
        """Return the act `delete`; see the module."""
        ds, row_id = self.open(self.large), random.randrange(NUM_FRAGMENTS * ROWS_PER_FRAGMENT)
        return lambda: ds.delete(f"id = {row_id}")


CONTENDERS: Mapping[str, type[Contender]] = {"ours": Ours, "pylance": Pylance}

ACTS = (
    "open",
    "append",
    "commit_4_files",
    "idle_poll",
    "feed",
    "take",
    "scan",
    "version",
    "delete",
)


AFTER_ANOTHER_WRITER = ("open", "feed")
"""Before these acts another process commits a version, unknown to the contenders."""

_here: dict[str, Any] = {}
"""The state that a contender's process keeps between two calls."""


def _make(name: str, uri: str, options: Mapping[str, str]) -> None:
    _here["contender"] = CONTENDERS[name](uri, options)


def _prepare(act: str) -> None:
    _here["act"] = _here["contender"].act(act)


def _do() -> None:
    _here["act"]()


@dataclass
class Runs:
    """The measurements of one contender's act."""

    seconds: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    story: str = ""


def measure(latency_seconds: float, rounds: int) -> dict[tuple[str, str], Runs]:
    """Return the measurements, by act and contender."""
    measurements = {(act, name): Runs() for act in ACTS for name in CONTENDERS}
    with MotoServer() as moto, FaultProxy(moto.endpoint) as proxy:
        bucket = moto.new_bucket()
        options = {**bucket.storage_options, "aws_endpoint": proxy.url}
        workers = {name: Worker() for name in CONTENDERS}
        try:
            for name, worker in workers.items():
                worker.seconds(_make, name, f"{bucket.uri}/{name}", options)
            order = list(measurements)
            for counted in range(-1, rounds):
                random.Random(counted).shuffle(order)
                for act, name in order:
                    proxy.latency_seconds = 0.0
                    workers[name].seconds(_prepare, act)
                    if act in AFTER_ANOTHER_WRITER:
                        small = f"{bucket.uri}/{name}/small"
                        lance.write_dataset(
                            rows_from(77), small, mode="append", storage_options=options
                        )
                    proxy.latency_seconds = latency_seconds
                    proxy.clear()
                    seconds = workers[name].seconds(_do)
                    runs = measurements[act, name]
                    if counted >= 0:
                        runs.seconds.append(seconds)
                        runs.requests.append(len(proxy.requests))
                        runs.story = proxy.story()
        finally:
            for worker in workers.values():
                worker.__exit__()
    return measurements


def report(measurements: Mapping[tuple[str, str], Runs]) -> None:
    """Print the medians and their ratios."""
    print(f"{'':16}{'ours':>17}{'pylance':>17}{'times as fast':>16}{'requests':>10}")
    for act in ACTS:
        ours, theirs = measurements[act, "ours"], measurements[act, "pylance"]
        cells = ""
        for value in (ours, theirs):
            milliseconds = statistics.median(value.seconds) * 1000
            cells += f"{milliseconds:8.0f} ms {statistics.median(value.requests):4.0f} r"
        faster = statistics.median(theirs.seconds) / statistics.median(ours.seconds)
        fewer = statistics.median(ours.requests) / max(statistics.median(theirs.requests), 1)
        print(f"{act.replace('_', ' '):16}{cells}{faster:14.2f} x{fewer:8.2f} x")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--show", action="store_true", help="list the requests of the last round")
    arguments = parser.parse_args()
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    measurements = measure(arguments.latency_ms / 1000, arguments.rounds)
    print(f"\nmoto, {arguments.latency_ms:g} ms more per request; medians of {arguments.rounds}\n")
    report(measurements)
    if arguments.show:
        for (act, name), runs in measurements.items():
            print(f"\n{act}, {name}:\n{runs.story}")


if __name__ == "__main__":
    main()
