"""The Spark session in which sinks are timed."""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.sinks.contenders import Contender

ROOT = Path(__file__).parents[2]


def make_session(
    contenders: Iterable[type[Contender]],
    folder: Path,
    *,
    memory: str = "8g",
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a quiet session of two cores, with the contenders' settings.

    Args:
        contenders: The contenders.
        folder: The folder of their tables.
        memory: The driver's memory.
        more: Other settings.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "examples" / "conf"))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("benchmark of sinks")
        .config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        # With packages, PySpark 4.1 answers no heartbeat of a local executor, and ends after 60.
        .config("spark.executor.heartbeat.maxFailures", "1000000")
    )
    contenders = tuple(contenders)
    packages = sorted({name for contender in contenders for name in contender.packages})
    extensions = sorted({name for contender in contenders for name in contender.extensions})
    if packages:
        builder = builder.config("spark.jars.packages", ",".join(packages))
        # Spark brings it; and Maven may have left its description, without it, where Ivy looks.
        builder = builder.config("spark.jars.excludes", "org.slf4j:slf4j-api")
    if extensions:
        builder = builder.config("spark.sql.extensions", ",".join(extensions))
    for settings in (*(contender.settings(folder) for contender in contenders), more or {}):
        for name, value in settings.items():
            builder = builder.config(name, value)
    return builder.getOrCreate()
