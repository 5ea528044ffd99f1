"""A sink in a process of its own, whose workers are killed or fail in the middle of their tasks.

Spark tries a task three times here; a shared session of two cores does not try any again. Tables
lie at `deadly://`, a local store in which some workers die. Prints what became of each case.
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
from tests.faults.drivers import SCHEMA, Change, create_dataset, to_arrow

NUM_TASKS = 3
BATCHES = (
    [Change(n, "first", 1) for n in range(60)],
    [Change(n, "second", 2) for n in range(30, 90)],
)
FAULTS = ("killed within", "killed after", "fails after")
MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"mode": "upsert", "on": ["id"]},
}


@dataclass(frozen=True)
class DeadlyStore(LocalStore):
    """A local store in which the first workers that write a data file get no further.

    Args:
        fault: What happens to them: one of `FAULTS`.
        deaths: How many of them.
        driver: The process that is spared.
    """

    fault: str = ""
    deaths: int = 1
    driver: int = 0

    def open_writer(self, path: str) -> FileWriter:
        dies = path.startswith("data/") and os.getpid() != self.driver and self._is_next_to_die()
        writer = super().open_writer(path)
        return DeadlyWriter(writer, self.fault) if dies else writer

    def _is_next_to_die(self) -> bool:
        for number in range(self.deaths):
            with suppress(FileExistsError):
                Path(f"{self.root}-death-{number}").touch(exist_ok=False)
                return True
        return False


class DeadlyWriter(FileWriter):
    """Dies, or fails, while it writes or after its file is there."""

    def __init__(self, inner: FileWriter, fault: str) -> None:
        self.inner = inner
        self.action, _, self.moment = fault.partition(" ")

    def _do(self) -> None:
        if self.action == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionError("the wire is cut")

    def write(self, data: BytesLike) -> None:
        self.inner.write(data)
        if self.moment == "within":
            self._do()

    def close(self) -> None:
        self.inner.close()
        self._do()

    def abort(self) -> None:
        self.inner.abort()


def open_deadly(_protocol: str, rest: str, options: Any) -> DeadlyStore:
    root = "/" + rest.strip("/")
    return DeadlyStore(
        root,
        fault=options.get("fault", ""),
        deaths=int(options.get("deaths", 1)),
        driver=os.getpid() if "fault" in options else 0,
    )


def main(folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import pytest
    from pyspark.sql import SparkSession

    from lance_stream.spark import lance_sink
    from tests.spark.sink.few_rows_by_tasks import upsert_by_tasks

    upsert_by_tasks(pytest.MonkeyPatch())
    protocols.PROTOCOLS["deadly"] = StoreKind("local", open_deadly)  # type: ignore[index]  # read-only for others
    names.LOCAL.update(fault=("fault",), deaths=("deaths",))  # type: ignore[attr-defined]  # the same
    spark = (
        SparkSession.builder.master(f"local[2,{NUM_TASKS}]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.worker.faulthandler.enabled", "false")
        .getOrCreate()
    )

    def take_in(mode: str, path: Path, options: dict[str, str]) -> None:
        create_dataset(str(path), SCHEMA, primary_key=["id"]).append(to_arrow(BATCHES[0]))
        df = spark.createDataFrame(to_arrow(BATCHES[1])).repartition(3, "id")
        uri = f"deadly://{path}"
        lance_sink(uri, app_id="app", storage_options=options, **MODES[mode])(df, 0)

    outcomes = {}
    for mode in MODES:
        for fault in (*FAULTS, "fails always"):
            path = Path(folder, f"{mode} {fault}")
            deaths = "1000" if fault == "fails always" else "2"
            options = {"fault": fault.replace("always", "within"), "deaths": deaths}
            try:
                take_in(mode, path, options)
                outcomes[path.name] = "in"
            except Exception as error:
                outcomes[path.name] = str(error)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    from tests.faults import faulty_workers

    faulty_workers.main(*sys.argv[1:])  # under its own name, which workers import it by
