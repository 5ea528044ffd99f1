"""Decoding the row sets of a BITMAP index."""

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
    encoded_parts = [struct.pack("<I", len(parts))]
    for high in sorted(parts):
        low = BitMap(parts[high])
        low.run_optimize()
        encoded_parts.append(struct.pack("<II", high, len(low.serialize())) + low.serialize())
    return b"".join(encoded_parts)


@given(SETS)
def test_ids_of_all_parts_are_returned(parts: dict[int, set[int]]) -> None:
    """The high half of an id is the key of its part, and a dropped part would lose rows of a
    filter.
    """
    expected = sorted(high << 32 | low for high, lows in parts.items() for low in lows)
    row_set = decode_row_set(encoded(parts), 1 << 40)
    assert row_set is not None
    assert row_set.dtype == np.uint64
    assert row_set.tolist() == expected


@given(SETS, st.data())
def test_damaged_bytes_raise_bad_data_errors(
    parts: dict[int, set[int]], data: st.DataObject
) -> None:
    """The caller scans after a BadDataError, while any other exception would fail the query."""
    whole = bytearray(encoded(parts))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(BadDataError):
        decode_row_set(bytes(whole[:stop]), 1 << 40)


def test_decoding_stops_above_the_row_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many matches a scan is faster, so the rest of the bitmap must not cost memory."""
    calls: list[int] = []

    def noting(data: bytes, maximum: int) -> Any:
        calls.append(maximum)
        return decode_bitmap_up_to(data, maximum)

    monkeypatch.setattr(bitmap, "decode_bitmap_up_to", noting)
    data = encoded({high: set(range(100)) for high in range(5)})
    assert decode_row_set(data, 250) is None
    assert calls == [250, 150, 50]
    row_set = decode_row_set(data, 500)
    assert row_set is not None
    assert len(row_set) == 500


def test_huge_runs_are_not_expanded() -> None:
    """A few bytes can stand for half a billion rows."""
    rows = BitMap()
    rows.add_range(0, 1 << 29)
    rows.run_optimize()
    low = rows.serialize()
    assert len(low) < 1 << 17
    assert decode_row_set(struct.pack("<III", 1, 0, len(low)) + low, 1 << 20) is None


@given(SETS, st.data())
def test_a_wrong_part_count_is_damage(parts: dict[int, set[int]], data: st.DataObject) -> None:
    """With fewer parts than stored, rows would silently be missing."""
    other = data.draw(st.integers(0, 2**32 - 1).filter(lambda value: value != len(parts)))
    with pytest.raises(CorruptDataError):
        decode_row_set(struct.pack("<I", other) + encoded(parts)[4:], 1 << 40)


@given(SETS, st.binary(min_size=1, max_size=20))
def test_bytes_after_the_parts_are_damage(parts: dict[int, set[int]], more: bytes) -> None:
    """Trailing bytes show that the count of parts or a size is wrong."""
    with pytest.raises(CorruptDataError, match="ends at byte"):
        decode_row_set(encoded(parts) + more, 1 << 40)


@given(SETS.filter(bool), st.data())
def test_a_wrong_part_size_is_damage(parts: dict[int, set[int]], data: st.DataObject) -> None:
    """A part that is cut off or runs into the next one would decode to other rows."""
    whole = bytearray(encoded(parts))
    (size,) = struct.unpack_from("<I", whole, 8)
    other = data.draw(st.integers(1, 2**32 - 1).filter(lambda value: value != size))
    struct.pack_into("<I", whole, 8, other)
    with pytest.raises(CorruptDataError):
        decode_row_set(bytes(whole), 1 << 40)


@pytest.mark.parametrize("second", [3, 7])
def test_parts_must_ascend_strictly(second: int) -> None:
    """Ids are returned in ascending order without sorting, and a repeated key would repeat rows."""
    one, other = encoded({7: {1}}), encoded({second: {2}})
    with pytest.raises(CorruptDataError, match="do not ascend"):
        decode_row_set(struct.pack("<I", 2) + one[4:] + other[4:], 10)


def test_a_key_may_have_no_rows() -> None:
    """An update can leave a value of the index without rows, which is not damage."""
    row_set = decode_row_set(encoded({}), 10)
    assert row_set is not None
    assert not len(row_set)


def test_parts_with_all_rows_are_unsupported() -> None:
    """The format writes size zero for all 2^32 rows; the table is scanned instead."""
    with pytest.raises(UnsupportedFeatureError, match="all rows"):
        decode_row_set(struct.pack("<III", 1, 7, 0), 10)


def test_a_missing_bitmap_is_damage() -> None:
    """A null instead of bytes must lead to a scan, not to a TypeError."""
    with pytest.raises(BadDataError):
        decode_row_set(None, 10)
