"""The history of a table as a table: a slowly changing dimension of type 2, from the change feed.

    python examples/slowly_changing_dimension.py [FOLDER]

FOLDER/customers.lance has the current customers. FOLDER/history.lance has a row for each state of a
customer, with its start and end; the current state has no end. So facts can be joined with the
dimension as of their time.

A micro-batch may change a customer several times. All of it is one commit, and changes that arrive
late, or twice, make the same history.
"""

import sys
import tempfile
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import lance_stream
from lance_stream.spark import auto_cdc_sink, register

CUSTOMERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("status", pa.string()),
    ]
)


def keep_history(spark: SparkSession, table: str, history: str, checkpoint: str) -> StreamingQuery:
    """Bring the history up to date, then stop. Without the trigger it keeps following."""
    changes = (
        spark.readStream.format("lance")
        .option("readChangeFeed", "true")
        .option("filter", "_change_type <> 'update_preimage'")
        .load(table)
    )
    events = changes.select(
        *CUSTOMERS.names,
        f.col("_commit_timestamp").alias("time"),
        f.col("_commit_version").alias("version"),  # two versions may have the same time
        (f.col("_change_type") != "delete").alias("brings"),  # a version may replace a row
    )
    sink = auto_cdc_sink(
        history,
        keys="id",
        sequence_by=["time", "version", "brings"],
        stored_as_scd_type=2,
        apply_as_deletes="NOT brings",
        column_list=CUSTOMERS.names,
    )
    return (
        events.writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main(folder: str) -> None:
    spark = (
        SparkSession.builder.appName("history of customers")
        .master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)  # as many as there are cores
        .config("spark.python.unix.domain.socket.enabled", "true")  # quicker small batches
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    register(spark)
    table, history = f"{folder}/customers.lance", f"{folder}/history.lance"

    ds = lance_stream.create_dataset(table, CUSTOMERS, primary_key=["id"])
    ds = ds.append(customers((1, "Köln", "new"), (2, "Bonn", "new"), (3, "Ulm", "new")))
    keep_history(spark, table, history, f"{folder}/checkpoint").awaitTermination()

    ds = ds.upsert(customers((1, "Köln", "gold"), (4, "Trier", "new")), on="id")
    ds = ds.update({"city": "'Aachen'"}, where="id = 1")  # twice in one micro-batch
    ds = ds.delete("id = 2")
    ds = ds.append(customers((2, "Bonn", "back")))
    ds = ds.delete("id = 3")
    keep_history(spark, table, history, f"{folder}/checkpoint").awaitTermination()

    check(ds, lance_stream.open_dataset(history))


def check(ds: lance_stream.Dataset, history: lance_stream.Dataset) -> None:
    """Print the history, and compare it with the table at each of its versions."""
    rows = history.to_table().to_pylist()
    print(
        "   id  since                             until                             city    status"
    )
    for row in sorted(rows, key=lambda row: (row["id"], row["__START_AT"]["version"])):
        since, until = (format_time(row[name]) for name in ("__START_AT", "__END_AT"))
        print(f"{row['id']:5}  {since:32}  {until:32}  {row['city']:6}  {row['status']}")
    # The history starts with the first snapshot of the table.
    for info in ds.versions()[1:]:
        then = [
            {name: row[name] for name in CUSTOMERS.names}
            for row in sorted(rows, key=lambda row: row["id"])
            if is_valid(row, info.timestamp, info.version)
        ]
        if then != ds.checkout(info.version).to_table().sort_by("id").to_pylist():
            sys.exit(f"At version {info.version} the history contains {then}.")
    print(f"The history matches all {ds.version} versions.")


def is_valid(row: dict[str, Any], time: datetime, version: int) -> bool:
    """Return whether a row of the history was valid at a version of the table."""
    start, end = row["__START_AT"], row["__END_AT"]
    if (start["time"], start["version"]) > (time, version):
        return False
    return end is None or (end["time"], end["version"]) > (time, version)


def format_time(sequence: dict[str, Any] | None) -> str:
    return "" if sequence is None else sequence["time"].isoformat()


def customers(*rows: tuple[int, str, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(CUSTOMERS.names, row, strict=True)) for row in rows], schema=CUSTOMERS
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
