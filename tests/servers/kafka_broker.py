"""Kafka: a broker that is its own controller, and Kafka Connect with Debezium's connector."""

import signal
import subprocess
from typing import ClassVar

from lance_stream.machine.java import find_java, find_problem
from tests.servers.server import FOLDER, HOST, Server, ask, free_port, installation_problem

_LIBRARIES = FOLDER / "kafka"
_SPARKS = FOLDER / "spark_kafka"
_STARTED = "Kafka Server started"
_BROKER = """
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_CONNECT = """
bootstrap.servers={broker}
listeners=http://{host}:{port}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=1000
plugin.discovery=service_load
"""


class _InJava(Server):
    """A server whose classes are in .servers/kafka."""

    start_seconds: ClassVar[float] = 120

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why the server cannot be started, or None."""
        return installation_problem("kafka", _LIBRARIES / ".installed") or find_problem()

    def _java(self, main: str, *arguments: str) -> list[str]:
        java, _ = find_java()
        assert java is not None
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = "-Dorg.slf4j.simpleLogger.log."
        options += [f"{logging}kafka.server.KafkaRaftServer=info", f"{logging}io.debezium=info"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return [java, *options, "-cp", f"{_LIBRARIES}/*", main, *arguments]


class KafkaBroker(_InJava):
    """A broker on `127.0.0.1:port` that makes topics of three partitions when they are used."""

    name = "kafka"
    stop_signal = signal.SIGKILL  # it would take its time to hand over to others

    def prepare(self) -> None:
        """Format the broker's folder."""
        settings = self.folder / "broker.properties"
        settings.write_text(_BROKER.format(folder=self.folder) + _listeners(1, 2))
        options = ["format", "--config", str(settings), "--cluster-id", "lance-stream-tests-kafk"]
        with (self.folder / "output.txt").open("ab") as output:
            subprocess.run(
                self._java("kafka.tools.StorageTool", *options, "--standalone"),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=True,
            )

    def command(self) -> list[str]:
        """Return how the broker is started."""
        (self.folder / "broker.properties").write_text(
            _BROKER.format(folder=self.folder) + _listeners(self.port, free_port())
        )
        return self._java("kafka.Kafka", str(self.folder / "broker.properties"))

    def answers(self) -> bool:
        """Whether it has said so: this repository has no other client than Spark."""
        return _STARTED in self.output(100_000)

    @property
    def address(self) -> str:
        """`127.0.0.1:port`, what clients call `bootstrap.servers`."""
        return f"{HOST}:{self.port}"


class KafkaConnect(_InJava):
    """A worker of Kafka Connect, with its REST interface at `endpoint`."""

    name = "kafka_connect"

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__()
        self._broker = broker

    def command(self) -> list[str]:
        """Return how the worker is started."""
        settings = self.folder / "worker.properties"
        broker = self._broker.address
        settings.write_text(
            _CONNECT.format(broker=broker, host=HOST, port=self.port, folder=self.folder)
        )
        return self._java("org.apache.kafka.connect.cli.ConnectStandalone", str(settings))

    def answers(self) -> bool:
        """Whether the REST interface answers."""
        return ask("GET", f"{self.endpoint}/connectors") == 200


def _listeners(broker: int, controller: int) -> str:
    """Return the settings of both ports: the controller's is known to the broker alone."""
    return (
        f"listeners=PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}\n"
        f"advertised.listeners=PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}\n"
        f"controller.quorum.bootstrap.servers={HOST}:{controller}\n"
    )
