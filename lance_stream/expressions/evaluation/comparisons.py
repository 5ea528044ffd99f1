"""Comparisons with Spark's results: NaN equals NaN and is the greatest number.

A string literal that is compared with a date or time is parsed as one. Otherwise, only values of
one kind can be compared.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import InvalidInputError
from lance_stream.expressions.evaluation.numbers import comparable, is_float, is_number
from lance_stream.expressions.evaluation.times import date_of, time_of
from lance_stream.expressions.nodes import Datum, Node, refuse


def compared(
    node: Node,
    function: Callable[[Datum, Datum], Datum],
    left: Datum,
    right: Datum,
    digits: tuple[int | None, int | None] = (None, None),
) -> Datum:
    """Return the result of one of Arrow's comparisons, with Spark's order of values.

    Args:
        node: For messages.
        function: Arrow's comparison.
        left: The values on the left.
        right: The values on the right.
        digits: The digits of integers that are compared with decimals; None for the type's digits.
    """
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, pa.bool_())
    left, right = harmonised(node, left, right, digits)
    answer = function(left, right)
    if is_float(left.type):
        return _WITH_NAN[function](answer, pc.is_nan(left), pc.is_nan(right))
    return answer


# A comparison with a null returns null, so these `and_` and `or_` are not the Kleene variants.
_WITH_NAN: Mapping[Callable[[Datum, Datum], Datum], Callable[[Datum, Datum, Datum], Datum]] = {
    pc.equal: lambda plain, left, right: pc.or_(plain, pc.and_(left, right)),
    pc.not_equal: lambda plain, left, right: pc.and_not(plain, pc.and_(left, right)),
    pc.less: lambda plain, left, right: pc.or_(plain, pc.and_not(right, left)),
    pc.less_equal: lambda plain, _, right: pc.or_(plain, right),
    pc.greater: lambda plain, left, right: pc.or_(plain, pc.and_not(left, right)),
    pc.greater_equal: lambda plain, left, _: pc.or_(plain, left),
}
"""Corrects Arrow's results for NaN: it equals NaN, and is greater than all other values."""


def harmonised(
    node: Node,
    left: Datum,
    right: Datum,
    digits: tuple[int | None, int | None] = (None, None),
) -> tuple[Datum, Datum]:
    """Convert two values to a type that Arrow compares exactly; see `compared`."""
    kinds = kind_of(left.type), kind_of(right.type)
    if kinds == ("temporal", "string") and isinstance(right, pa.Scalar):
        return harmonised(node, left, _temporal_of(node, right, left.type))
    if kinds == ("string", "temporal") and isinstance(left, pa.Scalar):
        return harmonised(node, _temporal_of(node, left, right.type), right)
    if kinds[0] != kinds[1] or kinds[0] is None:
        raise refuse(node, f"compares {left.type} with {right.type}", "cast one of them")
    if kinds[0] == "temporal":
        return _in_one_unit(_at_utc(left, right), _at_utc(right, left))
    if kinds[0] == "number":
        return comparable(left, right, digits)
    return left, right


def kind_of(arrow: pa.DataType) -> str | None:
    """Return the kind of a type's values; None for nested types."""
    return next((name for name, accepts in _KINDS.items() if accepts(arrow)), None)


_KINDS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "number": is_number,
    "boolean": pa.types.is_boolean,
    "string": lambda t: bool(pa.types.is_string(t) or pa.types.is_large_string(t)),
    "bytes": lambda t: bool(
        pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t)
    ),
    "temporal": lambda t: bool(pa.types.is_date(t) or pa.types.is_timestamp(t)),
    "time": pa.types.is_time,
    "duration": pa.types.is_duration,
}
"""Kinds of types; each type can be compared with others of its kind."""


def _at_utc(value: Datum, other: Datum) -> Datum:
    """Convert a time to UTC; one without a zone only if the other time has a zone."""
    if pa.types.is_timestamp(other.type) and other.type.tz is not None:
        unit = value.type.unit if pa.types.is_timestamp(value.type) else "s"
        return value.cast(pa.timestamp(unit, "UTC"))
    if pa.types.is_timestamp(value.type) and value.type.tz is not None:
        return value.cast(pa.timestamp(value.type.unit, "UTC"))
    return value


def _in_one_unit(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Convert two times to the finer unit, or to decimals if they exceed the unit's range.

    A timestamp in nanoseconds cannot represent the year 9999, but can be compared with it.
    """
    if left.type.equals(right.type):
        return left, right
    ticks = min(_TICKS_OF_DAY.index(_unit_of(operand.type)) for operand in (left, right))
    zone = next(
        (operand.type.tz for operand in (left, right) if pa.types.is_timestamp(operand.type)), None
    )
    finer = pa.timestamp(_TICKS_OF_DAY[ticks], zone)
    try:
        return left.cast(finer), right.cast(finer)
    except pa.ArrowInvalid:
        return _as_nanoseconds(left), _as_nanoseconds(right)


_TICKS_OF_DAY: Final = ("ns", "us", "ms", "s", "D")

_NANOSECONDS: Final[Mapping[str, int]] = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "D": 86_400 * 10**9,
}


def _unit_of(arrow: pa.DataType) -> str:
    return "D" if pa.types.is_date32(arrow) else "ms" if pa.types.is_date64(arrow) else arrow.unit


def _as_nanoseconds(value: Datum) -> Datum:
    """Convert times to decimals in nanoseconds, which can represent the times of all units."""
    unit = _unit_of(value.type)
    ticks = value.cast(pa.int32()) if unit == "D" else value
    number = ticks.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return pc.multiply(number, pa.scalar(Decimal(_NANOSECONDS[unit]), pa.decimal128(18, 0)))


def _temporal_of(node: Node, text: pa.Scalar, arrow: pa.DataType) -> pa.Scalar:
    if pa.types.is_date(arrow):
        return date_of(node, text)
    try:
        return time_of(node, text, arrow)
    except InvalidInputError:
        if arrow.unit != "ns":
            raise
        # The year 9999 does not fit nanoseconds, but `_in_one_unit` can compare it.
        return time_of(node, text, pa.timestamp("us", arrow.tz))
