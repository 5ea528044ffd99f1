"""DynamoDB Local: Amazon's own program, in memory, in a Java."""

import os

from lance_stream.machine.java import find_java, find_problem
from tests.servers.moto import DynamoTable, ask_dynamo, make_dynamo_table
from tests.servers.server import FOLDER, Server, installation_problem

_LIBRARIES = FOLDER / "dynamodb_local"


class DynamoDBLocal(Server):
    """DynamoDB, and nothing else."""

    name = "dynamodb_local"

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why DynamoDB Local cannot be started, or None."""
        return installation_problem(cls.name, _LIBRARIES / "LoopbackServer.class") or find_problem()

    def command(self) -> list[str]:
        """Return how DynamoDB Local is started."""
        java, _ = find_java()
        assert java is not None
        classes = os.pathsep.join([str(_LIBRARIES), f"{_LIBRARIES}/*"])
        options = ["-Xmx256m", "-XX:+UseSerialGC", f"-Djava.library.path={_LIBRARIES}"]
        arguments = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)]
        return [java, *options, "-cp", classes, "LoopbackServer", *arguments]

    def answers(self) -> bool:
        """Whether there is an answer."""
        return ask_dynamo(self.endpoint, "ListTables", {}) == 200

    def new_table(self) -> DynamoTable:
        """Make a table with the keys of the external manifest store."""
        return make_dynamo_table(self.endpoint)
