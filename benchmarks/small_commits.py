"""Appends of ten rows to a local disk: CPU and wall time per commit, with pylance's.

    python -m benchmarks.small_commits [--appends 20] [--rounds 15] [--folder PATH]

The contenders take turns, in random order, each in a process and on a table of its own; medians of
the rounds are shown. CPU time is that of all threads of the process. pylance flushes nothing to the
disk, so "flushing nothing" is the row to compare it with.

    lance-stream        manifests are flushed, as by default: two flushes per commit
    durable             data files are, too: six
    flushing nothing    `durable: never`
    as the sink         by default; with the ledger, and the digest of the rows
    bare flushes        a file of the manifest's size is written, flushed and given its name, and
                        its folder is flushed: what the disk allows at most

Tables of many earlier appends are made in one commit, which is then given the number and the names
of as many versions.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream import Dataset
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import LATEST_VERSION_HINT, manifest_path
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import write_fragments, write_target

ROWS = 10


@dataclass(frozen=True)
class Shape:
    """A table: its columns, and how often rows have been appended to it."""

    columns: int
    appends: int

    def __str__(self) -> str:
        return f"{self.columns} columns, {self.appends:,} earlier appends"


SHAPES = (Shape(3, 0), Shape(50, 0), Shape(3, 1000), Shape(3, 10_000))
MODES = {
    "lance-stream": "false",
    "durable": "true",
    "flushing nothing": "never",
    "as the sink": "false",
}
BARE = "bare flushes"
CONTENDERS = (*MODES, "pylance", BARE)


def rows(columns: int, first: int, count: int = ROWS) -> pa.Table:
    """Return rows with ascending ids, a name, and numbers."""
    arrays: dict[str, object] = {
        "id": np.arange(first, first + count),
        "name": [f"name {number}" for number in range(first, first + count)],
    }
    for column in range(2, columns):
        arrays[f"c{column}"] = np.arange(count) * 0.5 + column
    return pa.table(arrays)


def make_table(uri: str, shape: Shape) -> int:
    """Make a table; return how many rows it has."""
    ds = lance_stream.create_dataset(uri, rows(shape.columns, 0))
    if not shape.appends:
        return ROWS
    target = replace(write_target(ds.table), max_rows_per_file=ROWS)
    count = ROWS * shape.appends
    fragments = write_fragments(rows(shape.columns, ROWS, count).to_batches(), target)
    ds = Dataset(append_fragments(ds.table, fragments).table)
    newest = replace(ds.table.manifest, version=shape.appends + 1)
    store, version = ds.table.store, newest.version
    store.delete(manifest_path(2))
    store.create_once(manifest_path(version), encode_manifest(newest))
    store.write(LATEST_VERSION_HINT, b'{"version":%d}' % version)
    for number in range(2, version):
        os.link(Path(uri, manifest_path(1)), Path(uri, manifest_path(number)))
    return ROWS + count


def appender(contender: str, uri: str, columns: int, first: int) -> Callable[[], None]:
    """Return what appends the next ten rows."""
    if contender == "pylance":
        return _pylance(uri, columns, first)
    if contender == BARE:
        return _bare(uri)
    ds = lance_stream.open_dataset(uri, storage_options={"durable": MODES[contender]})
    is_sink = contender == "as the sink"
    num_appends = 0

    def append() -> None:
        nonlocal ds, num_appends
        batch = rows(columns, first + ROWS * num_appends)
        num_appends += 1
        ds = append_as_sink(ds, batch, num_appends) if is_sink else ds.append(batch)

    return append


def append_as_sink(ds: Dataset, batch: pa.Table, batch_id: int) -> Dataset:
    """Append rows as `lance_sink` does once Spark has given them to it."""
    identity = PendingBatch.of("app", batch_id, "query", digest=digest_of(batch))
    table = lance_stream.open_dataset(
        ds.uri, storage_options={"durable": MODES["as the sink"]}
    ).table
    if identity.find_in(table) is not None:
        raise RuntimeError("this batch is new")
    fragments = write_fragments(batch.to_batches(), write_target(table))
    return Dataset(append_fragments(table, fragments, identity).table)


def _pylance(uri: str, columns: int, first: int) -> Callable[[], None]:
    ds = lance.dataset(uri)

    def append() -> None:
        nonlocal ds, first
        ds = lance.write_dataset(rows(columns, first), ds, mode="append")
        first += ROWS

    return append


def _bare(uri: str) -> Callable[[], None]:
    """Return what writes and flushes bytes as many as the table's manifest has."""
    data = encode_manifest(lance_stream.open_dataset(uri).table.manifest)
    folder, number = Path(uri, "bare"), 0
    folder.mkdir()

    def write() -> None:
        nonlocal number
        number += 1
        with (folder / "new").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        (folder / "new").rename(folder / f"{number}.manifest")
        above = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(above)
        finally:
            os.close(above)

    return write


def _serve(contender: str, uri: str, shape: Shape, first: int, calls: Connection) -> None:
    flushes = 0
    fsync = os.fsync

    def counted(file: int) -> None:
        nonlocal flushes
        flushes += 1
        fsync(file)

    os.fsync = counted
    append = appender(contender, uri, shape.columns, first)
    for _ in range(5):
        append()
    calls.send(None)
    while (count := calls.recv()) is not None:
        flushes = 0
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(count):
            append()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        calls.send((1000 * cpu / count, 1000 * wall / count, flushes / count))


Medians = dict[str, tuple[float, float, float]]


def measure(folder: Path, shape: Shape, appends: int, rounds: int) -> Medians:
    """Return CPU milliseconds, wall milliseconds and flushes per commit of each contender."""
    context = multiprocessing.get_context("spawn")
    calls, processes, before = {}, {}, {}
    for name in CONTENDERS:
        uri = str(folder / f"{name} {shape.columns} {shape.appends}")
        before[name] = make_table(uri, shape), uri
        calls[name], answers = context.Pipe()
        processes[name] = context.Process(
            target=_serve, args=(name, uri, shape, before[name][0], answers), daemon=True
        )
        processes[name].start()
        answers.close()
        calls[name].recv()
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONTENDERS}
    shuffle, order = random.Random(rounds).shuffle, list(CONTENDERS)
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            calls[name].send(appends)
            figures[name].append(calls[name].recv())
    for name in CONTENDERS:
        calls[name].send(None)
        processes[name].join()
        rows_before, uri = before[name]
        num_rows = lance_stream.open_dataset(uri).count_rows()
        if name != BARE and num_rows != rows_before + ROWS * (5 + appends * rounds):
            sys.exit(f"{name} has {num_rows} rows in the table of {shape}")
    return {
        name: (
            statistics.median(run[0] for run in runs),
            statistics.median(run[1] for run in runs),
            statistics.median(run[2] for run in runs),
        )
        for name, runs in figures.items()
    }


def report(shape: Shape, medians: Medians) -> None:
    """Print the medians, and how they compare with pylance's."""
    print(f"\n{shape}")
    print(f"  {'per commit':18}{'CPU ms':>9}{'wall ms':>9}{'flushes':>9}   pylance's CPU and wall")
    for name, (cpu, wall, flushes) in medians.items():
        cell = f"{'none':>9}" if name == "pylance" else f"{flushes:9.0f}"
        of_cpu, of_wall = cpu / medians["pylance"][0], wall / medians["pylance"][1]
        print(f"  {name:18}{cpu:9.2f}{wall:9.2f}{cell}   {of_cpu:.2f} x, {of_wall:.2f} x")
    wall, floor = medians["lance-stream"][1], medians[BARE][1]
    print(f"  {1000 / wall:.0f} commits a second; {wall / floor:.1f} x the bare flushes")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--appends", type=int, default=20, help="in a row, per round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", help="where the tables are made; by default, for files in /tmp")
    parser.add_argument("--most", type=int, default=10_000, help="earlier appends at most")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-", dir=arguments.folder))
    try:
        for shape in SHAPES:
            if shape.appends <= arguments.most:
                report(shape, measure(folder, shape, arguments.appends, arguments.rounds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
