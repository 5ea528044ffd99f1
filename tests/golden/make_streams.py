"""Records what a streaming query leaves behind: a table, a checkpoint, and what each batch gave.

    python tests/golden/make_streams.py tests/golden/streams/format_2.tar.xz maxRowsPerTrigger=3

Run it with the release whose checkpoints are to be kept.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import lance_stream
from lance_stream.spark import register

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
COLUMNS = ["_commit_version", "_change_type", "id", "name"]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


def record(folder: Path, options: dict[str, str]) -> None:
    """Make a table, and follow it with a query that is stopped and started again once."""
    uri = str(folder / "table")
    table = lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 1, 2, 3))
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.config("spark.driver.host", "127.0.0.1").getOrCreate()
    register(spark)
    batches: list[list[list[Any]]] = []

    def take(df: Any, _batch_id: int) -> None:
        batches.append(sorted([row[name] for name in COLUMNS] for row in df.collect()))

    def run() -> None:
        reader = spark.readStream.format("lance").option("readChangeFeed", "true")
        writer = reader.options(**options).load(uri).writeStream.foreachBatch(take)
        writer = writer.trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()

    run()
    table.delete("id = 1").update({"name": "'new'"}, where="id >= 2").append(rows(4, 5, 6))
    run()
    spark.stop()
    (folder / "batches.json").write_text(json.dumps({"options": options, "batches": batches}))


def main(target: str, *options: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record(folder, dict(option.split("=", 1) for option in options))
        for path in folder.rglob(".*.crc"):
            path.unlink()
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
