"""A table as the pipeline makes it, without the pipeline."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from examples.pipeline.derive import embeddings_of
from examples.pipeline.searching import create_indices
from examples.pipeline.settings import Settings
from examples.pipeline.texts import article
from lance_stream import Dataset

pytest.importorskip("wordllama", reason="the model of the embeddings has no wheel for this Python")

NUM_ROWS = 600
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("title", pa.string()),
        ("body", pa.string()),
        ("product", pa.string()),
        ("state", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("revision", pa.int32()),
        ("updated_at", pa.timestamp("us", "UTC")),
    ]
)


def settings_of(folder: Path) -> Settings:
    """Return settings of a state in a folder; the page gets a free port."""
    return Settings(state=str(folder), page_port="0")


def rows(first: int, stop: int, seed: int = 1) -> pa.Table:
    """Return articles."""
    chance = random.Random(seed)
    articles = [(key, article(chance)) for key in range(first, stop)]
    values = [
        {
            "id": key,
            "title": value.title,
            "body": value.body,
            "product": value.product,
            "state": value.state,
            "price": value.price,
            "revision": 0,
            "updated_at": 1_750_000_000_000_000 + key,
        }
        for key, value in articles
    ]
    return pa.Table.from_pylist(values, SCHEMA)


def make_table(settings: Settings) -> Dataset:
    """Create the table, with embeddings and indices, and some rows that the indices miss."""
    lance_stream.create_dataset(settings.table, rows(0, NUM_ROWS), primary_key=["id"])
    embeddings_of(settings.table).run()
    assert create_indices(settings.table)
    ds = lance_stream.open_dataset(settings.table)
    special = rows(NUM_ROWS - 5, NUM_ROWS + 5, seed=2)
    words = pa.array([f"<b>Zebra</b> & {key} xylophone" for key in special["id"].to_pylist()])
    ds.upsert(special.set_column(2, "body", words), on="id").delete("id < 10")
    embeddings_of(settings.table).run()
    return lance_stream.open_dataset(settings.table)
