"""The sets of rows in a BITMAP: bytes to ids."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_stream.errors import BadDataError, UnsupportedFeatureError
from lance_stream.read.indices.bitmap import decode_row_set

LOW = st.integers(0, 2**32 - 1) | st.integers(0, 200_000)
SETS = st.dictionaries(st.integers(0, 2**32 - 1), st.sets(LOW, min_size=1), max_size=4)


def encoded(parts: dict[int, set[int]]) -> bytes:
    made = [struct.pack("<I", len(parts))]
    for high in sorted(parts):
        low = BitMap(parts[high])
        low.run_optimize()
        made.append(struct.pack("<II", high, len(low.serialize())) + low.serialize())
    return b"".join(made)


@given(SETS)
def test_the_ids_of_all_parts_come_back(parts: dict[int, set[int]]) -> None:
    expected = sorted(high << 32 | low for high, lows in parts.items() for low in lows)
    found = decode_row_set(encoded(parts), 1 << 40)
    assert found.dtype == np.uint64
    assert found.tolist() == expected


@given(SETS, st.data())
def test_damaged_bytes_raise_errors_of_ours(
    parts: dict[int, set[int]], data: st.DataObject
) -> None:
    whole = bytearray(encoded(parts))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(BadDataError):
        decode_row_set(bytes(whole[:stop]), 1 << 40)


def test_decoding_stops_after_enough_rows() -> None:
    parts = {high: set(range(100)) for high in range(5)}
    assert len(decode_row_set(encoded(parts), 150)) == 200


def test_a_part_with_all_rows_is_not_supported() -> None:
    with pytest.raises(UnsupportedFeatureError, match="all rows"):
        decode_row_set(struct.pack("<III", 1, 7, 0), 10)


def test_a_missing_bitmap_is_damage() -> None:
    with pytest.raises(BadDataError):
        decode_row_set(None, 10)
