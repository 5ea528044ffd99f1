"""The format as a writer in a process of its own, whose tasks die after they have written.

Spark tries a task three times here; a shared session of two cores does not try any again. Prints
what became of each case.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from lance_stream.spark import LanceSource
from lance_stream.spark.writer.lance_writer import BatchWriter, StreamWriter, TaskResult

NUM_TASKS = 3
FAULTS = ("killed", "fails always")


class FaultyBatchWriter(BatchWriter):
    """Writes what it is given, and then goes down with it."""

    fault = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return go_down(super().write(iterator), self.fault)


class FaultyStreamWriter(StreamWriter):
    """The same for a stream."""

    fault = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return go_down(super().write(iterator), self.fault)


class FaultySource(LanceSource):
    """The format under another name, with the option `fault`."""

    def __init__(self, options: Any) -> None:
        self.fault = options.pop("fault", "")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = super().writer(schema, overwrite)
        writer.__class__, writer.fault = FaultyBatchWriter, self.fault  # type: ignore[attr-defined]  # as it is set
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__, writer.fault = FaultyStreamWriter, self.fault  # type: ignore[attr-defined]  # as it is set
        return writer


def go_down(part: TaskResult, fault: str) -> TaskResult:
    """Let the first attempts of two tasks, or all attempts of one, come to nothing."""
    context = TaskContext.get()
    assert context is not None
    task, attempt = context.partitionId(), context.attemptNumber()
    if fault == "fails always":
        if task == 1:
            raise ConnectionError("the wire is cut")
    elif task < 2 and attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def main(folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[2,{NUM_TASKS}]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.dataSource.register(FaultySource)

    def write_batch(uri: str, fault: str) -> None:
        df = spark.range(0, 90, 1, NUM_TASKS)
        df.write.format("faulty").mode("append").option("fault", fault).save(uri)

    def write_stream(uri: str, fault: str) -> None:
        rows = spark.readStream.format("rate-micro-batch").options(
            rowsPerBatch=90, numPartitions=NUM_TASKS, startTimestamp=0
        )
        (
            rows.load()
            .selectExpr("value AS id")
            .writeStream.format("faulty")
            .options(fault=fault, checkpointLocation=f"{uri}-checkpoint")
            .trigger(availableNow=True)
            .start(uri)
            .awaitTermination()
        )

    outcomes = {}
    for kind, write in (("batch", write_batch), ("stream", write_stream)):
        for fault in FAULTS:
            name = f"{kind} {fault}"
            try:
                write(str(Path(folder, name)), fault)
                outcomes[name] = "in"
            except Exception as error:
                outcomes[name] = str(error)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    from tests.faults import writing_process

    writing_process.main(*sys.argv[1:])  # under its own name, which workers import it by
