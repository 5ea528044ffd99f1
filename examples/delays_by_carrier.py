"""Keep an aggregate up to date with the changes of a Lance table, without rereading the table.

    python examples/delays_by_carrier.py TABLE CHECKPOINT

Tails the change feed of the flights at TABLE and keeps the number of flights and the mean delay of
each carrier. An inserted row counts 1, a deleted row counts -1; an update is both.
Prints the aggregate every five seconds until it is stopped.
"""

import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

VIEW = "delays_by_carrier"


def delays_by_carrier(changes: DataFrame) -> DataFrame:
    """Return flights and mean delay by carrier, after all changes."""
    comes = f.col("_change_type").isin("insert", "update_postimage")
    sign = f.when(comes, 1).otherwise(-1)
    total_delay = f.sum(sign * f.col("arr_delay"))
    arrivals = f.sum(f.when(f.col("arr_delay").isNotNull(), sign))
    return changes.groupBy("carrier").agg(
        f.sum(sign).alias("flights"), (total_delay / arrivals).alias("mean_delay")
    )


def start(spark: SparkSession, table: str, checkpoint: str) -> StreamingQuery:
    """Start the query that keeps the view `delays_by_carrier` up to date."""
    changes = (
        spark.readStream.format("lance")
        .option("readChangeFeed", "true")
        .option("startingVersion", 0)
        .option("columns", "carrier,arr_delay")
        .load(table)
    )
    return (
        delays_by_carrier(changes)
        .writeStream.format("memory")
        .queryName(VIEW)
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .start()
    )


def main(table: str, checkpoint: str) -> None:
    from lance_stream.spark import register

    spark = (
        SparkSession.builder.appName("delays by carrier")
        .master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)  # as many as there are cores: 16 carriers
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    register(spark)
    query = start(spark, table, checkpoint)
    while query.isActive:
        time.sleep(5)
        spark.table(VIEW).orderBy("carrier").show()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
