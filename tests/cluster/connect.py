"""A server of Spark Connect, which is a driver for clients on other machines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cluster.drivers import driver_settings
from tests.cluster.machines import CONNECT, Machine, wait_until
from tests.cluster.standalone import Cluster
from tests.servers.server import HOST, free_port

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Server:
    """A server.

    Attributes:
        url: What clients connect to.
        checkpoints: A folder of its machine.
    """

    url: str
    checkpoints: str


@contextmanager
def serving(cluster: Cluster, endpoint: str) -> Iterator[Server]:
    """Start a server on a machine of its own; stop it at the end, with its executors."""
    with Machine("server", packages=CONNECT, endpoint=endpoint) as machine:
        port = free_port()
        settings = {
            **driver_settings(cluster),
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(port),
        }
        options = [word for item in settings.items() for word in ("--conf", "=".join(item))]
        submit = str(machine.spark_home / "bin" / "spark-submit")
        # For the server's class it is this, and not spark.driver.memory, that sets the memory.
        memory = {"SPARK_DAEMON_MEMORY": "512m"}
        program = machine.start([submit, "--class", _CLASS, *options], "server", memory)
        program.wait_for("Spark Connect server started at", _START_SECONDS)
        yield Server(f"sc://{HOST}:{port}", str(machine.folder / "checkpoints"))
    wait_until(lambda: not cluster.has_executors(), 60)
