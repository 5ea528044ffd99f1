"""How old a row is when a second query gets it from the feed: ours, Delta and Iceberg.

    python -m benchmarks.freshness [--with NAME ...] [--verbs append upsert] [--seconds 60]
                                   [--rows 1000] [--keys 50000] [--plain-checkpoints] [--json FILE]

Spark's rate source makes `rows` rows a second. One query writes them into a table, another query of
the same session follows the table's change feed and collects its rows; both run as fast as they
can, side by side, on two cores. With `upsert` the rows come under `keys` ids in turn, and those of
the feed's pre-images do not count. Iceberg has no feed of upserts.

The age of a row is counted to the moment when `foreachBatch` of the second query has it, from two
moments: when the rate source hands it out, and its own timestamp. The rate source hands out the
rows of a second when that second is over, so the second age is half a second longer on average,
and no reader can bring its 95th percentile below 950 ms. The first seconds do not count.

Ten minutes, as one would measure to be sure, are `--seconds 600`. Delta and Iceberg need PySpark
4.1: `make bench-rivals` has an environment for them.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import lance_stream
from benchmarks.sinks.contenders import Contender, Delta, Iceberg, Ours
from benchmarks.sinks.session import make_session
from lance_stream.spark import register

MAX_SECONDS_TO_BEGIN = 120.0
"""Seconds until the first row has to have come."""

WARM_UP = 10.0
"""Seconds after that which do not count."""

OUR_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("value", pa.float64()),
        ("name", pa.string()),
        ("vector", pa.list_(pa.float32())),
    ]
)

PLAIN_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager"
}


@dataclass(frozen=True)
class Ages:
    """Ages of rows, in seconds.

    Attributes:
        num_rows: How many rows counted.
        num_batches: In how many batches of the second query they came.
        p50: Half of the rows were younger, counted from when the source handed them out.
        p95: As were 95 of 100.
        p50_of_timestamp: Counted from the rows' own timestamps.
        p95_of_timestamp: Likewise.
    """

    num_rows: int
    num_batches: int
    p50: float
    p95: float
    p50_of_timestamp: float
    p95_of_timestamp: float


class Arrivals:
    """Collects the rows of the second query, and when they came."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, npt.NDArray[np.float64], npt.NDArray[np.int64]]] = []

    def __call__(self, df: DataFrame, _batch_id: int) -> None:
        """Take a batch."""
        if "_change_type" in df.columns:
            df = df.where("_change_type IN ('insert', 'update_postimage')")
        rows = df.select("value", "name").toArrow()
        now = time.time()
        if rows.num_rows:
            stamps = rows["value"].to_numpy() / 1000
            numbers = np.array([int(name) for name in rows["name"].to_pylist()], np.int64)
            self.batches.append((now, stamps, numbers))

    def ages(self, since: float, rows_per_second: int) -> Ages:
        """Return the ages of the rows that came since a time."""
        chosen = [batch for batch in self.batches if batch[0] >= since]
        if not chosen:
            raise RuntimeError("no rows came: measure longer")
        ages = np.concatenate([now - stamps for now, stamps, _ in chosen])
        numbers = np.concatenate([value for _, _, value in chosen])
        waited = 1 - (numbers % rows_per_second) / rows_per_second
        p50, p95 = np.percentile(ages - waited, [50, 95]).tolist()
        of_timestamp = np.percentile(ages, [50, 95]).tolist()
        return Ages(len(ages), len(chosen), p50, p95, *of_timestamp)


def source_rows(spark: SparkSession, rows_per_second: int, keys: int | None) -> DataFrame:
    """Return the stream of rows; under some keys in turn, or each under its own."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", rows_per_second).load()
    number = sql.col("value")
    return rate.select(
        (number if keys is None else number % keys).alias("id"),
        sql.unix_millis("timestamp").cast("double").alias("value"),
        number.cast("string").alias("name"),
        sql.array_repeat(number.cast("float"), 16).alias("vector"),
    )


def feed_of(contender: Contender, spark: SparkSession) -> DataFrame:
    """Return the stream of a table's changes; of Iceberg, of its appended rows."""
    if isinstance(contender, Iceberg):
        return spark.readStream.format("iceberg").load(contender.target)
    name = "delta" if isinstance(contender, Delta) else "lance"
    if name == "lance":
        register(spark)
    return spark.readStream.format(name).option("readChangeFeed", "true").load(contender.target)


def measure(
    contender: Contender,
    verb: str,
    spark: SparkSession,
    folder: Path,
    arguments: argparse.Namespace,
) -> Ages:
    """Run both queries side by side, and return the ages of the rows."""
    contender.begin_table(spark)
    if isinstance(contender, Ours):  # the others have created a table
        lance_stream.create_dataset(contender.target, OUR_SCHEMA, primary_key=["id"])
    arrivals = Arrivals()
    rows = source_rows(spark, arguments.rows, arguments.keys if verb == "upsert" else None)
    checkpoints = Path(tempfile.mkdtemp(dir=folder))
    started: list[Any] = []
    try:
        for name, stream, target in (
            ("feed", feed_of(contender, spark), arrivals),
            ("sink", rows, getattr(contender, verb)),
        ):
            writer = stream.writeStream.foreachBatch(target)
            query = writer.option("checkpointLocation", str(checkpoints / name)).start()
            started.append(query)
            wait(started, lambda query=query: has_begun(query), MAX_SECONDS_TO_BEGIN)
        wait(started, lambda: bool(arrivals.batches), MAX_SECONDS_TO_BEGIN)
        begin = time.time() + WARM_UP
        wait(
            started,
            lambda: time.time() >= begin + arguments.seconds,
            WARM_UP + arguments.seconds + 1,
        )
    finally:
        for query in reversed(started):
            query.stop()
    return arrivals.ages(begin, arguments.rows)


def has_begun(query: Any) -> bool:
    """Return whether a query has made its sources: each starts processes, one query at a time."""
    return not str(query.status["message"]).startswith("Initializ")


def wait(queries: list[Any], done: Callable[[], bool], max_seconds: float) -> None:
    """Wait until something is done; raise if it takes too long, or if a query fails."""
    stop = time.time() + max_seconds
    while not done():
        for query in queries:
            if not query.isActive:
                raise RuntimeError("a query has ended") from query.exception()
        if time.time() > stop:
            raise RuntimeError(f"nothing has come for {max_seconds:g} s")
        time.sleep(0.2)


def run(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure each contender in a process of its own; return its ages by verb.

    A process has one Java, which loads only the packages that its first session asks for.
    """
    kinds = [entry for entry in (Ours, Delta, Iceberg) if entry.name in arguments.names]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        return {kind.name: processes.submit(run_one, kind, arguments).result() for kind in kinds}


def run_one(kind: type[Contender], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a contender; return its ages by verb."""
    ages_by_verb: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lance-stream-bench-") as name:
        folder = Path(name)
        more = PLAIN_CHECKPOINTS if arguments.plain_checkpoints else {}
        spark = make_session([kind], folder, memory=arguments.memory, more=more)
        try:
            for verb in arguments.verbs:
                if verb == "upsert" and kind is Iceberg:
                    continue
                tables = folder / verb  # a verb finds none of another's tables and checkpoints
                tables.mkdir()
                ages = measure(kind(tables), verb, spark, tables, arguments)
                ages_by_verb[verb] = asdict(ages)
                print(_line(kind.name, verb, ages), flush=True)
        finally:
            spark.stop()
    return ages_by_verb


def _line(name: str, verb: str, ages: Ages) -> str:
    return (
        f"{name:14} {verb:8} p50 {ages.p50:6.2f} s   p95 {ages.p95:6.2f} s   "
        f"of the timestamp: p50 {ages.p50_of_timestamp:6.2f} s   p95 {ages.p95_of_timestamp:6.2f} s"
        f"   {ages.num_rows:,} rows in {ages.num_batches} batches"
    )


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--with", dest="names", nargs="+", default=[Ours.name])
    parser.add_argument("--verbs", nargs="+", default=["append", "upsert"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--plain-checkpoints", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        f"PySpark {pyspark.__version__}, {arguments.rows:,} rows a second, {arguments.seconds:g} s"
    )
    ages = run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(ages, indent=2))


if __name__ == "__main__":
    main()
