"""Casts with Spark's results in ANSI mode, its default: a value that does not fit is an error.

    to integers        floats and decimals are truncated; strings of digits are parsed. For types
                       of less than 64 bits, a decimal of more than 18 digits becomes a double first
    to floats          the nearest float
    to decimals        rounded half up; from a float, the number in its decimal notation
    to booleans        numbers that are not zero are true; strings such as 'true' and 'no'
    to strings         1.0E20, NaN, 12.50, 2024-02-29 12:00:00.5, true
    to dates, times    from each other in UTC, and from strings as `times` describes

Other casts, such as those between numbers and times, are refused.
"""

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.expressions.evaluation.comparisons import kind_of
from lance_stream.expressions.evaluation.numbers import (
    EXACT,
    fits,
    is_float,
    to_double,
    to_float,
    to_long,
    zero_of,
)
from lance_stream.expressions.evaluation.times import (
    date_of,
    dates_of,
    time_of,
    time_texts,
    times_of,
)
from lance_stream.expressions.nodes import Datum, Node, failure, refuse


def cast(node: Node, value: Datum, target: pa.DataType) -> Datum:
    """Cast a value to another type.

    Raises:
        InvalidInputError: There is no cast between the types.
        ArrowInvalid: A value does not fit.
    """
    if pa.types.is_null(value.type):
        return value.cast(target)
    source_kind, target_kind = kind_of(value.type), kind_of(target)
    if isinstance(value, pa.Scalar) and source_kind == "string" and target_kind == "temporal":
        is_date = pa.types.is_date(target)
        return date_of(node, value) if is_date else time_of(node, value, target)
    convert = _CASTS.get((source_kind, target_kind))
    if convert is None:
        raise refuse(node, f"casts {value.type} to {target}, which is not supported")
    if not isinstance(value, pa.Scalar):
        return convert(value, target)
    if pa.types.is_decimal(value.type) and _is_narrow(target):
        value = to_double(value)  # in Spark, a literal is a big decimal; see `_between_numbers`
    return convert(pa.array([value], value.type), target)[0]


def try_cast(node: Node, value: Datum, target: pa.DataType) -> Datum:
    """Cast a value to another type; return null where it does not fit."""
    try:
        return cast(node, value, target)
    except pa.ArrowInvalid:
        if isinstance(value, pa.Scalar) or len(value) == 1:
            null = pa.scalar(None, target)
            return null if isinstance(value, pa.Scalar) else pa.repeat(null, 1)
    halves = value.slice(0, len(value) // 2), value.slice(len(value) // 2)
    return pa.concat_arrays([try_cast(node, half, target) for half in halves])


def as_text(value: Datum) -> Datum | None:
    """Return Spark's text form of values; None for types whose text form is not supported."""
    convert = _CASTS.get((kind_of(value.type), "string"))
    if convert is None:
        return value.cast(pa.string()) if pa.types.is_null(value.type) else None
    if isinstance(value, pa.Scalar):
        return convert(pa.array([value], value.type), pa.string())[0]
    return convert(value, pa.string())


def _between_numbers(value: pa.Array, target: pa.DataType) -> pa.Array:
    if is_float(target):
        return to_float(value, target)
    if pa.types.is_decimal(target):
        return _decimals(value, target)
    if is_float(value.type):
        return _whole(value, target)
    if pa.types.is_decimal(value.type) and value.type.precision > 18 and _is_narrow(target):
        return _whole(
            to_double(value), target
        )  # in Spark, it is a big decimal, which is cast through a double
    if pa.types.is_decimal(value.type):
        digits, scale = value.type.precision, value.type.scale
        whole = pc.trunc(value.cast(pa.decimal256(digits + 1, scale))).cast(pa.decimal128(38, 0))
        return whole.cast(target)
    return value.cast(target)


def _is_narrow(target: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(target) and target != pa.int64())


def _whole(value: pa.Array, target: pa.DataType) -> pa.Array:
    """Truncate floats to integers."""
    bounds = np.iinfo(target.to_pandas_dtype())
    floats = pc.trunc(value.cast(pa.float64()))
    # 2^63 is not a long, but Spark compares with the nearest double and then uses the largest long.
    minimum, maximum = float(bounds.min), float(bounds.max)
    is_in = pc.and_(pc.greater_equal(floats, minimum), pc.less_equal(floats, maximum))
    if not pc.all(is_in, min_count=0).as_py():
        outside = value.filter(pc.invert(is_in))[0]
        raise failure(f"{outside} does not fit a {target}")
    is_maximum = pc.equal(floats, maximum)
    plain = pc.if_else(is_maximum, pa.scalar(0.0), floats).cast(target)
    return pc.if_else(is_maximum, pa.scalar(bounds.max, target), plain)


def _decimals(value: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_integer(value.type):
        return rescaled(to_long(value).cast(pa.decimal128(20, 0)), target)
    if pa.types.is_decimal(value.type):
        return rescaled(value, target)

    def read(number: float) -> Decimal | None:
        if not np.isfinite(number):
            return None  # as in all modes of Spark
        return _fitted(Decimal(repr(float(number))), target)

    return _map_values(value, read, target)


def rescaled(value: Datum, target: pa.DataType) -> Datum:
    """Return decimals with another precision and scale, rounded half up."""
    if isinstance(value, pa.Scalar):
        return rescaled(pa.array([value.as_py()], value.type), target)[0]
    source = value.type
    gains = target.scale - source.scale
    if gains >= 0 and target.precision - target.scale >= source.precision - source.scale:
        return value.cast(target)
    return _map_values(value, partial(_fitted, arrow=target), target)


def _fitted(number: Decimal, arrow: pa.DataType) -> Decimal:
    if number.adjusted() > arrow.precision - arrow.scale:
        raise failure(f"{number} does not fit a {arrow}")
    rounded = number.quantize(Decimal(1).scaleb(-arrow.scale), ROUND_HALF_UP, EXACT)
    if not fits(rounded, arrow):
        raise failure(f"{number} does not fit a {arrow}")
    return rounded


def _map_values(value: pa.Array, read: Callable[[Any], Any], target: pa.DataType) -> pa.Array:
    return pa.array([None if row is None else read(row) for row in value.to_pylist()], target)


# --- texts


def _numbers_of_texts(value: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_integer(target):
        bounds = np.iinfo(target.to_pandas_dtype())

        def read_integer(text: str) -> int:
            number = int(text) if _is_integer(text) else None
            if number is None or not bounds.min <= number <= bounds.max:
                raise failure(f"{text[:200]!r} is not a {target}")
            return number

        return _map_values(_stripped(value), read_integer, target)
    if pa.types.is_decimal(target):

        def read_decimal(text: str) -> Decimal:
            try:
                number = Decimal(text) if _is_plain(text) else Decimal("nan")
            except InvalidOperation:
                number = Decimal("nan")
            if not number.is_finite():
                raise failure(f"{text[:200]!r} is not a {target}")
            return _fitted(number, target)

        return _map_values(_stripped(value), read_decimal, target)

    def read_float(text: str) -> float:
        plain = text.lower()
        if plain in _FLOATS:
            return _FLOATS[plain]
        if text and text[-1] in "dDfF":
            text = text[:-1]
        try:
            if _HEXADECIMAL.fullmatch(text):
                return float.fromhex(text)
            if not _is_plain(text):
                raise ValueError
            number = float(text)
            # rounded once, not to a double first
            return pa.scalar(text).cast(target).as_py() if target == pa.float32() else number
        except ValueError:
            raise failure(f"{text[:200]!r} is not a {target}") from None

    return _map_values(_stripped(value), read_float, target)


_FLOATS: Final = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
    "nan": float("nan"),
}


_HEXADECIMAL: Final = re.compile(
    r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+", re.IGNORECASE
)


def _is_integer(text: str) -> bool:
    digits = text[1:] if text[:1] in "+-" else text
    return digits.isascii() and digits.isdigit()


def _is_plain(text: str) -> bool:
    """Return whether a text has only the characters of decimal numbers; Python accepts more."""
    return text != "" and not set(text) - set("0123456789+-.eE")


_BLANK: Final = "".join(map(chr, range(33))) + "\x7f"


def _stripped(value: pa.Array) -> pa.Array:
    return pc.utf8_trim(value, characters=_BLANK)


def _booleans_of_texts(value: pa.Array, target: pa.DataType) -> pa.Array:
    def read(text: str) -> bool:
        truth = _TRUTHS.get(text.lower())
        if truth is None:
            raise failure(f"{text[:200]!r} is neither true nor false")
        return truth

    return _map_values(_stripped(value), read, target)


_TRUTHS: Final = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


def _texts_of_numbers(value: pa.Array, _target: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(value.type):
        return _map_values(value, lambda number: format(number, "f"), pa.string())
    if not is_float(value.type):
        return value.cast(pa.string())
    size = np.float32 if value.type != pa.float64() else np.float64
    return _map_values(value, lambda number: float_text(size(number)), pa.string())


def float_text(number: Any) -> str:
    """Return Java's text form of a float: the fewest digits, at least two, that identify it."""
    if not np.isfinite(number):
        return "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    sign, digits, power = Decimal(str(number)).as_tuple()
    if len(digits) == 1:
        sign, digits, power = Decimal(f"{number:.1e}").as_tuple()  # 4.9E-324, and not 5.0E-324
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(power)  # the number is 0.text * 10^point
    minus = "-" if sign else ""
    if number == 0:
        return f"{minus}0.0"
    if 1e-3 <= abs(float(number)) < 1e7:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        return f"{minus}{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _texts_of_times(value: pa.Array, _target: pa.DataType) -> pa.Array:
    if pa.types.is_date(value.type):
        return value.cast(pa.date32()).cast(pa.string())
    return time_texts(value)


def _texts_of_bytes(value: pa.Array, _target: pa.DataType) -> pa.Array:
    return value.cast(pa.binary()).cast(pa.string())


# --- dates, times and booleans


def _between_times(value: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_date(target):
        if pa.types.is_date(value.type):
            return value.cast(target)
        return pc.floor_temporal(value.cast(pa.timestamp(value.type.unit)), unit="day").cast(target)
    if pa.types.is_date(value.type):
        return value.cast(pa.timestamp("us")).cast(target)
    return (
        value.cast(pa.timestamp(value.type.unit)).cast(pa.timestamp("us"), safe=False).cast(target)
    )


def _times_of_texts(value: pa.Array, target: pa.DataType) -> pa.Array:
    return dates_of(value) if pa.types.is_date(target) else times_of(value, target)


def _booleans_of_numbers(value: pa.Array, _target: pa.DataType) -> pa.Array:
    return pc.not_equal(value, zero_of(value.type))


def _numbers_of_booleans(value: pa.Array, target: pa.DataType) -> pa.Array:
    return _between_numbers(value.cast(pa.int8()), target)


def _same(value: pa.Array, target: pa.DataType) -> pa.Array:
    return value.cast(target)


_CASTS: Final[dict[tuple[str | None, str | None], Callable[[pa.Array, pa.DataType], pa.Array]]] = {
    ("number", "number"): _between_numbers,
    ("number", "boolean"): _booleans_of_numbers,
    ("number", "string"): _texts_of_numbers,
    ("boolean", "number"): _numbers_of_booleans,
    ("boolean", "boolean"): _same,
    ("boolean", "string"): _same,
    ("string", "number"): _numbers_of_texts,
    ("string", "boolean"): _booleans_of_texts,
    ("string", "string"): _same,
    ("string", "bytes"): _same,
    ("string", "temporal"): _times_of_texts,
    ("bytes", "bytes"): _same,
    ("bytes", "string"): _texts_of_bytes,
    ("temporal", "temporal"): _between_times,
    ("temporal", "string"): _texts_of_times,
}
"""All casts, by the kinds of the types; see `comparisons.kind_of`."""
