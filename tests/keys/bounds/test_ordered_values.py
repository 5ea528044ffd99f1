import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.keys.bounds.ordered_values import (
    MAX_BYTES,
    as_words,
    bounds_of,
    ordered_words,
    width_of,
)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


long_texts = st.text(max_size=3) | st.sampled_from(["x" * 64 + end for end in ("", "a", "\0")])
values: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): integers(8),
    pa.int64(): integers(64),
    pa.uint16(): st.integers(0, (1 << 16) - 1),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("ns"): integers(64),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.decimal128(9, 2): st.decimals(-9999, 9999, places=2),
    pa.decimal256(50, 0): st.integers(-(10**50) + 1, 10**50 - 1).map(decimal.Decimal),
    pa.string(): long_texts,
    pa.large_string(): long_texts,
    pa.binary(): st.binary(max_size=3) | st.binary(min_size=63, max_size=66),
    pa.large_binary(): st.binary(max_size=3),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.binary(8): st.binary(min_size=8, max_size=8),
    pa.binary(70): st.sampled_from([b"\xff" * 70, b"\0" * 70, b"\xff" * 69 + b"\0"]),
}


def comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    arrow_type = draw(st.sampled_from(list(values)))
    return arrow_type, draw(st.lists(values[arrow_type], min_size=1, max_size=8))


@settings(deadline=None)
@given(columns(), st.integers(0, 2))
def test_ordered_words_keep_the_order(column: tuple[pa.DataType, list[Any]], skipped: int) -> None:
    """Bounds are compared as words, so the words must order values exactly as their type does."""
    arrow_type, drawn = column
    array = pa.array(drawn, arrow_type).slice(skipped)
    drawn = drawn[skipped:]
    words = ordered_words(array)
    order = sorted(range(len(drawn)), key=lambda at: comparable(drawn[at]))
    in_order = words[np.array(order, np.int64)]
    assert bool((in_order[1:] >= in_order[:-1]).all())
    distinct = {comparable(value) for value in drawn}
    if not any(isinstance(value, bytes) for value in distinct):
        assert len(np.unique(words)) == len(distinct)


@pytest.mark.parametrize(
    ("arrow_type", "ascending"),
    [
        (pa.int8(), [-128, -1, 0, 1, 127]),
        (pa.int64(), [-(1 << 63), -1, 0, 1, (1 << 63) - 1]),
        (pa.uint64(), [0, 1, 1 << 63, (1 << 64) - 1]),
        (pa.bool_(), [False, True]),
        (pa.decimal128(9, 2), [decimal.Decimal(text) for text in ("-9.50", "-0.01", "0", "7")]),
        (pa.decimal256(50, 0), [decimal.Decimal(value) for value in (-(10**49), -1, 0, 10**49)]),
        (pa.string(), ["", "a", "ab", "b", "é"]),
        (pa.large_binary(), [b"", b"\0a", b"a", b"\xff"]),
        (pa.binary(7), [b"\0" * 6 + b"\1", b"\x7f" * 7, b"\x80" * 7, b"\xff" * 7]),
        (pa.binary(8), [b"\0" * 7 + b"\1", b"\x7f" * 8, b"\x80" * 8, b"\xff" * 8]),
        (pa.binary(9), [b"\0" * 8 + b"\1", b"\x7f" * 9, b"\x80" * 9, b"\xff" * 9]),
    ],
    ids=str,
)
def test_words_have_their_bounds_form(arrow_type: pa.DataType, ascending: list[Any]) -> None:
    """Saved bounds are compared with the words of a batch, so both need one representation."""
    words = ordered_words(pa.array(ascending, arrow_type))
    assert bool((words[1:] > words[:-1]).all())
    for at, value in enumerate(ascending):
        bounds = bounds_of(pa.array([value, None, value], arrow_type))
        assert bounds is not None
        assert [
            int(np.flatnonzero(words == bound)[0]) for bound in as_words(bounds, arrow_type)
        ] == [at, at]


@settings(deadline=None)
@given(columns(), st.booleans())
def test_bounds_enclose_all_values(column: tuple[pa.DataType, list[Any]], with_null: bool) -> None:
    """Long strings are cut, and a cut upper bound must not exclude the value."""
    arrow_type, drawn = column
    bounds = bounds_of(pa.array([*drawn, *[None] * with_null], arrow_type))
    assert bounds is not None
    low, high = as_words(bounds, arrow_type)
    words = np.sort(ordered_words(pa.array(drawn, arrow_type)))
    assert (words[0], words[-1]) == (low, high)
    assert max(map(len, bounds)) <= MAX_BYTES


@pytest.mark.parametrize("arrow_type", list(values))
def test_nulls_have_neither_bounds_nor_words(arrow_type: pa.DataType) -> None:
    """A file whose keys are all null can match no key."""
    assert bounds_of(pa.nulls(3, arrow_type)) is None
    assert len(ordered_words(pa.array([], arrow_type))) == 0


@pytest.mark.parametrize(
    "arrow_type",
    [pa.float32(), pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8()), pa.binary(0)],
)
def test_unordered_types_have_no_width(arrow_type: pa.DataType) -> None:
    """A type without a fixed order must be left to exact comparison instead of getting wrong
    bounds.
    """
    assert width_of(arrow_type) is None
