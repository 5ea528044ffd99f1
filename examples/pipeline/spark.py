"""What the parts that run Spark share: a session, and a loop that reports and ends in time."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from examples.pipeline import figures
from examples.pipeline.settings import Settings
from examples.pipeline.spark_jars import JARS
from lance_stream.spark import register


def session(settings: Settings, name: str) -> SparkSession:
    """Return a session for small batches on few cores."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = os.environ.get(JARS)
    jars = sorted(map(str, Path(folder).resolve().glob("*.jar"))) if folder else []
    spark = (
        SparkSession.builder.appName(name)
        .master(settings.master)
        .config("spark.jars", ",".join(jars))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.python.unix.domain.socket.enabled", "true")  # quicker small batches
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # Spark's usual manager of checkpoints starts processes for each file on a local disk.
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    register(spark)
    return spark


def keep_running(
    query: StreamingQuery, path: Path, report: Callable[[StreamingQuery], dict[str, Any]]
) -> None:
    """Report once a second until SIGTERM, then stop the query; raise its error if it has failed.

    Args:
        query: A query that has been started.
        path: Where the figures are written.
        report: Returns them.
    """
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    while not stopped and not query.awaitTermination(1):
        figures.write(path, report(query))
    query.stop()
