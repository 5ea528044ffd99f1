"""The cost of the change feed, compared with pylance's delta readers and parquet, by table size.

    python -m benchmarks.feed [--rows 5000000] [--rounds 7] [--fragments 100 1000 10000]
                              [--versions 100 10000] [--no-spark]

    of one upsert   45,000 updates and 5,000 inserts of 5 million rows, in one process, compared
                    with pylance's delta readers; the cost of the pre-images, which those do not
                    return; and the feed of 5,000 deletes
    of an append    5 million rows through Spark, compared with Spark reading them from parquet
    of a table      the same upsert, with few and with many unchanged fragments
    of a history    few and many versions: a poll, and the feed of the last version

Only ratios carry over to other machines. Shown are medians of runs that took turns.
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import lance_stream
from benchmarks.side_by_side import speed_ratio, take_turns
from benchmarks.sinks.session import make_session
from benchmarks.tables import make_table
from lance_stream.feed.following.newest_version import NewestVersion
from lance_stream.snapshot.opening import open_newest
from lance_stream.spark import register
from lance_stream.verbs.append import append_fragments
from lance_stream.write.fragments import write_fragments, write_target

UPDATES, INSERTS, DELETES = 45_000, 5_000, 5_000
MAX_RATIO_TO_PYLANCE = 2.0


def rows_of(ids: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int) -> pa.Table:
    """Return rows of the four columns with these ids."""
    rows = make_table(len(ids), seed)
    key = pa.field("id", pa.int64(), nullable=False)
    return rows.set_column(0, key, pa.array(ids))


def make_upserted(uri: str, num_rows: int, pieces: int = 4) -> None:
    """Create a table by some appends and an upsert."""
    dataset = lance_stream.create_dataset(uri, rows_of(np.arange(1), 0).schema, primary_key=["id"])
    for number, ids in enumerate(np.array_split(np.arange(num_rows), pieces)):
        dataset = dataset.append(rows_of(ids, number))
    chosen = np.random.default_rng(1).choice(num_rows, UPDATES, replace=False)
    new = np.arange(num_rows, num_rows + INSERTS)
    dataset.upsert(rows_of(np.concatenate([chosen, new]), 99), on="id")


def delete_some(uri: str, num_rows: int) -> None:
    """Delete rows at random places."""
    chosen = np.random.default_rng(2).choice(num_rows, DELETES, replace=False)
    ids = ", ".join(map(str, chosen))
    lance_stream.open_dataset(uri).delete(f"id IN ({ids})")


def our_feed(uri: str, versions: int, pre_images: bool) -> int:
    """Read the feed of the last versions."""
    dataset = lance_stream.open_dataset(uri)
    after = dataset.version - versions
    return sum(batch.num_rows for batch in dataset.changes(after, pre_images=pre_images))


def pylance_feed(uri: str, versions: int) -> int:
    """Read pylance's delta of the last versions: inserts and updates."""
    dataset = lance.dataset(uri)
    newest = dataset.version
    delta = dataset.delta(begin_version=newest - versions, end_version=newest)
    readers = (delta.get_inserted_rows(), delta.get_updated_rows())
    return sum(batch.num_rows for reader in readers for batch in reader)


def compare_with_pylance(folder: Path, num_rows: int, rounds: int) -> None:
    """Print how the feed of an upsert compares with pylance's delta readers."""
    uri = str(folder / "changed")
    make_upserted(uri, num_rows)
    _check(our_feed(uri, 1, True), 2 * UPDATES + INSERTS)
    contenders: Mapping[str, Callable[[], object]] = {
        "ours": partial(our_feed, uri, 1, False),
        "pylance": partial(pylance_feed, uri, 1),
        "ours, with pre-images": partial(our_feed, uri, 1, True),
    }
    timings = take_turns(contenders, rounds=rounds)
    delete_some(uri, num_rows)
    _check(our_feed(uri, 1, True), DELETES)
    timings |= take_turns({"ours, 5,000 deletes": partial(our_feed, uri, 1, True)}, rounds=rounds)
    print(f"\nfeed of {UPDATES:,} updates and {INSERTS:,} inserts of {num_rows:,} rows")
    for name, timing in timings.items():
        print(f"  {name:28} {timing.median * 1000:8.0f} ms")
    ratio = 1 / speed_ratio(timings["ours"], timings["pylance"])
    verdict = "met" if ratio <= MAX_RATIO_TO_PYLANCE else "MISSED"
    print(f"  ours takes {ratio:.2f} x pylance's time; target {MAX_RATIO_TO_PYLANCE}: {verdict}")


def _check(num_changes: int, expected: int) -> None:
    if num_changes != expected:
        raise RuntimeError(f"the feed has {num_changes} changes, not {expected}")


def measure_growth(folder: Path, fragments: list[int], rounds: int) -> None:
    """Print the cost of the feed of one upsert with few and with many other fragments."""
    size = 100
    changed = 20_000
    base = folder / "growth-base"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64())])

    def some(first: int, count: int) -> pa.Table:
        return pa.table([np.arange(first, first + count), np.zeros(count)], schema=schema)

    uris = {}
    for number in fragments:
        uri = str(folder / f"{base.name}-{number}")
        table = lance_stream.create_dataset(uri, schema, primary_key=["id"])
        table = table.append(some(0, 1_000_000))
        opened = open_newest(uri)
        target = write_target(opened)
        new_fragments = [
            fragment
            for index in range(number)
            for fragment in write_fragments(
                some(10_000_000 + index * size, size).to_batches(), target
            )
        ]
        append_fragments(opened, new_fragments)
        ids = np.random.default_rng(2).choice(1_000_000, changed, replace=False)
        rows = pa.table([ids, np.ones(changed)], schema=schema)
        lance_stream.open_dataset(uri).upsert(rows, on="id")
        _check(our_feed(uri, 1, True), 2 * changed)
        uris[number] = uri
    seconds = _in_turns(
        {number: partial(our_feed, uri, 1, True) for number, uri in uris.items()}, rounds
    )
    _print_growth(f"feed of {changed:,} updates with unchanged fragments", seconds)


def measure_history(folder: Path, versions: list[int], rounds: int) -> None:
    """Print the cost of a poll and of the last version's feed after few and many versions."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    polls: dict[int, Callable[[], object]] = {}
    feeds: dict[int, Callable[[], object]] = {}
    for number in versions:
        uri = str(folder / f"history-{number}")
        dataset = lance_stream.create_dataset(uri, schema)
        while dataset.version < number - 1:
            dataset = dataset.update_config({"round": str(dataset.version)})
        dataset.append(pa.table([np.arange(100_000)], schema=schema))
        polls[number] = NewestVersion(dataset.table.log).poll
        feeds[number] = partial(our_feed, uri, 1, True)
    _print_growth("a poll after this many versions", _in_turns(polls, rounds))
    _print_growth("feed of the last version, 100,000 inserts", _in_turns(feeds, rounds))


def _in_turns(runs: Mapping[int, Callable[[], object]], rounds: int) -> dict[int, list[float]]:
    seconds: dict[int, list[float]] = {run: [] for run in runs}
    order = list(runs)
    shuffle = random.Random(rounds).shuffle
    for counted in range(-2, 3 * rounds):
        shuffle(order)
        for value in order:
            start = time.perf_counter()
            runs[value]()
            if counted >= 0:
                seconds[value].append(time.perf_counter() - start)
    return seconds


def _print_growth(title: str, seconds: Mapping[int, list[float]]) -> None:
    print(f"\n{title}")
    medians = {key: statistics.median(runs) for key, runs in seconds.items()}
    minimum = medians[min(medians)]
    for name, median in medians.items():
        print(f"  {name:>8,} {median * 1000:10.2f} ms {median / minimum:8.2f} x")


def compare_with_parquet(folder: Path, num_rows: int, rounds: int) -> None:
    """Compare Spark reading the feed of one append with reading the same rows from parquet."""
    uri, parquet = str(folder / "appended"), str(folder / "rows.parquet")
    rows = rows_of(np.arange(num_rows), 3)
    lance_stream.create_dataset(uri, rows.schema).append(rows)
    pq.write_table(rows, parquet)
    spark = make_session((), folder)
    try:
        register(spark)
        runs: dict[str, Callable[[], object]] = {
            "ours": partial(_read_feed, spark, uri),
            "parquet": partial(_read_parquet, spark, parquet),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for counted in range(-2, rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if counted >= 0:
                    seconds[name].append(time.perf_counter() - start)
    finally:
        spark.stop()
    ours, theirs = (statistics.median(seconds[name]) for name in ("ours", "parquet"))
    print(f"\nSpark reads {num_rows:,} appended rows: the feed takes {ours / theirs:.2f} x parquet")


def _read_feed(spark: SparkSession, uri: str) -> None:
    reader = spark.read.format("lance").option("readChangeFeed", "true")
    reader.option("startingVersion", 1).load(uri).write.format("noop").mode("append").save()


def _read_parquet(spark: SparkSession, path: str) -> None:
    spark.read.parquet(path).write.format("noop").mode("append").save()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--fragments", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--versions", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--no-spark", action="store_true", help="leave out parquet")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    try:
        compare_with_pylance(folder, arguments.rows, arguments.rounds)
        measure_growth(folder, sorted(arguments.fragments), arguments.rounds)
        measure_history(folder, sorted(arguments.versions), arguments.rounds)
        if not arguments.no_spark:
            compare_with_parquet(folder, arguments.rows, arguments.rounds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
