"""Searches a run: looks up many words at once in a long ascending array of words.

A binary search over 16 million words jumps through 128 MB, and mostly waits for memory. Hashes are
distributed evenly, and so are most numbers. The range of words is therefore divided into equal
parts, and a table records where each part begins. The words of one part fit into a few cache lines
of the processor. This takes a quarter of the time.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Positions, U64s

MANY_WORDS: Final = 1 << 20
"""The minimum number of words for which a table of parts pays off."""

_WORDS_OF_PART: Final = 32
_MAX_OF_PART: Final = 1 << 12
_AT_ONCE: Final = 1 << 13


class SortedWords:
    """Ascending words, and a table of the parts of their range. Thread-safe.

    The first search builds the table; all words must be present by then. The table takes 4 bytes
    for every 32 to 64 words.

    Args:
        words: (n,) u64, ascending.

    Attributes:
        words: The words.
    """

    def __init__(self, words: U64s) -> None:
        self.words = words
        self._begins: npt.NDArray[np.uint32] | None = None
        self._shift = np.uint64(0)

    def equal_to(self, targets: U64s) -> tuple[Positions, Positions]:
        """Return where the words are that equal each of some words.

        Args:
            targets: (m,) u64, ascending.

        Returns:
            (m,) i64, the position of the first equal word, and (m,) i64, how many are equal. Where
            none is equal, the position means nothing.
        """
        words = self.words
        firsts = self.first_at_least(targets)
        counts = np.zeros(len(targets), np.int64)
        if not len(words):
            return firsts, counts
        hits = np.flatnonzero(words.take(firsts, mode="clip") == targets)
        stops = firsts[hits] + 1
        # Few words occur more than once: only the ends of those are searched for.
        has_more = words.take(stops, mode="clip") == targets[hits]
        many = np.flatnonzero(has_more & (stops < len(words)))
        stops[many] = np.searchsorted(words, targets[hits[many]], "right")
        counts[hits] = stops - firsts[hits]
        return firsts, counts

    def first_at_least(self, targets: U64s) -> Positions:
        """Return, for every target, the position of the first word that is not less.

        Args:
            targets: (m,) u64, in any order; ascending targets are faster.

        Returns:
            (m,) i64 positions; n where all words are less.
        """
        if len(self.words) < MANY_WORDS or not len(targets):
            return np.searchsorted(self.words, targets, "left")
        begins = self._begins
        if begins is None:
            begins = self._divide()
        positions: Positions = np.empty(len(targets), np.int64)
        for start in range(0, len(targets), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            positions[some] = self._some(targets[some], begins)
        return positions

    def _some(self, targets: U64s, begins: npt.NDArray[np.uint32]) -> Positions:
        words = self.words
        parts = ((np.clip(targets, words[0], words[-1]) - words[0]) >> self._shift).astype(np.int64)
        positions: Positions = begins[parts].astype(np.int64)
        stops: Positions = begins[parts + 1].astype(np.int64)
        largest_part = int((stops - positions).max())
        if largest_part > _MAX_OF_PART:  # the words are distributed unevenly, as numbers may be
            return np.searchsorted(words, targets, "left")
        # Binary search in all parts at the same time, with halving steps.
        step = 1 << largest_part.bit_length() >> 1
        while step:
            following = positions + step
            is_less = words.take(following - 1, mode="clip") < targets
            is_less &= following <= stops
            positions += step * is_less
            step >>= 1
        return positions

    def _divide(self) -> npt.NDArray[np.uint32]:
        """Build the table of parts. A word's part is its distance from the first word >> shift."""
        first, last = self.words[0], self.words[-1]
        bits = max((len(self.words) // _WORDS_OF_PART).bit_length() - 1, 1)
        self._shift = np.uint64(max(int(last - first).bit_length() - bits, 0))
        count = (int(last - first) >> int(self._shift)) + 1
        bounds = (np.arange(count, dtype=np.uint64) << self._shift) + first
        begins = np.searchsorted(self.words, bounds, "left")
        self._begins = np.append(begins, len(self.words)).astype(np.uint32)
        return self._begins


def spread(firsts: Positions, counts: Positions) -> tuple[Positions, Positions]:
    """Return the positions of ranges, and the number of the range that each belongs to.

    Args:
        firsts: (n,) i64, where each range begins.
        counts: (n,) i64, how many positions it has.
    """
    which = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return np.arange(len(which)) - (ends - counts)[which] + firsts[which], which
