"""A table that follows a database through Debezium: the code of the recipe, and harder changes."""

import json
import os
import random
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import psycopg
import pytest

from tests.servers.kafka_broker import KafkaBroker, KafkaConnect
from tests.test_snippets import blocks_of

ROOT = Path(__file__).parents[2]
SERVE = """
for line in sys.stdin:
    wait_for_same_rows()
    print("same rows", flush=True)
"""
"""The end of the program: for each line it runs the query until the rows are the database's."""


@contextmanager
def recipe(
    arguments: str, kafka: KafkaBroker, worker: KafkaConnect, database: str, folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program of the recipe's blocks, with a topic and a slot of its own."""
    program = folder / "recipe.py"
    text = "\n".join([*blocks_of("docs/guides/recipes/debezium.md"), SERVE])
    program.write_text(text.replace("shop", name_of(folder)))
    variables = {
        "KAFKA": kafka.address,
        "CONNECT": worker.endpoint,
        "DATABASE": database,
        "PYSPARK_SUBMIT_ARGS": arguments,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with (folder / "said.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(program)],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def name_of(folder: Path) -> str:
    """Return the name of a test's connector, topic and slot, which no other test has."""
    return f"shop_{zlib.crc32(str(folder).encode()):08x}"


def has_same_rows(program: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Let the recipe compare, and fail with what it says if it ends."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(b"\n")
    program.stdin.flush()
    answer = program.stdout.readline()
    assert answer == b"same rows\n", (folder / "said.txt").read_text()[-3000:]


def change(database: psycopg.Connection, chance: random.Random) -> None:
    """Change a row or some in one transaction."""
    with database.transaction():
        for _ in range(chance.choice([1, 1, 3])):
            key, other = chance.randint(10, 30), chance.randint(10, 30)
            price = chance.choice([None, "0.00", "-12.34", "9999999999.99"])
            values = (key, chance.choice([None, "", "it's", "ü" * 5000]), price)
            put = (
                "INSERT INTO customers VALUES (%s, %s, %s, '2024-02-29', now(), now()) ON CONFLICT "
                "(id) DO UPDATE SET name = excluded.name, balance = excluded.balance, born = NULL"
            )
            match chance.choice(["put", "put", "put", "delete", "rename"]):
                case "put":
                    database.execute(put, values)
                case "delete":
                    database.execute("DELETE FROM customers WHERE id = %s", [key])
                case "rename":
                    database.execute("DELETE FROM customers WHERE id = %s", [other])
                    move = "UPDATE customers SET id = %s WHERE id = %s"
                    database.execute(move, [other, key])


def restart(worker: KafkaConnect, name: str, config: bytes) -> None:
    """Kill a worker, and start it with the offsets that it has written down."""
    os.kill(worker.process_id, signal.SIGKILL)
    worker.start()
    body = json.dumps({"name": name, "config": json.loads(config)}).encode()
    url = f"{worker.endpoint}/connectors"
    urlopen(Request(url, body, {"Content-Type": "application/json"})).close()


pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.recipes, pytest.mark.spark]


def test_tables_equal_the_database_despite_restarts(
    spark_for_kafka: str,
    kafka: KafkaBroker,
    kafka_connect: KafkaConnect,
    postgresql_url: str,
    tmp_path: Path,
) -> None:
    """Debezium repeats events after a restart, and changed keys, deletes and snapshots have forms
    of their own.
    """
    chance = random.Random(1)
    with recipe(spark_for_kafka, kafka, kafka_connect, postgresql_url, tmp_path) as program:
        has_same_rows(program, tmp_path)
        with closing(psycopg.connect(postgresql_url, autocommit=True)) as database:
            url = f"{kafka_connect.endpoint}/connectors/{name_of(tmp_path)}/config"
            with urlopen(url) as answer:
                config = answer.read()
            for number in range(120):
                change(database, chance)
                if number == 60:
                    has_same_rows(program, tmp_path)
                if number == 90:
                    restart(kafka_connect, name_of(tmp_path), config)
            has_same_rows(program, tmp_path)
            (count,) = database.execute("SELECT count(*) FROM customers").fetchone() or (0,)
            assert count > 5
