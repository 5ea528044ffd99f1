import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError
from lance_stream.file.rows import Rows

OFFSETS = st.lists(st.integers(0, 60), unique=True).map(sorted)


def rows_of(offsets: list[int]) -> Rows:
    return Rows.of(np.array(offsets, np.int64))


def offsets_of(rows: Rows) -> list[int]:
    if rows.offsets is None:
        return list(range(rows.start, rows.stop))
    return [int(offset) for offset in rows.offsets]


@settings(max_examples=50)
@given(OFFSETS)
def test_rows_keep_their_offsets(offsets: list[int]) -> None:
    """Decoders address values by these offsets."""
    rows = rows_of(offsets)
    assert offsets_of(rows) == offsets
    assert len(rows) == len(offsets)


def test_offsets_without_gaps_are_a_range() -> None:
    """Ranges are decoded by slices, which is much cheaper than single offsets."""
    assert rows_of([4, 5, 6]).offsets is None
    assert rows_of([4, 6]).offsets is not None


@settings(max_examples=50)
@given(OFFSETS, st.integers(0, 60), st.integers(0, 60))
def test_rows_are_relative_to_their_page(offsets: list[int], start: int, length: int) -> None:
    """An offset that is off by one at a page's edge would lose or repeat a row."""
    inside = [offset - start for offset in offsets if start <= offset < start + length]
    assert offsets_of(rows_of(offsets).within(start, start + length)) == inside


@settings(max_examples=50)
@given(OFFSETS, st.integers(1, 5))
def test_items_of_rows_follow_each_other(offsets: list[int], dimension: int) -> None:
    """Fixed-size lists store the items of a row next to each other."""
    items = [offset * dimension + item for offset in offsets for item in range(dimension)]
    assert offsets_of(rows_of(offsets).items(dimension)) == items


@settings(max_examples=50)
@given(OFFSETS)
def test_predecessors_are_distinct(offsets: list[int]) -> None:
    """The first row has none."""
    expected = sorted({*offsets, *(offset - 1 for offset in offsets if offset)})
    assert offsets_of(rows_of(offsets).with_predecessors()) == expected


def test_uncountable_numbers_of_items_are_corrupt() -> None:
    """The product would overflow and address other bytes."""
    with pytest.raises(CorruptDataError, match="more than a file can contain"):
        Rows(0, 2**40).items(2**31)
