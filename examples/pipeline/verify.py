"""What has to be true when all changes have arrived: proved from the database and by brute force.

Rows are read by pylance, which shares no code with the writer of the table.
"""

import random
from typing import Any

import lance
import numpy as np

import lance_stream
from examples.pipeline import database
from examples.pipeline.embedding import DIMENSIONS, embed, embed_texts, words_of
from examples.pipeline.searching import (
    TEXT_COLUMNS,
    Search,
    has_word_by_hand,
    nearest_by_hand,
)
from examples.pipeline.settings import Settings

NUM_QUERIES = 20
LIMIT = 10


def rows_differ(settings: Settings) -> dict[str, list[Any]]:
    """Return which rows of the table are not those of the database, as lists of ids."""
    table = lance.dataset(settings.table).to_table(list(database.COLUMNS))
    table_rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return {
        name: ids
        for name, ids in database.differences(
            database.rows_of(settings.database), table_rows
        ).items()
        if ids
    }


def embeddings_differ(settings: Settings) -> list[int]:
    """Return the ids of rows whose embedding is not the function of their text, bit by bit."""
    table = lance.dataset(settings.table).to_table(["id", "title", "body", "embedding"])
    wrong: list[int] = []
    for batch in table.to_batches():
        expected = embed(batch).values.to_numpy().reshape(-1, DIMENSIONS)
        column = batch["embedding"]
        stored = np.full((batch.num_rows, DIMENSIONS), np.nan, np.float32)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        stored[there] = column.drop_null().values.to_numpy().reshape(-1, DIMENSIONS)
        same = (stored.view(np.uint32) == expected.view(np.uint32)).all(axis=1)
        wrong += batch["id"].filter(~same).to_pylist() if not same.all() else []
    return wrong


def searches_differ(settings: Settings, seed: int = 0) -> list[str]:
    """Return which searches do not find what brute force finds."""
    chance = random.Random(seed)
    search = Search(settings.table)
    table = search.newest.to_table(["id", *TEXT_COLUMNS, "embedding"])
    ids = table["id"].to_numpy()
    texts = {name: table[name].to_pylist() for name in TEXT_COLUMNS}
    vectors = np.stack(table["embedding"].to_numpy(zero_copy_only=False)).astype(np.float32)
    wrong = []
    for _ in range(NUM_QUERIES):
        words = words_of(chance.choice([value for value in texts["body"] if value]))
        query = " ".join(chance.sample(words, min(len(words), 3)))
        vector = embed_texts([query])[0]
        exact = nearest_by_hand(ids, vectors, vector, LIMIT)
        actual = [(row["id"], row["_distance"]) for row in search.nearest(vector, LIMIT)]
        if not same_neighbours(exact, actual):
            wrong.append(f"neighbours of {query!r}: {actual} instead of {exact}")
        word = chance.choice(words)
        for name in TEXT_COLUMNS:
            hits = search.with_word(word, name)
            expected = has_word_by_hand(zip(ids.tolist(), texts[name], strict=True), word)
            if hits != expected:
                wrong.append(
                    f"{word!r} in {name}: {len(hits)} rows instead of {len(expected)}, for example "
                    f"{sorted(hits ^ expected)[:5]}"
                )
    return wrong


def same_neighbours(expected: list[tuple[int, float]], actual: list[tuple[int, float]]) -> bool:
    """Return whether two results are equal; rows of the same distance may stand for each other."""
    if len(expected) != len(actual) or len({key for key, _ in actual}) != len(actual):
        return False
    if not expected:
        return True
    far = [np.array([value for _, value in result]) for result in (expected, actual)]
    if not np.allclose(*far, atol=1e-5):
        return False
    last = expected[-1][1] - 1e-5
    near = [{key for key, value in result if value < last - 1e-5} for result in (expected, actual)]
    others = {key for key, value in actual if value < last + 3e-5}
    return near[0] <= others


def findings(settings: Settings) -> list[str]:
    """Return all that is wrong; nothing if all is right."""
    wrong = [f"rows {name}: {ids[:10]} ({len(ids)})" for name, ids in rows_differ(settings).items()]
    ids = embeddings_differ(settings)
    if ids:
        wrong.append(f"embeddings that are not of their text: {ids[:10]} ({len(ids)})")
    else:
        wrong += searches_differ(settings)
    wrong += [str(finding) for finding in lance_stream.open_dataset(settings.table).verify()]
    return wrong
