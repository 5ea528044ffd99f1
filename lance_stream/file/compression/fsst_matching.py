"""Matches bytes with the symbols of an FSST table, always the longest that fits.

All byte strings are processed at once: one step finds the next symbol of each. A symbol is found

    by the first 3 bytes   in 4,096 slots, if it is longer than 2; one symbol has a slot
    by the first 2 bytes   in 65,536 slots, otherwise; which also have the code of the first byte

and 8 bytes are compared, including those after the string. So strings are laid out with one byte
between them, the terminator, that no symbol of several bytes contains: none crosses an end.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import as_strided

from lance_stream.arrays import Bytes, Positions
from lance_stream.file.blocks.data_blocks import Words
from lance_stream.file.compression.compiled import loops

ESCAPE = 255
MAX_SYMBOL_BYTES = 8

Symbols = npt.NDArray[np.uint64]
"""Up to 8 bytes each, the first one the least significant, padded with zeros."""

SLOT_BITS = 12
SPREAD = np.uint32(2971215073)
_FIRST_3 = np.uint64(0xFFFFFF)
_EIGHT = np.uint16(8)
_KEEP = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


class LaidOut(NamedTuple):
    """Byte strings with a terminator after each.

    Args:
        data: Their bytes, and 8 more.
        starts: (num_strings,) where each starts.
        stops: (num_strings,) the position of its terminator.
    """

    data: Bytes
    starts: Positions
    stops: Positions


class Matcher:
    """Finds the symbols of a table.

    Args:
        symbols: (num_symbols,) up to 255; code i means the i-th. No two of over 2 bytes
            have one slot (`slots_of`).
        sizes: (num_symbols,) bytes of each.

    Attributes:
        short: (65536,) `code | bytes << 8` by the first two bytes.
        values: (4096,) a longer symbol by its slot.
        masks: (4096,) the bytes of it that count.
        entries: (4096,) its `code | bytes << 8`.
    """

    def __init__(self, symbols: Symbols, sizes: Positions) -> None:
        entries = (np.arange(len(symbols)) | sizes << 8).astype(np.uint16)
        single = np.full(256, ESCAPE | 1 << 8, np.uint16)
        single[symbols[sizes == 1].astype(np.intp)] = entries[sizes == 1]
        self.short = np.tile(single, 256)
        self.short[symbols[sizes == 2].astype(np.intp)] = entries[sizes == 2]
        slots = slots_of(symbols[sizes > 2])
        self.values = np.full(1 << SLOT_BITS, _KEEP[8], np.uint64)
        self.masks = np.zeros(1 << SLOT_BITS, np.uint64)
        self.entries = np.zeros(1 << SLOT_BITS, np.uint16)
        self.values[slots] = symbols[sizes > 2]
        self.masks[slots] = _KEEP[sizes[sizes > 2]]
        self.entries[slots] = entries[sizes > 2]

    @property
    def tables(self) -> tuple[Words, Bytes, Symbols, Symbols, Words]:
        """The tables as `kernels` requires them.

        Those of longer symbols are small enough for the processor's fastest cache: `short`, then
        (4096,) a number by the slot, 0 if it has no symbol, and (256,) `values`, `masks` and
        `entries` by that number.
        """
        slots = np.flatnonzero(self.masks)
        numbers = np.zeros(1 << SLOT_BITS, np.uint8)
        numbers[slots] = np.arange(1, len(slots) + 1)
        values = np.full(256, _KEEP[8], np.uint64)
        masks = np.zeros(256, np.uint64)
        entries = np.zeros(256, np.uint16)
        for table, whole in ((values, self.values), (masks, self.masks), (entries, self.entries)):
            table[1 : len(slots) + 1] = whole[slots]
        return self.short, numbers, values, masks, entries

    def match(self, strings: LaidOut) -> npt.NDArray[np.uint16]:
        """Return the code at each byte.

        Returns:
            (len(data),) `code | bytes << 8` at the first byte of each symbol, 0 at the others. An
            escape has one byte.
        """
        entries = np.zeros(len(strings.data), np.uint16)
        kernels = loops.get()
        if kernels is not None and len(strings.starts):
            terminator = int(strings.data[strings.stops[0]])
            kernels.match(*strings, terminator, *self.tables, entries)
            return entries
        words = words_of(strings.data)
        live = strings.starts < strings.stops
        at, stops = strings.starts[live], strings.stops[live]
        while len(at):
            word = words[at]
            slots = slots_of(word)
            is_long = word & self.masks.take(slots) == self.values.take(slots)
            entry = np.where(
                is_long, self.entries.take(slots), self.short.take(word.astype(np.uint16))
            )
            entries[at] = entry
            at = at + (entry >> _EIGHT)
            live = at < stops
            if not live.all():
                at, stops = at[live], stops[live]
        return entries


def lay_out(offsets: Positions, data: Bytes, terminator: int) -> LaidOut:
    """Put a terminator after each byte string."""
    large = pa.large_binary()
    strings = pa.Array.from_buffers(
        large, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
    )
    ended = pc.binary_join_element_wise(
        strings, pa.scalar(bytes([terminator]), large), pa.scalar(b"", large)
    )
    bounds = np.frombuffer(ended.buffers()[1], np.int64)[: len(offsets)]
    laid = np.empty(int(bounds[-1]) + MAX_SYMBOL_BYTES, np.uint8)
    laid[: int(bounds[-1])] = np.frombuffer(ended.buffers()[2], np.uint8)[: int(bounds[-1])]
    laid[int(bounds[-1]) :] = terminator
    return LaidOut(laid, bounds[:-1], bounds[1:] - 1)


def words_of(data: Bytes) -> Symbols:
    """Return the 8 bytes from each byte on, as a view."""
    return as_strided(data[:8].view(np.uint64), (len(data) - 7,), (1,), writeable=False)


def slots_of(symbols: Symbols) -> npt.NDArray[np.intp]:
    """Return the slot of symbols of over 2 bytes: a number computed from the first 3."""
    spread = (symbols & _FIRST_3).astype(np.uint32) * SPREAD
    return (spread >> np.uint32(32 - SLOT_BITS)).astype(np.intp)


def prefixes(words: Symbols, sizes: Positions) -> Symbols:
    """Return the first bytes of words, the others zero."""
    return words & _KEEP[sizes]
