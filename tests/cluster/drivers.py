"""Drivers on a cluster, the tables that they write, and the requests of each machine."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance

import lance_stream
from lance_stream import Dataset
from lance_stream.table.named_files import nameable, names_of
from tests.cluster import events
from tests.cluster.events import ByRowId, Rows, in_order
from tests.cluster.jobs import EVERY_MODE, MODES
from tests.cluster.machines import JAVA, Machine, Program, wait_until
from tests.cluster.meetings import Meeting
from tests.cluster.standalone import EXECUTOR_MEMORY, Cluster, Worker
from tests.java import QUICK_SETTINGS
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.server import HOST
from tests.servers.store_faults import Act, Fault
from tests.servers.store_requests import StoreRequest

JOB_SECONDS = 900.0
_READS = ("get", "head")


@dataclass
class Site:
    """The site of a test: the cluster, and a folder of tables with events.

    Attributes:
        cluster: The cluster.
        driver: The machine on which drivers run.
        proxy: The proxy between all machines and the store.
        bucket: A bucket, which tests reach without the proxy.
        batches: The rows of the table "events", one batch per version.
        name: The name of the folder of tables in the bucket.
    """

    cluster: Cluster
    driver: Machine
    proxy: FaultProxy
    bucket: Bucket
    batches: list[Rows] = field(default_factory=list)
    name: str = "tables"

    @property
    def folder(self) -> str:
        """The URI of the folder of tables."""
        return f"{self.bucket.uri}/{self.name}"

    def add_events(
        self, seed: int, num_batches: int = events.NUM_BATCHES, num_bytes: int = 0
    ) -> None:
        """Create the table of events, each with at least `num_bytes` bytes."""
        self.batches = events.make_batches(seed, num_batches, num_bytes)
        events.store(f"{self.folder}/events", self.bucket.storage_options, self.batches)

    def add_upserted(self, table: str) -> None:
        """Create a table into which each batch of events is upserted, one version per batch."""
        events.store_upserted(f"{self.folder}/{table}", self.bucket.storage_options, self.batches)

    def start_driver(
        self, jobs: Sequence[Mapping[str, Any]], conf: Mapping[str, str] | None = None
    ) -> Program:
        """Start a driver that runs jobs."""
        settings = {**driver_settings(self.cluster), **(conf or {})}
        return start_program(self.driver, {"conf": settings, "jobs": list(jobs)})

    def run(
        self, jobs: Sequence[Mapping[str, Any]], conf: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Run jobs in a driver, and return its messages."""
        return finish(self.start_driver(jobs, conf))

    def await_death(self, driver: Program, meeting: Meeting) -> None:
        """Wait until a driver is killed at a meeting, and its executors and requests have ended."""
        driver.wait(JOB_SECONDS)
        assert meeting.is_complete, driver.output()[-5000:]
        wait_until(lambda: not self.cluster.has_executors(), 60)
        self.proxy.quiet(60)
        self.proxy.clear()

    def worker_of(self, request: StoreRequest) -> Worker | None:
        """Return the worker that a request came from; None if it came from another machine."""
        return self.cluster.workers.get(re.sub(r"(\d)", r"-\1", machine_of(request)))

    def is_from_worker(self, *methods: str) -> Callable[[StoreRequest], bool]:
        """Return a condition: whether a worker has sent a request with one of these methods."""
        return lambda request: request.method in methods and self.worker_of(request) is not None

    def key(self, path: str) -> str:
        """Return the key of a path in the folder of tables, as requests have it."""
        return f"{self.name}/{path}"

    def at_commit(self, table: str, at: int, fault: Fault) -> None:
        """Add a fault to the n-th creation of a manifest of a table."""
        self.proxy.add(fault, at=at, kind="put once", key=self.key(f"{table}/_versions/"))

    def at_data(
        self,
        table: str,
        at: int,
        act: Callable[[Worker], object],
        then: Fault | None = None,
    ) -> None:
        """Call `act` with the worker that sends the n-th request for a data file of a table."""

        def on_worker(request: StoreRequest) -> None:
            worker = self.worker_of(request)
            assert worker is not None
            act(worker)

        self.proxy.add(
            Act(on_worker, then),
            at=at,
            key=self.key(f"{table}/data/"),
            matches=lambda request: self.worker_of(request) is not None,
        )

    def check_only_workers_read(self, *exceptions: str) -> None:
        """Check that only workers have read data files, except for those of some tables."""
        reads = [request for request in self.proxy.seen(key="/data/") if request.kind in _READS]
        assert any(self.worker_of(read) for read in reads)
        by_others = [str(read) for read in reads if self.worker_of(read) is None]
        assert [
            read for read in by_others if not any(f"/{name}/" in read for name in exceptions)
        ] == []

    def check(self, *modes: str) -> None:
        """Check the rows that pylance reads from the tables of some modes, or of all."""
        for mode in modes or MODES:
            assert self.rows_of(mode) == in_order(EVERY_MODE[mode].expected(self.batches)), mode

    def rows_of(self, table: str) -> Rows:
        """Return a table's rows as pylance reads them."""
        options = self.bucket.storage_options
        ds = lance.dataset(f"{self.folder}/{table}", storage_options=options)
        return in_order(ds.to_table().to_pylist())

    def version_of(self, table: str) -> int:
        """Return the number of a table's newest version."""
        return self.open(table).version

    def unreferenced_files(self, table: str) -> list[str]:
        """Return the data files that no version of a table references: those of failed attempts."""
        table_version = self.open(table).table
        log = table_version.log
        named = {name for version in log.versions() for name in names_of(log.read(version), set())}
        files = [(file.path, nameable(file.path)) for file in table_version.store.list("data")]
        return [path for path, what in files if what is not None and what.name not in named]

    def snapshot(self, table: str, version: int) -> ByRowId:
        """Return the rows of a version as pylance reads them; no rows for version 0."""
        if not version:
            return {}
        options = self.bucket.storage_options
        ds = lance.dataset(f"{self.folder}/{table}", version=version, storage_options=options)
        return events.by_row_id(ds.to_table(with_row_id=True).to_pylist())

    def open(self, table: str) -> Dataset:
        options = self.bucket.storage_options
        return lance_stream.open_dataset(f"{self.folder}/{table}", storage_options=options)


def driver_settings(cluster: Cluster) -> dict[str, str]:
    """Return the settings of a driver that uses all of the cluster."""
    return {
        "spark.master": cluster.master,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.memory": "512m",
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.executor.extraJavaOptions": JAVA,
        "spark.ui.showConsoleProgress": "false",
        **QUICK_SETTINGS,
        "spark.sql.shuffle.partitions": str(len(cluster.workers)),
        "spark.cores.max": str(len(cluster.workers)),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }


def start_program(
    machine: Machine,
    job_description: Mapping[str, Any],
    command: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Program:
    """Start the program of jobs on a machine.

    Args:
        machine: The machine.
        job_description: The content of the file of jobs.
        command: The command that runs the program; by default, the machine's Python.
        variables: See `Machine.start`.
    """
    (machine.folder / "jobs.json").write_text(json.dumps(job_description))
    program = [*(command or [machine.python]), "programs/driver.py", "jobs.json"]
    return machine.start(program, "driver", variables)


def finish(program: Program) -> list[dict[str, Any]]:
    """Wait for a program of jobs, and return its messages."""
    status = program.wait(JOB_SECONDS)
    assert status == 0, program.output()[-5000:]
    return messages_of(program)


def messages_of(program: Program) -> list[dict[str, Any]]:
    """Return the messages that a program of jobs has printed so far."""
    return [json.loads(line) for line in program.output().splitlines() if line.startswith("{")]


def machine_of(request: StoreRequest) -> str:
    """Return the access key of a request, which is its machine's."""
    match = re.search("Credential=([^/]+)/", request.headers.get("authorization", ""))
    return match[1] if match else ""
