"""Streams in a process of its own, to be killed: those of QUERIES that are asked for.

    append    FOLDER/files, every row of every file, into FOLDER/append
    upsert    the files' changes, by id: inserts, updates, deletes, into FOLDER/upsert
    format    the same changes, by the format as a writer, into FOLDER/format
    scd1      the same changes, of which FOLDER/scd1 has the current rows
    scd2      the same changes, of which FOLDER/scd2 has the history
    several   the same files, into FOLDER/several-rows and, by id, FOLDER/several-keys at once; the
              versions of both are in FOLDER/manifests.db
    replica   the changes of FOLDER/source, applied to FOLDER/replica; a snapshot comes first
    log       the changes of FOLDER/source since its first version, appended to FOLDER/log

The last two are consumers of the source by their names. FOLDER/tables.json, if it is there, says
where the first five have their tables instead: a URI and storage options.

It gets its session ready, and begins when a line comes in: "all" to end when all is in, anything
else to go on until it is killed.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
LOGGED = "id, x, _change_type AS change, _commit_version AS version, _rowid AS row_id"


def files(spark: Any, folder: Path) -> Any:
    reader = spark.readStream.schema("id bigint, value string, seq bigint, op string")
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder / "files"))


def changes(spark: Any, folder: Path, consumer: str = "replica") -> Any:
    reader = spark.readStream.format("lance").option("readChangeFeed", "true")
    if consumer == "log":
        reader = reader.option("startingVersion", 0)
    return reader.option("consumer", consumer).load(str(folder / "source"))


def logged_changes(spark: Any, folder: Path) -> Any:
    return changes(spark, folder, "log").selectExpr(*LOGGED.split(", "))


OF_CHANGES = {
    "keys": ["id"],
    "sequence_by": "seq",
    "apply_as_deletes": "op = 'd'",
    "compact": 3,
}

QUERIES: Mapping[str, tuple[Callable[[Any, Path], Any], dict[str, Any]]] = {
    "append": (files, {}),
    "upsert": (
        files,
        {
            "mode": "upsert",
            "on": ["id"],
            "sequence_by": "seq",
            "delete_when": "op = 'd'",
            "except_columns": ["op"],
            "compact": 4,
        },
    ),
    "format": (
        files,
        {
            "mode": "upsert",
            "on": "id",
            "sequenceBy": "seq",
            "deleteWhen": "op = 'd'",
            "exceptColumns": "op",
        },
    ),
    "scd1": (files, {"stored_as_scd_type": 1, "except_column_list": ["op"], **OF_CHANGES}),
    "scd2": (
        files,
        {"stored_as_scd_type": 2, "except_column_list": ["op", "seq"], **OF_CHANGES},
    ),
    "several": (files, {}),
    "replica": (changes, {"mode": "apply_changes", "on": "id"}),
    "log": (logged_changes, {}),
}
"""What each query reads, and the arguments of its sink, or the options of the format."""


def written(rows: Any, name: str, tables: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Return the writer of a query's rows to its table."""
    from lance_stream.spark import auto_cdc_sink, lance_sink, lance_sinks

    if name == "several":
        folder = tables["uri"]
        in_store = {"storage_options": {"manifest_store": f"sqlite://{folder}/manifests.db"}}
        of_keys = lance_sink(f"{folder}/several-keys", "upsert", on="id", **in_store)
        of_rows = lance_sink(f"{folder}/several-rows", **in_store)
        by_key = (lambda df: df.groupBy("id").count(), of_keys)
        both = lance_sinks({"keys": by_key, "rows": of_rows}, atomic=True)
        return rows.writeStream.foreachBatch(both)
    uri, options = f"{tables['uri']}/{name}", tables["options"]
    if name != "format":
        make_sink = auto_cdc_sink if name.startswith("scd") else lance_sink
        sink = make_sink(uri, storage_options=options, **arguments)
        return rows.writeStream.foreachBatch(sink)
    secrets = {"secretStorageOptions": json.dumps(options)}
    return rows.writeStream.format("lance").options(path=uri, **secrets, **arguments)


def main(names: str, folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from lance_stream.spark import register

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(spark)
    spark.range(2).mapInArrow(lambda batches: batches, "id bigint").collect()  # starts the workers
    tables_path = Path(folder, "tables.json")
    tables = (
        json.loads(tables_path.read_text())
        if tables_path.exists()
        else {"uri": folder, "options": {}}
    )
    ends = sys.stdin.readline().strip() == "all"
    queries = []
    for name in names.split(","):
        read, arguments = QUERIES[name]
        queries.append(
            written(read(spark, Path(folder)), name, tables, arguments)
            .option("checkpointLocation", str(Path(folder, f"{name}-checkpoint")))
            .trigger(**({"availableNow": True} if ends else {"processingTime": "0 seconds"}))
            .start()
        )
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
