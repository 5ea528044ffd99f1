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
from examples.pipeline.page import MAX_CHARACTERS, PageServer
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
    """Rows behind the indices must be found as well, by words and by vectors."""
    assert verify.embeddings_differ(settings) == []
    assert verify.searches_differ(settings, seed=4) == []


def test_wrong_embeddings_are_noticed(tmp_path: Path) -> None:
    """The check of the pipeline must be able to fail, for another row's vector and for none."""
    settings = settings_of(tmp_path)
    lance_stream.create_dataset(settings.table, rows(0, 40), primary_key=["id"])
    embeddings_of(settings.table).run()
    ds = lance_stream.open_dataset(settings.table)
    other = ds.to_table(["embedding"], filter="id = 7")["embedding"]
    ds.upsert(pa.table({"id": [3], "embedding": other}), on="id")
    assert verify.embeddings_differ(settings) == [3]
    ds.update({"embedding": "NULL"}, where="id = 9")
    assert verify.embeddings_differ(settings) == [3, 9]


def test_missed_rows_of_searches_are_noticed() -> None:
    """Neighbours at equal distance may be swapped, and nothing else may differ."""
    expected = [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert verify.same_neighbours(expected, [(2, 0.2), (1, 0.1), (4, 0.3)]) is False
    assert verify.same_neighbours(expected, [(1, 0.1), (2, 0.2), (4, 0.3)])  # 3 and 4 are as far
    assert not verify.same_neighbours(expected, [(1, 0.1), (2, 0.2)])
    assert not verify.same_neighbours(expected, [(1, 0.1), (5, 0.2), (3, 0.3)])
    assert not verify.same_neighbours(expected, [(1, 0.1), (1, 0.2), (3, 0.3)])
    assert verify.same_neighbours([], [])


def test_brute_force_skips_zero_vectors() -> None:
    """A zero vector has no cosine distance, and brute force is the standard for searches."""
    vectors = np.zeros((3, 256), np.float32)
    vectors[0, 0] = vectors[2, 1] = 1
    vector = np.zeros(256, np.float32)
    vector[1] = 1
    assert nearest_by_hand(np.array([5, 6, 7]), vectors, vector, 9) == [(7, 0.0), (5, 1.0)]
    assert nearest_by_hand(np.array([5, 6, 7]), vectors, vectors[1], 9) == []


def test_few_rows_get_no_index(tmp_path: Path) -> None:
    """Clustering needs a minimum of vectors, and a search of few rows works without."""
    settings = settings_of(tmp_path)
    lance_stream.create_dataset(settings.table, rows(0, 20), primary_key=["id"])
    assert not create_indices(settings.table)
    embeddings_of(settings.table).run()
    assert not create_indices(settings.table)
    assert Search(settings.table).neighbours("router", 3)


def test_indices_are_created_once(settings: Settings) -> None:
    """A restarted part must not build indices again."""
    before = lance_stream.open_dataset(settings.table).version
    assert create_indices(settings.table)
    ds = lance_stream.open_dataset(settings.table)
    assert ds.version == before
    actual = {coverage.columns: coverage.rows_unindexed for coverage in ds.index_coverage()}
    assert set(actual) == {("id",), ("title",), ("body",), ("embedding",)}
    assert actual["body",] == 10


def test_searches_see_the_newest_version(tmp_path: Path) -> None:
    """The page must show changes seconds later, and work before the first embedding exists."""
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
def test_the_server_answers_searches(server: PageServer, by: str) -> None:
    """Both kinds of search must include rows that no index covers yet."""
    query = urllib.parse.urlencode({"q": "xylophone zebra", "by": by})
    status, answer = get(server, f"search?{query}")
    assert status == 200
    assert answer["by"] == by
    actual = {row["id"] for row in answer["rows"]}
    assert actual == set(range(NUM_ROWS - 5, NUM_ROWS + 5))
    assert answer["rows"][0]["updated_at"].startswith("2025-06-15T")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("search?q=a&by=magic", 400, "by is words or neighbours, not 'magic'"),
        (f"search?q={'a' * (MAX_CHARACTERS + 1)}", 400, "at most 500"),
        ("nowhere", 404, "no such page"),
    ],
)
def test_invalid_searches_are_refused(
    server: PageServer, path: str, status: int, error: str
) -> None:
    """The answer is an HTTP status with a reason, not a stack trace."""
    actual, answer = get(server, path)
    assert actual == status
    assert error in answer["error"]


@pytest.mark.parametrize("query", ["", "%20%E2%80%94", "the", "a%22)(*%5C"])
@pytest.mark.parametrize("by", ["words", "neighbours"])
def test_odd_searches_are_answered(server: PageServer, query: str, by: str) -> None:
    """Empty text, stop words and operators of query languages come from users' keyboards."""
    status, answer = get(server, f"search?q={query}&by={by}")
    assert status == 200
    assert isinstance(answer["rows"], list)


def test_the_page_works_before_the_table(tmp_path: Path) -> None:
    """Parts start in any order, and the page loads nothing from other hosts."""
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


def test_the_latest_figures_are_served(server: PageServer, settings: Settings) -> None:
    """The page computes the age of figures from both times."""
    figures.write(settings.figures("watch"), {"now": {"rows_table": 1}})
    figures.write(settings.figures("watch"), {"now": {"rows_table": 2}})
    status, answer = get(server, "figures")
    assert status == 200
    assert answer["now"] == {"rows_table": 2}
    assert answer["asked_at"] >= answer["written_at"]
