"""Spark's standalone cluster: a master and workers, each on a machine of its own."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.cluster.machines import Machine, Program, try_to_send
from tests.servers.server import HOST

EXECUTOR_MEMORY = "512m"
_START_SECONDS = 120.0


class Worker:
    """A worker of the cluster: a machine with one slot.

    Attributes:
        machine: The machine.
        program: Spark's process there, which starts the executors.
    """

    def __init__(self, machine: Machine, master: str) -> None:
        self.machine = machine
        self._master = master
        self.program = self._start()

    def _start(self) -> Program:
        work = self.machine.folder / "work"
        # Spark starts no second attempt of a task on the host of the first one.
        host = self.machine.name
        where = ["--host", host, "--port", "0", "--webui-port", "0", "--work-dir", str(work)]
        size = ["--cores", "1", "--memory", "1g"]
        return self.machine.start_spark(
            "org.apache.spark.deploy.worker.Worker", *where, *size, self._master
        )

    def executors(self) -> list[int]:
        """Return the process ids of its executors."""
        return self.program.find("java", "CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[int]:
        """Return the process ids of the Python processes of its executors."""
        return self.program.find("pyspark.daemon")

    def kill_executors(self) -> int:
        """Kill its executors, and return how many there were."""
        return _kill(self.executors())

    def kill_python_workers(self) -> int:
        """Kill the Python processes of its executors, and return how many there were."""
        return _kill(self.python_workers())

    def stop(self) -> None:
        """Stop all of its processes where they are."""
        self.program.send(signal.SIGSTOP)

    def resume_python(self) -> None:
        """Let its Python processes go on, but not Spark's own."""
        for python_worker in self.python_workers():
            try_to_send(python_worker, signal.SIGCONT)

    def resume(self) -> None:
        """Let all of its processes go on."""
        self.program.send(signal.SIGCONT)

    def is_lost(self) -> bool:
        """Whether its process has ended."""
        return self.program.process.poll() is not None

    def kill(self) -> None:
        """Kill all of its processes."""
        self.program.kill()

    def come_back(self) -> None:
        """Start it again, if it is lost."""
        if self.is_lost():
            self.program = self._start()
            self.program.wait_for("Successfully registered with master", _START_SECONDS)


def _kill(processes: list[int]) -> int:
    for process in processes:
        try_to_send(process, signal.SIGKILL)
    return len(processes)


class Cluster:
    """The cluster.

    Attributes:
        master: The URL of its master.
        workers: Its workers, by the names of their machines.
    """

    def __init__(self, master: str, workers: dict[str, Worker]) -> None:
        self.master = master
        self.workers = workers

    def restore(self) -> None:
        """Start the workers that are lost."""
        for worker in self.workers.values():
            worker.come_back()

    def has_executors(self) -> bool:
        """Whether an executor runs: those of a killed driver end when they notice."""
        return any(worker.executors() for worker in self.workers.values())


@contextmanager
def started(master: str, workers: Sequence[Machine]) -> Iterator[Cluster]:
    """Start a cluster; stop it at the end.

    Args:
        master: The name of its master's machine.
        workers: The machines of its workers.
    """
    with Machine(master) as of_master:
        program = of_master.start_spark(
            "org.apache.spark.deploy.master.Master",
            *("--host", HOST, "--port", "0", "--webui-port", "0"),
        )
        url = f"spark://{HOST}:" + program.wait_for(f"spark://{HOST}:", _START_SECONDS).strip()
        by_name = {worker.name: Worker(worker, url) for worker in workers}
        for worker in by_name.values():
            worker.program.wait_for("Successfully registered with master", _START_SECONDS)
        yield Cluster(url, by_name)
