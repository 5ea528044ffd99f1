from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.data_blocks import VariableWidthBlock
from lance_stream.file.compression import fsst
from lance_stream.file.compression.fsst_symbols import (
    SIZE_BYTES,
    SymbolTable,
    decode_symbol_table,
    encode_symbol_table,
)


def stored_table(symbols: list[bytes], is_on: bool = True) -> bytes:
    data = bytes([len(symbols), 0, 0, is_on]) + (0x46535354).to_bytes(4, "little")
    data += b"".join(symbol.ljust(8, b"\0") for symbol in symbols)
    data += bytes(len(symbol) for symbol in symbols)
    return data.ljust(SIZE_BYTES, b"\0")


def block_of(values: list[bytes], offsets: type = np.int32) -> VariableWidthBlock:
    bounds = np.cumsum([0, *map(len, values)]).astype(offsets)
    return VariableWidthBlock(len(values), bounds, np.frombuffer(b"".join(values), np.uint8))


def values_of(block: VariableWidthBlock) -> list[bytes]:
    data, bounds = block.data.tobytes(), block.offsets.tolist()
    return [data[start:stop] for start, stop in pairwise(bounds)]


def decoded_slowly(codes: bytes, table: SymbolTable) -> bytes:
    """Decode one value code by code, as the definition says."""
    out, position = b"", 0
    while position < len(codes):
        if codes[position] == 255:
            out += codes[position + 1 : position + 2]
            position += 2
        else:
            out += table.symbols[codes[position]]
            position += 1
    return out


@st.composite
def tables_and_values(draw: st.DrawFn) -> tuple[SymbolTable, list[bytes]]:
    symbols = draw(st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=255))
    code = st.integers(0, len(symbols) - 1).map(lambda number: bytes([number]))
    literal = st.sampled_from([0, 65, 254, 255]).map(lambda number: bytes([255, number]))
    kind = draw(st.sampled_from([code, literal, code | literal]))
    values = draw(st.lists(st.lists(kind, max_size=9).map(b"".join), max_size=12))
    return decode_symbol_table(stored_table(symbols)), values


@settings(max_examples=80, deadline=None)
@given(
    case=tables_and_values(),
    offsets=st.sampled_from([np.int32, np.int64]),
    pairs=st.booleans(),
    slices=st.booleans(),
)
def test_bulk_decoding_equals_decoding_one_value(
    case: tuple[SymbolTable, list[bytes]], offsets: type, pairs: bool, slices: bool
) -> None:
    """The bulk decoder works on slices and pairs of codes, and the plain one is the judge."""
    table, values = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsst, "MIN_CODES_FOR_PAIRS", 0 if pairs else 2**40)
        patch.setattr(fsst, "MIN_SLICE_BYTES", 0 if slices else 2**20)
        block = fsst.decode(block_of(values, offsets), table)
    assert block.offsets.dtype == offsets
    assert values_of(block) == [decoded_slowly(value, table) for value in values]


@pytest.mark.parametrize(
    "values", [[b"\0\xff"], [b"\0\xff", b"\0"], [b"\xff\xff\xff", b"\0\0"], [b"\xff", b""]]
)
def test_a_trailing_escape_byte_is_corrupt(values: list[bytes]) -> None:
    """The decoder must not take the first byte of the next value."""
    with pytest.raises(CorruptDataError, match="ends after an escape"):
        fsst.decode(block_of(values), SymbolTable(True, (b"a",)))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("code", [2, 100, 254])
def test_codes_without_symbols_are_bad_data(
    code: int, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing symbol would silently shorten the value."""
    monkeypatch.setattr(fsst, "MIN_CODES_FOR_PAIRS", 0 if pairs else 2**40)
    for values in ([bytes([0, code, 1])], [bytes([0, 1, code])], [bytes([code, 0])]):
        with pytest.raises(CorruptDataError, match="no symbol"):
            fsst.decode(block_of(values), SymbolTable(True, (b"a", b"bc")))


def test_values_pass_through_a_disabled_table() -> None:
    """Lance writes a disabled table where compression does not pay."""
    table = decode_symbol_table(stored_table([], is_on=False))
    assert values_of(fsst.decode(block_of([b"\xff", b"ab"]), table)) == [b"\xff", b"ab"]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        stored_table([b"a"])[:-1],
        b"\0" * SIZE_BYTES,
        stored_table([b"a", b"b"]).replace(b"\1\1\0", b"\1\0\0", 1),
        stored_table([b"a", b"b"]).replace(b"\1\1\0", b"\1\x09\0", 1),
    ],
)
def test_damaged_symbol_tables_are_bad_data(damaged: bytes) -> None:
    """Stored lengths of symbols are not trusted."""
    with pytest.raises(CorruptDataError):
        decode_symbol_table(damaged)


def round_trip(values: list[bytes], offsets: type = np.int32) -> VariableWidthBlock:
    encoded, table = fsst.encode(block_of(values, offsets))
    stored = decode_symbol_table(encode_symbol_table(table))
    assert stored == table
    assert encoded.offsets.dtype == offsets
    assert values_of(fsst.decode(encoded, stored)) == values
    return encoded


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(st.binary(max_size=12), min_size=1, max_size=6),
    order=st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=60),
    offsets=st.sampled_from([np.int32, np.int64]),
    batch=st.sampled_from([50, 1 << 20]),
    piece=st.sampled_from([16, 512]),
)
def test_decoding_undoes_encoding(
    pieces: list[bytes], order: list[list[int]], offsets: type, batch: int, piece: int
) -> None:
    """Values that cross batches and pieces of the encoder are where bytes get lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsst, "MIN_BYTES", 1)
        patch.setattr(fsst, "BATCH_BYTES", batch)
        patch.setattr(fsst, "PIECE_BYTES", piece)
        values = [b"".join(pieces[index % len(pieces)] for index in value) for value in order]
        assert round_trip(values, offsets).num_values == len(values)


@pytest.mark.parametrize(
    "values",
    [
        [bytes([first, second]) for first in range(256) for second in range(0, 256, 3)],
        [bytes(range(256)) * 100],
        [b"\xff" * 40_000, b"", b"\xff"],
        [b"\0" * 50, b"\0\0\0a" * 20] * 500,
        [b""] * 1000 + [b"ab" * 20_000] + [b""] * 1000,
    ],
    ids=["pairs", "all bytes", "255s", "zeros", "one among empty ones"],
)
def test_any_bytes_round_trip(values: list[bytes]) -> None:
    """Binary values contain every byte, also the escape code."""
    assert round_trip(values).num_values == len(values)


def test_text_shrinks_to_less_than_half() -> None:
    """A poor choice of symbols would still round-trip."""
    words = ["stream", "table", "version", "fragment", "column", "page", "chunk", "level"]
    values = [
        f"{words[n % 8]} {words[n * 5 % 7]} of {words[n * 3 % 5]} {n}".encode() for n in range(5000)
    ]
    encoded = round_trip(values)
    assert len(encoded.data) < 0.42 * sum(map(len, values))


@pytest.mark.floors
def test_random_or_few_bytes_stay_uncompressed() -> None:
    """A symbol table takes two kilobytes, and escapes would double random bytes."""
    random = np.random.default_rng(1)
    for values in ([random.bytes(100) for _ in range(1000)], [b"few bytes"] * 9):
        encoded, table = fsst.encode(block_of(values))
        assert not table.is_on
        assert values_of(encoded) == values


def test_multibyte_symbols_exclude_the_terminator() -> None:
    """Decoders of Lance rely on this rule of the original FSST."""
    random = np.random.default_rng(2)
    data = random.choice(np.arange(200, dtype=np.uint8), (3000, 8), p=np.arange(200) / 19900)
    _, table = fsst.encode(block_of([value.tobytes() for value in data]))
    assert table.is_on
    assert not any(table.terminator in symbol for symbol in table.symbols if len(symbol) > 1)
