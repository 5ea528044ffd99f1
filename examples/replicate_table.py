"""Replicate a table, including its updates and deletes.

    python examples/replicate_table.py [FOLDER]

Customers are stored in FOLDER/customers.lance. A stream reads its change feed and applies it to
FOLDER/replica.lance. The replica starts with a snapshot of the source. Rows are identified by their
key: of all changes of a key in a micro-batch the last one wins, and an update that changes the key
itself removes the old key.

Kill it at any time and restart it: every change is applied once.
"""

import sys
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import lance_stream
from lance_stream.spark import lance_sink, register

CUSTOMERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("city", pa.string()),
        pa.field("taste", pa.list_(pa.float32(), 4)),
    ]
)


def replicate(
    spark: SparkSession, source: str, replica: str, checkpoint: str, on: list[str]
) -> StreamingQuery:
    """Bring a replica up to date, then stop. Without the trigger it keeps following."""
    changes = (
        spark.readStream.format("lance")
        .option("readChangeFeed", "true")
        .option("consumer", "replica")  # the source keeps the versions that it still needs
        .load(source)
    )
    sink = lance_sink(
        replica,
        mode="apply_changes",
        on=on,
        schema_evolution="add_columns",
        create_options={"schema": lance_stream.open_dataset(source).schema},  # vectors stay vectors
    )
    return (
        changes.writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main(folder: str) -> None:
    spark = (
        SparkSession.builder.appName("replicate a table")
        .master("local[2]")
        .config("spark.python.unix.domain.socket.enabled", "true")  # quicker small batches
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    register(spark)
    source, replica = f"{folder}/customers.lance", f"{folder}/replica.lance"

    table = lance_stream.create_dataset(source, CUSTOMERS, primary_key=["id"])
    table = table.append(customers(range(1, 1001)))
    follow(spark, source, replica, folder)

    table = table.update({"city": "'Bonn'"}, where="id % 10 = 0")
    table = table.upsert(customers(range(990, 1011), city="Ulm"), on="id")
    table = table.delete("id < 50")
    table = table.append(customers([7]))  # a deleted key returns as another row
    table = table.update({"id": "id + 5000"}, where="id = 60")  # and a customer gets a new number
    table = table.compact()  # the feed shows nothing for it
    table = table.add_columns(pa.field("email", pa.string()))
    table = table.update({"email": "'someone@example.org'"}, where="city = 'Ulm'")
    table.cleanup(retain_versions=1)  # deletes old versions, but none that the replica needs
    follow(spark, source, replica, folder)


def follow(spark: SparkSession, source: str, replica: str, folder: str) -> None:
    replicate(spark, source, replica, f"{folder}/checkpoint", on=["id"]).awaitTermination()
    ours, theirs = lance_stream.open_dataset(replica), lance_stream.open_dataset(source)
    print(
        f"replica: version {ours.version}, {ours.count_rows():,} rows, "
        f"columns {', '.join(ours.schema.names)}; source: version {theirs.version}"
    )
    if ours.to_table().sort_by("id") != theirs.to_table().sort_by("id"):
        sys.exit("The replica differs from the source.")


def customers(ids: range | list[int], city: str = "Köln") -> pa.Table:
    rows = [
        {"id": n, "name": f"customer {n}", "city": city, "taste": [n % 7, n % 5, n % 3, 1]}
        for n in ids
    ]
    return pa.Table.from_pylist(rows, schema=CUSTOMERS)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
