"""The symbol table of FSST: up to 255 byte strings of 1 to 8 bytes, one for each code.

Stored in a page's encoding, 2,312 bytes, little-endian:

    num_symbols   u8
    terminator    u8      in no symbol of several bytes; not needed for decoding
    suffix_limit  u8      not needed for decoding
    flags         u8      bit 0: values are encoded; otherwise plain
    magic         u32     0x46535354, "FSST" read as a number
    symbols       (num_symbols, 8) u8     each padded with zeros
    lengths       (num_symbols,) u8
    unused        up to 2,312 bytes

Source:  Boncz, Neumann and Leis, "FSST: Fast Random Access String Compression", VLDB 2020;
         encodings21.Fsst.symbol_table in the proto.
"""

from dataclasses import dataclass
from functools import lru_cache

from lance_stream.errors import CorruptDataError

SIZE_BYTES = 8 + 256 * 8 + 256
MAGIC = 0x46535354
MAX_SYMBOL_BYTES = 8


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """The meaning of the codes.

    Args:
        is_on: Whether values are encoded at all.
        symbols: Code i means `symbols[i]`.
        terminator: A byte that is in no symbol of several bytes, if there is one.
    """

    is_on: bool
    symbols: tuple[bytes, ...]
    terminator: int = 0


@lru_cache(maxsize=64)
def decode_symbol_table(data: bytes) -> SymbolTable:
    """Read a stored symbol table.

    Raises:
        CorruptDataError: It has another size, no magic number, or a symbol of 0 or over 8 bytes.
    """
    if len(data) != SIZE_BYTES:
        raise CorruptDataError(f"an FSST symbol table has {len(data)} bytes, not {SIZE_BYTES}")
    if int.from_bytes(data[4:8], "little") != MAGIC:
        raise CorruptDataError(f"an FSST symbol table begins with {data[:8]!r}")
    num_symbols = data[0]
    first_length = 8 + MAX_SYMBOL_BYTES * num_symbols
    lengths = data[first_length : first_length + num_symbols]
    if not all(1 <= length <= MAX_SYMBOL_BYTES for length in lengths):
        raise CorruptDataError(f"FSST symbols are {min(lengths)} to {max(lengths)} bytes long")
    starts = range(8, first_length, MAX_SYMBOL_BYTES)
    symbols = tuple(
        data[start : start + length] for start, length in zip(starts, lengths, strict=True)
    )
    return SymbolTable(is_on=bool(data[3] & 1), symbols=symbols, terminator=data[1])


def encode_symbol_table(table: SymbolTable) -> bytes:
    """Write a symbol table."""
    head = bytes((len(table.symbols), table.terminator, 0, table.is_on))
    symbols = b"".join(symbol.ljust(MAX_SYMBOL_BYTES, b"\0") for symbol in table.symbols)
    lengths = bytes(len(symbol) for symbol in table.symbols)
    return (head + MAGIC.to_bytes(4, "little") + symbols + lengths).ljust(SIZE_BYTES, b"\0")
