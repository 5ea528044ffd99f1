"""Where each part finds the others: read from the environment, set by the supervisor or Compose."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

PREFIX = "PIPELINE_"


@dataclass(frozen=True)
class Settings:
    """Addresses and folders.

    Attributes:
        database: PostgreSQL, as `postgresql://user:password@host:port/name`.
        kafka: The broker, as `host:port`.
        connect: Kafka Connect's REST interface.
        state: The folder of tables, checkpoints and figures, which all parts see.
        page_host: On which address the page is served.
        page_port: On which port.
        load: Changes a second.
        master: Spark's.
        postgresql: The folder of the database's files, where the supervisor runs it.
    """

    database: str = "postgresql://pipeline:pipeline@127.0.0.1:5432/shop"
    kafka: str = "127.0.0.1:9092"
    connect: str = "http://127.0.0.1:8083"
    state: str = "data/pipeline"
    page_host: str = "127.0.0.1"
    page_port: str = "8050"
    load: str = "50"
    master: str = "local[2]"
    postgresql: str = ""

    @classmethod
    def read(cls) -> "Settings":
        """Return the settings of this process's environment."""
        values = {
            name: os.environ[variable]
            for name in cls.__dataclass_fields__
            if (variable := PREFIX + name.upper()) in os.environ
        }
        return cls(**values)

    def as_environment(self) -> dict[str, str]:
        """Return the variables from which another process reads the same settings."""
        return {PREFIX + name.upper(): value for name, value in asdict(self).items()}

    @property
    def folder(self) -> Path:
        """The state's folder."""
        return Path(self.state).resolve()

    @property
    def table(self) -> str:
        """The replica of the database's table, with the embeddings."""
        return str(self.folder / "articles.lance")

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a query."""
        return self.folder / "checkpoints" / name

    def figures(self, part: str) -> Path:
        """Where a part writes down what it measures."""
        return self.folder / "figures" / f"{part}.json"
