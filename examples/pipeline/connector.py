"""Debezium's connector: described to Kafka Connect, and started again when its task has failed.

    python -m examples.pipeline.connector

is the part that does so where no supervisor does: under Compose.
"""

import json
import time
import urllib.error
import urllib.request
from typing import Any

import psycopg

from examples.pipeline import database
from examples.pipeline.settings import Settings

NAME = "articles"
TOPIC = "shop.public.articles"
PARTITIONS = 2


def create_topic(kafka: str) -> None:
    """Create the topic of the changes, unless it is there: Spark reads no topic that is not."""
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import TopicAlreadyExistsError

    admin = KafkaAdminClient(bootstrap_servers=kafka)
    try:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    except TopicAlreadyExistsError:
        pass
    finally:
        admin.close()


def configuration(settings: Settings) -> dict[str, str]:
    """Return the connector's settings."""
    address = psycopg.conninfo.conninfo_to_dict(settings.database)
    converter = "org.apache.kafka.connect.json.JsonConverter"
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": str(address["host"]),
        "database.port": str(address["port"]),
        "database.user": str(address["user"]),
        "database.password": str(address["password"]),
        "database.dbname": str(address["dbname"]),
        "topic.prefix": "shop",
        "table.include.list": f"public.{database.NAME}",
        "slot.name": "pipeline",
        "publication.autocreate.mode": "filtered",
        "decimal.handling.mode": "string",
        "tombstones.on.delete": "false",
        "key.converter": converter,
        "value.converter": converter,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "poll.interval.ms": "50",  # by default a change waits for half a second
        "retriable.restart.connector.wait.ms": "1000",
    }


def ensure(settings: Settings) -> str:
    """Create the connector, or change it to what it should be; start its task again if it failed.

    Returns:
        The task's state: RUNNING, FAILED, ...; "" if the worker does not answer.
    """
    url = f"{settings.connect}/connectors/{NAME}"
    try:
        if not configuration(settings).items() <= _ask("GET", f"{url}/config").items():
            return _create(settings)
        status = _ask("GET", f"{url}/status")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return _create(settings)
        return ""  # 409: the worker joins its group
    except OSError:
        return ""
    states = [row["state"] for row in (status["connector"], *status["tasks"])]
    if "FAILED" in states:
        try:
            _ask("POST", f"{url}/restart?includeTasks=true&onlyFailed=true")
        except OSError:
            return ""
        return "FAILED"
    return states[-1] if len(states) > 1 else "UNASSIGNED"


def _create(settings: Settings) -> str:
    try:
        _ask("PUT", f"{settings.connect}/connectors/{NAME}/config", configuration(settings))
    except OSError:
        return ""
    return "UNASSIGNED"


def _ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def main() -> None:
    """Prepare the database and the topic, then keep the connector running."""
    settings = Settings.read()
    database.prepare(settings.database)
    create_topic(settings.kafka)
    while True:
        ensure(settings)
        time.sleep(2)


if __name__ == "__main__":
    main()
