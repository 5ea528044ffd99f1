from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError
from lance_stream.file.compressive import fsst
from lance_stream.file.compressive.fsst_symbols import (
    SIZE_BYTES,
    SymbolTable,
    decode_symbol_table,
)
from lance_stream.file.data_blocks import VariableWidthBlock


def stored_table(symbols: list[bytes], is_on: bool = True) -> bytes:
    data = bytes([len(symbols), 0, 0, is_on]) + (0x46535354).to_bytes(4, "little")
    data += b"".join(symbol.ljust(8, b"\0") for symbol in symbols)
    data += bytes(len(symbol) for symbol in symbols)
    return data.ljust(SIZE_BYTES, b"\0")


def block_of(values: list[bytes], offsets: type = np.int32) -> VariableWidthBlock:
    places = np.cumsum([0, *map(len, values)]).astype(offsets)
    return VariableWidthBlock(len(values), places, np.frombuffer(b"".join(values), np.uint8))


def values_of(block: VariableWidthBlock) -> list[bytes]:
    data, places = block.data.tobytes(), block.offsets.tolist()
    return [data[start:stop] for start, stop in pairwise(places)]


def decoded_slowly(codes: bytes, table: SymbolTable) -> bytes:
    """Decode one value code by code, as the definition says."""
    out, place = b"", 0
    while place < len(codes):
        if codes[place] == 255:
            out += codes[place + 1 : place + 2]
            place += 2
        else:
            out += table.symbols[codes[place]]
            place += 1
    return out


@st.composite
def tables_and_values(draw: st.DrawFn) -> tuple[SymbolTable, list[bytes]]:
    symbols = draw(st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=255))
    code = st.integers(0, len(symbols) - 1).map(lambda each: bytes([each]))
    literal = st.sampled_from([0, 65, 254, 255]).map(lambda each: bytes([255, each]))
    kind = draw(st.sampled_from([code, literal, code | literal]))
    values = draw(st.lists(st.lists(kind, max_size=9).map(b"".join), max_size=12))
    return decode_symbol_table(stored_table(symbols)), values


@settings(max_examples=80, deadline=None)
@given(case=tables_and_values(), offsets=st.sampled_from([np.int32, np.int64]), pairs=st.booleans())
def test_all_values_decode_as_one_by_one(
    case: tuple[SymbolTable, list[bytes]], offsets: type, pairs: bool
) -> None:
    table, values = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsst, "LEAST_CODES_FOR_PAIRS", 0 if pairs else 2**40)
        block = fsst.decode(block_of(values, offsets), table)
    assert block.offsets.dtype == offsets
    assert values_of(block) == [decoded_slowly(value, table) for value in values]


@pytest.mark.parametrize(
    "values", [[b"\0\xff"], [b"\0\xff", b"\0"], [b"\xff\xff\xff", b"\0\0"], [b"\xff", b""]]
)
def test_a_value_that_ends_after_an_escape_is_bad_data(values: list[bytes]) -> None:
    with pytest.raises(CorruptDataError, match="ends after an escape"):
        fsst.decode(block_of(values), SymbolTable(True, (b"a",)))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("code", [2, 100, 254])
def test_a_code_without_a_symbol_is_bad_data(
    code: int, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsst, "LEAST_CODES_FOR_PAIRS", 0 if pairs else 2**40)
    for values in ([bytes([0, code, 1])], [bytes([0, 1, code])], [bytes([code, 0])]):
        with pytest.raises(CorruptDataError, match="no symbol"):
            fsst.decode(block_of(values), SymbolTable(True, (b"a", b"bc")))


def test_values_stand_as_they_are_if_the_table_is_off() -> None:
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
def test_a_damaged_symbol_table_is_bad_data(damaged: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_symbol_table(damaged)
