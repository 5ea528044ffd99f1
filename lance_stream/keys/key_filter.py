"""A fast filter for rows that may have a key of a batch, applied before the exact lookup.

The word of a key (`key_words`) is multiplied by a large odd number, and the upper bits of the
product are an index into a table of booleans, which records whether the batch has such a key:

    key  ->  word (u64)  ->  word * ODD >> shift  ->  may the batch have the key?

Hits are checked again with another number and another table, to remove accidental ones. The tables
fit into the processor's caches, and rows are processed in parts that fit, too. Most rows cost a few
nanoseconds, a fraction of the cost of a hash table of the values, and no hash table is rebuilt for
every small fragment.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions, U64s
from lance_stream.keys.key_words import key_words

MAX_KEYS: Final = 1 << 21
"""The maximum number of keys; for more, the table would be too full, or too large, to be useful."""

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD: Final = np.uint64(0xD6E8FEB86659FD93)
_ROWS_AT_ONCE: Final = 1 << 15
_SLOTS_PER_KEY: Final = 16
_MIN_BITS: Final = 10
_MAX_BITS: Final = 22


class KeyFilter:
    """Finds rows that may have a key of a batch.

    Args:
        words: (num_keys,) the words of the keys (`key_words`).
    """

    def __init__(self, words: U64s) -> None:
        num_bits = (_SLOTS_PER_KEY * max(len(words), 1) - 1).bit_length()
        self._shift = np.uint64(64 - min(max(num_bits, _MIN_BITS), _MAX_BITS))
        num_slots = 1 << (64 - int(self._shift))
        self._is_in_first, self._is_in_other = np.zeros((2, num_slots), np.bool_)
        self._is_in_first[(words * _ODD) >> self._shift] = True
        self._is_in_other[(words * _OTHER_ODD) >> self._shift] = True

    def candidates(self, keys: Sequence[pa.Array]) -> tuple[Positions, U64s]:
        """Return the rows that may have one of the keys, ascending, and their words.

        Args:
            keys: (num_rows,) values of each key column, as for `key_words`.
        """
        num_rows = len(keys[0])
        scratch = np.empty(min(num_rows, _ROWS_AT_ONCE), np.uint64)
        offsets, word_parts = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for start in range(0, num_rows, _ROWS_AT_ONCE):
            words = key_words([key.slice(start, _ROWS_AT_ONCE) for key in keys])
            positions = scratch[: len(words)]
            np.multiply(words, _ODD, out=positions)
            np.right_shift(positions, self._shift, out=positions)
            # numpy uses signed numbers as indices without a conversion
            rows = np.flatnonzero(self._is_in_first[positions.view(np.int64)])
            if not len(rows):
                continue
            # an accidental hit rarely occurs in both tables
            words = words[rows]
            survivors = self._is_in_other[(words * _OTHER_ODD) >> self._shift]
            offsets.append(rows[survivors] + start)
            word_parts.append(words[survivors])
        return np.concatenate(offsets), np.concatenate(word_parts)
