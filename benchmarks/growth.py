"""The cost of a batch as the table grows: 200, 2,000 and 20,000 fragments, with pylance's.

    python -m benchmarks.growth [--fragments 200 2000 20000] [--rounds 15] [--no-spark]

The tables differ only in the number of their fragments, of 50 rows each. Every round does each
thing once, on every table, in random order, so that a slow second affects all of them; medians are
shown.

    commit         open the table and commit new fragments, which are already written
    bytes          only write and flush a file of the manifest's size
    append batch   1,000 rows through the sink (pylance: collected, and written in one process)
    upsert batch   1,000 rows, 900 of them in the newest fragments and 100 new ones

A commit into many fragments has to write a manifest that lists them all. So the cost of the larger
file is subtracted from a commit at 20,000 fragments before it is compared with one at 200.
"""

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import lance_stream
from benchmarks.sinks.session import make_session
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.spark import lance_sink
from lance_stream.table.manifest import encode_manifest
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.create import create_table, plan_table
from lance_stream.write.fragments import write_fragments, write_target

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64())])
ROWS_PER_FRAGMENT = 50
ROWS = 1000
NEW = 100
TARGET = 1.5


def rows_from(first: int, count: int) -> pa.Table:
    """Return rows with ascending ids."""
    return pa.table([np.arange(first, first + count), np.full(count, 0.5)], schema=SCHEMA)


def make_table(folder: Path, fragments: int) -> None:
    """Make a table of many fragments, in one version."""
    table = create_table(plan_table(str(folder), SCHEMA, primary_key=["id"]))
    target = write_target(table)
    new_fragments = [
        write_fragment
        for index in range(fragments)
        for write_fragment in write_fragments(
            rows_from(index * ROWS_PER_FRAGMENT, ROWS_PER_FRAGMENT).to_batches(), target
        )
    ]
    append_fragments(table, new_fragments)


class Contender:
    """One of the programs, on a table of its own.

    Attributes:
        num_rows: How many rows the table has had; the next new one has this id.
    """

    def __init__(self, folder: Path, fragments: int, spark: SparkSession | None) -> None:
        self.uri = str(folder)
        self.num_rows = fragments * ROWS_PER_FRAGMENT
        self.batch_id = 0
        self.spark = spark

    def next_rows(self, count: int) -> pa.Table:
        """Return new rows."""
        rows = rows_from(self.num_rows, count)
        self.num_rows += count
        return rows

    def changed_rows(self) -> pa.Table:
        """Return rows of which most are in the newest fragments, and some are new."""
        first = self.num_rows - (ROWS - NEW)
        self.num_rows += NEW
        return rows_from(first, ROWS)

    def stream_batch(self, rows: pa.Table) -> DataFrame:
        """Return rows as Spark gives them to a sink."""
        assert self.spark is not None
        return self.spark.range(rows["id"][0].as_py(), rows["id"][-1].as_py() + 1, 1, 2).selectExpr(
            "id", "0.5D AS value"
        )


class Ours(Contender):
    """lance-stream. A stream has one sink, which learns from the size of its batches."""

    def __init__(self, folder: Path, fragments: int, spark: SparkSession | None) -> None:
        super().__init__(folder, fragments, spark)
        self.appends = lance_sink(self.uri, app_id="appends")
        self.upserts = lance_sink(self.uri, mode="upsert", on="id", app_id="upserts")

    def prepare_commit(self) -> Callable[[], object]:
        """Return what commits rows that are written."""
        table = open_newest(self.uri)
        fragments = write_fragments(self.next_rows(ROWS).to_batches(), write_target(table))
        self.batch_id += 1
        batch = PendingBatch.of("growth", self.batch_id, "query")
        return lambda: append_fragments(open_newest(self.uri), fragments, batch)

    def prepare_bytes(self) -> Callable[[], object]:
        """Return what writes a file of the manifest's size."""
        table = open_newest(self.uri)
        self.batch_id += 1
        data = encode_manifest(table.manifest)
        return lambda: table.store.create_once(f"elsewhere/{self.batch_id}", data)

    def prepare_append(self) -> Callable[[], object]:
        """Return what appends a batch."""
        self.batch_id += 1
        df = self.stream_batch(self.next_rows(ROWS))
        return lambda: self.appends(df, self.batch_id)

    def prepare_upsert(self) -> Callable[[], object]:
        """Return what changes and inserts the rows of a batch."""
        self.batch_id += 1
        df = self.stream_batch(self.changed_rows())
        return lambda: self.upserts(df, self.batch_id)


class Pylance(Contender):
    """pylance."""

    def prepare_commit(self) -> Callable[[], object]:
        """Return what commits rows that are written."""
        fragments = lance.fragment.write_fragments(self.next_rows(ROWS), self.uri)
        operation = lance.LanceOperation.Append(fragments)

        def commit() -> None:
            dataset = lance.dataset(self.uri)
            lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

        return commit

    def prepare_append(self) -> Callable[[], object]:
        """Return what appends a batch."""
        df = self.stream_batch(self.next_rows(ROWS))
        return lambda: lance.write_dataset(df.toArrow(), self.uri, mode="append")

    def prepare_upsert(self) -> Callable[[], object]:
        """Return what changes and inserts the rows of a batch."""
        df = self.stream_batch(self.changed_rows())

        def merge() -> None:
            merge = lance.dataset(self.uri).merge_insert("id")
            merge = merge.when_matched_update_all().when_not_matched_insert_all()
            merge.execute(df.toArrow())

        return merge


PARTS = {
    "commit": (("ours", "prepare_commit"), ("pylance", "prepare_commit")),
    "bytes": (("ours", "prepare_bytes"),),
    "append batch": (("ours", "prepare_append"), ("pylance", "prepare_append")),
    "upsert batch": (("ours", "prepare_upsert"), ("pylance", "prepare_upsert")),
}
"""What is measured, of whom."""

SPARK_PARTS = ("append batch", "upsert batch")

Seconds = dict[tuple[str, str, int], list[float]]


def measure(folder: Path, sizes: list[int], rounds: int, spark: SparkSession | None) -> Seconds:
    """Return the seconds of each run, by part, contender and number of fragments."""
    contenders: dict[tuple[str, int], Contender] = {}
    for size in sizes:
        make_table(folder / f"ours-{size}", size)
        # Files of a table never change, so both share them.
        shutil.copytree(folder / f"ours-{size}", folder / f"pylance-{size}", copy_function=os.link)
        contenders["ours", size] = Ours(folder / f"ours-{size}", size, spark)
        contenders["pylance", size] = Pylance(folder / f"pylance-{size}", size, spark)
    runs = [
        (part, name, size)
        for part, contenders_of_part in PARTS.items()
        if spark is not None or part not in SPARK_PARTS
        for name, _ in contenders_of_part
        for size in sizes
    ]
    seconds: Seconds = {run: [] for run in runs}
    shuffle = random.Random(rounds).shuffle
    for counted in range(-2, rounds):
        shuffle(runs)
        for part, name, size in runs:
            run = getattr(contenders[name, size], dict(PARTS[part])[name])()
            start = time.perf_counter()
            run()
            if counted >= 0:
                seconds[part, name, size].append(time.perf_counter() - start)
    for (name, size), contender in contenders.items():
        num_rows = lance_stream.open_dataset(contender.uri).count_rows()
        if num_rows != contender.num_rows:
            sys.exit(f"{name} has {num_rows} rows in the table of {size}, not {contender.num_rows}")
    return seconds


def report(seconds: Seconds, sizes: list[int]) -> None:
    """Print the medians and their evaluation."""
    medians = {key: statistics.median(runs) * 1000 for key, runs in seconds.items()}
    print(f"\n{'milliseconds (median)':30}" + "".join(f"{size:>12,}" for size in sizes))
    for part, name in dict.fromkeys((part, name) for part, name, _ in seconds):
        cells = "".join(f"{medians[part, name, size]:12.1f}" for size in sizes)
        print(f"{part + ', ' + name:30}{cells}")
    few, many = min(sizes), max(sizes)
    print(f"\n{many:,} fragments against {few:,}:\n")
    more = medians["bytes", "ours", many] - medians["bytes", "ours", few]
    for part, name in dict.fromkeys((part, name) for part, name, _ in seconds):
        if part == "bytes":
            continue
        low, high = medians[part, name, few], medians[part, name, many]
        growth = f"{(high - more) / low:.2f} x without the manifest's bytes"
        print(f"  {part + ', ' + name:28}{high / low:6.2f} x, {growth}")
    ratio = (medians["commit", "ours", many] - more) / medians["commit", "ours", few]
    print(f"\n  commit: {ratio:.2f} x; target: below {TARGET}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fragments", type=int, nargs="+", default=[200, 2000, 20_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-spark", action="store_true", help="only the commits")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    spark = None if arguments.no_spark else make_session((), folder)
    try:
        sizes = sorted(arguments.fragments)
        report(measure(folder, sizes, arguments.rounds, spark), sizes)
    finally:
        if spark is not None:
            spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
