"""The sets of rows in a BITMAP: bytes to ids."""

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_stream.errors import BadDataError, CorruptDataError, UnsupportedFeatureError
from lance_stream.read.indices import bitmap
from lance_stream.read.indices.bitmap import decode_row_set
from lance_stream.table.fragments.deletion_vectors import decode_bitmap_up_to

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
    assert found is not None
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


def test_more_rows_than_are_wanted_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noting(data: bytes, most: int) -> Any:
        asked.append(most)
        return decode_bitmap_up_to(data, most)

    monkeypatch.setattr(bitmap, "decode_bitmap_up_to", noting)
    data = encoded({high: set(range(100)) for high in range(5)})
    assert decode_row_set(data, 250) is None
    assert asked == [250, 150, 50]
    found = decode_row_set(data, 500)
    assert found is not None
    assert len(found) == 500


def test_runs_that_stand_for_too_many_rows_are_not_decoded() -> None:
    rows = BitMap()
    rows.add_range(0, 1 << 29)
    rows.run_optimize()
    low = rows.serialize()
    assert len(low) < 1 << 17
    assert decode_row_set(struct.pack("<III", 1, 0, len(low)) + low, 1 << 20) is None


@given(SETS, st.data())
def test_a_number_of_parts_that_is_not_theirs_is_damage(
    parts: dict[int, set[int]], data: st.DataObject
) -> None:
    other = data.draw(st.integers(0, 2**32 - 1).filter(lambda each: each != len(parts)))
    with pytest.raises(CorruptDataError):
        decode_row_set(struct.pack("<I", other) + encoded(parts)[4:], 1 << 40)


@given(SETS, st.binary(min_size=1, max_size=20))
def test_bytes_behind_the_parts_are_damage(parts: dict[int, set[int]], more: bytes) -> None:
    with pytest.raises(CorruptDataError, match="ends at byte"):
        decode_row_set(encoded(parts) + more, 1 << 40)


@given(SETS.filter(bool), st.data())
def test_a_part_of_another_size_is_damage(parts: dict[int, set[int]], data: st.DataObject) -> None:
    whole = bytearray(encoded(parts))
    (size,) = struct.unpack_from("<I", whole, 8)
    other = data.draw(st.integers(1, 2**32 - 1).filter(lambda each: each != size))
    struct.pack_into("<I", whole, 8, other)
    with pytest.raises(CorruptDataError):
        decode_row_set(bytes(whole), 1 << 40)


@pytest.mark.parametrize("second", [3, 7])
def test_parts_that_do_not_ascend_are_damage(second: int) -> None:
    one, other = encoded({7: {1}}), encoded({second: {2}})
    with pytest.raises(CorruptDataError, match="do not ascend"):
        decode_row_set(struct.pack("<I", 2) + one[4:] + other[4:], 10)


def test_a_key_may_have_no_rows() -> None:
    found = decode_row_set(encoded({}), 10)
    assert found is not None
    assert not len(found)


def test_a_part_with_all_rows_is_not_supported() -> None:
    with pytest.raises(UnsupportedFeatureError, match="all rows"):
        decode_row_set(struct.pack("<III", 1, 7, 0), 10)


def test_a_missing_bitmap_is_damage() -> None:
    with pytest.raises(BadDataError):
        decode_row_set(None, 10)
