"""Search by pylance: words by the full-text indices, neighbours by the vector index."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
from lance.query import MatchQuery, MultiMatchQuery

from examples.pipeline.embedding import embed_texts, words_of

TEXT_COLUMNS = ["title", "body"]
RESULT_COLUMNS = ["id", "title", "body", "product", "state", "price", "updated_at"]
PARTITIONS = 8
MIN_ROWS = 512
"""With fewer, no index pays."""

_WORDS = {
    "base_tokenizer": "simple",
    "language": "English",
    "stem": False,
    "remove_stop_words": False,
    "ascii_folding": False,
    "with_position": False,
    "max_token_length": None,
}


def create_indices(table: str) -> bool:
    """Create the indices that are missing; return whether all are there."""
    ds = lance.dataset(table)
    if "embedding" not in ds.schema.names:
        return False
    if ds.count_rows("embedding IS NOT NULL") < MIN_ROWS:
        return False
    indexed = {
        column for describe_index in ds.describe_indices() for column in describe_index.field_names
    }
    if "id" not in indexed:
        ds.create_scalar_index("id", "BTREE")
    for column in TEXT_COLUMNS:
        if column not in indexed:
            ds.create_scalar_index(column, "INVERTED", **_WORDS)
    if "embedding" not in indexed:
        ds.create_index("embedding", "IVF_FLAT", metric="cosine", num_partitions=PARTITIONS)
    return True


class Search:
    """Searches the newest version of a table; several threads may use it.

    Args:
        table: Its location.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._opened: lance.LanceDataset | None = None
        self._lock = threading.Lock()

    @property
    def newest(self) -> lance.LanceDataset:
        """The newest version."""
        with self._lock:
            if self._opened is None or self._opened.latest_version != self._opened.version:
                self._opened = lance.dataset(self._table)
            return self._opened

    def words(
        self, query: str, limit: int = 10, columns: Sequence[str] = RESULT_COLUMNS
    ) -> list[dict[str, Any]]:
        """Return the rows with any of the words, the best match first."""
        if not words_of(query):
            return []
        text_query = MultiMatchQuery(query, TEXT_COLUMNS)
        scan = self.newest.scanner(
            [*columns, "_score"],
            full_text_query=text_query,
            limit=limit,
            disable_scoring_autoprojection=True,
        )
        rows: list[dict[str, Any]] = scan.to_table().to_pylist()
        return sorted(rows, key=lambda row: -row["_score"])

    def with_word(self, word: str, column: str) -> set[int]:
        """Return the ids of all rows that have a word in a column."""
        ds = self.newest
        text_query = MatchQuery(word, column)
        scan = ds.scanner(
            ["id"],
            full_text_query=text_query,
            limit=max(ds.count_rows(), 1),
            disable_scoring_autoprojection=True,
        )
        return set(scan.to_table()["id"].to_pylist())

    def neighbours(
        self, query: str, limit: int = 10, columns: Sequence[str] = RESULT_COLUMNS
    ) -> list[dict[str, Any]]:
        """Return the rows whose vectors are nearest to that of a text."""
        return self.nearest(embed_texts([query])[0], limit, columns, probes=PARTITIONS // 2)

    def nearest(
        self,
        vector: npt.NDArray[np.float32],
        limit: int = 10,
        columns: Sequence[str] = ("id",),
        probes: int = PARTITIONS,
    ) -> list[dict[str, Any]]:
        """Return the rows whose vectors are nearest; none to a zero vector.

        Args:
            vector: (256,) f32.
            limit: How many.
            columns: Which columns of them; `_distance`, of the cosine, is added.
            probes: How many of the index's partitions are searched; all of them make it exact.
        """
        ds = self.newest
        if not vector.any() or "embedding" not in ds.schema.names:
            return []
        nearest = {"column": "embedding", "q": vector, "k": limit, "metric": "cosine"}
        nearest |= {"minimum_nprobes": probes, "maximum_nprobes": probes}
        scan = ds.scanner(
            [*columns, "_distance"], nearest=nearest, disable_scoring_autoprojection=True
        )
        rows: list[dict[str, Any]] = scan.to_table().to_pylist()
        return sorted(rows, key=lambda row: row["_distance"])


def nearest_by_hand(
    ids: npt.NDArray[np.int64],
    vectors: npt.NDArray[np.float32],
    vector: npt.NDArray[np.float32],
    limit: int,
) -> list[tuple[int, float]]:
    """Return what `Search.nearest` does, from all vectors and without an index.

    Args:
        ids: (n,).
        vectors: (n, 256), of length 1 or 0; the latter are near to nothing.
        vector: (256,).
        limit: How many.
    """
    if not vector.any():
        return []
    far = 1 - vectors.astype(np.float64) @ vector.astype(np.float64)
    far[~vectors.any(axis=1)] = np.inf
    order = np.argsort(far, kind="stable")[:limit]
    return [(int(ids[value]), float(far[value])) for value in order if np.isfinite(far[value])]


def has_word_by_hand(rows: Iterable[tuple[int, str | None]], word: str) -> set[int]:
    """Return the ids of texts that have a word, from all texts and without an index."""
    return {key for key, text in rows if word in words_of(text or "")}
