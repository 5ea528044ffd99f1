"""Measures the pipeline from outside: rows, lag, freshness, the coverage of indices, searches.

    python -m examples.pipeline.watch      a part, where no supervisor runs it: under Compose

A row is fresh in the table when a reader opens a version that has it: every change is measured,
from its commit in PostgreSQL, which Debezium passes on. It is found by search when pylance finds it
by a word that no other row has, and as a neighbour of its own text: some rows are tried, one after
the other.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

import lance_stream
from examples.pipeline import figures
from examples.pipeline.connector import TOPIC
from examples.pipeline.database import NAME
from examples.pipeline.embedding import text_of, words_of
from examples.pipeline.searching import Search
from examples.pipeline.settings import Settings
from examples.pipeline.texts import CASE
from lance_stream import Dataset
from lance_stream.errors import LanceStreamError

LOOK_SECONDS = 0.1
WINDOW_SECONDS = 60
MAX_POINTS = 180
PROBE_SECONDS = 2.0

_NEWEST = f"""
SELECT id, title, body, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM {NAME}
WHERE body LIKE '%{CASE}%' ORDER BY updated_at DESC LIMIT 1
"""
_STILL = f"SELECT 1 FROM {NAME} WHERE id = %s AND title = %s AND body = %s"
_BEHIND = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = 'pipeline'
"""


class Samples:
    """Durations in seconds, with when each was measured."""

    def __init__(self) -> None:
        self._all: list[tuple[float, float]] = []

    def add(self, seconds: Iterable[float], at: float) -> None:
        """Note durations."""
        self._all.extend((at, second) for second in seconds)

    def summary(self, since: float = 0) -> dict[str, Any]:
        """Return how many there are since a time, and p50, p95 and the largest."""
        samples = [seconds for at, seconds in self._all if at >= since]
        return {
            "count": len(samples),
            "p50": figures.quantile(samples, 0.5),
            "p95": figures.quantile(samples, 0.95),
            "max": max(samples, default=None),
        }


class Watch:
    """Measures in threads of its own until it is closed.

    Args:
        settings: Where everything is.
        describe: Returns the state of the parts, for the page.

    Attributes:
        in_table: From commit in the database until a reader of the table has the row.
        embedded: The same of rows whose text changed, with their new vector.
        searches: The same of some rows, until searches find them: "words" and "neighbours".
        missed: How many rows searches did not find in time.
        newest_commit: The newest commit of the database that the table has, in seconds since 1970.
    """

    def __init__(self, settings: Settings, describe: Callable[[], dict[str, Any]] = dict) -> None:
        self.in_table, self.embedded = Samples(), Samples()
        self.searches = {"words": Samples(), "neighbours": Samples()}
        self.missed = 0
        self.newest_commit = 0.0
        self._settings = settings
        self._describe = describe
        self._positions: dict[int, int] = {}
        self._table: Dataset | None = None
        self._points: deque[dict[str, Any]] = deque(maxlen=MAX_POINTS)
        self._closed = threading.Event()
        self._changes = (0.0, 0)
        self._rows = 0
        self._threads = [
            threading.Thread(target=self._loop, args=(work, pause), daemon=True)
            for work, pause in (
                (self.look, LOOK_SECONDS),
                (self._measure, 1.0),
                (self._probe, PROBE_SECONDS),
            )
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End."""
        self._closed.set()
        for thread in self._threads:
            thread.join(30)

    def _loop(self, work: Callable[[], None], pause: float) -> None:
        while not self._closed.wait(pause):
            try:
                work()
            except (psycopg.Error, LanceStreamError, OSError) as error:
                print(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}", flush=True)
                self._closed.wait(1)

    # --- every change

    def look(self) -> None:
        """Look for a new version of the table, and measure the rows that it brings."""
        table = self._table
        if table is None:
            if not any(Path(self._settings.table, "_versions").glob("*.manifest")):
                return
            table = lance_stream.open_dataset(self._settings.table)
            seen = table.to_table(["id", "position"]).to_pydict()
            self._positions = dict(zip(seen["id"], seen["position"], strict=True))
        else:
            newest = lance_stream.open_dataset(self._settings.table)
            if newest.version == table.version:
                return
            self._read(newest, table.version)
            table = newest
        self._table = table

    def _read(self, table: Dataset, after: int) -> None:
        now = time.time()
        columns = ["id", "position", "committed_at"]
        changes = table.changes(after, columns=columns, pre_images=False).read_all()
        first, second = [], []
        for row in changes.select([*columns, "_change_type"]).to_pylist():
            key, position = row["id"], row["position"]
            if row["_change_type"] == "delete":
                self._positions.pop(key, None)
                continue
            seen = self._positions.get(key) == position
            self._positions[key] = position
            if position > 0:
                committed = row["committed_at"].timestamp()
                (second if seen else first).append(now - committed)
                self.newest_commit = max(self.newest_commit, committed)
        self.in_table.add(first, now)
        self.embedded.add(second, now)

    # --- once a second

    def _measure(self) -> None:
        now = time.time()
        table = self._table
        load = figures.read(self._settings.figures("load"))
        sink = figures.read(self._settings.figures("sink"))
        recent = self.in_table.summary(now - WINDOW_SECONDS)
        num_changes = sum(load.get(name, 0) for name in ("inserts", "updates", "deletes"))
        rate = self._rate(load.get("written_at", now), num_changes)
        point = {
            "at": now,
            "rows_database": None,
            "rows_table": None if table is None else table.count_rows(),
            "kafka_lag": None,
            "wal_lag_bytes": None,
            "changes_per_second": rate,
            "fresh_p50": recent["p50"],
            "fresh_p95": recent["p95"],
        }
        with suppress(psycopg.Error):
            point |= self._of_database()
        with suppress(Exception):  # a broker that is away shows in many ways
            point["kafka_lag"] = kafka_lag(self._settings)
        self._points.append(point)
        figures.write(
            self._settings.figures("watch"),
            {
                "now": point,
                "points": list(self._points),
                "version": None if table is None else table.version,
                "coverage": [] if table is None else coverage_of(table),
                "changes": {"total": num_changes, **load},
                "sink": sink,
                "derive": figures.read(self._settings.figures("derive")),
                "fresh": {"recent": recent, "all": self.in_table.summary()},
                "embedded": self.embedded.summary(now - WINDOW_SECONDS),
                "found": {
                    name: value.summary(now - WINDOW_SECONDS)
                    for name, value in self.searches.items()
                },
                "missed": self.missed,
                "parts": self._describe(),
                "stages": stages_of(sink),
            },
        )

    def _rate(self, at: float, num_changes: int) -> float | None:
        before, then = self._changes
        if at <= before:
            return self._points[-1]["changes_per_second"] if self._points else None
        self._changes = (at, num_changes)
        return None if not before else max(num_changes - then, 0) / (at - before)

    def _of_database(self) -> dict[str, Any]:
        with closing(psycopg.connect(self._settings.database, connect_timeout=2)) as connection:
            (count,) = connection.execute(f"SELECT count(*) FROM {NAME}").fetchone() or (None,)
            (behind,) = connection.execute(_BEHIND).fetchone() or (None,)
        return {"rows_database": count, "wal_lag_bytes": behind}

    # --- one row after the other

    def _probe(self) -> None:
        """Choose the row that was committed last, and search it until it is found."""
        if self._table is None or not any(
            coverage.columns for coverage in self._table.index_coverage()
        ):
            return
        search = Search(self._settings.table)
        with closing(psycopg.connect(self._settings.database, connect_timeout=2)) as connection:
            connection.autocommit = True
            row = connection.execute(_NEWEST).fetchone()
            if row is None or row[3] is None:
                return
            key, title, body, committed = row
            missing = {
                "words": lambda: search.words(words_of(body)[-1], 3, ["id"]),
                "neighbours": lambda: search.neighbours(text_of(title, body), 10, ["id"]),
            }
            deadline = time.monotonic() + 60
            while missing and not self._closed.is_set():
                for name in list(missing):
                    if key in {row["id"] for row in missing[name]()}:
                        now = time.time()
                        self.searches[name].add([now - committed], now)
                        del missing[name]
                if missing:
                    if connection.execute(_STILL, (key, title, body)).fetchone() is None:
                        return  # changed or deleted since
                    if time.monotonic() > deadline:
                        self.missed += 1
                        return
                    self._closed.wait(LOOK_SECONDS)


def coverage_of(table: Dataset) -> list[dict[str, Any]]:
    """Return how much of the table each index covers."""
    return [
        {
            "name": coverage.name,
            "kind": coverage.kind,
            "columns": list(coverage.columns),
            "rows_unindexed": coverage.rows_unindexed,
            "fraction": coverage.fraction,
        }
        for coverage in table.index_coverage()
    ]


def stages_of(sink: dict[str, Any]) -> dict[str, float]:
    """Return where the time of a change goes, in seconds on average, from the sink's sums."""
    changes = sink.get("changes")
    if not changes:
        return {}
    stages = {
        "read by Debezium": "until_captured",
        "sent to Kafka": "until_sent",
        "waited for a batch": "until_batch",
        "batch": "until_version",
    }
    until = [0.0, *(sink[stage] / changes for stage in stages.values())]
    pairs = zip(stages, pairwise(until), strict=True)
    return {name: round(end - start, 3) for name, (start, end) in pairs}


def kafka_lag(settings: Settings) -> int:
    """Return how many records of the topic no committed batch of the sink has read."""
    from kafka import KafkaConsumer, TopicPartition

    limits = {"request_timeout_ms": 5_000, "bootstrap_timeout_ms": 2_000}
    consumer = KafkaConsumer(bootstrap_servers=settings.kafka, **limits)
    try:
        partitions = consumer.partitions_for_topic(TOPIC) or set()
        ends = consumer.end_offsets([TopicPartition(TOPIC, partition) for partition in partitions])
    finally:
        consumer.close()
    committed = committed_offsets(settings.checkpoint("sink"))
    return sum(end - committed.get(key.partition, 0) for key, end in ends.items())


def committed_offsets(checkpoint: Path) -> dict[int, int]:
    """Return at which offset of each partition a query goes on, from its checkpoint."""
    commits = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not commits:
        return {}
    text = (checkpoint / "offsets" / str(max(commits))).read_text().splitlines()[-1]
    return {int(name): offset for name, offset in json.loads(text)[TOPIC].items()}


def main() -> None:
    """Measure until the process is stopped."""
    watch = Watch(Settings.read())
    watch.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
