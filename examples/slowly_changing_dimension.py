"""The history of a table as a table: a slowly changing dimension of type 2, from the change feed.

    python examples/slowly_changing_dimension.py [FOLDER]

FOLDER/customers.lance has the current customers. FOLDER/history.lance has a row for each state of a
customer, with its start and end; the current state has no end. So facts can be joined with the
dimension as of their time.

A micro-batch may change a customer several times. Each change ends the previous state; the first
one ends the open state, which is looked up in the history. All of it is one upsert and one commit.
"""

import sys
import tempfile

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import lance_stream
from lance_stream.spark import lance_sink, register

CUSTOMERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("status", pa.string()),
    ]
)
HISTORY = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field(
            "since_version", pa.int64(), nullable=False
        ),  # two versions may have the same time
        pa.field("since", pa.timestamp("us", "UTC")),
        pa.field("until", pa.timestamp("us", "UTC")),
        pa.field("city", pa.string()),
        pa.field("status", pa.string()),
    ]
)
KEY = ["id", "since_version"]


def states(changes: DataFrame, open_states: DataFrame) -> DataFrame:
    """Return the states that changes start, and the open states that they end.

    Args:
        changes: From the change feed, without pre-images: each ends the previous state.
        open_states: The states of the history that have no end.
    """
    brings = f.col("_change_type") != "delete"
    events = changes.select(
        "*",
        f.col("_commit_version").alias("since_version"),
        f.col("_commit_timestamp").alias("since"),
        brings.alias("brings"),
    )
    in_order = Window.partitionBy("id").orderBy("since_version", "brings")
    events = events.withColumn("until", f.lead("since").over(in_order))
    begun = events.where("brings").select(HISTORY.names)
    first = events.groupBy("id").agg(f.min("since").alias("ended"))
    ended = open_states.join(first, "id").withColumn("until", f.col("ended")).select(HISTORY.names)
    return begun.unionByName(ended)


def keep_history(spark: SparkSession, table: str, history: str, checkpoint: str) -> StreamingQuery:
    """Bring the history up to date, then stop. Without the trigger it keeps following."""
    changes = (
        spark.readStream.format("lance")
        .option("readChangeFeed", "true")
        .option("filter", "_change_type <> 'update_preimage'")
        .load(table)
    )
    sink = lance_sink(history, mode="upsert", on=KEY)

    def add(batch: DataFrame, batch_id: int) -> None:
        # This lookup may return other rows when Spark replays the batch, but then the sink has
        # already committed the batch and skips it.
        reader = batch.sparkSession.read.format("lance").option("filter", "until IS NULL")
        sink(states(batch, reader.load(history)), batch_id)

    return (
        changes.writeStream.foreachBatch(add)
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
    lance_stream.create_dataset(history, HISTORY, primary_key=KEY)
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
    rows = history.to_table().sort_by([("id", "ascending"), ("since_version", "ascending")])
    print("   id  since version  until                             city    status")
    for row in rows.to_pylist():
        until = "" if row["until"] is None else row["until"].isoformat()
        state = f"{row['city']:6}  {row['status']}"
        print(f"{row['id']:5}  {row['since_version']:13}  {until:32}  {state}")
    # The history starts with the first snapshot of the table.
    for info in ds.versions()[1:]:
        then = [
            {"id": row["id"], "city": row["city"], "status": row["status"]}
            for row in rows.to_pylist()
            if row["since"] <= info.timestamp
            and (row["until"] is None or row["until"] > info.timestamp)
        ]
        if then != ds.checkout(info.version).to_table().sort_by("id").to_pylist():
            sys.exit(f"At version {info.version} the history contains {then}.")
    print(f"The history matches all {ds.version} versions.")


def customers(*rows: tuple[int, str, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(CUSTOMERS.names, row, strict=True)) for row in rows], schema=CUSTOMERS
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
