"""Bounds of pages: which are written, and which are trusted."""

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.byte_ranges import answer
from lance_stream.file.v0_1.statistics import (
    BatchStatistics,
    gather,
    lower_bound,
    upper_bound,
    valid_bounds,
)
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field


@pytest.mark.floors
@pytest.mark.parametrize(
    ("array", "minimum", "maximum"),
    [
        (pa.array([3, -1, 7], pa.int8()), -1, 7),
        (pa.array([3, 2**64 - 1], pa.uint64()), 3, 2**64 - 1),
        (pa.array([True, True]), True, True),
        (pa.array([True, False]), False, True),
        (pa.array([1.5, math.nan, -2.0]), -2.0, 1.5),
        (pa.array([math.nan, math.nan]), -math.inf, math.inf),
        (pa.array([math.inf, 1.0], pa.float32()), 1.0, math.inf),
        (pa.array([Decimal("1.50"), Decimal("-2.25")]), Decimal("-2.25"), Decimal("1.50")),
        (
            pa.array([5, 1], pa.int32()).cast(pa.date32()),
            datetime.date(1970, 1, 2),
            datetime.date(1970, 1, 6),
        ),
        (pa.array(["b", None, "a"]), "a", "b"),
        (pa.array([None, None], pa.string()), None, None),
    ],
)
def test_bounds_enclose_all_values_of_pages(array: pa.Array, minimum: Any, maximum: Any) -> None:
    """Wrong bounds exclude pages with matches; nulls and NaN have rules of their own."""
    assert gather(array) == BatchStatistics(array.null_count, minimum, maximum)


def test_zeros_are_bounded_by_both_zeros() -> None:
    """Readers compare -0.0 and 0.0 differently, so the bounds include both."""
    for zero in (0.0, -0.0):
        statistics = gather(pa.array([zero, zero]))
        assert math.copysign(1, statistics.minimum) == -1
        assert math.copysign(1, statistics.maximum) == 1


@given(st.text() | st.text("ab\u07ff\uffff\U0010ffff", min_size=10, max_size=80))
def test_truncated_string_bounds_stay_bounds(text: str) -> None:
    """Long strings are cut at 64 bytes, and the upper bound must not fall below the value."""
    minimum, maximum = lower_bound(text), upper_bound(text)
    assert len(minimum.encode()) <= 64
    assert minimum.encode() <= text.encode()
    if maximum is not None:
        assert len(maximum.encode()) <= 64
        assert maximum.encode() >= text.encode()


@given(st.binary(max_size=90) | st.binary(max_size=9).map(lambda data: b"\xff" * 60 + data))
def test_truncated_binary_bounds_stay_bounds(data: bytes) -> None:
    """Long values are cut at 64 bytes, and a prefix of 0xff bytes has no upper bound."""
    assert lower_bound(data) <= data
    maximum = upper_bound(data)
    assert maximum is None or maximum >= data
    assert maximum is not None or data.startswith(b"\xff" * 64)


@pytest.mark.floors
def test_bounds_over_nulls_are_ignored() -> None:
    """Bounds of a page with nulls are reliable for byte strings only."""
    counts, minimum, maximum = pa.array([0, 1]), pa.array([1, 5]), pa.array([2, 9])
    bounds = valid_bounds(Field("x", "int64"), counts, minimum, maximum)
    assert bounds.minimum.to_pylist() == [1, None]
    assert bounds.maximum.to_pylist() == [2, None]
    texts = pa.array(["a", "b"])
    assert valid_bounds(Field("x", "string"), counts, texts, texts).minimum == texts


def test_the_bounds_of_pages_round_trip(files: Any) -> None:
    """Bounds of one page that are read for another would exclude matches."""
    table = pa.table(
        {
            "n": pa.array(range(20_000), pa.int32()),
            "s": pa.array([f"{n:05d}" for n in range(20_000)]),
            "part": pa.array([{"a": n / 2} for n in range(20_000)]),
            "list": pa.array([[n] for n in range(20_000)]),
        }
    )
    opened = files.written(table, version=FileVersion.V0_1)
    leaves = [field for field in opened.schema.walk() if not field.children]
    bounds = answer(opened.reader.page_bounds(leaves), opened.read_ranges)
    assert bounds.batch_offsets.tolist() == [0, 8192, 16384, 20_000]
    number, text, _, part, _, _ = opened.schema.walk()
    assert set(bounds.of_field) == {number.id, text.id, part.id}
    assert bounds.of_field[number.id].minimum.to_pylist() == [0, 8192, 16384]
    assert bounds.of_field[text.id].maximum.to_pylist() == ["08191", "16383", "19999"]
    assert bounds.of_field[part.id].minimum.to_pylist() == [0.0, 4096.0, 8192.0]
