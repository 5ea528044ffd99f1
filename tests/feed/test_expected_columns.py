"""A running reader accepts the later types whose values all fit its own."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.feed.expected_columns import check_columns

INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


def accepts(expected: pa.DataType, actual: pa.DataType) -> bool:
    columns = SimpleNamespace(
        as_of=SimpleNamespace(version=1),
        missing_in=lambda _: None,
        data_schema=pa.schema({"x": expected}),
        schema_in=lambda _: pa.schema({"x": actual}),
    )
    table = SimpleNamespace(version=2, uri="memory://t")
    try:
        check_columns(columns, table, "Restart the reader")  # type: ignore[arg-type]  # wrong on purpose
    except InvalidInputError:
        return False
    return True


def bounds(number: pa.DataType) -> tuple[int, int]:
    bits = number.bit_width
    if pa.types.is_signed_integer(number):
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def fits(expected: pa.DataType, actual: pa.DataType) -> bool:
    """Whether the bounds of a number fit another type, independent of the tested rules."""
    if expected in FLOATS or actual in FLOATS:
        return expected in FLOATS and actual in FLOATS and actual.bit_width <= expected.bit_width
    low, high = bounds(expected)
    return low <= bounds(actual)[0] and bounds(actual)[1] <= high


def test_numbers_fit_types_with_their_range() -> None:
    """A stream that narrows a number would fail in the middle of a batch, or wrap it."""
    numbers = [*INTEGERS, pa.uint64(), *FLOATS]
    for expected in numbers:
        for actual in numbers:
            assert accepts(expected, actual) == fits(expected, actual), (expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual", "is_accepted"),
    [
        (pa.list_(pa.int32()), pa.list_(pa.int16()), True),
        (pa.list_(pa.int16()), pa.list_(pa.int32()), False),
        (pa.list_(pa.int32()), pa.int32(), False),
        (pa.int32(), pa.list_(pa.int32()), False),
        (pa.string(), pa.int32(), False),
        (pa.string(), pa.string(), True),
        (pa.struct({"a": pa.int32()}), pa.struct({"b": pa.int32(), "a": pa.int16()}), True),
        (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.int16()}), True),
        (pa.struct({"a": pa.int16()}), pa.struct({"a": pa.int32()}), False),
        (pa.struct({"a": pa.int32(), "c": pa.int32()}), pa.struct({"a": pa.int32()}), False),
        (pa.struct({"a": pa.int32()}), pa.int32(), False),
        (pa.map_("string", pa.int32()), pa.map_("string", pa.int16()), True),
        (pa.map_("string", pa.int16()), pa.map_("string", pa.int32()), False),
        (pa.map_(pa.int32(), "string"), pa.map_(pa.int16(), "string"), True),
        (pa.map_(pa.int16(), "string"), pa.map_(pa.int32(), "string"), False),
        (pa.map_("string", pa.int32()), pa.list_(pa.int32()), False),
    ],
)
def test_nested_types_fit_part_by_part(
    expected: pa.DataType, actual: pa.DataType, is_accepted: bool
) -> None:
    """A reader can ignore new parts of a struct, but not miss one."""
    assert accepts(expected, actual) == is_accepted
