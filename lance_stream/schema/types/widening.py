"""Decides which types a type can be widened to without changing a value.

    from                                        to
    int8 … int64, uint8 … uint64                a wider integer of the same sign; unsigned ones also
                                                a wider signed one
    integer                                     float that holds each of its values exactly;
                                                decimal with as many digits before the point
    float16, float32                            wider float
    decimal                                     decimal with at least as many digits before the
                                                point, and after it
    date                                        date64; timestamp without a zone
    timestamp, time, duration                   the same in a finer unit
    string, binary, fixed-size binary           large string; binary, large binary
    list, fixed-size list, large list           the same with wider items; list to large list
    map, struct                                 the same with wider keys, values, parts

A date or a time in a finer unit may exceed 64 bits, which the cast of each value checks.

Source: what Delta ("type widening") and Iceberg ("schema evolution") promote, extended by the
        types that only Arrow has.
"""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

_DIGITS_OF: Final = {8: 3, 16: 5, 32: 10, 64: 20}
"""The maximum number of decimal digits of an integer, signed or not, by its number of bits."""

_EXACT_BITS: Final = {16: 11, 32: 24, 64: 53}
"""The number of bits of the integers that a float represents exactly, by the float's bits."""

_MAX_DIGITS: Final = 38

_UNITS: Final = ("s", "ms", "us", "ns")


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a type represents every value of another type unchanged.

    A type is as wide as itself. Names of a list's items, or of a map's entries, do not count.
    """
    if old.equals(new):
        return True
    if any(isinstance(arrow, pa.BaseExtensionType) for arrow in (old, new)):
        return False
    return any(accepts(old) and rule(old, new) for accepts, rule in _RULES)


def wider_of(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that represents all values of two types; None if there is none.

    Decimals have at most 38 digits, because Spark and many other engines do not read more.
    """
    if is_wider(one, other):
        return other
    if is_wider(other, one):
        return one
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _MAX_DIGITS else None
    return None


def _is_wider_integer(old: pa.DataType, new: pa.DataType) -> bool:
    is_signed = pa.types.is_signed_integer(old)
    if pa.types.is_integer(new):
        if pa.types.is_signed_integer(new) is is_signed:
            return bool(old.bit_width <= new.bit_width)
        return not is_signed and bool(old.bit_width < new.bit_width)
    if pa.types.is_floating(new):
        return bool(old.bit_width - is_signed <= _EXACT_BITS[new.bit_width])
    digits = 19 if is_signed and old.bit_width == 64 else _DIGITS_OF[old.bit_width]
    return pa.types.is_decimal(new) and bool(new.precision - new.scale >= digits)


def _is_wider_float(old: pa.DataType, new: pa.DataType) -> bool:
    return pa.types.is_floating(new) and bool(old.bit_width <= new.bit_width)


def _is_wider_decimal(old: pa.DataType, new: pa.DataType) -> bool:
    return pa.types.is_decimal(new) and bool(
        new.bit_width >= old.bit_width
        and new.scale >= old.scale
        and new.precision - new.scale >= old.precision - old.scale
    )


def _is_finer_date(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_timestamp(new):
        return bool(new.tz is None)
    return bool(pa.types.is_date32(old) and pa.types.is_date64(new))


def _is_finer(old: Any, new: Any) -> bool:
    is_same = old.id == new.id or (pa.types.is_time(old) and pa.types.is_time(new))
    is_same = is_same and getattr(old, "tz", None) == getattr(new, "tz", None)
    return bool(is_same) and _UNITS.index(old.unit) <= _UNITS.index(new.unit)


def _is_larger_text(_old: pa.DataType, new: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(new))


def _is_larger_binary(old: pa.DataType, new: pa.DataType) -> bool:
    return bool(
        pa.types.is_large_binary(new)
        or (pa.types.is_binary(new) and old.id != pa.large_binary().id)
    )


def _is_wider_list(old: Any, new: Any) -> bool:
    is_same = old.id == new.id and getattr(old, "list_size", 0) == getattr(new, "list_size", 0)
    return (is_same or (pa.types.is_list(old) and pa.types.is_large_list(new))) and is_wider(
        old.value_type, new.value_type
    )


def _is_wider_map(old: pa.MapType, new: pa.DataType) -> bool:
    return (
        pa.types.is_map(new)
        and is_wider(old.key_type, new.key_type)
        and is_wider(old.item_type, new.item_type)
    )


def _is_wider_struct(old: pa.StructType, new: pa.DataType) -> bool:
    return (
        pa.types.is_struct(new)
        and [part.name for part in old] == [part.name for part in new]
        and all(is_wider(a.type, b.type) for a, b in zip(old, new, strict=True))
    )


_RULES: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], bool]], ...]
] = (
    (pa.types.is_integer, _is_wider_integer),
    (pa.types.is_floating, _is_wider_float),
    (pa.types.is_decimal, _is_wider_decimal),
    (pa.types.is_date, _is_finer_date),
    (pa.types.is_timestamp, _is_finer),
    (pa.types.is_time, _is_finer),
    (pa.types.is_duration, _is_finer),
    (pa.types.is_string, _is_larger_text),
    (pa.types.is_binary, _is_larger_binary),
    (pa.types.is_fixed_size_binary, _is_larger_binary),
    (pa.types.is_list, _is_wider_list),
    (pa.types.is_large_list, _is_wider_list),
    (pa.types.is_fixed_size_list, _is_wider_list),
    (pa.types.is_map, _is_wider_map),
    (pa.types.is_struct, _is_wider_struct),
)
