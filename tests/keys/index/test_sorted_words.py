"""Words are found where NumPy finds them, however they are spread."""

import numpy as np
import pytest

from lance_stream.arrays import U64s
from lance_stream.keys.index import sorted_words
from lance_stream.keys.index.sorted_words import SortedWords

DICE = np.random.default_rng(5)

SPREADS: dict[str, U64s] = {
    "hashes": DICE.integers(0, 1 << 64, 20_000, dtype=np.uint64),
    "numbers in turn": np.arange(17, 20_017, dtype=np.uint64),
    "few words, many times": DICE.integers(5, 9, 20_000, dtype=np.uint64),
    "all the same": np.full(20_000, 7, np.uint64),
    "the smallest and the largest": np.array([0, 2**64 - 1], np.uint64).repeat(9000),
    "crowded, and one far off": np.append(
        DICE.integers(0, 1 << 40, 20_000, dtype=np.uint64), np.uint64(2**64 - 1)
    ),
    "a power of two": np.arange(1 << 12, dtype=np.uint64) << np.uint64(52),
    "one": np.array([3], np.uint64),
}


@pytest.mark.parametrize("spread", SPREADS)
def test_positions_equal_those_of_numpy(spread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search replaces `searchsorted` for speed, and skewed words are where
    its guess is worst.
    """
    monkeypatch.setattr(sorted_words, "MANY_WORDS", 1)
    words = np.sort(SPREADS[spread])
    near = np.concatenate([words, words + np.uint64(1), words - np.uint64(1)])
    ends = np.array([0, 2**64 - 1], np.uint64)
    far = np.append(DICE.integers(0, 1 << 64, 1000, dtype=np.uint64), ends)
    search = SortedWords(words)
    for requested in (near, np.sort(near), far, words[:0]):
        positions = search.first_at_least(requested)
        assert np.array_equal(positions, np.searchsorted(words, requested, "left"))


@pytest.mark.parametrize("words", SPREADS.values(), ids=list(SPREADS))
def test_all_equal_words_are_found(words: U64s) -> None:
    """A key may be in several files, and two keys may have one word."""
    words = np.sort(words)
    targets = np.unique(np.concatenate([words[::7], words[::11] + np.uint64(1)]))
    positions, which = sorted_words.spread(*SortedWords(words).equal_to(targets))
    expected = [np.flatnonzero(words == target) for target in targets[:200]]
    head = which < 200
    assert positions[head].tolist() == np.concatenate(expected).tolist()
    assert np.array_equal(words[positions], targets[which])
    assert len(positions) == np.isin(words, targets).sum()
    assert len(SortedWords(words[:0]).equal_to(targets)[1].nonzero()[0]) == 0


def test_few_words_have_no_parts() -> None:
    """For few words the table of parts costs more than the search."""
    words = np.arange(10, dtype=np.uint64)
    search = SortedWords(words)
    assert search.first_at_least(words).tolist() == list(range(10))
    assert SortedWords(words[:0]).first_at_least(words).tolist() == [0] * 10
    assert search._begins is None


def test_large_parts_are_searched_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part has nearly all words, so the last of them is as far from its start as possible."""
    monkeypatch.setattr(sorted_words, "MANY_WORDS", 1)
    monkeypatch.setattr(sorted_words, "_MAX_OF_PART", 1 << 20)
    for size in (1, 2, 3, 4, 7, 8, 9, 255, 256, 257, 1000):
        words = np.append(np.arange(1, size + 1), 1 << 62).astype(np.uint64)
        requested = np.sort(np.append(words, words + np.uint64(1)))
        positions = SortedWords(words).first_at_least(requested)
        assert np.array_equal(positions, np.searchsorted(words, requested, "left"))
