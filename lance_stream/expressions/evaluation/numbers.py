"""The common type of numbers of different types, and conversions to it.

    integer, integer        64 bits; a u64 becomes a decimal(20, 0)
    float, float            the same type if they have one; else double
    float, another number   double, rounded to the nearest
    decimal, integer        decimal: a byte has 3 digits, a long 20, a literal its written digits

Types alone decide, never values: an expression that is accepted for a table's types is not refused
for a row. Except for the width of integers, these are Spark's ANSI type coercion rules.
"""

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.expressions.nodes import Datum

Rows: TypeAlias = list[Any]

EXACT: Final = Context(prec=120, Emin=-9999, Emax=9999)
"""The precision for exact sums, products and quotients of two decimal columns."""

INTEGER_DIGITS: Final = {
    pa.int8(): 3,
    pa.uint8(): 5,
    pa.int16(): 5,
    pa.uint16(): 10,
    pa.int32(): 10,
    pa.uint32(): 20,
    pa.int64(): 20,
    pa.uint64(): 20,
}
MAX_DIGITS: Final = 38


def is_number(arrow: pa.DataType) -> bool:
    """Return whether a type is numeric."""
    return bool(pa.types.is_integer(arrow) or is_float(arrow) or pa.types.is_decimal(arrow))


def is_float(arrow: pa.DataType) -> bool:
    """Return whether a type is a float."""
    return bool(pa.types.is_floating(arrow))


def to_double(value: Datum) -> Datum:
    """Convert numbers to the nearest doubles."""
    return to_float(value, pa.float64())


def to_float(value: Datum, target: pa.DataType) -> Datum:
    """Convert numbers to the nearest floats of a type.

    Arrow's cast of a decimal (26) rounds twice if it has more digits than a double, and its cast of
    an integer refuses values that no float represents exactly.
    """
    if pa.types.is_decimal(value.type):
        return value.cast(pa.string()).cast(target)
    if pa.types.is_float16(value.type):
        value = value.cast(pa.float32())
    return value if value.type == target else value.cast(target, safe=False)


def to_long(value: Datum) -> Datum:
    """Convert integers to i64, and u64 to decimals, so that narrow columns do not overflow."""
    if pa.types.is_uint64(value.type):
        return value.cast(pa.decimal128(20, 0))
    return value.cast(pa.int64()) if pa.types.is_integer(value.type) else value


def to_decimal(value: Datum, digits: int | None = None) -> Datum:
    """Convert integers to decimals; decimals are unchanged.

    Args:
        value: The numbers.
        digits: The number of digits of a literal.
    """
    if pa.types.is_decimal(value.type):
        return value
    wide = value.cast(pa.decimal128(20, 0) if pa.types.is_uint64(value.type) else pa.int64())
    exact = wide.cast(pa.decimal128(20, 0))
    target = pa.decimal128(INTEGER_DIGITS[value.type] if digits is None else digits, 0)
    return exact if target == exact.type else exact.cast(target)


def comparable(
    left: Datum, right: Datum, digits: tuple[int | None, int | None] = (None, None)
) -> tuple[Datum, Datum]:
    """Convert numbers of two types to a single type, which Arrow can compare.

    Args:
        left: The numbers on the left.
        right: The numbers on the right.
        digits: The digits of integers that are compared with decimals; None for the type's digits.
    """
    if left.type == right.type:
        return left, right
    if is_float(left.type) or is_float(right.type):
        return to_double(left), to_double(right)
    if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
        types = map(decimal_type, (left.type, right.type), digits)
        common = common_decimal(list(types))
        return rounded_to_compare(left, common), rounded_to_compare(right, common)
    if pa.types.is_uint64(left.type):
        return _with_uint64(left, right)
    if pa.types.is_uint64(right.type):
        right, left = _with_uint64(right, left)
        return left, right
    return left.cast(pa.int64()), right.cast(pa.int64())


def _with_uint64(unsigned: Datum, other: Datum) -> tuple[Datum, Datum]:
    if isinstance(other, pa.Scalar) and (other.as_py() or 0) >= 0:
        return unsigned, other.cast(pa.uint64())
    return to_decimal(unsigned), to_decimal(other)


def decimal_type(arrow: pa.DataType, digits: int | None = None) -> pa.DataType:
    """Return the decimal type for numbers that are not floats.

    Args:
        arrow: The type of the numbers.
        digits: The number of digits of an integer; None for the type's digits.
    """
    if pa.types.is_decimal(arrow):
        return arrow
    return pa.decimal128(INTEGER_DIGITS[arrow] if digits is None else digits, 0)


def common_decimal(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type to which Spark converts decimals before it compares or combines them.

    It has enough digits before the point for all of them. If less than the needed digits remain
    after the point, values are rounded.

    Source:
        Spark's DecimalPrecisionTypeCoercion.widerDecimalType.
    """
    whole = max(decimal.precision - decimal.scale for decimal in types)
    scale = min(max(decimal.scale for decimal in types), MAX_DIGITS - whole)
    return pa.decimal128(whole + scale, scale)


def rounded_to_compare(value: Datum, common: pa.DataType) -> Datum:
    """Round integers or decimals half up to a common type's scale, in a wider type."""
    if not pa.types.is_decimal(value.type):
        value = value.cast(pa.decimal128(20, 0))
    if value.type.scale > common.scale:
        wide = value.cast(pa.decimal256(value.type.precision + 1, value.type.scale))
        value = pc.round(wide, common.scale, round_mode="half_towards_infinity")
    return value.cast(pa.decimal256(2 * MAX_DIGITS, common.scale))


def bounded_decimal(digits: int, scale: int) -> pa.DataType:
    """Return the type of a result; with more than 38 digits, the scale is reduced.

    Source:
        Spark's DecimalType.adjustPrecisionScale.
    """
    if digits <= MAX_DIGITS:
        return pa.decimal128(digits, scale)
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - (digits - scale), min(scale, 6)))


def rows_of(value: Datum, num_rows: int) -> Rows:
    """Return values as Python values, one per row."""
    if isinstance(value, pa.Scalar):
        return [value.as_py()] * num_rows
    rows: Rows = value.to_pylist()
    return rows


def num_rows_of(*values: Datum) -> int | None:
    """Return the number of rows of some values; None if all of them are scalars."""
    return next((len(value) for value in values if not isinstance(value, pa.Scalar)), None)


def datum_of(rows: Rows, arrow: pa.DataType, num_rows: int | None) -> Datum:
    """Return rows as an array, or as a scalar if the values come from scalars."""
    array = pa.array(rows, arrow)
    return array[0] if num_rows is None else array


def repeated(value: pa.Scalar, num_rows: int) -> pa.Array:
    """Return an array that repeats a value; Arrow (26) cannot repeat a list zero times."""
    return pa.repeat(value, num_rows) if num_rows else pa.nulls(0, value.type)


def fits(value: Decimal, arrow: pa.DataType) -> bool:
    """Return whether a decimal with a type's scale fits the type's precision."""
    return bool(abs(value) < Decimal(10) ** (arrow.precision - arrow.scale))


def common_number(types: list[pa.DataType]) -> pa.DataType:
    """Return the common type of numbers, for functions such as `coalesce`."""
    if len(set(types)) == 1:
        return types[0]
    if any(map(is_float, types)):
        return (
            pa.float32() if all(t in (pa.float16(), pa.float32()) for t in types) else pa.float64()
        )
    if all(map(pa.types.is_integer, types)) and pa.uint64() not in types:
        return pa.int64()
    return common_decimal(list(map(decimal_type, types)))


def zero_of(arrow: pa.DataType) -> pa.Scalar:
    """Return zero as a number of a type."""
    return pa.scalar(Decimal(0) if pa.types.is_decimal(arrow) else 0, arrow)


def null_where_not(value: Datum, mask: Datum) -> Datum:
    """Return values with null where a mask is not true."""
    return pc.if_else(mask, value, pa.scalar(None, value.type))
