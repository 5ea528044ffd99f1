"""Upserts into a table with a vector and a text index, with `keep_indices_fresh` and without.

    python -m benchmarks.fresh_indices [--rows 200000] [--batches 40] [--changes 2500]
                                       [--dimensions 64] [--seconds-between 0] [--turns 1]

pylance makes an IVF_PQ and an INVERTED index on a table of `rows` rows. Then the sink upserts
`batches` batches of `changes` random keys, one after the other, on a local master with two cores:
into one table without freshness, into a copy of it with `keep_indices_fresh=True`. With several
turns, each side gets so many tables, in turn, and their batches count together. Shown are

    batches      median, mean, and the ratios of with to without; the first do not count
    coverage     the rows that the indices miss: right after the last batch, and after
                 `wait_for_indices`
    searches     medians of a nearest-vector and a text search by pylance: before all batches, after
                 them without and with, and on a copy of the latter with new indices; and the ratios
                 to the new ones
    rounds       how often indices were brought up to date, and the CPU time of that
"""

import argparse
import json
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import lance_stream
from benchmarks.sinks.session import make_session
from lance_stream.spark import lance_sink

NOT_COUNTED = 5
SEARCHES = 40
WORDS_OF_TEXT = 12
NUM_WORDS = 5000
QUERY_WORDS = range(20, 60)
"""Of middling frequency."""


@dataclass
class Side:
    """What was measured of one way.

    Attributes:
        seconds: Of each batch that counts.
        missing: The largest share of the rows that an index misses, after the last batch.
        missing_later: The same after waiting for the indices.
        wait_seconds: How long that took.
        search_seconds: Medians by kind of search.
        rounds: How many versions brought indices up to date.
        cpu_seconds: The CPU time of the processes that did.
    """

    seconds: list[float] = field(default_factory=list)
    missing: float = 0.0
    missing_later: float = 0.0
    wait_seconds: float = 0.0
    search_seconds: dict[str, float] = field(default_factory=dict)
    rounds: int = 0
    cpu_seconds: float = 0.0


class Rows:
    """Makes rows of random vectors, in clusters as embeddings are, and of random words."""

    def __init__(self, num_dimensions: int) -> None:
        self.dice = np.random.default_rng(48)
        self.centers = self.dice.normal(size=(500, num_dimensions)).astype(np.float32)
        shares = 1 / np.arange(1, NUM_WORDS + 1)
        self.shares = shares / shares.sum()

    def vectors(self, num: int) -> np.ndarray:
        """Return vectors."""
        noise = self.dice.normal(scale=0.3, size=(num, self.centers.shape[1]))
        return (self.centers[self.dice.integers(0, 500, num)] + noise).astype(np.float32)

    def of(self, keys: np.ndarray) -> pa.Table:
        """Return new rows of some keys."""
        words = self.dice.choice(NUM_WORDS, (len(keys), WORDS_OF_TEXT), p=self.shares)
        texts = [" ".join(f"word{number}" for number in row) for row in words.tolist()]
        vectors = self.vectors(len(keys))
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        return pa.table({"id": pa.array(keys), "text": texts, "v": values})


def index(uri: str, num_rows: int, num_dimensions: int) -> None:
    """Make both indices, from nothing."""
    ds = lance.dataset(uri)
    partitions = max(1, min(256, num_rows // 1000))
    ds.create_index(
        "v",
        "IVF_PQ",
        num_partitions=partitions,
        num_sub_vectors=num_dimensions // 4,
        replace=True,
    )
    ds.create_scalar_index("text", "INVERTED", replace=True)


def searches(rows: Rows) -> dict[str, Callable[[Any, int], pa.Table]]:
    """Return what is searched for, by kind: functions of a dataset and the search's number."""
    queries = rows.vectors(SEARCHES)

    def nearest(ds: Any, number: int) -> pa.Table:
        query = {"column": "v", "q": queries[number % SEARCHES], "k": 10, "nprobes": 20}
        return ds.to_table(["id"], nearest=query)

    def text(ds: Any, number: int) -> pa.Table:
        word = f"word{QUERY_WORDS[number % len(QUERY_WORDS)]}"
        return ds.to_table(["id"], full_text_query=word, limit=10)

    return {"vector": nearest, "text": text}


def time_searches(uri: str, rows_of: Rows) -> dict[str, float]:
    """Return the median seconds of each kind of search, in a dataset that has been searched."""
    ds = lance.dataset(uri)
    medians = {}
    for kind, search in searches(rows_of).items():
        for number in range(SEARCHES):
            search(ds, number)
        seconds = []
        for number in range(SEARCHES):
            begin = time.perf_counter()
            search(ds, number)
            seconds.append(time.perf_counter() - begin)
        medians[kind] = statistics.median(seconds)
    return medians


def missing_of(uri: str) -> float:
    """Return the largest share of the rows that an index misses."""
    coverage = lance_stream.open_dataset(uri).index_coverage()
    return max(1 - (value.fraction or 0.0) for value in coverage)


def upsert_all(
    uri: str, files: list[Path], side: Side, spark: SparkSession, pause: float, **how: Any
) -> None:
    """Upsert each batch, and note in `side` what it took and what it left."""
    sink = lance_sink(uri, mode="upsert", on="id", app_id="bench", **how)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for number, file in enumerate(files):
        df = spark.read.parquet(str(file))
        begin = time.perf_counter()
        sink(df, number)
        if number >= min(NOT_COUNTED, len(files) - 1):
            side.seconds.append(time.perf_counter() - begin)
        time.sleep(pause)
    side.missing = max(side.missing, missing_of(uri))
    begin = time.perf_counter()
    sink.wait_for_indices()
    side.wait_seconds = time.perf_counter() - begin
    side.missing_later = max(side.missing_later, missing_of(uri))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    side.cpu_seconds += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    operations = [version.operation for version in lance_stream.open_dataset(uri).versions()]
    side.rounds += operations.count("CreateIndex") - 2


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure both sides, and return all figures."""
    rows = Rows(arguments.dimensions)
    origin = str(folder / "origin")
    lance_stream.create_dataset(origin, rows.of(np.arange(arguments.rows)), primary_key=["id"])
    index(origin, arguments.rows, arguments.dimensions)
    files = []
    for number in range(arguments.batches):
        keys = rows.dice.choice(arguments.rows, arguments.changes, replace=False)
        files.append(folder / f"batch-{number}.parquet")
        pq.write_table(rows.of(keys), files[-1])
    before = time_searches(origin, rows)
    sides = {"without": Side(), "with": Side()}
    spark = make_session([], folder, memory="2g")
    try:
        warm = str(folder / "warm")
        shutil.copytree(origin, warm)
        upsert_all(warm, files[: NOT_COUNTED + 1], Side(), spark, 0.0)
        for turn in range(arguments.turns):
            for name, side in sides.items():
                uri = str(folder / name)
                shutil.rmtree(uri, ignore_errors=True)
                shutil.copytree(origin, uri)
                how = {"keep_indices_fresh": True} if name == "with" else {}
                upsert_all(uri, files, side, spark, arguments.seconds_between, **how)
                print(f"turn {turn + 1}: {name} done", flush=True)
    finally:
        spark.stop()
    fresh = str(folder / "fresh")
    shutil.copytree(folder / "with", fresh)
    index(fresh, arguments.rows, arguments.dimensions)
    timed = partial(time_searches, rows_of=rows)
    for name, side in sides.items():
        side.search_seconds = timed(str(folder / name))
    return {"before": before, "fresh": timed(fresh), **sides}


def show(figures: dict[str, Any]) -> None:
    """Print the figures and their ratios."""
    without, fresh = figures["without"], figures["with"]
    for kind, of in (("median", statistics.median), ("mean", statistics.fmean)):
        ours, plain = of(fresh.seconds), of(without.seconds)
        print(
            f"batch, {kind:7}  without {plain * 1000:7.0f} ms   with {ours * 1000:7.0f} ms   "
            f"ratio {ours / plain:.2f}"
        )
    print(f"not covered     without {without.missing:.1%}   with {fresh.missing:.1%}", end="")
    print(f"   after {fresh.wait_seconds:.1f} s of waiting {fresh.missing_later:.1%}")
    for kind, new in figures["fresh"].items():
        sides = (figures["before"], without.search_seconds, fresh.search_seconds)
        old, plain, ours = (side[kind] for side in sides)
        print(
            f"{kind + ' search':15} before {old * 1000:6.1f} ms   without {plain * 1000:6.1f} ms   "
            f"with {ours * 1000:6.1f} ms   new {new * 1000:6.1f} ms   "
            f"ratios to new: without {plain / new:.1f}, with {ours / new:.2f}"
        )
    print(f"rounds          {fresh.rounds}, CPU seconds {fresh.cpu_seconds:.1f}")


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--changes", type=int, default=2500)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--seconds-between", type=float, default=0.0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lance-stream-bench-") as folder:
        figures = measure(arguments, Path(folder))
    show(figures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, default=vars))


if __name__ == "__main__":
    main()
