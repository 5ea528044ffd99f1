"""The examples run, and each produces what it promises."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from tests.examples.test_example_modules import load

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly]


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    ds = lance_stream.open_dataset(str(folder / f"{name}.lance"))
    assert ds.verify() == []
    rows: list[dict[str, Any]] = ds.to_table().to_pylist()
    return rows


@pytest.mark.usefixtures("spark")
def test_replicas_follow_their_table(tmp_path: Path) -> None:
    """Users copy this example, so it must handle inserts, updates, deletes and vectors."""
    load("replicate_table").main(str(tmp_path))
    replica = {row["id"]: row for row in table(tmp_path, "replica")}
    assert replica == {row["id"]: row for row in table(tmp_path, "customers")}
    assert {7, 5060, 1010} < replica.keys()
    assert replica.keys().isdisjoint({8, 60})
    assert replica[1010]["email"] == "someone@example.org"
    schema = lance_stream.open_dataset(str(tmp_path / "replica.lance")).schema
    assert str(schema.field("taste").type) == "fixed_size_list<item: float>[4]"


@pytest.mark.usefixtures("spark")
def test_aggregates_follow_their_table(tmp_path: Path) -> None:
    """Deletes and updates must be subtracted, and a day without orders must vanish."""
    load("incremental_aggregate").main(str(tmp_path))
    actual = {str(row["day"]): (row["orders"], row["cents"]) for row in table(tmp_path, "revenue")}
    orders = table(tmp_path, "orders")
    days = {str(row["day"]) for row in orders}
    assert actual == {
        day: (
            sum(str(row["day"]) == day for row in orders),
            sum(row["cents"] for row in orders if str(row["day"]) == day),
        )
        for day in days
    }
    assert "2026-11-03" not in actual


@pytest.mark.oracle
@pytest.mark.usefixtures("spark")
def test_embeddings_follow_their_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only changed texts may be embedded again, and search must use the new vectors."""
    example = load("derive_embeddings")
    example.main(str(tmp_path))
    output = capsys.readouterr().out
    assert "embedded: 1,000 of 1,000 chunks" in output
    assert "embedded: 15 after" in output
    rows = table(tmp_path, "chunks")
    actual = example.search(str(tmp_path / "chunks.lance"), "a bird that makes music")
    assert all("penguin" in row["text"] for row in actual)
    batch = pa.record_batch({"text": [row["text"] for row in rows]})
    expected = example.embed(batch, example.load_model())
    assert np.allclose([row["embedding"] for row in rows], expected)


@pytest.mark.usefixtures("spark")
def test_captured_changes_reach_table_and_index(tmp_path: Path) -> None:
    """Two targets follow one stream, and both must apply deletes."""
    example = load("debezium_to_table")
    example.main(str(tmp_path))
    bodies = {row["id"]: row["body"] for row in table(tmp_path, "articles")}
    assert sorted(bodies) == [1, 2, 4]
    assert bodies[2] == "A stream of changes, exactly once"
    index = example.SearchIndex(str(tmp_path / "search.db"))
    assert index.search("stream") == ["Streams"]
    assert index.search("removed") == []


@pytest.mark.usefixtures("spark")
def test_histories_contain_every_state(tmp_path: Path) -> None:
    """Late and repeated changes must yield the intervals of type 2."""
    load("slowly_changing_dimension").main(str(tmp_path))
    rows = table(tmp_path, "history")
    history = sorted(rows, key=lambda row: (row["id"], row["__START_AT"]["version"]))
    assert [
        (row["id"], row["city"], row["status"], row["__END_AT"] is None) for row in history
    ] == [
        (1, "Köln", "new", False),
        (1, "Köln", "gold", False),
        (1, "Aachen", "gold", True),
        (2, "Bonn", "new", False),
        (2, "Bonn", "back", True),
        (3, "Ulm", "new", False),
        (4, "Trier", "new", True),
    ]


@pytest.mark.server("moto")
@pytest.mark.usefixtures("spark")
def test_streams_on_s3_are_followed(tmp_path: Path) -> None:
    """The example must work with the options that it shows."""
    assert load("stream_on_s3").main(str(tmp_path)) == {"boiler": 93.5}
