"""Spark's standalone cluster: a master and workers, each on a machine of its own."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.cluster.machines import Machine, Program, try_to_send
from tests.servers.server import HOST

NUM_WORKERS = 3
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
        where = ["--host", HOST, "--port", "0", "--webui-port", "0", "--work-dir", str(work)]
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

    def is_lost(self) -> bool:
        """Whether its process has ended."""
        return self.program.process.poll() is not None

    def lose(self) -> None:
        """Let the machine go down."""
        self.program.kill()

    def come_back(self) -> None:
        """Start it again, if it is lost."""
        if self.is_lost():
            self.program = self._start()
            self.program.wait_for("Successfully registered with master", _START_SECONDS)


def _kill(processes: list[int]) -> int:
    for each in processes:
        try_to_send(each, signal.SIGKILL)
    return len(processes)


class Cluster:
    """The cluster.

    Attributes:
        master: The URL of its master.
        workers: Its workers, by the names of their machines.
        driver: A machine for drivers.
    """

    def __init__(self, master: str, workers: dict[str, Worker], driver: Machine) -> None:
        self.master = master
        self.workers = workers
        self.driver = driver

    def restore(self) -> None:
        """Start the workers that are lost."""
        for each in self.workers.values():
            each.come_back()


@contextmanager
def started(endpoint: str) -> Iterator[Cluster]:
    """Start a cluster whose machines know a store; stop it at the end."""
    names = [f"worker-{number}" for number in range(1, NUM_WORKERS + 1)]
    with ExitStack() as stack:
        driver = stack.enter_context(Machine("driver", endpoint=endpoint))
        of_master = stack.enter_context(Machine("master"))
        machines = [stack.enter_context(Machine(name, endpoint=endpoint)) for name in names]
        program = of_master.start_spark(
            "org.apache.spark.deploy.master.Master",
            *("--host", HOST, "--port", "0", "--webui-port", "0"),
        )
        master = f"spark://{HOST}:" + program.wait_for(f"spark://{HOST}:", _START_SECONDS).strip()
        workers = {each.name: Worker(each, master) for each in machines}
        for each in workers.values():
            each.program.wait_for("Successfully registered with master", _START_SECONDS)
        yield Cluster(master, workers, driver)
