"""A sink in a process of its own, to be killed: streams FILES into TABLE, a file a micro-batch."""

import os
import sys


def main(files: str, table: str, checkpoint: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from lance_stream.spark import lance_sink

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    query = (
        spark.readStream.schema("id bigint, name string")
        .option("maxFilesPerTrigger", 1)
        .parquet(files)
        .writeStream.foreachBatch(lance_sink(table))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
