"""The pieces of the pipeline, each by itself; the whole is in tests/neighbours/test_pipeline.py."""

import json
import random
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psycopg
import pyarrow as pa
import pytest

import lance_stream
from examples.pipeline import connector, database, figures, load
from examples.pipeline.derive import embeddings_of
from examples.pipeline.embedding import DIMENSIONS, embed, embed_texts
from examples.pipeline.settings import Settings
from examples.pipeline.texts import article
from examples.pipeline.watch import Samples, Watch, committed_offsets, stages_of
from tests.examples.pipeline.tables import rows, settings_of


def test_settings_reach_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are processes that get their settings by the environment."""
    settings = Settings(kafka="127.0.0.1:1", load="7.5", state="here")
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.read() == settings


def test_texts_on_one_subject_are_close() -> None:
    """The embedding needs no model, yet search must find paraphrases."""
    texts = ["prints faded pages", "Colours on paper are pale", "cannot be paired by Bluetooth"]
    one, two, other = embed_texts(texts).astype(np.float64)
    assert one @ two > 0.25 > 0.15 > abs(one @ other)
    assert np.linalg.norm([one, two, other], axis=1) == pytest.approx(1)


def test_vectors_depend_on_their_text_alone() -> None:
    """A derived column is computed in batches of any size, which must not show in the values."""
    chance = random.Random(3)
    result = [article(chance) for _ in range(50)]
    titles, bodies = [value.title for value in result], [value.body for value in result]
    read_together = embed(pa.record_batch({"title": titles, "body": bodies}))
    for index in (0, 17, 49):
        row = pa.record_batch(
            {"title": titles[index : index + 1], "body": pa.array([bodies[index]], pa.string())}
        )
        assert embed(row)[0] == read_together[index]
    assert read_together.type == pa.list_(pa.float32(), DIMENSIONS)


def test_empty_texts_have_zero_vectors() -> None:
    """Normalising a zero vector would divide by zero."""
    assert not embed_texts([None, ""]).any()
    assert embed_texts([]).shape == (0, DIMENSIONS)


def test_differences_name_their_kind() -> None:
    """Exactly-once is judged by this comparison, so each kind of fault must show."""
    expected = [(1, "a"), (2, "b"), (3, "c")]
    actual = [(2, "b"), (3, "x"), (3, "x"), (4, "d")]
    assert database.differences(expected, actual) == {
        "missing": [1],
        "too many": [4],
        "twice": [3],
        "different": [3],
    }


@pytest.fixture
def shop(postgresql_url: str) -> str:
    database.prepare(postgresql_url, 30)
    return postgresql_url


def test_databases_are_prepared_once(shop: str) -> None:
    """A restart must not insert the first rows again."""
    before = database.rows_of(shop)
    database.prepare(shop, 99)
    assert database.rows_of(shop) == before
    assert [row[0] for row in before] == list(range(1, 31))


def test_load_makes_all_kinds_of_changes(shop: str) -> None:
    """A load without deletes or updates would prove nothing about them."""
    changes = load.Changes(5)
    with closing(psycopg.connect(shop, autocommit=True)) as connection:
        before = {row[0]: row for row in database.rows_of(shop)}
        changes.look(connection)
        num_changes = sum(changes.commit(connection, 5) for _ in range(40))
        after = {row[0]: row for row in database.rows_of(shop)}
    assert num_changes == changes.counts.total() - changes.counts["transactions"] >= 200
    assert len(after) == 30 + changes.counts["inserts"] - changes.counts["deletes"]
    assert min(changes.counts[name] for name in ("inserts", "updates", "deletes")) > 10
    assert before.keys() - after.keys()
    assert after.keys() - before.keys()
    retained = before.keys() & after.keys()
    assert {key for key in retained if before[key] != after[key]}
    assert any(isinstance(row[5], Decimal) for row in after.values())


def test_equal_seeds_make_equal_changes(postgresql: Any) -> None:
    """A failure must be reproducible."""
    actual = []
    for _ in range(2):
        url = postgresql.new_database()
        database.prepare(url, 20)
        changes = load.Changes(9)
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            changes.look(connection)
            for _ in range(20):
                changes.commit(connection, 3)
        actual.append([row[:-1] for row in database.rows_of(url)])
    assert actual[0] == actual[1]


def test_load_survives_lost_connections(shop: str, tmp_path: Path) -> None:
    """The database is killed on purpose, and counts must continue over restarts."""
    report = tmp_path / "load.json"
    figures.write(report, {"inserts": 1000})
    counts: list[Counter[str]] = []
    stop = threading.Event()

    def run() -> None:
        counts.append(load.run(shop, 500, 1, report, stop.is_set))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with closing(psycopg.connect(shop, autocommit=True)) as connection:
            _wait_for(lambda: len(database.rows_of(shop)) > 40)
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            (last,) = connection.execute("SELECT max(id) FROM articles").fetchone() or (0,)
            _wait_for(lambda: database.rows_of(shop)[-1][0] > last)
    finally:
        stop.set()
        thread.join(30)
    assert counts[0]["lost connections"] == 1
    assert counts[0]["inserts"] > 1000  # those of the run before are counted
    assert figures.read(report)["inserts"] == counts[0]["inserts"]


def _wait_for(is_there: Any) -> None:
    for _ in range(300):
        if is_there():
            return
        threading.Event().wait(0.1)
    pytest.fail("nothing happened in 30 s")


class Worker(BaseHTTPRequestHandler):
    """Kafka Connect, as far as the connector's keeper asks it."""

    config: ClassVar[dict[str, str]] = {}
    status: ClassVar[tuple[int, Any]] = (200, {})
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        is_config = self.path.endswith("/config") and self.status[0] == 200
        self._answer(*((200, self.config) if is_config else self.status))

    def do_PUT(self) -> None:
        self._answer(201, {})

    def do_POST(self) -> None:
        self._answer(202, {})

    def _answer(self, status: int, body: Any) -> None:
        self.requests.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


CONFIG = "GET /connectors/articles/config"
STATUS = "GET /connectors/articles/status"
CHANGE = "PUT /connectors/articles/config"


@pytest.mark.parametrize(
    ("status", "state", "requests"),
    [
        ((404, {}), "UNASSIGNED", [CONFIG, CHANGE]),
        ((409, {}), "", [CONFIG]),
        (
            (200, {"connector": {"state": "RUNNING"}, "tasks": [{"state": "RUNNING"}]}),
            "RUNNING",
            [CONFIG, STATUS],
        ),
        ((200, {"connector": {"state": "RUNNING"}, "tasks": []}), "UNASSIGNED", [CONFIG, STATUS]),
        (
            (200, {"connector": {"state": "RUNNING"}, "tasks": [{"state": "FAILED"}]}),
            "FAILED",
            [
                CONFIG,
                STATUS,
                "POST /connectors/articles/restart?includeTasks=true&onlyFailed=true",
            ],
        ),
    ],
)
def test_connectors_are_created_and_restarted(
    status: tuple[int, Any], state: str, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka Connect has several states of failure, each with its own remedy."""
    monkeypatch.setattr(Worker, "status", status)
    monkeypatch.setattr(Worker, "requests", [])
    with HTTPServer(("127.0.0.1", 0), Worker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = Settings(connect=f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(Worker, "config", {**connector.configuration(settings), "name": "a"})
        assert connector.ensure(settings) == state
        assert Worker.requests == requests
        moved = replace(settings, database="postgresql://a:b@127.0.0.1:1/shop")
        if status[0] == 200:
            assert connector.ensure(moved) == "UNASSIGNED"
            assert Worker.requests == [*requests, CONFIG, CHANGE]
        server.shutdown()


def test_absent_workers_are_not_errors() -> None:
    """The worker may be restarting, and the keeper tries again."""
    assert connector.ensure(Settings(connect="http://127.0.0.1:9")) == ""


def test_quantiles_are_measured_values() -> None:
    """Interpolated quantiles would hide outliers in few samples."""
    samples = Samples()
    samples.add([number / 100 for number in range(1, 101)], at=50)
    samples.add([9.0], at=10)
    assert samples.summary(since=20) == {"count": 100, "p50": 0.51, "p95": 0.96, "max": 1.0}
    assert samples.summary()["max"] == 9.0
    assert Samples().summary() == {"count": 0, "p50": None, "p95": None, "max": None}


def test_offsets_come_from_the_committed_batch(tmp_path: Path) -> None:
    """Spark writes offsets before the batch and a commit after it, and file names do not sort as
    numbers.
    """
    assert committed_offsets(tmp_path) == {}
    for folder, names in {"offsets": ["9", "10", "11"], "commits": ["9", "10"]}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            offsets = {connector.TOPIC: {"0": int(name), "1": 5}}
            (tmp_path / folder / name).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    assert committed_offsets(tmp_path) == {0: 10, 1: 5}


def test_stages_add_up_to_the_whole() -> None:
    """Each stage is a difference of sums, and none may be counted twice."""
    sums = {
        "changes": 4,
        "until_captured": 1.0,
        "until_sent": 1.2,
        "until_batch": 3.2,
        "until_version": 4.0,
    }
    stages = stages_of(sums)
    assert stages["waited for a batch"] == 0.5
    assert sum(stages.values()) == pytest.approx(1.0)
    assert stages_of({}) == {}


def test_truncated_figures_read_as_empty(tmp_path: Path) -> None:
    """A reader may meet a file that is being written."""
    path = tmp_path / "figures" / "a.json"
    assert figures.read(path) == {}
    figures.write(path, {"rows": 3})
    assert figures.read(path)["rows"] == 3
    path.write_text('{"rows"')
    assert figures.read(path) == {}


def test_latencies_are_measured_once_per_change(
    tmp_path: Path,
) -> None:
    """The first snapshot, deletes and unchanged texts must not distort the latency."""
    settings = settings_of(tmp_path)
    watch = Watch(settings)
    watch.look()  # there is no table yet
    columns = {"position": pa.int64(), "committed_at": pa.timestamp("us", "UTC")}

    def changed(keys: list[int], position: int, seconds_ago: float) -> pa.Table:
        at = int((time.time() - seconds_ago) * 1e6)
        result = rows(1, 5).slice(keys[0] - 1, len(keys))
        for name, value in {"position": position, "committed_at": at}.items():
            column = pa.array([value] * result.num_rows, pa.int64()).cast(columns[name])
            result = result.append_column(name, column)
        return result

    ds = lance_stream.create_dataset(settings.table, changed([1, 2, 3], -5, 0), primary_key=["id"])
    watch.look()
    embeddings_of(settings.table).run()
    watch.look()
    assert watch.in_table.summary()["count"] == 0  # of the first snapshot
    ds = lance_stream.open_dataset(settings.table)
    ds = ds.upsert(changed([3, 4], 7, seconds_ago=20), on="id").delete("id = 1")
    watch.look()
    assert watch.in_table.summary()["count"] == 2
    assert 20 <= watch.in_table.summary()["p50"] < 200
    assert watch.embedded.summary()["count"] == 0
    embeddings_of(settings.table).run()
    watch.look()
    watch.look()
    assert watch.in_table.summary()["count"] == 2
    assert watch.embedded.summary()["count"] == 1  # the text of row 3 is as before
