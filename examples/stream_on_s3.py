"""Stream into a table on S3, and stream the table's changes out.

    python examples/stream_on_s3.py FOLDER                      a bucket on a temporary local server
    python examples/stream_on_s3.py FOLDER s3://bucket/path     yours, with your credentials

Sensors send measurements, some of them twice and some late. A sink keeps the newest one of each
sensor in a table in the bucket; a second query follows the table's changes, and keeps a list of the
sensors that are too hot. The streams' files and checkpoints are stored in FOLDER.

The server is moto's, from the extra `dev`; its bucket is removed afterwards. Credentials and the
endpoint are set once, by Spark's settings. In your own bucket you can run it again: nothing is
duplicated.
"""

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lance_stream.spark import lance_sink, register

TOO_HOT = 90


def main(folder: str, uri: str | None = None) -> dict[str, float]:
    """Run both streams until all data is processed, and return the sensors that are too hot."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    if uri is not None:
        return run(session, Path(folder), uri)
    with server(session) as bucket:
        new_folder = Path(tempfile.mkdtemp(dir=folder))  # checkpoints do not outlive their table
        return run(session, new_folder, f"s3://{bucket}/tables")


def run(spark: SparkSession, folder: Path, uri: str) -> dict[str, float]:
    for number, lines in enumerate(MEASUREMENTS):
        arrive(folder / "measurements" / f"{number}.csv", lines)
    table = f"{uri}/sensors.lance"
    measured = (
        spark.readStream.schema("sensor string, moment bigint, degrees double")
        .option("maxFilesPerTrigger", 1)
        .csv(str(folder / "measurements"))
    )
    sink = lance_sink(table, mode="upsert", on=["sensor"], sequence_by="moment")
    wait_for(measured, folder / "checkpoint-of-sink", sink)

    register(spark)  # after setting them, so that the workers get them
    feed = spark.readStream.format("lance").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", 0).load(table)
    hot: dict[str, float] = {}

    def follow(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.where("_change_type IN ('insert', 'update_postimage', 'delete')")
        for row in rows.orderBy("_commit_version").collect():
            hot.pop(row.sensor, None)
            if row._change_type != "delete" and row.degrees > TOO_HOT:
                hot[row.sensor] = row.degrees
                print(f"version {row._commit_version}: {row.sensor} is too hot, {row.degrees} °C")

    wait_for(changes, folder / "checkpoint-of-feed", follow)
    return hot


def wait_for(rows: DataFrame, checkpoint: Path, sink) -> None:  # type: ignore[no-untyped-def]  # any function of a batch
    writer = rows.writeStream.foreachBatch(sink).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


MEASUREMENTS = (
    ("boiler,1,88.5", "engine,1,71.0", "roof,1,20.0"),
    ("boiler,2,93.5", "engine,2,74.0", "boiler,1,88.5"),
    ("engine,3,95.0", "roof,2,21.5", "engine,2,74.0"),
    ("engine,4,80.0", "boiler,1,88.5"),
)


def arrive(path: Path, lines: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@contextmanager
def server(spark: SparkSession) -> Iterator[str]:
    """Run an S3 server for the duration of the block, and yield a bucket on it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {
        "fs.s3a.endpoint": f"http://127.0.0.1:{port}",
        "fs.s3a.access.key": "anything",  # this server accepts any key
        "fs.s3a.secret.key": "anything",
        "fs.s3a.endpoint.region": "us-east-1",
    }
    try:
        make_bucket(f"http://127.0.0.1:{port}/example")
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield "example"
    finally:
        for name in settings:
            spark.conf.unset(name)
        process.terminate()
        process.wait()


def make_bucket(url: str) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("moto's server did not start: pip install 'moto[server]'")


if __name__ == "__main__":
    main(*sys.argv[1:])
