"""A streaming append: our sink, Spark's parquet sink, and pylance in foreachBatch, in one run.

    python -m benchmarks.sink [--batches 40] [--rows 50000]

Parquet files of (int64, float64, 12-character string, list of 16 float32) are the stream, one file
a micro-batch. The three sinks take turns, batch by batch, in one streaming query, so that a slow
second of the machine hits all of them. What is timed is the time inside foreachBatch.
"""

import argparse
import os
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
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import lance_stream
from lance_stream.spark import lance_sink

SCHEMA = "id bigint, value double, name string, vector array<float>"
TARGET = 1.5


def write_files(folder: Path, batches: int, rows: int) -> None:
    folder.mkdir()
    random = np.random.default_rng(0)
    for batch in range(batches):
        numbers = random.integers(0, 1 << 48, rows)
        vectors = pa.array(random.random(rows * 16, dtype=np.float32))
        table = pa.table(
            {
                "id": np.arange(batch * rows, (batch + 1) * rows),
                "value": random.random(rows),
                "name": pa.array([f"{number:012x}" for number in numbers]),
                "vector": pa.FixedSizeListArray.from_arrays(vectors, 16).cast(
                    pa.list_(pa.float32())
                ),
            }
        )
        pq.write_table(table, folder / f"{batch:04}.parquet")


def make_session() -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf_dir = Path(__file__).parent.parent / "examples" / "conf"
    os.environ.setdefault("SPARK_CONF_DIR", str(conf_dir))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .appName("benchmark of sinks")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )


def run(spark: SparkSession, folder: Path, batches: int, rows: int) -> None:
    ours_uri, pylance_uri = str(folder / "ours.lance"), str(folder / "pylance.lance")
    sink = lance_sink(ours_uri)
    phases: dict[str, list[float]] = {}

    def ours(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        assert sink.last_commit is not None
        for name, seconds in sink.last_commit.seconds.items():
            phases.setdefault(name, []).append(seconds)

    def parquet(df: DataFrame, _batch_id: int) -> None:
        df.write.mode("append").parquet(str(folder / "parquet"))

    def pylance(df: DataFrame, batch_id: int) -> None:
        lance.write_dataset(df.toArrow(), pylance_uri, mode="append" if batch_id else "create")

    def nothing(df: DataFrame, _batch_id: int) -> None:
        df.write.format("noop").mode("append").save()

    contenders: dict[str, Callable[[DataFrame, int], None]] = {
        "ours": ours,
        "parquet": parquet,
        "pylance": pylance,
        "noop": nothing,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}

    def take_turns(df: DataFrame, batch_id: int) -> None:
        names = list(contenders)
        shift = batch_id % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.perf_counter()
            contenders[name](df, batch_id)
            seconds[name].append(time.perf_counter() - start)

    query = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "files"))
        .writeStream.foreachBatch(take_turns)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    written = lance_stream.open_dataset(ours_uri).count_rows()
    if written != batches * rows:
        sys.exit(f"{written} rows were written, not {batches * rows}")
    report(seconds, phases, batches, rows)


def report(
    seconds: dict[str, list[float]], phases: dict[str, list[float]], batches: int, rows: int
) -> None:
    # the first batches compile code and start workers
    counted = {name: runs[min(4, len(runs) // 2) :] for name, runs in seconds.items()}
    medians = {name: statistics.median(runs) for name, runs in counted.items()}
    print(f"\nAppend of {batches} batches of {rows:,} rows, inside foreachBatch, medians:\n")
    for name, median in sorted(medians.items(), key=lambda item: item[1]):
        ratio = medians["parquet"] / median
        print(f"  {name:8} {median * 1000:7.0f} ms   {ratio:5.2f} x as fast as parquet")
    parts = ", ".join(
        f"{name} {statistics.median(runs[1:] or runs) * 1000:.0f} ms"
        for name, runs in phases.items()
    )
    print(f"\n  ours: {parts}")
    ratio = medians["parquet"] / medians["ours"]
    print(f"\n  sink: {ratio:.2f} x the parquet sink's speed; the aim is {TARGET}")
    print(f"  pylance in foreachBatch: {medians['parquet'] / medians['pylance']:.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    spark = make_session()
    try:
        write_files(folder / "files", arguments.batches, arguments.rows)
        run(spark, folder, arguments.batches, arguments.rows)
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
