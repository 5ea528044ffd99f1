"""Stream files into a Lance table, each row exactly once.

    python examples/flights_to_lance.py FILES TABLE CHECKPOINT

Reads the parquet files below FILES as a stream, six files per micro-batch, and appends them to the
Lance table at TABLE; the first batch creates it. Ends when all files are committed. Kill it at any
time and restart it: it resumes, and no row is lost or duplicated.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from lance_stream.spark import lance_sink

FLIGHT = """
    flight_id bigint, day date, carrier string, flight int, tailnum string, origin string,
    dest string, sched_dep_time timestamp, dep_delay double, arr_delay double, air_time double,
    distance double
"""


def main(files: str, table: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.appName("flights to lance")
        .master("local[2]")
        .config("spark.python.unix.domain.socket.enabled", "true")  # quicker small batches
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    sink = lance_sink(table)

    def append(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        print(f"batch {batch_id}: {sink.last_commit}", flush=True)

    query = (
        spark.readStream.schema(FLIGHT)
        .option("maxFilesPerTrigger", 6)
        .parquet(files)
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
