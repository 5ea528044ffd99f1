"""Keep an aggregate of a table up to date with the table's changes, without rereading it.

    python examples/incremental_aggregate.py [FOLDER]

Orders are stored in FOLDER/orders.lance, and corrected and canceled there. FOLDER/revenue.lance has
a row for each day with orders. A change adds or removes a row, so counts and sums are updated by
adding and subtracting; each micro-batch writes only the days that it changed.

Sums of whole numbers and decimals stay exact; those of floats drift. Minima and maxima cannot be
updated by adding and subtracting: read the changed days again for these.
"""

import sys
import tempfile
from datetime import date, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import lance_stream
from lance_stream.spark import lance_sink, register

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("cents", pa.int64()),
    ]
)


def revenue_by_day(changes: DataFrame) -> DataFrame:
    """Return orders and revenue of each day, after all changes."""
    brings = f.col("_change_type").isin("insert", "update_postimage")
    sign = f.when(brings, 1).otherwise(-1)
    return changes.groupBy("day").agg(
        f.sum(sign).alias("orders"), f.sum(sign * f.col("cents")).alias("cents")
    )


def keep_up_to_date(
    spark: SparkSession, orders: str, revenue: str, checkpoint: str
) -> StreamingQuery:
    """Bring the aggregate up to date, then stop. Without the trigger it keeps following."""
    changes = (
        spark.readStream.format("lance")
        .option("readChangeFeed", "true")
        .option("columns", "day,cents")  # no other column's data is read
        .load(orders)
    )
    sink = lance_sink(revenue, mode="upsert", on="day", delete_when="orders = 0")
    return (
        revenue_by_day(changes)
        .writeStream.foreachBatch(sink)
        .outputMode("update")  # the days that changed
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main(folder: str) -> None:
    spark = (
        SparkSession.builder.appName("revenue by day")
        .master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)  # as many as there are cores
        .config("spark.python.unix.domain.socket.enabled", "true")  # quicker small batches
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    register(spark)
    orders, revenue = f"{folder}/orders.lance", f"{folder}/revenue.lance"

    table = lance_stream.create_dataset(orders, ORDERS, primary_key=["id"])
    table = table.append(some_orders(range(2000)))
    run(spark, orders, revenue, folder)

    table = table.delete("id % 20 = 0")  # cancelled
    table = table.update({"cents": "cents - 500"}, where="id % 7 = 0")  # corrected
    table = table.upsert(some_orders(range(1990, 2100), days_later=1), on="id")  # moved, and new
    table.delete("day = DATE '2026-11-03'")  # a day without orders has no row
    run(spark, orders, revenue, folder)


def run(spark: SparkSession, orders: str, revenue: str, folder: str) -> None:
    keep_up_to_date(spark, orders, revenue, f"{folder}/checkpoint").awaitTermination()
    ds = lance_stream.open_dataset(revenue)
    actual = ds.to_table().sort_by("day")
    print(f"revenue, version {ds.version}:")
    for row in actual.to_pylist():
        print(f"  {row['day']}  {row['orders']:5,} orders  {row['cents'] / 100:12,.2f}")
    expected = (
        lance_stream.open_dataset(orders)
        .to_table()
        .group_by("day")
        .aggregate([("id", "count"), ("cents", "sum")])
        .rename_columns(["day", "orders", "cents"])
        .sort_by("day")
    )
    if actual.to_pylist() != expected.to_pylist():
        sys.exit(f"The aggregate does not match the orders: {expected.to_pylist()}")


def some_orders(ids: range, days_later: int = 0) -> pa.Table:
    first = date(2026, 11, 1) + timedelta(days=days_later)
    rows = [{"id": n, "day": first + timedelta(days=n % 5), "cents": 1000 + n % 977} for n in ids]
    return pa.Table.from_pylist(rows, schema=ORDERS)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
