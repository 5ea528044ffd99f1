"""Chooses the symbols of an FSST table: those that save most in a sample of the values.

Starting from none, the sample is encoded by the present symbols. The candidates are the symbols
that occurred, and each two adjacent ones, joined and cut to 8 bytes; the value of each is what it
covers of the sample. The best 255 form the next table. The last round joins none; the table by
which the sample becomes smallest is used.

Source:  Boncz, Neumann and Leis, "FSST: Fast Random Access String Compression", VLDB 2020.
Differs: The whole sample is used in every round, because counting it takes no loop.
"""

import numpy as np

from lance_stream.arrays import Positions
from lance_stream.file.compression.fsst_matching import (
    ESCAPE,
    MAX_SYMBOL_BYTES,
    LaidOut,
    Matcher,
    Symbols,
    prefixes,
    slots_of,
    words_of,
)

MAX_SYMBOLS = 255
MIN_COUNTS = (1, 1, 2, 3, 0)
"""How often a candidate must occur in each round but the last, which joins none."""

SINGLE_BYTE_WORTH = 8
"""The weight of a symbol of one byte: it saves an escape, and lets other symbols continue."""

_BYTE = np.uint64(0xFF)


def train(sample: LaidOut, terminator: int) -> tuple[Symbols, Positions, int]:
    """Choose the symbols.

    Args:
        sample: Some of the values.
        terminator: The byte after each.

    Returns:
        Up to 255 symbols, the bytes of each, and the bytes that they leave of the sample.
    """
    symbols, sizes = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    best, min_bytes = (symbols, sizes), 2 * len(sample.data)
    for min_count in (*MIN_COUNTS, None):
        entries = Matcher(symbols, sizes).match(sample)
        positions = np.flatnonzero(entries)
        entries = entries[positions]
        num_bytes = len(entries) + int(np.count_nonzero(entries & 0xFF == ESCAPE))
        if num_bytes < min_bytes:
            best, min_bytes = (symbols, sizes), num_bytes
        if min_count is not None:
            lengths = (entries >> 8).astype(np.int64)
            symbols, sizes = _best(
                *_candidates(sample, positions, lengths, joins=min_count > 0),
                terminator,
                min_count,
            )
    return *best, min_bytes


def _candidates(
    sample: LaidOut, positions: Positions, sizes: Positions, *, joins: bool
) -> tuple[Symbols, Positions]:
    """Return the symbols that were found, the first bytes of them, and adjacent symbols joined."""
    words = prefixes(words_of(sample.data)[positions], sizes)
    is_long = sizes > 1
    firsts = words & _BYTE
    candidates = [words, firsts[is_long]]
    num_bytes = [sizes, np.ones(int(is_long.sum()), np.int64)]
    if joins:
        strings = np.searchsorted(sample.starts, positions, side="right")
        repeats = np.flatnonzero(strings[1:] == strings[:-1])
        repeats = repeats[sizes[repeats] < MAX_SYMBOL_BYTES]
        singles = np.ones(len(sizes), np.int64)
        for begun, right, right_sizes in (
            (repeats, words, sizes),
            (repeats[is_long[repeats + 1]], firsts, singles),
        ):
            shifts = (8 * sizes[begun]).astype(np.uint64)
            total = np.minimum(sizes[begun] + right_sizes[begun + 1], MAX_SYMBOL_BYTES)
            candidates.append(prefixes(words[begun] | right[begun + 1] << shifts, total))
            num_bytes.append(total)
    return np.concatenate(candidates), np.concatenate(num_bytes)


def _best(
    candidates: Symbols, sizes: Positions, terminator: int, min_count: int
) -> tuple[Symbols, Positions]:
    order = np.lexsort((sizes, candidates))
    candidates, sizes = candidates[order], sizes[order]
    differs = (candidates[1:] != candidates[:-1]) | (sizes[1:] != sizes[:-1])
    heads = np.flatnonzero(np.append(True, differs))
    counts = np.diff(np.append(heads, len(candidates)))
    candidates, sizes = candidates[heads], sizes[heads]
    inside = np.arange(MAX_SYMBOL_BYTES) < sizes[:, None]
    is_terminator = candidates.view(np.uint8).reshape(-1, MAX_SYMBOL_BYTES) == terminator
    fits = (sizes == 1) | ~(is_terminator & inside).any(axis=1) & (counts >= min_count)
    candidates, sizes, counts = candidates[fits], sizes[fits], counts[fits]
    worth = counts * np.where(sizes == 1, SINGLE_BYTE_WORTH, sizes)
    order = np.argsort(-worth, kind="stable")
    candidates, sizes = candidates[order], sizes[order]
    # Of all that share a slot, the best one stays; the short ones have none.
    slots = np.where(sizes > 2, slots_of(candidates), -1 - np.arange(len(sizes)))
    winners = np.sort(np.unique(slots, return_index=True)[1])[:MAX_SYMBOLS]
    return candidates[winners], sizes[winners]
