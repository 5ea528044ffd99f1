"""FSST: byte strings in which frequent pieces are replaced by 1-byte codes.

A value is a sequence of

    code          u8, less than num_symbols   stands for the symbol's 1 to 8 bytes
    255 | byte    2 u8                        stands for the byte (which can be 255)

The encoded values are byte strings again; the encoding contains the symbol table, one per page.
Values stay separate, so that they can be stored in chunks or individually.

Decoding is one gather for all values: Arrow's `take` looks the codes up in a table of byte strings,
and the offsets of its result are the ends of the values. Escapes (every second of a run of 255s,
since no value ends within a pair) are empty there; their bytes are inserted afterwards. Many codes
are looked up two at a time, in a table of all 65,536 pairs, which saves a quarter of the time.

Encoding (`fsst_matching`, by symbols that `fsst_training` chose) walks all values at once, about
1 MiB at a time. Long values are split, so that there are always many at the same time.

Source:  as in `fsst_symbols`.
Differs: Lance's reader treats a code without a symbol as empty; here it is damage.
"""

from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Bytes, Positions
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.blocks.chunked_buffers import slices_joined
from lance_stream.file.blocks.data_blocks import (
    INT32,
    INT32_MAX,
    INT64,
    Offsets,
    VariableWidthBlock,
    Words,
)
from lance_stream.file.compression.compiled import loops
from lance_stream.file.compression.fsst_matching import (
    ESCAPE,
    MAX_SYMBOL_BYTES,
    LaidOut,
    Matcher,
    Symbols,
    lay_out,
)
from lance_stream.file.compression.fsst_symbols import SymbolTable
from lance_stream.file.compression.fsst_training import train

MIN_CODES_FOR_PAIRS = 1 << 20
"""The least size for which the table of pairs, which takes 2 to 4 milliseconds, saves time."""

MIN_SLICE_BYTES = 256
"""Shorter slices between escapes are not copied individually."""

MIN_BYTES = 16 * 1024
"""Fewer bytes are stored plain: a symbol table alone has 2,312 bytes."""

SAMPLE_BYTES = 24 * 1024
PIECE_BYTES = 512
BATCH_BYTES = 1 << 20

_STRIDE = 2654435761

_ENDS_AFTER_ESCAPE = "an FSST value ends after an escape, without its byte"
_CODE_WITHOUT_SYMBOL = "an FSST code has no symbol"


class TrainedSymbols(NamedTuple):
    """The symbols for a page, chosen from a sample of its values.

    Attributes:
        symbols: Up to 255 symbols.
        sizes: The number of bytes of each symbol.
        terminator: A byte that no symbol of several bytes contains.
        ratio: The size of the encoded sample, divided by its size.
        bounds: (num_pieces + 1,) the bounds of the pieces that are encoded separately.
        is_cut: Whether values were split into several pieces.
    """

    symbols: Symbols
    sizes: Positions
    terminator: int
    ratio: float
    bounds: Positions
    is_cut: bool


def trained(block: VariableWidthBlock) -> TrainedSymbols | None:
    """Choose symbols for values; None if they are few."""
    total = int(block.offsets[-1])
    if total < MIN_BYTES:
        return None
    bounds = block.offsets.astype(np.int64)
    is_cut = int(np.diff(bounds).max()) > PIECE_BYTES
    if is_cut:
        bounds = np.sort(np.append(bounds, np.arange(0, total, PIECE_BYTES)), kind="stable")
        bounds = bounds[np.append(True, bounds[1:] != bounds[:-1])]
    sample, terminator = _sample(bounds, block.data)
    symbols, sizes, num_remaining = train(sample, terminator)
    num_bytes = max(1, int((sample.stops - sample.starts).sum()))
    return TrainedSymbols(symbols, sizes, terminator, num_remaining / num_bytes, bounds, is_cut)


def encode(
    block: VariableWidthBlock, choice: TrainedSymbols | None = None
) -> tuple[VariableWidthBlock, SymbolTable]:
    """Encode values.

    Args:
        block: The values.
        choice: The result of `trained`; None to train now.

    Returns:
        Values of the same number and offset width, and the symbol table. The table is off if the
        values are stored plain, because they are few or would become longer.
    """
    plain = SymbolTable(is_on=False, symbols=())
    choice = choice or trained(block)
    if choice is None:
        return block, plain
    symbols, sizes, bounds = choice.symbols, choice.sizes, choice.bounds
    codes, counts = _codes(bounds, block.data, Matcher(symbols, sizes), choice.terminator)
    if len(codes) >= int(block.offsets[-1]):
        return block, plain
    offsets = np.zeros(len(bounds), block.offsets.dtype)
    np.cumsum(counts, out=offsets[1:])
    if choice.is_cut:
        offsets = offsets[np.searchsorted(bounds, block.offsets)]
    stored = symbols.astype("<u8").tobytes()
    starts = range(0, len(stored), MAX_SYMBOL_BYTES)
    table = tuple(
        stored[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)
    )
    return VariableWidthBlock(block.num_values, offsets, codes), SymbolTable(
        is_on=True, symbols=table, terminator=choice.terminator
    )


def _sample(bounds: Positions, data: Bytes) -> tuple[LaidOut, int]:
    """Return pieces of about `SAMPLE_BYTES` from the whole page, and their terminator."""
    num_pieces = len(bounds) - 1
    num_samples = max(1, num_pieces * SAMPLE_BYTES // int(bounds[-1]))
    positions = np.unique(np.arange(min(num_samples, num_pieces)) * _STRIDE % num_pieces)
    sizes = bounds[positions + 1] - bounds[positions]
    positions = positions[: 1 + int(np.searchsorted(np.cumsum(sizes), 2 * SAMPLE_BYTES))]
    offsets = np.zeros(len(positions) + 1, np.int64)
    np.cumsum(bounds[positions + 1] - bounds[positions], out=offsets[1:])
    bytes_of = slices_joined(data, bounds[positions], bounds[positions + 1])
    terminator = int(np.argmin(np.bincount(bytes_of, minlength=256)))
    return lay_out(offsets, bytes_of, terminator), terminator


def _codes(
    bounds: Positions, data: Bytes, matcher: Matcher, terminator: int
) -> tuple[Bytes, Positions]:
    """Return the codes of all pieces, and the bytes of each."""
    kernels = loops.get()
    if kernels is not None:
        return _codes_by_loop(kernels, bounds, data, matcher, terminator)
    codes, counts = [], []
    steps = np.arange(0, int(bounds[-1]), BATCH_BYTES)
    firsts = np.unique(np.append(np.searchsorted(bounds[:-1], steps), len(bounds) - 1))
    for first, last in pairwise(firsts.tolist()):
        strings = lay_out(bounds[first : last + 1], data, terminator)
        entries = matcher.match(strings)
        is_code = entries != 0
        code_bytes = entries[is_code].astype(np.uint8)
        sizes = np.add.reduceat(is_code.view(np.uint8), strings.starts, dtype=np.int64)
        escapes = np.flatnonzero(code_bytes == ESCAPE)
        if len(escapes):
            literals = np.flatnonzero(is_code)[escapes]
            code_bytes = np.insert(code_bytes, escapes + 1, strings.data[literals])
            pieces = np.searchsorted(strings.starts, literals, side="right") - 1
            sizes += np.bincount(pieces, minlength=len(sizes))
        codes.append(code_bytes)
        counts.append(sizes)
    return np.concatenate(codes), np.concatenate(counts)


def _codes_by_loop(
    kernels: ModuleType, bounds: Positions, data: Bytes, matcher: Matcher, terminator: int
) -> tuple[Bytes, Positions]:
    if bounds[0] != 0 or bounds[-1] > len(data) or (bounds[1:] < bounds[:-1]).any():
        raise InvalidInputError("an array of strings has offsets that descend or exceed its bytes")
    used = np.ascontiguousarray(data[: int(bounds[-1])])
    codes = np.empty(2 * len(used), np.uint8)
    ends = np.empty(len(bounds) - 1, np.int64)
    num_bytes = kernels.encode(used, bounds, terminator, *matcher.tables, codes, ends)
    return codes[:num_bytes], np.diff(ends, prepend=0)


def decode(block: VariableWidthBlock, table: SymbolTable) -> VariableWidthBlock:
    """Decode encoded values.

    Args:
        block: Encoded values; their offsets have been checked.
        table: The meaning of the codes.

    Returns:
        The same number of values; offsets are int64 if the encoded ones' are, or if needed.

    Raises:
        CorruptDataError: A code has no symbol, or a value ends after an escape.
    """
    if not table.is_on or block.offsets[-1] == 0:
        return block
    codes = block.data[: int(block.offsets[-1])]
    kernels = loops.get()
    if kernels is not None and block.offsets[0] == 0:
        return _decoded_by_loop(kernels, block, codes, table)
    escapes = _escapes(codes)
    num_before = np.searchsorted(escapes, block.offsets) if len(escapes) else None
    literals = codes[:0]
    if num_before is not None:
        if (np.append(-2, escapes)[num_before] == block.offsets - 1).any():
            raise CorruptDataError(_ENDS_AFTER_ESCAPE)
        literals = codes[escapes + 1]
        codes = codes.copy()
        codes[escapes + 1] = ESCAPE  # empty until the bytes are inserted
    is_large = len(codes) * MAX_SYMBOL_BYTES > INT32_MAX
    if len(codes) < MIN_CODES_FOR_PAIRS or is_large:
        ends, data = _take_strings(codes, _single_codes(table, is_large=is_large))
        offsets, positions = ends.take(block.offsets), ends.take(escapes)
    else:
        pairs = np.append(codes, np.uint8(ESCAPE)) if len(codes) % 2 else codes
        ends, data = _take_strings(pairs.view("<u2"), _pairs_of_codes(table))
        offsets, positions = (
            ends.take(array >> 1) + _first_of_pair(codes, array, table)
            for array in (block.offsets, escapes)
        )
    if num_before is not None:
        data = _with_literals(data[: int(offsets[-1])], positions, literals)
        offsets = offsets + num_before
    if block.offsets.dtype == np.int64 or offsets[-1] <= INT32_MAX:
        offsets = offsets.astype(block.offsets.dtype, copy=False)
    return VariableWidthBlock(block.num_values, offsets, data[: int(offsets[-1])])


def _decoded_by_loop(
    kernels: ModuleType, block: VariableWidthBlock, codes: Bytes, table: SymbolTable
) -> VariableWidthBlock:
    codes, stored = np.ascontiguousarray(codes), np.require(block.offsets, requirements=["C", "A"])
    symbols, lengths = _symbol_arrays(table)
    max_bytes = int(kernels.max_bytes(codes, lengths))
    is_large = block.offsets.dtype == np.int64 or max_bytes > INT32_MAX
    data = np.empty(max_bytes + MAX_SYMBOL_BYTES, np.uint8)
    offsets = np.empty(len(block.offsets), INT64 if is_large else INT32)
    total = int(kernels.decode(codes, stored, symbols, lengths, data, offsets))
    if total == kernels.ENDS_AFTER_ESCAPE:
        raise CorruptDataError(_ENDS_AFTER_ESCAPE)
    if total == kernels.CODE_WITHOUT_SYMBOL:
        raise CorruptDataError(_CODE_WITHOUT_SYMBOL)
    if total < 0:
        raise CorruptDataError("the offsets of FSST values exceed their codes")
    if total <= INT32_MAX:
        offsets = offsets.astype(block.offsets.dtype, copy=False)
    return VariableWidthBlock(block.num_values, offsets, data[:total])


@lru_cache(maxsize=64)
def _symbol_arrays(table: SymbolTable) -> tuple[Bytes, Bytes]:
    """Return (256, 8) padded symbols, and the bytes of each: 0 if there is none."""
    symbols = np.zeros((256, MAX_SYMBOL_BYTES), np.uint8)
    lengths = np.zeros(256, np.uint8)
    for code, symbol in enumerate(table.symbols):
        symbols[code, : len(symbol)] = list(symbol)
        lengths[code] = len(symbol)
    lengths[ESCAPE] = 1
    return symbols, lengths


def _escapes(codes: Bytes) -> Positions:
    """Return the positions of the escapes: the first, third, ... of each run of 255s."""
    positions: Positions = np.flatnonzero(codes == ESCAPE)
    if len(positions) == 0:
        return positions
    order = np.arange(len(positions))
    begins_run = np.append(True, positions[1:] != positions[:-1] + 1)
    first_of_run = np.maximum.accumulate(np.where(begins_run, order, 0))
    is_first_of_pair = (order - first_of_run) % 2 == 0
    return np.compress(is_first_of_pair, positions)


def _with_literals(data: Bytes, positions: Positions, literals: Bytes) -> Bytes:
    """Insert bytes at positions: slice by slice if there are few."""
    if len(positions) * MIN_SLICE_BYTES > len(data):
        return np.insert(data, positions, literals)
    source, single = data.data, literals.data
    bounds = [0, *positions.tolist(), len(data)]
    pieces = [source[: bounds[1]]]
    for position in range(len(positions)):
        pieces += (
            single[position : position + 1],
            source[bounds[position + 1] : bounds[position + 2]],
        )
    return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _first_of_pair(codes: Bytes, offsets: Offsets, table: SymbolTable) -> Offsets:
    """Return, for each offset into codes, the bytes of the code before it in its pair; or 0."""
    lengths = np.zeros(256, dtype=np.int32)
    lengths[: len(table.symbols)] = [len(symbol) for symbol in table.symbols]
    # The first offset is 0, which has no code before it: it is even, so the length does not count.
    return lengths.take(codes.take(offsets - 1)) * (offsets & 1)


def _take_strings(codes: Words, strings: pa.Array) -> tuple[Offsets, Bytes]:
    """Return the byte strings of codes, one after the other.

    Returns:
        The (num_codes + 1,) int32 or int64 offsets of each, and the bytes.
    """
    kind = pa.uint8() if codes.itemsize == 1 else pa.uint16()
    indices = pa.Array.from_buffers(kind, len(codes), [None, pa.py_buffer(codes)])
    block = strings.take(indices)
    if block.null_count:
        raise CorruptDataError(_CODE_WITHOUT_SYMBOL)
    _, offsets, data = block.buffers()
    is_large = pa.types.is_large_binary(block.type)
    return (
        np.frombuffer(offsets, dtype=INT64 if is_large else INT32),
        np.frombuffer(data, dtype=np.uint8),
    )


@lru_cache(maxsize=64)
def _single_codes(table: SymbolTable, *, is_large: bool) -> pa.Array:
    """Return 256 byte strings: the symbols, nulls, and nothing for an escape."""
    missing = [None] * (ESCAPE - len(table.symbols))
    kind = pa.large_binary() if is_large else pa.binary()
    return pa.array([*table.symbols, *missing, b""], type=kind)


@lru_cache(maxsize=4)
def _pairs_of_codes(table: SymbolTable) -> pa.Array:
    """Return the byte strings of all pairs `first | second << 8`; an escape is empty."""
    missing = [None] * (ESCAPE - len(table.symbols))
    strings = pa.array([*table.symbols, *missing, b""], type=pa.binary())
    codes = np.arange(256, dtype=np.uint8)
    first = strings.take(pa.array(np.tile(codes, 256)))
    second = strings.take(pa.array(np.repeat(codes, 256)))
    return pc.binary_join_element_wise(first, second, b"")
