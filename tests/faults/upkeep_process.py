"""Compacts and cleans up tables by Spark's tasks, in a process of its own, which a test may kill.

Spark has two executors, each a process with one slot. Tables lie at `dying://`, a local store in
which some workers die or fail. Prints what became of each table.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lance_stream.storage import protocols
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.options import names
from lance_stream.storage.protocols import StoreKind
from lance_stream.storage.store import BytesLike, FileWriter

FAULTS = ("killed within", "killed after", "fails after")
DELETIONS = ("killed deleting", "fails deleting")
ALWAYS = "fails always"


@dataclass(frozen=True)
class DyingStore(LocalStore):
    """A local store in which two workers that write or delete a data file get no further.

    Args:
        fault: What happens to them.
        deaths: How many of them.
        driver: The process that is spared.
    """

    fault: str = ""
    deaths: int = 2
    driver: int = 0

    def open_writer(self, path: str) -> FileWriter:
        action, _, moment = self.fault.partition(" ")
        writer = super().open_writer(path)
        is_fatal = moment in ("within", "after", "always") and self._is_next(path)
        return DyingWriter(writer, action, moment) if is_fatal else writer

    def delete(self, path: str) -> None:
        super().delete(path)
        action, _, moment = self.fault.partition(" ")
        if moment == "deleting" and self._is_next(path):
            die_or_fail(action)

    def _is_next(self, path: str) -> bool:
        if not path.startswith("data/") or os.getpid() == self.driver:
            return False
        if self.fault == ALWAYS:
            return True
        for number in range(self.deaths):
            with suppress(FileExistsError):
                Path(f"{self.root}-death-{number}").touch(exist_ok=False)
                return True
        return False


class DyingWriter(FileWriter):
    """Comes to grief while it writes, or after its file is there."""

    def __init__(self, inner: FileWriter, action: str, moment: str) -> None:
        self.inner, self.action, self.moment = inner, action, moment

    def write(self, data: BytesLike) -> None:
        self.inner.write(data)
        if self.moment != "after":
            die_or_fail(self.action)

    def close(self) -> None:
        self.inner.close()
        die_or_fail(self.action)

    def abort(self) -> None:
        self.inner.abort()


def die_or_fail(action: str) -> None:
    if action == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionError("the wire is cut")


def open_dying(_protocol: str, rest: str, options: Any) -> DyingStore:
    return DyingStore("/" + rest.strip("/"), fault=options.get("fault", ""), driver=os.getpid())


def start_spark() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    return (
        SparkSession.builder.master("local-cluster[2,1,512]")
        .config("spark.driver.memory", "600m")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.executor.extraJavaOptions", java)
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.worker.faulthandler.enabled", "false")
        .getOrCreate()
    )


def main(folder: str, *cases: str) -> None:
    from lance_stream.spark import cleanup_table, compact_table
    from lance_stream.spark.jobs import file_jobs, rewrite_jobs

    rewrite_jobs.SMALL_TASK_BYTES = 0  # type: ignore[misc]  # so that each group is a task
    file_jobs.FILES_PER_TASK = 3  # type: ignore[misc]  # so that there are several
    protocols.PROTOCOLS["dying"] = StoreKind("local", open_dying)  # type: ignore[index]  # read-only for others
    names.LOCAL.update(fault=("fault",))  # type: ignore[attr-defined]  # the same
    spark = start_spark()
    outcomes = {}
    for case in cases:
        uri = f"dying://{Path(folder, case)}"
        options = {"fault": case}
        try:
            if case in DELETIONS:
                report = cleanup_table(spark, uri, retain_versions=1, storage_options=options)
                outcomes[case] = sum(report.num_files.values())
            elif case == "driver":
                outcomes[case] = compact_table(spark, uri, 4, bytes_per_commit=1200).version
            else:
                outcomes[case] = compact_table(spark, uri, 4, storage_options=options).version
        except Exception as error:
            outcomes[case] = str(error)
    print(json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    from tests.faults import upkeep_process

    upkeep_process.main(*sys.argv[1:])  # under its own name, which workers import it by
