"""Captured changes become a table of customers; its change feed becomes a log of who moved."""

import pyarrow as pa
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import lance_stream
from lance_stream.spark import register

spark = SparkSession.active()
register(spark)  # the format "lance"

FOLDER = spark.conf.get("customers.folder")
CUSTOMERS = f"{FOLDER}/customers.lance"

# A sink's first row creates its table. This one is also read here, so it has to exist before that.
try:
    lance_stream.open_dataset(CUSTOMERS)
except lance_stream.NotFoundError:
    columns = {"id": pa.int64(), "name": pa.string(), "city": pa.string(), "lsn": pa.int64()}
    lance_stream.create_dataset(CUSTOMERS, pa.schema(columns), primary_key=["id"])

# --- changes from a database, as JSON: the newest row of each customer, without those deleted

dp.create_sink(
    "customers",
    "lance",
    {
        "path": CUSTOMERS,
        "mode": "upsert",
        "on": "id",
        "sequenceBy": "lsn",
        "deleteWhen": "op = 'd'",
        "exceptColumns": "op",
        "tombstones": "7 days",
        "appId": "customers",
    },
)


@dp.append_flow(target="customers")
def captured_changes() -> DataFrame:
    """Changes in the order of their files, or in any other."""
    columns = "op string, lsn bigint, id bigint, name string, city string"
    return spark.readStream.schema(columns).json(f"{FOLDER}/incoming")


# --- the table's change feed, as a view for any flow


@dp.temporary_view()
def customer_changes() -> DataFrame:
    """What each version of the table changed, from the first one on."""
    feed = spark.readStream.format("lance").option("readChangeFeed", "true")
    return feed.option("startingVersion", 0).load(CUSTOMERS)


dp.create_sink("moves", "lance", {"path": f"{FOLDER}/moves.lance", "appId": "moves"})


@dp.append_flow(target="moves")
def moves() -> DataFrame:
    """Where customers are from a version on."""
    changes = spark.readStream.table("customer_changes")
    current = changes.where("_change_type IN ('insert', 'update_postimage')")
    return current.selectExpr("id", "city", "_commit_version AS version")
