"""Two streams in a process of its own, to be killed: FOLDER/files into a table each.

    append    every row of every file
    upsert    the files' changes, by id: inserts, updates, deletes

It gets its session ready, and begins when a line comes in: "all" to end when all files are in,
anything else to go on until it is killed. JAVA_OPTIONS are for the JVM.
"""

import os
import sys
from pathlib import Path
from typing import Any

QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SINKS: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {
        "mode": "upsert",
        "on": ["id"],
        "sequence_by": "seq",
        "delete_when": "op = 'd'",
        "except_columns": ["op"],
        "compact_every": 4,
    },
}


def main(folder: str, java_options: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from lance_stream.spark import lance_sink

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f"{QUICK_START} {java_options}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.range(2).mapInArrow(lambda batches: batches, "id bigint").collect()  # starts the workers
    ends = sys.stdin.readline().strip() == "all"
    queries = [
        spark.readStream.schema("id bigint, value string, seq bigint, op string")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(Path(folder, "files")))
        .writeStream.foreachBatch(lance_sink(str(Path(folder, name)), **arguments))
        .option("checkpointLocation", str(Path(folder, f"{name}-checkpoint")))
        .trigger(**({"availableNow": True} if ends else {"processingTime": "0 seconds"}))
        .start()
        for name, arguments in SINKS.items()
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
