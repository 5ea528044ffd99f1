"""Sorted rows that await a commit: read by range, and cut into ranges."""

import uuid
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.row_updates import staged_files
from lance_stream.row_updates.staged_files import (
    LAST_WORD,
    SortedRows,
    WordRange,
    cut_ranges,
    discard_files,
    sort_rows,
    write_sorted,
)
from lance_stream.storage.memory_store import MemoryStore

WORDS = [[5, 3, 3, 9, 0], [], [7], [3, LAST_WORD, 4, 4, 4, 8, 1]]


@pytest.mark.parametrize("in_memory", [True, False])
def test_ranges_have_all_of_their_rows(in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends of a range belong to it, and equal words may be in several bundles."""
    monkeypatch.setattr(staged_files, "MIN_ROWS", 2)
    store = MemoryStore(f"/{uuid.uuid4()}")
    batches = [
        (pa.record_batch({"row": [f"{word}" for word in words]}), np.array(words, np.uint64))
        for words in WORDS
        if words
    ]
    batches.insert(1, (batches[0][0].slice(0, 0), np.empty(0, np.uint64)))
    rows = sort_rows(batches) if in_memory else write_sorted(batches, store)
    assert rows.num_rows == 13
    assert (rows.path == "", rows.data != b"") == (in_memory, in_memory)
    assert rows.num_bytes == (len(rows.data) if in_memory else store.size(rows.path))
    every = [word for words in WORDS for word in words]
    ends = sorted({0, 2, 10, *every})
    for first in ends:
        for last in ends:
            expected = sorted(word for word in every if first <= word <= last)
            words = []
            for batch, words_of_batch in rows.read_with_words(store, WordRange(first, last)):
                assert batch.column("row").to_pylist() == list(map(str, words_of_batch.tolist()))
                words += words_of_batch.tolist()
            assert sorted(words) == expected
    assert sum(batch.num_rows for batch in rows.read(store)) == 13


def test_ranges_without_rows_read_nothing() -> None:
    """A range may lie between the words of a file, which need not be opened."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    batch = pa.record_batch({"row": ["a", "b"]})
    rows = write_sorted([(batch, np.array([4, 8], np.uint64))], store)
    discard_files(store, [rows, SortedRows()])
    assert list(store.list("")) == []
    for empty in WordRange(0, 3), WordRange(9, LAST_WORD):
        assert list(rows.read(store, empty)) == []
    discard_files(store, [rows])  # best effort: it is gone


def rows_of(bundles: Sequence[tuple[int, int, int]]) -> SortedRows:
    """Return rows in bundles, each with its first word, its number of rows and of bytes."""
    stops = np.cumsum([size for _, _, size in bundles])
    spans = [
        (count, stop - size, stop)
        for (_, count, size), stop in zip(bundles, stops.tolist(), strict=True)
    ]
    return SortedRows(
        bundles=np.array(spans, np.int64).reshape(-1, 3),
        words=np.array([(first, first + 3) for first, _, _ in bundles], np.uint64).reshape(-1, 2),
    )


@pytest.mark.parametrize(
    ("bundles", "multiple", "starts"),
    [
        ([], 1, []),
        ([(5, 4, 1)], 1, [0]),
        ([(0, 4, 1), (10, 4, 1), (20, 4, 1)], 1, [0, 20]),
        ([(0, 4, 1), (10, 5, 1), (20, 3, 1)], 1, [0, 10]),
        ([(0, 1, 50), (10, 1, 50), (20, 1, 1)], 1, [0, 20]),
        ([(0, 1, 50), (10, 1, 51), (20, 1, 49)], 1, [0, 10]),
        ([(0, 1, 99), (10, 7, 1), (20, 1, 1)], 1, [0, 20]),
        ([(0, 9, 1), (10, 4, 1), (20, 4, 1), (30, 1, 1)], 1, [0, 10, 30]),
        ([(0, 9, 1), (10, 1, 50), (20, 1, 50), (30, 1, 1)], 1, [0, 10, 30]),
        ([(0, 9, 1), (10, 9, 1), (20, 1, 101)], 1, [0, 10, 20]),
        ([(5, 9, 1), (5, 9, 1), (5, 9, 1)], 1, [0]),
        ([(5, 9, 1), (5, 9, 1), (6, 9, 1)], 1, [0, 6]),
        ([(5, 9, 1), (6, 9, 1), (7, 9, 1)], 1, [0, 6, 7]),
        ([(1, 9, 1), (9, 9, 1), (15, 9, 1), (17, 1, 1)], 8, [0, 8, 16]),
        ([(1, 9, 1), (7, 9, 1)], 8, [0]),
    ],
    ids=[
        "none", "one", "as many rows", "a row too many", "as many bytes", "a byte too many",
        "either limit", "as many rows again", "as many bytes again", "large bundles",
        "equal words", "the next word", "the next words", "multiples", "one multiple",
    ],
)  # fmt: skip
def test_ranges_are_cut_by_size(
    bundles: list[tuple[int, int, int]], multiple: int, starts: list[int]
) -> None:
    """Ranges cover all words, and rows with equal words are in one of them."""
    stops = [*(start - 1 for start in starts[1:]), LAST_WORD][: len(starts)]
    expected = list(map(WordRange, starts, stops))
    apart = [rows_of([bundle]) for bundle in reversed(bundles)]
    for rows in [rows_of(bundles)], [SortedRows(), *apart]:
        assert cut_ranges(rows, 8, 100, multiple) == expected
        if multiple == 1:
            assert cut_ranges(rows, 8, 100) == expected
