"""The feed of one upsert in Spark, by each way and beside Delta's: warm, and first in a session.

    PYTHON -m benchmarks.feed_in_spark [--rows 5000000] [--rounds 15] [--sessions 3]

PYTHON is that of `make bench-rivals`, with a PySpark that Delta supports. Two tables are loaded
with the same rows and updated by the same batch: 45,000 updates with pre-images, and 5,000 inserts.
Each way has its own Spark session in its own process; the sessions take turns. An empty source
shows what no Python data source can be faster than: it has one row, and reads nothing.

The reads go to Spark's sink that drops rows, so that every column is read, as by a copy of the
feed; then only two columns are read, by the option `columns` or by a projection. Seconds do not
carry over to other machines; ratios do.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import lance_stream
from benchmarks.sinks.contenders import Delta
from benchmarks.sinks.session import make_session
from benchmarks.sinks.workload import Workload
from lance_stream.spark import read_changes, register

ROOT = Path(__file__).parents[1]
FEW_COLUMNS = ("id", "value")
WARM_UP_ROUNDS = 10


class Tables(NamedTuple):
    """The two tables, and the versions whose feed is read."""

    ours: str
    our_version: int
    delta: str
    delta_version: int


def by_read_changes(
    spark: SparkSession, tables: Tables, columns: Sequence[str] | None
) -> DataFrame:
    return read_changes(spark, tables.ours, startingVersion=tables.our_version, columns=columns)


def by_format(spark: SparkSession, tables: Tables, columns: Sequence[str] | None) -> DataFrame:
    register(spark)
    reader = spark.read.format("lance").option("readChangeFeed", "true")
    if columns:
        reader = reader.option("columns", ",".join(columns))
    return reader.option("startingVersion", tables.our_version).load(tables.ours)


def by_delta(spark: SparkSession, tables: Tables, columns: Sequence[str] | None) -> DataFrame:
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", tables.delta_version)
    changes = reader.option("endingVersion", tables.delta_version).load(tables.delta)
    if columns:
        return changes.select(*columns, "_change_type", "_commit_version", "_commit_timestamp")
    return changes


class EmptySource(DataSource):
    """A source of one row."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "empty"

    def schema(self) -> str:
        """Return its column."""
        return "id bigint"

    def reader(self, schema: object) -> DataSourceReader:
        """Return the reader."""
        del schema
        return EmptyReader()


class EmptyReader(DataSourceReader):
    """Its reader."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the row."""
        del partition
        yield pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64())})


def by_empty_source(
    spark: SparkSession, tables: Tables, columns: Sequence[str] | None
) -> DataFrame:
    del tables, columns
    spark.dataSource.register(EmptySource)
    return spark.read.format("empty").load()


WAYS: dict[str, Callable[[SparkSession, Tables, Sequence[str] | None], DataFrame]] = {
    "read_changes": by_read_changes,
    "format": by_format,
    "Delta": by_delta,
    "empty source": by_empty_source,
}


def make_tables(folder: Path, workload: Workload) -> Tables:
    """Load both tables, and update them."""
    workload.write(folder)
    delta = Delta(folder)
    spark = make_session((Delta,), folder)
    try:
        delta.begin_table(spark)
        delta.load(spark.read.parquet(str(folder / "load")), 0)
        delta.upsert(spark.read.parquet(str(folder / "upsert")), 0)
        newest = spark.sql(f"DESCRIBE HISTORY delta.`{delta.target}` LIMIT 1").first()
        assert newest is not None
    finally:
        spark.stop()
    uri = str(folder / "ours")
    batch = pq.read_table(folder / "upsert")
    schema = batch.schema.set(0, batch.schema.field("id").with_nullable(nullable=False))
    dataset = lance_stream.create_dataset(uri, schema, primary_key=["id"])
    for path in sorted((folder / "load").iterdir()):
        dataset = dataset.append(pq.read_table(path).cast(schema))
    dataset = dataset.upsert(batch.cast(schema), on="id")
    return Tables(uri, dataset.version, delta.target, newest["version"])


class Session:
    """A process with a Spark session, that reads the feed by one way when told."""

    def __init__(self, way: str, tables: Tables, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.feed_in_spark", "--way", way, str(folder)]
            + [str(value) for value in tables],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._line()

    def read(self, columns: Sequence[str] | None = None) -> float:
        """Read the feed; return the seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(",".join(columns or ()) + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a session ended early")
        return line

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def serve(way: str, folder: Path, tables: Tables) -> None:
    """Run in a session's process: read by one way for each line of input, and print the seconds."""
    spark = make_session((Delta,), folder, memory="2g")
    print("ready", flush=True)
    for line in sys.stdin:
        columns = line.strip().split(",") if line.strip() else None
        start = time.perf_counter()
        WAYS[way](spark, tables, columns).write.format("noop").mode("append").save()
        print(time.perf_counter() - start, flush=True)
    spark.stop()


def measure(
    tables: Tables, folder: Path, rounds: int, sessions: int
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds by case, then by way."""
    cases: dict[str, dict[str, list[float]]] = {
        "first of a session": {},
        "warm": {},
        "two columns": {},
    }
    order = list(WAYS)
    shuffle = random.Random(rounds).shuffle
    for number in range(sessions):
        shuffle(order)
        running: dict[str, Session] = {}
        try:
            for way in order:
                running[way] = Session(way, tables, folder)
                cases["first of a session"].setdefault(way, []).append(running[way].read())
            if number < sessions - 1:
                continue
            for case, columns in (("warm", None), ("two columns", FEW_COLUMNS)):
                for counted in range(-WARM_UP_ROUNDS, rounds):
                    shuffle(order)
                    for way in order:
                        seconds = running[way].read(columns)
                        if counted >= 0:
                            cases[case].setdefault(way, []).append(seconds)
        finally:
            for session in running.values():
                session.close()
    return cases


def report(cases: dict[str, dict[str, list[float]]]) -> None:
    """Print medians, and their ratios to Delta's."""
    print(f"\nPySpark {pyspark.__version__}, load {os.getloadavg()[0]:.1f}")
    for case, ways in cases.items():
        theirs = statistics.median(ways["Delta"])
        print(f"\n{case}")
        for way in WAYS:
            median = statistics.median(ways[way])
            speed = theirs / median
            print(
                f"  {way:14} {median * 1000:7.0f} ms   least {min(ways[way]) * 1000:6.0f}   "
                f"{speed:5.2f}x Delta's speed"
            )


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--way", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        way, folder, ours, our_version, delta, delta_version = arguments.way
        serve(way, Path(folder), Tables(ours, int(our_version), delta, int(delta_version)))
        return
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    try:
        tables = make_tables(folder, Workload(arguments.rows, 50_000, 0, 1))
        report(measure(tables, folder, arguments.rounds, arguments.sessions))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
