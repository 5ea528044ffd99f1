"""How tests start Java: for seconds, so that compiling much would cost more than it saves.

PySpark passes what `SPARK_SUBMIT_OPTS` names to each Java that it starts, also in the processes
that tests start.
"""

import importlib.metadata
import os

JAVA_OPTIONS = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
"""What PySpark reads the options from."""

QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"

_IS_OLD = importlib.metadata.version("pyspark").startswith(("3.", "4.0."))
_CHECKPOINTING = "" if _IS_OLD else ".checkpointing"

QUICK_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
    "spark.ui.enabled": "false",
}
"""With --ci. Plans, which are small here, are interpreted rather than compiled. Spark's usual
manager of checkpoints starts 30 processes in each micro-batch on a local disk, to read links."""


def set_options(is_quick: bool) -> None:
    """Set what this process and those that it starts pass to Java."""
    settings = [f"-D{name}={value}" for name, value in QUICK_SETTINGS.items()] if is_quick else []
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([QUICK_START, *settings])
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_START
