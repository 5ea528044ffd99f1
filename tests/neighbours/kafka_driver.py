"""A program that sends events to Kafka and streams them into two tables, until it is killed.

    python kafka_driver.py BROKER TOPIC FOLDER FIRST STOP forever|all

It sends the events FIRST to STOP and prints `sent`; then `current.lance` gets the newest event of
each key, and `log.lance` every event. With `all` it ends when all are read, and leaves what a batch
query finds in the topic in `topic.json`.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from lance_stream.spark import LanceSink, lance_sink, register

NUM_KEYS = 37
EVENT = "number BIGINT, price DECIMAL(10, 2)"


def main(broker: str, topic: str, folder: Path, events: range, until_end: bool) -> None:
    """Send events, and stream."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    register(spark)
    kafka = {"kafka.bootstrap.servers": broker}
    rows = [(str(number % NUM_KEYS), value_of(number)) for number in events]
    sent = spark.createDataFrame(rows, "key STRING, value STRING").coalesce(1)
    sent.write.format("kafka").options(**kafka, topic=topic).save()
    print("sent", flush=True)
    source = {**kafka, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**source, maxOffsetsPerTrigger=200).load()
    options = {
        "mode": "upsert",
        "on": "id",
        "sequence_by": "offset",
        "delete_when": "deleted",
        "except_columns": ["deleted"],
        "app_id": "current",
    }
    current = lance_sink(str(folder / "current.lance"), **options)
    log = lance_sink(str(folder / "log.lance"), app_id="log")
    queries = [
        start(parse_records(records), current, folder / "of-current", until_end),
        start(parse_records(records).drop("deleted"), log, folder / "of-log", until_end),
    ]
    for query in queries:
        query.awaitTermination()
    messages = spark.read.format("kafka").options(**kafka, subscribe=topic).load()
    rows = messages.selectExpr(
        "partition", "offset", "CAST(key AS STRING)", "CAST(value AS STRING)"
    )
    (folder / "topic.json").write_text(json.dumps([list(row) for row in rows.collect()]))


def value_of(number: int) -> str | None:
    """Return the value of an event: none, which deletes the key, for each eleventh."""
    return None if number % 11 == 5 else json.dumps({"number": number, "price": f"{number}.50"})


def parse_records(records: DataFrame) -> DataFrame:
    """Return the columns of the tables, and whether an event deletes its key."""
    value = f.from_json(f.col("value").cast("string"), EVENT, {"mode": "FAILFAST"})
    key = f.col("key").cast("string").cast("bigint").alias("id")
    deleted = f.col("value").isNull().alias("deleted")
    rows = records.select(key, value.alias("e"), "partition", "offset", deleted)
    return rows.select("id", "e.*", "partition", "offset", "deleted")


def start(rows: DataFrame, sink: LanceSink, checkpoint: Path, until_end: bool) -> StreamingQuery:
    """Start a query that reads 200 events a batch."""
    stream = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    stream = stream.trigger(availableNow=True) if until_end else stream
    return stream.start()


if __name__ == "__main__":
    broker, topic, folder, first, stop, until = sys.argv[1:]
    main(broker, topic, Path(folder), range(int(first), int(stop)), until == "all")
