"""FSST codec: byte strings in which frequent pieces are replaced by 1-byte codes.

A value is a sequence of

    code          u8, less than num_symbols   stands for the symbol's 1 to 8 bytes
    255 | byte    2 u8                        stands for the byte (which can be 255)

The encoded values are themselves stored by the variable codec; the symbol table, one a page, in
the encoding. Values stay apart, so the codec serves mini-block and full-zip pages alike.

Decoding is one gather for all values: numpy finds the escapes (every second of a run of 255s is
one, as no value ends within a pair), Arrow's `take` looks the codes up in a table of byte strings,
and the offsets of its result say where each value ends. Many codes without an escape are looked up
two at a time, in a table of all 65,536 pairs, which takes a quarter less time.

Source:  as in `fsst_symbols`.
Differs: A code without a symbol stands for nothing in Lance's reader; here it is damage.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import CorruptDataError
from lance_stream.file.compressive.fsst_symbols import MAX_SYMBOL_BYTES, SymbolTable
from lance_stream.file.compressive.variable import INT32_MAX
from lance_stream.file.data_blocks import INT32, INT64, Bytes, Offsets, VariableWidthBlock, Words

ESCAPE = 255
LEAST_CODES_FOR_PAIRS = 1 << 19
"""From here on the table of pairs, which costs 2 milliseconds, is worth it."""

Places = npt.NDArray[np.int64]


def decode(block: VariableWidthBlock, table: SymbolTable) -> VariableWidthBlock:
    """Decode encoded values.

    Args:
        block: Encoded values; their offsets have been checked.
        table: What codes stand for.

    Returns:
        As many values; offsets are int64 if the encoded ones' are, or if int32 does not suffice.

    Raises:
        CorruptDataError: A code has no symbol, or a value ends after an escape.
    """
    if not table.is_on or block.offsets[-1] == 0:
        return block
    codes = block.data[: int(block.offsets[-1])]
    is_large = len(codes) * MAX_SYMBOL_BYTES > INT32_MAX
    escapes = _escapes(codes)
    if len(escapes):
        num_before = np.searchsorted(escapes, block.offsets)
        if (np.append(-2, escapes)[num_before] == block.offsets - 1).any():
            raise CorruptDataError("an FSST value ends after an escape, without its byte")
        literals = _with_literals(codes, escapes)
        offsets, data = _looked_up(literals, _single_codes(table, is_large=is_large))
        offsets = offsets[block.offsets - num_before]
    elif len(codes) < LEAST_CODES_FOR_PAIRS or is_large:
        offsets, data = _looked_up(codes, _single_codes(table, is_large=is_large))
        offsets = offsets.take(block.offsets)
    else:
        pairs = np.append(codes, np.uint8(ESCAPE)) if len(codes) % 2 else codes
        offsets, data = _looked_up(pairs.view("<u2"), _pairs_of_codes(table))
        offsets = offsets.take(block.offsets >> 1) + _first_of_pair(codes, block.offsets, table)
    if block.offsets.dtype == np.int64 or offsets[-1] <= INT32_MAX:
        offsets = offsets.astype(block.offsets.dtype, copy=False)
    return VariableWidthBlock(block.num_values, offsets, data[: int(offsets[-1])])


def _escapes(codes: Bytes) -> Places:
    """Return the places of the escapes: the first, third, ... of each run of 255s."""
    places: Places = np.flatnonzero(codes == ESCAPE)
    if len(places) == 0:
        return places
    order = np.arange(len(places))
    begins_run = np.append(True, places[1:] != places[:-1] + 1)
    first_of_run = np.maximum.accumulate(np.where(begins_run, order, 0))
    is_first_of_pair = (order - first_of_run) % 2 == 0
    return np.compress(is_first_of_pair, places)


def _with_literals(codes: Bytes, escapes: Places) -> npt.NDArray[np.uint16]:
    """Take the escapes out and raise the bytes behind them by 256."""
    wide = codes.astype(np.uint16)
    wide[escapes + 1] += 256
    return np.delete(wide, escapes)


def _first_of_pair(codes: Bytes, offsets: Offsets, table: SymbolTable) -> Offsets:
    """Return, for each offset into codes, the bytes of the code before it in its pair; or 0."""
    lengths = np.zeros(256, dtype=np.int32)
    lengths[: len(table.symbols)] = [len(symbol) for symbol in table.symbols]
    # The first offset is 0, whose code before is any: it is even, so its length does not count.
    return lengths.take(codes.take(offsets - 1)) * (offsets & 1)


def _looked_up(codes: Words, strings: pa.Array) -> tuple[Offsets, Bytes]:
    """Return the byte strings that codes stand for, one after the other.

    Returns:
        The (num_codes + 1,) int32 or int64 offsets of each, and the bytes.
    """
    kind = pa.uint8() if codes.itemsize == 1 else pa.uint16()
    indices = pa.Array.from_buffers(kind, len(codes), [None, pa.py_buffer(codes)])
    found = strings.take(indices)
    if found.null_count:
        raise CorruptDataError("an FSST code has no symbol")
    _, offsets, data = found.buffers()
    is_large = pa.types.is_large_binary(found.type)
    return (
        np.frombuffer(offsets, dtype=INT64 if is_large else INT32),
        np.frombuffer(data, dtype=np.uint8),
    )


@lru_cache(maxsize=64)
def _single_codes(table: SymbolTable, *, is_large: bool) -> pa.Array:
    """Return 512 byte strings: the symbols, nulls up to 256, and every single byte."""
    missing = [None] * (256 - len(table.symbols))
    literals = [bytes([byte]) for byte in range(256)]
    kind = pa.large_binary() if is_large else pa.binary()
    return pa.array([*table.symbols, *missing, *literals], type=kind)


@lru_cache(maxsize=4)
def _pairs_of_codes(table: SymbolTable) -> pa.Array:
    """Return the byte strings of all pairs `first | second << 8`; an escape stands for nothing."""
    missing = [None] * (ESCAPE - len(table.symbols))
    strings = pa.array([*table.symbols, *missing, b""], type=pa.binary())
    codes = np.arange(256, dtype=np.uint8)
    first = strings.take(pa.array(np.tile(codes, 256)))
    second = strings.take(pa.array(np.repeat(codes, 256)))
    return pc.binary_join_element_wise(first, second, b"")
