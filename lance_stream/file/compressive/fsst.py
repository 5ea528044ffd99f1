"""FSST codec: byte strings in which frequent pieces are replaced by 1-byte codes.

A value is a sequence of

    code          u8, less than num_symbols   stands for the symbol's 1 to 8 bytes
    255 | byte    2 u8                        stands for the byte (which can be 255)

The encoded values are themselves stored by the variable codec; the symbol table, one a page, in
the encoding. Values stay apart, so the codec serves mini-block and full-zip pages alike.

Decoding is one gather for all values: numpy finds the escapes (every second of a run of 255s is
one, as no value ends within a pair), Arrow's `take` looks all codes up in a table of byte strings,
and the offsets of its result say where each value ends.

Source:  as in `fsst_symbols`.
Differs: A code without a symbol stands for nothing in Lance's reader; here it is damage.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.errors import CorruptDataError
from lance_stream.file.compressive.fsst_symbols import MAX_SYMBOL_BYTES, SymbolTable
from lance_stream.file.compressive.variable import INT32_MAX
from lance_stream.file.data_blocks import INT32, INT64, Bytes, Offsets, VariableWidthBlock, Words

ESCAPE = 255
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
    encoded = block.data[: int(block.offsets[-1])]
    codes: Words = encoded
    stops = block.offsets
    escapes = _escapes(encoded)
    if len(escapes):
        num_before = np.searchsorted(escapes, stops)
        if (np.append(-1, escapes)[num_before] == stops - 1).any():
            raise CorruptDataError("an FSST value ends after an escape, without its byte")
        codes = _with_literals(encoded, escapes)
        stops = stops - num_before
    looked_up = _symbols(table, is_large=len(codes) * MAX_SYMBOL_BYTES > INT32_MAX).take(
        pa.Array.from_buffers(
            pa.from_numpy_dtype(codes.dtype), len(codes), [None, pa.py_buffer(codes)]
        )
    )
    if looked_up.null_count:
        raise CorruptDataError(f"an FSST code has no symbol; there are {len(table.symbols)}")
    _, offset_buffer, data_buffer = looked_up.buffers()
    is_large = pa.types.is_large_binary(looked_up.type)
    offsets: Offsets = np.frombuffer(offset_buffer, dtype=INT64 if is_large else INT32)[stops]
    if block.offsets.dtype == np.int64 or offsets[-1] <= INT32_MAX:
        offsets = offsets.astype(block.offsets.dtype, copy=False)
    data = np.frombuffer(data_buffer, dtype=np.uint8)[: int(offsets[-1])]
    return VariableWidthBlock(block.num_values, offsets, data)


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


@lru_cache(maxsize=64)
def _symbols(table: SymbolTable, *, is_large: bool) -> pa.Array:
    """Return 512 byte strings: the symbols, nulls up to 256, and every single byte."""
    missing = [None] * (256 - len(table.symbols))
    literals = [bytes([byte]) for byte in range(256)]
    kind = pa.large_binary() if is_large else pa.binary()
    return pa.array([*table.symbols, *missing, *literals], type=kind)
