"""Arithmetic with Spark's types and values, except that integers have 64 bits.

    + - *      integers of 64 bits (an overflow is an error), floats, decimals
    /          a decimal if one operand is a decimal and the other is not a float; else a double
    %          has the sign of the dividend
    DIV        the integer part of a quotient

Division by zero is an error, also for floats; `a / nullif(b, 0)` is null instead. Decimal results
have Spark's precision and scale, and are rounded half up.

Source:  Spark's `arithmetic.scala`, in ANSI mode, its default.
Differs: In Spark, `int + int` is an `int`, whose overflow is an error; here it is a `bigint`. An
         expression therefore fails for fewer rows, but its values are the same.
"""

from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.expressions.evaluation.numbers import (
    EXACT,
    MAX_DIGITS,
    bounded_decimal,
    datum_of,
    fits,
    is_float,
    null_where_not,
    num_rows_of,
    rows_of,
    to_decimal,
    to_double,
    to_long,
    zero_of,
)
from lance_stream.expressions.nodes import Datum, failure

_SCALA: Final = Context(prec=34, rounding=ROUND_HALF_EVEN)
"""The precision of Scala's decimals, to which Spark rounds when it changes a sign."""


def add(left: Datum, right: Datum) -> Datum:
    """Return the sum of two numbers."""
    return _sum(pc.add_checked, EXACT.add, left, right)


def subtract(left: Datum, right: Datum) -> Datum:
    """Return the difference of two numbers."""
    return _sum(pc.subtract_checked, EXACT.subtract, left, right)


def _sum(
    function: Callable[[Datum, Datum], Datum],
    exact: Callable[[Decimal, Decimal], Decimal],
    left: Datum,
    right: Datum,
) -> Datum:
    if not _are_decimals(left, right):
        return function(*_plain(left, right))
    left, right = to_decimal(left), to_decimal(right)
    scale = max(left.type.scale, right.type.scale)
    whole = max(operand.type.precision - operand.type.scale for operand in (left, right))
    arrow = bounded_decimal(whole + scale + 1, scale)
    if whole + scale + 1 <= MAX_DIGITS:
        return function(left, right).cast(arrow)
    return _row_by_row(exact, left, right, arrow)


def multiply(left: Datum, right: Datum) -> Datum:
    """Return the product of two numbers."""
    if not _are_decimals(left, right):
        return pc.multiply_checked(*_plain(left, right))
    left, right = to_decimal(left), to_decimal(right)
    precision = left.type.precision + right.type.precision + 1
    arrow = bounded_decimal(precision, left.type.scale + right.type.scale)
    if precision <= MAX_DIGITS:
        return pc.multiply_checked(left, right).cast(arrow)
    return _row_by_row(EXACT.multiply, left, right, arrow)


def divide(left: Datum, right: Datum) -> Datum:
    """Return the quotient of two numbers."""
    left, right = _where_both(left, right)
    if not _are_decimals(left, right):
        return pc.divide(to_double(left), to_double(right))
    left, right = to_decimal(left), to_decimal(right)
    scale = max(6, left.type.scale + right.type.precision + 1)
    whole = left.type.precision - left.type.scale + right.type.scale
    arrow = bounded_decimal(whole + scale, scale)
    return _row_by_row(EXACT.divide, left, right, arrow)


def remainder(left: Datum, right: Datum) -> Datum:
    """Return the remainder of a division, with the sign of the dividend."""
    left, right = _where_both(left, right)
    if not _are_decimals(left, right):
        left, right = _plain(left, right)
        if is_float(left.type):
            return _float_remainder(left, right)
        # The smallest integer divided by -1 would overflow; the divisor's sign does not matter.
        right = pc.if_else(pc.equal(right, -1), pa.scalar(1, right.type), right)
        return pc.subtract(left, pc.multiply(pc.divide(left, right), right))
    left, right = to_decimal(left), to_decimal(right)
    scale = max(left.type.scale, right.type.scale)
    whole = min(operand.type.precision - operand.type.scale for operand in (left, right))
    return _row_by_row(EXACT.remainder, left, right, bounded_decimal(whole + scale, scale))


def whole_quotient(left: Datum, right: Datum) -> Datum:
    """Return the integer part of a quotient, as a bigint."""
    left, right = _where_both(left, right)
    if not _are_decimals(left, right):
        return pc.divide_checked(*_plain(left, right))
    left, right = to_decimal(left), to_decimal(right)

    def quotient(one: Decimal, other: Decimal) -> Decimal:
        return EXACT.divide(one, other).quantize(Decimal(1), ROUND_DOWN, EXACT)

    return _row_by_row(quotient, left, right, pa.decimal128(MAX_DIGITS, 0)).cast(pa.int64())


def negate(value: Datum) -> Datum:
    """Return the negated numbers."""
    value = to_long(value)
    if not _is_long(value.type):
        return pc.negate_checked(value)
    return _map_decimals(value, lambda _: True)


def absolute(value: Datum) -> Datum:
    """Return the absolute values of numbers."""
    value = to_long(value)
    if not _is_long(value.type):
        return pc.abs_checked(value)
    return _map_decimals(value, lambda number: number < 0)


def _is_long(arrow: pa.DataType) -> bool:
    """Return whether a decimal has more digits than Spark keeps when it negates a number."""
    return bool(pa.types.is_decimal(arrow) and arrow.precision > _SCALA.prec)


def _map_decimals(value: Datum, changes_sign: Callable[[Decimal], bool]) -> Datum:
    unit = Decimal(1).scaleb(-value.type.scale)

    def convert(number: Decimal | None) -> Decimal | None:
        if number is None or not changes_sign(number):
            return number
        return EXACT.quantize(_SCALA.plus(number.copy_negate()), unit)

    return datum_of([convert(row) for row in rows_of(value, 1)], value.type, num_rows_of(value))


def _are_decimals(left: Datum, right: Datum) -> bool:
    types = (left.type, right.type)
    has_decimals = any(pa.types.is_decimal(arrow) or pa.types.is_uint64(arrow) for arrow in types)
    return has_decimals and not any(map(is_float, types))


def _plain(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Convert two numbers that are not decimals to one type."""
    if is_float(left.type) or is_float(right.type):
        if left.type == right.type == pa.float32():
            return left, right
        return to_double(left), to_double(right)
    return to_long(left), to_long(right)


def _where_both(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Return a dividend and its divisor, both null where one of them is null.

    Raises:
        ArrowInvalid: A divisor is zero.
    """
    both = pc.and_(pc.is_valid(left), pc.is_valid(right))
    left, right = null_where_not(left, both), null_where_not(right, both)
    if pc.any(pc.equal(right, zero_of(right.type))).as_py():
        raise failure("division by zero; nullif(divisor, 0) makes it null")
    return left, right


def _row_by_row(
    function: Callable[[Decimal, Decimal], Decimal], left: Datum, right: Datum, arrow: pa.DataType
) -> Datum:
    """Calculate with decimals of up to 38 digits exactly, and round half up."""
    num_rows = num_rows_of(left, right)
    unit = Decimal(1).scaleb(-arrow.scale)
    results: list[Any] = []
    pairs = zip(rows_of(left, num_rows or 1), rows_of(right, num_rows or 1), strict=True)
    if num_rows == 0:
        pairs = zip((), (), strict=True)
    for one, other in pairs:
        if one is None or other is None:
            results.append(None)
            continue
        result = function(one, other).quantize(unit, ROUND_HALF_UP, EXACT)
        if not fits(result, arrow):
            raise failure(f"{result} does not fit a {arrow}")
        results.append(result)
    return datum_of(results, arrow, num_rows)


def _float_remainder(left: Datum, right: Datum) -> Datum:
    num_rows = num_rows_of(left, right)
    arrow, kind = left.type, left.type.to_pandas_dtype()

    def plain(value: Datum) -> Any:
        if isinstance(value, pa.Scalar):
            return kind("nan" if not value.is_valid else value.as_py())
        return value.to_numpy(zero_copy_only=False)

    both = pc.and_(pc.is_valid(left), pc.is_valid(right))
    with np.errstate(invalid="ignore"):
        result = np.fmod(plain(left), plain(right))
    array = pa.array(np.atleast_1d(result), arrow)
    value = null_where_not(array, both)
    return value[0] if num_rows is None else value
