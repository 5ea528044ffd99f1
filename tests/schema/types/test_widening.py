"""Which types hold the values of which others."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.schema.types.widening import is_wider, wider_of

INTEGERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [
    *(pa.decimal128(3, 0), pa.decimal128(5, 0), pa.decimal128(9, 2), pa.decimal128(10, 2)),
    *(pa.decimal128(12, 2), pa.decimal128(12, 4), pa.decimal128(20, 0), pa.decimal128(38, 18)),
    *(pa.decimal256(40, 20), pa.decimal256(40, 2)),
]
NUMBERS = [*INTEGERS, *FLOATS, *DECIMALS]


def extremes(arrow: pa.DataType) -> list[Any]:
    """Return the values of a numeric type that are the hardest to hold."""
    if pa.types.is_integer(arrow):
        bits = arrow.bit_width - pa.types.is_signed_integer(arrow)
        minimum = -(1 << bits) if pa.types.is_signed_integer(arrow) else 0
        return [minimum, (1 << bits) - 1]
    if pa.types.is_floating(arrow):
        maximum = {16: 65504.0, 32: 2.0**127, 64: 2.0**1023}[arrow.bit_width]
        return [maximum, {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}[arrow.bit_width]]
    maximum = Fraction(10**arrow.precision - 1, 10**arrow.scale)
    return [-maximum, maximum]


def holds(arrow: pa.DataType, values: list[Any]) -> bool:
    """Return whether numbers are the same in a type."""
    for value in values:
        if pa.types.is_floating(arrow):
            with np.errstate(over="ignore"):
                there = float(np.dtype(arrow.to_pandas_dtype()).type(value))
            if not math.isfinite(there) or Fraction(there) != Fraction(value):
                return False
            continue
        low, high = extremes(arrow)
        scale = 0 if pa.types.is_integer(arrow) else arrow.scale
        if not low <= value <= high or Fraction(value) * 10**scale % 1:
            return False
    return True


@pytest.mark.parametrize("old", INTEGERS, ids=str)
def test_wider_types_hold_integer_extremes(old: pa.DataType) -> None:
    """Values are converted to the wider type without a check, so every integer must fit exactly."""
    for new in NUMBERS:
        is_wide = is_wider(old, new)
        if not pa.types.is_floating(new):
            assert is_wide is holds(new, extremes(old)), new
        elif is_wide:
            bits = old.bit_width - pa.types.is_signed_integer(old)
            assert holds(new, [(1 << bits) - 1, (1 << bits) - 2]), new


@pytest.mark.parametrize(
    ("old", "new"),
    [value for value in itertools.product(FLOATS + DECIMALS, NUMBERS) if is_wider(*value)],
    ids=str,
)
def test_wider_types_hold_the_extremes(old: pa.DataType, new: pa.DataType) -> None:
    """Values are converted to the wider type without a check, so the extremes must fit."""
    assert holds(new, extremes(old))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.int32(), pa.uint32()),
        (pa.uint32(), pa.int32()),
        (pa.int64(), pa.int32()),
        (pa.float32(), pa.int64()),
        (pa.float64(), pa.decimal128(38, 18)),
        (pa.decimal128(10, 2), pa.decimal128(12, 5)),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.date32()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.large_string(), pa.string()),
        (pa.int32(), pa.string()),
        (pa.int32(), pa.duration("s")),
        (pa.large_list(pa.int32()), pa.list_(pa.int64())),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3)),
        (pa.list_(pa.float32()), pa.list_(pa.float32(), 2)),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32())),
        (pa.bool_(), pa.int8()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    ],
    ids=str,
)
def test_other_types_are_not_wider(old: pa.DataType, new: pa.DataType) -> None:
    """A type that loses values or precision must not replace a column's type."""
    assert not is_wider(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.date32(), pa.timestamp("us")),
        (pa.date32(), pa.date64()),
        (pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC")),
        (pa.time32("s"), pa.time64("us")),
        (pa.duration("s"), pa.duration("ms")),
        (pa.string(), pa.large_string()),
        (pa.binary(), pa.large_binary()),
        (pa.binary(3), pa.binary()),
        (pa.list_(pa.int32()), pa.large_list(pa.int64())),
        (pa.list_(pa.float16(), 4), pa.list_(pa.float32(), 4)),
        (pa.map_(pa.int8(), pa.int32()), pa.map_(pa.int32(), pa.int64())),
        (pa.struct([("a", pa.list_(pa.int8()))]), pa.struct([("a", pa.list_(pa.int16()))])),
    ],
    ids=str,
)
def test_wider_types_of_other_kinds(old: pa.DataType, new: pa.DataType) -> None:
    """Strings, binaries, dates and times widen in one direction only, independent of the order of
    arguments.
    """
    assert is_wider(old, new)
    assert not is_wider(new, old)
    assert wider_of(old, new) == wider_of(new, old) == new


def test_two_decimals_have_a_common_type() -> None:
    """It needs the digits of both on either side of the point, and there is none beyond
    38 digits.
    """
    one, other = pa.decimal128(10, 2), pa.decimal128(8, 4)
    assert wider_of(one, other) == pa.decimal128(12, 4)
    assert wider_of(pa.decimal128(38, 0), other) is None
    assert wider_of(pa.int32(), pa.string()) is None
    assert wider_of(pa.date32(), pa.timestamp("us")) == pa.timestamp("us")
