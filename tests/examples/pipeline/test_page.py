"""Search and the page's server, on a table that no Spark has written."""

import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from examples.pipeline import figures, verify
from examples.pipeline.derive import embeddings_of
from examples.pipeline.embedding import embed_texts
from examples.pipeline.page import MOST_CHARACTERS, PageServer
from examples.pipeline.searching import Search, create_indices, nearest_by_hand
from examples.pipeline.settings import Settings
from tests.examples.pipeline.tables import NUM_ROWS, make_table, rows, settings_of

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_of(tmp_path_factory.mktemp("pipeline"))
    make_table(settings)
    return settings


@pytest.fixture
def server(settings: Settings) -> Iterator[PageServer]:
    with PageServer(settings) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(server: PageServer, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(server.url + path, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_searches_find_what_brute_force_finds(settings: Settings) -> None:
    assert verify.embeddings_differ(settings) == []
    assert verify.searches_differ(settings, seed=4) == []


def test_a_wrong_embedding_is_noticed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    lance_stream.create_dataset(settings.table, rows(0, 40), primary_key=["id"])
    embeddings_of(settings.table).run()
    ds = lance_stream.open_dataset(settings.table)
    other = ds.to_table(["embedding"], filter="id = 7")["embedding"]
    ds.upsert(pa.table({"id": [3], "embedding": other}), on="id")
    assert verify.embeddings_differ(settings) == [3]
    ds.update({"embedding": "NULL"}, where="id = 9")
    assert verify.embeddings_differ(settings) == [3, 9]


def test_a_search_that_misses_a_row_is_noticed() -> None:
    wanted = [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert verify.same_neighbours(wanted, [(2, 0.2), (1, 0.1), (4, 0.3)]) is False
    assert verify.same_neighbours(wanted, [(1, 0.1), (2, 0.2), (4, 0.3)])  # 3 and 4 are as far
    assert not verify.same_neighbours(wanted, [(1, 0.1), (2, 0.2)])
    assert not verify.same_neighbours(wanted, [(1, 0.1), (5, 0.2), (3, 0.3)])
    assert not verify.same_neighbours(wanted, [(1, 0.1), (1, 0.2), (3, 0.3)])
    assert verify.same_neighbours([], [])


def test_neighbours_by_hand_are_sorted_and_leave_out_what_has_no_direction() -> None:
    vectors = np.zeros((3, 256), np.float32)
    vectors[0, 0] = vectors[2, 1] = 1
    asked = np.zeros(256, np.float32)
    asked[1] = 1
    assert nearest_by_hand(np.array([5, 6, 7]), vectors, asked, 9) == [(7, 0.0), (5, 1.0)]
    assert nearest_by_hand(np.array([5, 6, 7]), vectors, vectors[1], 9) == []


def test_no_index_is_made_of_too_few_rows(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    lance_stream.create_dataset(settings.table, rows(0, 20), primary_key=["id"])
    assert not create_indices(settings.table)
    embeddings_of(settings.table).run()
    assert not create_indices(settings.table)
    assert Search(settings.table).neighbours("router", 3)


def test_indices_are_made_once(settings: Settings) -> None:
    before = lance_stream.open_dataset(settings.table).version
    assert create_indices(settings.table)
    ds = lance_stream.open_dataset(settings.table)
    assert ds.version == before
    found = {coverage.columns: coverage.rows_unindexed for coverage in ds.index_coverage()}
    assert set(found) == {("id",), ("title",), ("body",), ("embedding",)}
    assert found["body",] == 10


def test_a_search_sees_the_newest_version(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    ds = lance_stream.create_dataset(settings.table, rows(0, 5), primary_key=["id"])
    search = Search(settings.table)
    vector = embed_texts(["a router that loses connection"])[0]
    assert search.nearest(vector) == []  # there is no column yet
    embeddings_of(settings.table).run()
    assert len(search.nearest(vector)) == 5
    lance_stream.open_dataset(settings.table).delete("id = 0")
    assert {row["id"] for row in search.nearest(vector)} == {1, 2, 3, 4}
    assert ds.version < search.newest.version


@pytest.mark.parametrize("by", ["words", "neighbours"])
def test_the_server_finds_rows(server: PageServer, by: str) -> None:
    query = urllib.parse.urlencode({"q": "xylophone zebra", "by": by})
    status, answer = get(server, f"search?{query}")
    assert status == 200
    assert answer["by"] == by
    found = {row["id"] for row in answer["rows"]}
    assert found == set(range(NUM_ROWS - 5, NUM_ROWS + 5))
    assert answer["rows"][0]["updated_at"].startswith("2025-06-15T")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("search?q=a&by=magic", 400, "by is words or neighbours, not 'magic'"),
        (f"search?q={'a' * (MOST_CHARACTERS + 1)}", 400, "at most 500"),
        ("nowhere", 404, "no such page"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    server: PageServer, path: str, status: int, error: str
) -> None:
    found, answer = get(server, path)
    assert found == status
    assert error in answer["error"]


@pytest.mark.parametrize("query", ["", "%20%E2%80%94", "the", "a%22)(*%5C"])
@pytest.mark.parametrize("by", ["words", "neighbours"])
def test_odd_questions_are_answered(server: PageServer, query: str, by: str) -> None:
    status, answer = get(server, f"search?q={query}&by={by}")
    assert status == 200
    assert isinstance(answer["rows"], list)


def test_there_is_a_page_before_there_is_a_table(tmp_path: Path) -> None:
    with PageServer(settings_of(tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert get(server, "figures")[1].keys() == {"asked_at"}
        assert get(server, "search?q=router")[0] == 503
        with urllib.request.urlopen(server.url, timeout=30) as answer:
            text = answer.read().decode()
            policy = answer.headers["Content-Security-Policy"]
        server.shutdown()
    assert "default-src 'none'" in policy
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_figures_are_those_that_were_written_last(server: PageServer, settings: Settings) -> None:
    figures.write(settings.figures("watch"), {"now": {"rows_table": 1}})
    figures.write(settings.figures("watch"), {"now": {"rows_table": 2}})
    status, answer = get(server, "figures")
    assert status == 200
    assert answer["now"] == {"rows_table": 2}
    assert answer["asked_at"] >= answer["written_at"]
