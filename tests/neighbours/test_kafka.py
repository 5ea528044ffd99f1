"""A stream from a real broker of Kafka, killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lance_stream
from tests.servers.buckets import new_name
from tests.servers.kafka_broker import KafkaBroker

DRIVER = Path(__file__).with_name("kafka_driver.py")

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.recipes, pytest.mark.spark]


def driver(kafka: KafkaBroker, topic: str, folder: Path, events: range, until: str) -> list[str]:
    numbers = [str(events.start), str(events.stop)]
    return [sys.executable, str(DRIVER), kafka.address, topic, str(folder), *numbers, until]


def environment(arguments: str) -> dict[str, str]:
    path = os.pathsep.join([str(DRIVER.parents[2]), os.environ.get("PYTHONPATH", "")])
    spark = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": arguments}
    return {**os.environ, "PYTHONPATH": path, **spark}


def kill_after(
    command: list[str], variables: dict[str, str], folder: Path, more_versions: int
) -> None:
    """Run a driver, and kill it with its Java when both tables have some more versions."""
    targets = [number_of_versions(folder / name) + more_versions for name in TABLES]
    with (folder / "driver.txt").open("ab") as output:
        process = subprocess.Popen(
            command, env=variables, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 600
        while any(
            number_of_versions(folder / name) < n for name, n in zip(TABLES, targets, strict=True)
        ):
            log = (folder / "driver.txt").read_text(errors="replace")[-3000:]
            assert process.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


TABLES = ("current.lance", "log.lance")


def number_of_versions(table: Path) -> int:
    return len(list((table / "_versions").glob("*.manifest")))


def last_offsets(checkpoint: Path, topic: str) -> dict[int, int]:
    """Return, for each partition, the offset at which the query of a checkpoint goes on."""
    committed = max(
        int(path.name) for path in (checkpoint / "commits").iterdir() if path.name[0] != "."
    )
    text = (checkpoint / "offsets" / str(committed)).read_text().splitlines()[-1]
    return {int(name): offset for name, offset in json.loads(text)[topic].items()}


def test_kafka_events_arrive_once_despite_kills(
    spark_for_kafka: str, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Kafka's offsets, Spark's checkpoint and the ledger must agree after a kill, including
    tombstones of keys.
    """
    variables = environment(spark_for_kafka)
    topic = new_name("events")
    kill_after(driver(kafka, topic, tmp_path, range(600), "forever"), variables, tmp_path, 2)
    kill_after(driver(kafka, topic, tmp_path, range(600, 1000), "forever"), variables, tmp_path, 2)
    last = driver(kafka, topic, tmp_path, range(1000, 1100), "all")
    process = subprocess.run(last, env=variables, capture_output=True, text=True, timeout=1200)
    assert process.returncode == 0, process.stderr[-3000:]

    records = json.loads((tmp_path / "topic.json").read_text())
    assert len(records) == 1100
    values = {(p, offset): value and json.loads(value) for p, offset, _, value in records}
    log = lance_stream.open_dataset(str(tmp_path / "log.lance")).to_table().to_pylist()
    numbers = {(row["partition"], row["offset"]): row["number"] for row in log}
    assert len(log) == len(numbers) == 1100
    assert numbers == {position: value and value["number"] for position, value in values.items()}

    newest: dict[int, int | None] = {}
    for _, _, key, value in sorted(records):  # the events of a key are in one partition
        newest[int(key)] = json.loads(value)["number"] if value else None
    current = lance_stream.open_dataset(str(tmp_path / "current.lance"))
    rows = {row["id"]: row["number"] for row in current.to_table().to_pylist()}
    assert rows == {key: number for key, number in newest.items() if number is not None}
    assert current.count_rows() == len(rows)

    ends: dict[int, int] = {}
    for partition, offset, _, _ in sorted(records):
        ends[partition] = offset + 1
    for name in ("of-current", "of-log"):
        assert last_offsets(tmp_path / name, topic) == ends
    assert len(ends) == 3
