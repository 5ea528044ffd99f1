"""Functions that a SQL expression can call: one table, `FUNCTIONS`.

Each has the name, the types and the values of Spark's function. Where Arrow differs from Java's
libraries (upper and lower case, patterns), this module uses Python instead, or refuses the call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.expressions.evaluation import arithmetic
from lance_stream.expressions.evaluation.casts import as_text, rescaled
from lance_stream.expressions.evaluation.comparisons import compared, kind_of
from lance_stream.expressions.evaluation.json_paths import extract_json, parse_json_path
from lance_stream.expressions.evaluation.numbers import (
    EXACT,
    common_number,
    fits,
    is_float,
    num_rows_of,
    repeated,
    to_decimal,
    to_float,
)
from lance_stream.expressions.evaluation.patterns import as_regex
from lance_stream.expressions.nodes import Call, Datum, Node, failure, refuse
from lance_stream.schema.types.jsonb import decode_jsonb
from lance_stream.schema.types.logical_types import is_list_type


@dataclass(frozen=True)
class Function:
    """A function, and its number of arguments.

    Attributes:
        evaluate: Evaluates the function, given the node of the call and the argument values.
        minimum: The minimum number of arguments.
        maximum: The maximum; None for any number.
    """

    evaluate: Callable[[Call, Sequence[Datum]], Datum]
    minimum: int = 1
    maximum: int | None = 1


# --- texts


def _demand(node: Node, kind: str, *values: Datum) -> bool:
    """Refuse values of another kind; return whether one is null in every row."""
    for value in values:
        if not pa.types.is_null(value.type) and kind_of(value.type) != kind:
            raise refuse(node, f"takes a {kind}, not {value.type}", "cast the argument")
    return any(pa.types.is_null(value.type) for value in values)


def _constant(node: Node, value: Datum) -> Any:
    if not isinstance(value, pa.Scalar):
        raise refuse(node, "takes a constant for this argument", "write a literal")
    return value.as_py()


def _of_text(change: Callable[[Datum], Datum]) -> Callable[[Node, Sequence[Datum]], Datum]:
    def evaluate(node: Node, values: Sequence[Datum]) -> Datum:
        (value,) = values
        return pa.scalar(None, pa.string()) if _demand(node, "string", value) else change(value)

    return evaluate


def lower(value: Datum) -> Datum:
    """Return texts in lower case."""
    return _in_case(value, pc.ascii_lower, str.lower)


def upper(value: Datum) -> Datum:
    """Return texts in upper case."""
    return _in_case(value, pc.ascii_upper, str.upper)


def _in_case(value: Datum, ascii_case: Any, any_case: Callable[[str], str]) -> Datum:
    """Change the case of letters; in contrast to Arrow, one letter can become several."""
    if pc.all(pc.string_is_ascii(value), min_count=0).as_py() is not False:
        return ascii_case(value)
    if isinstance(value, pa.Scalar):
        return pa.scalar(any_case(value.as_py()), value.type)
    rows = [None if text is None else any_case(text) for text in value.to_pylist()]
    return pa.array(rows, value.type)


def _trim(trim: Any) -> Callable[[Call, Sequence[Datum]], Datum]:
    def evaluate(node: Call, values: Sequence[Datum]) -> Datum:
        if len(values) == 2 and not node.has_from:
            raise refuse(
                node,
                "lists characters after a comma",
                "write TRIM(BOTH 'x' FROM a)",
            )
        if _demand(node, "string", *values):
            return pa.scalar(None, pa.string())
        characters = " " if len(values) == 1 else _constant(node, values[1])
        if characters is None:
            return pa.scalar(None, pa.string())
        return trim(values[0], characters=characters) if characters else values[0]

    return evaluate


def _length(node: Node, values: Sequence[Datum]) -> Datum:
    (value,) = values
    if pa.types.is_null(value.type):
        return pa.scalar(None, pa.int32())
    if kind_of(value.type) == "bytes":
        return pc.binary_length(value).cast(pa.int32())
    _demand(node, "string", value)
    return pc.utf8_length(value).cast(pa.int32())


def _substring(node: Node, values: Sequence[Datum]) -> Datum:
    if _demand(node, "string", values[0]):
        return pa.scalar(None, pa.string())
    _demand(node, "number", *values[1:])
    numbers = [_constant(node, value) for value in values[1:]]
    if any(number is not None and not isinstance(number, int) for number in numbers):
        raise refuse(node, "takes integers as position and length")
    if None in numbers:
        return pa.scalar(None, pa.string())
    start, length = (*numbers, None)[:2]
    return _sliced(values[0], start, length)


def _sliced(text: Datum, position: int, length: int | None) -> Datum:
    if length is not None and length <= 0:
        return pc.utf8_slice_codeunits(text, 0, 0)
    start = position - 1 if position > 0 else position
    stop = None if length is None else start + length
    if start < 0 and stop is not None and stop >= 0:
        stop = None
    return pc.utf8_slice_codeunits(text, start, stop)


def _leading_characters(node: Node, values: Sequence[Datum]) -> Datum:
    return _substring(node, [values[0], pa.scalar(1), values[1]])


def _concat(node: Node, values: Sequence[Datum]) -> Datum:
    return concatenated(node, values)


def concatenated(node: Node, values: Sequence[Datum]) -> Datum:
    """Concatenate values as texts; null if one is null."""
    texts = []
    for value in values:
        text = None if kind_of(value.type) == "bytes" else as_text(value)
        if text is None:
            raise refuse(node, f"concatenates {value.type}, which is not supported")
        texts.append(text.cast(pa.string()))
    if not texts:
        return pa.scalar("")
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


def _matches(match: Any) -> Callable[[Node, Sequence[Datum]], Datum]:
    def evaluate(node: Node, values: Sequence[Datum]) -> Datum:
        value, part = values
        if _demand(node, "string", value, part):
            return pa.scalar(None, pa.bool_())
        pattern = _constant(node, part)
        return pa.scalar(None, pa.bool_()) if pattern is None else match(value, pattern)

    return evaluate


def _regex(node: Node, values: Sequence[Datum]) -> Datum:
    value, pattern = values
    if _demand(node, "string", value, pattern):
        return pa.scalar(None, pa.bool_())
    text = _constant(node, pattern)
    if text is None:
        return pa.scalar(None, pa.bool_())
    return pc.match_substring_regex(value, as_regex(node, text))


def _get_json_object(node: Node, values: Sequence[Datum]) -> Datum:
    value, path = values
    is_json_column = pa.types.is_large_binary(value.type)  # `json_uses` refuses other bytes
    if _demand(node, "string", *(values[1:] if is_json_column else values)):
        return pa.scalar(None, pa.string())
    text = _constant(node, path)
    if text is None:
        return pa.scalar(None, pa.string())
    steps = parse_json_path(node, text)

    def extract(json: Any) -> str | None:
        return extract_json(decode_jsonb(json) if is_json_column else json, steps)

    return _map_values(value, extract, pa.string())


# --- numbers


def _positive(node: Node, values: Sequence[Datum]) -> Datum:
    _demand(node, "number", *values)
    return values[0]


def _absolute(node: Node, values: Sequence[Datum]) -> Datum:
    return values[0] if _demand(node, "number", *values) else arithmetic.absolute(values[0])


def _is_nan(node: Node, values: Sequence[Datum]) -> Datum:
    (value,) = values
    _demand(node, "number", value)
    if not is_float(value.type):
        return pc.and_(pc.is_valid(value), pa.scalar(False))
    return pc.fill_null(pc.is_nan(value), False)


_MAX_DIGITS: Final = 400
"""More digits than any number has, before or after the decimal point."""


def _round(node: Node, values: Sequence[Datum]) -> Datum:
    value = values[0]
    if _demand(node, "number", *values):
        return value if pa.types.is_null(value.type) else pa.scalar(None, value.type)
    digits = 0 if len(values) == 1 else _constant(node, values[1])
    if not isinstance(digits, int):
        raise refuse(node, "takes an integer as the number of digits")
    digits = max(-_MAX_DIGITS, min(digits, _MAX_DIGITS))
    if is_float(value.type):
        return _map_values(
            value, lambda number: _rounded_float(number, digits, value.type), value.type
        )
    if pa.types.is_integer(value.type) and not pa.types.is_uint64(value.type):
        if digits >= 0:
            return value
        wide = value.cast(pa.int64())
        return _map_values(wide, lambda number: _rounded_integer(number, digits), wide.type)
    value = to_decimal(value)
    precision, scale = value.type.precision, value.type.scale
    if digits < 0:
        precision = max(precision - scale, -digits + 1) + 1
        arrow = pa.decimal128(min(precision, 38), 0)
    else:
        new_scale = min(digits, scale)
        arrow = pa.decimal128(min(precision - scale + new_scale + 1, 38), new_scale)

    unit = Decimal(1).scaleb(-min(digits, scale))

    def rounded(number: Decimal) -> Decimal:
        result = number.quantize(unit, ROUND_HALF_UP, EXACT)
        result = result.quantize(Decimal(1).scaleb(-arrow.scale), context=EXACT)
        if not fits(result, arrow):
            raise failure(f"{number} does not fit a {arrow} after rounding")
        return result

    return _map_values(value, rounded, arrow)


def _rounded_float(number: float, digits: int, arrow: pa.DataType) -> float:
    if not np.isfinite(number):
        return number
    exact = Decimal(repr(float(number)))
    unit = Decimal(1).scaleb(max(-digits, int(exact.as_tuple().exponent)))
    rounded = exact.quantize(unit, ROUND_HALF_UP, EXACT)
    return float(arrow.to_pandas_dtype()(rounded)) if rounded else 0.0  # not -0.0


def _rounded_integer(number: int, digits: int) -> int:
    rounded = int(Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, EXACT))
    if not -(1 << 63) <= rounded < 1 << 63:
        raise failure(f"{number} does not fit a bigint after rounding")
    return rounded


def _map_values(value: Datum, change: Callable[[Any], Any], arrow: pa.DataType) -> Datum:
    if isinstance(value, pa.Scalar):
        return pa.scalar(None if not value.is_valid else change(value.as_py()), arrow)
    return pa.array([None if row is None else change(row) for row in value.to_pylist()], arrow)


# --- times

_UNITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    "QUARTER": "quarter",
    **dict.fromkeys(("MONTH", "MM", "MON"), "month"),
    "WEEK": "week",
    **dict.fromkeys(("DAY", "DD"), "day"),
    "HOUR": "hour",
    "MINUTE": "minute",
    "SECOND": "second",
    "MILLISECOND": "millisecond",
    "MICROSECOND": "microsecond",
}
_OF_DATES: Final = frozenset({"year", "quarter", "month", "week"})


def _date_trunc(node: Node, values: Sequence[Datum]) -> Datum:
    unit = _unit_of(node, values[0])
    if _demand(node, "temporal", values[1]):
        return pa.scalar(None, pa.timestamp("us", "UTC"))
    times = values[1]
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("us"))
    plain = times.cast(pa.timestamp(times.type.unit)).cast(pa.timestamp("us"), safe=False)
    return pc.floor_temporal(plain, unit=unit).cast(pa.timestamp("us", "UTC"))


def _trunc(node: Node, values: Sequence[Datum]) -> Datum:
    unit = _unit_of(node, values[1])
    if unit not in _OF_DATES:
        raise refuse(
            node, f"truncates a date to {unit!r}", "use 'year', 'quarter', 'month' or 'week'"
        )
    if _demand(node, "temporal", values[0]):
        return pa.scalar(None, pa.date32())
    value = values[0]
    if pa.types.is_timestamp(value.type):
        value = pc.floor_temporal(value.cast(pa.timestamp(value.type.unit)), unit="day")
    return pc.floor_temporal(value.cast(pa.date32()), unit=unit).cast(pa.date32())


def _unit_of(node: Node, value: Datum) -> str:
    text = _constant(node, value)
    unit = _UNITS.get(text.upper()) if isinstance(text, str) else None
    if unit is None:
        raise refuse(node, f"truncates to {text!r}", f"use one of {', '.join(_UNITS)}")
    return unit


def _clock(node: Node, _values: Sequence[Datum]) -> Datum:
    raise refuse(
        node,
        "is the current time, which would differ between the tasks of this query",
        "write the time as a literal",
    )


# --- nulls


def _first_valid(_node: Node, values: Sequence[Datum]) -> Datum:
    return pc.coalesce(*values)


def _null_if(_node: Node, values: Sequence[Datum]) -> Datum:
    value, is_equal = values
    return pc.if_else(pc.fill_null(is_equal, False), pa.scalar(None, value.type), value)


def common_type(node: Node, types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of a value that is one of several.

    Raises:
        InvalidInputError: They have no common type.
    """
    typed = [arrow for arrow in types if not pa.types.is_null(arrow)]
    if not typed:
        return pa.null()
    kinds = {kind_of(arrow) for arrow in typed}
    if kinds == {"number"}:
        return common_number(typed)
    if kinds == {"string"}:
        return pa.string()
    if len(set(typed)) == 1:
        return typed[0]
    raise refuse(node, f"combines values of {', '.join(map(str, typed))}", "cast them to one type")


def converted(value: Datum, arrow: pa.DataType) -> Datum:
    """Convert a value to a common type."""
    if value.type == arrow:
        return value
    if is_float(arrow):
        return to_float(value, arrow)
    if pa.types.is_decimal(arrow) and not pa.types.is_null(value.type):
        return rescaled(to_decimal(value), arrow)
    return value.cast(arrow)


# --- lists, maps and structs


def _array(_node: Node, values: Sequence[Datum]) -> Datum:
    arrow = values[0].type if values else pa.null()
    num_rows = num_rows_of(*values)
    if num_rows is None:
        return pa.scalar([value.as_py() for value in values], pa.list_(arrow))
    columns = [repeated(v, num_rows) if isinstance(v, pa.Scalar) else v for v in values]
    size = len(columns)
    order = np.arange(size * num_rows).reshape(size, num_rows).T.reshape(-1)
    flat = pa.concat_arrays(columns).take(pa.array(order))
    offsets = np.arange(num_rows + 1, dtype=np.int32) * size
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)


def _as_list(node: Node, value: Datum) -> pa.Array:
    """Convert lists of any layout to one for which `flatten` returns the items."""
    if not is_list_type(value.type):
        raise refuse(node, f"takes a list, not {value.type}")
    array = pa.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else value
    if pa.types.is_fixed_size_list(array.type):
        return array.cast(pa.list_(array.type.value_type))
    return array


def _parents(lists: pa.ListArray) -> npt.NDArray[np.int64]:
    """Return the row of each item that `flatten` returns.

    Arrow's own function (26) counts items under null lists, which `flatten` omits.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths)


def _size(node: Node, values: Sequence[Datum]) -> Datum:
    (value,) = values
    if pa.types.is_map(value.type):
        return pc.list_value_length(value.cast(pa.list_(value.type.field(0))))
    lengths = pc.list_value_length(_as_list(node, value)).cast(pa.int32())
    return lengths[0] if isinstance(value, pa.Scalar) else lengths


def _array_contains(node: Node, values: Sequence[Datum]) -> Datum:
    lists, sought = values
    if pa.types.is_null(sought.type) or pa.types.is_null(lists.type):
        raise refuse(node, "searches a list for NULL, which is never equal to an item")
    num_rows = num_rows_of(lists, sought)
    array = _as_list(node, lists)
    if isinstance(lists, pa.Scalar) and num_rows is not None:
        array = repeated(array[0], num_rows)
    items, parents = pc.list_flatten(array), _parents(array)
    if items.type == pa.float32() and pa.types.is_integer(sought.type):
        sought = to_float(sought, items.type)  # not as doubles, unlike comparisons
    elif sought.type == pa.float32() and pa.types.is_integer(items.type):
        items = to_float(items, sought.type)
    if not isinstance(sought, pa.Scalar):
        sought_by_item: Datum = sought.take(pa.array(parents))
    else:
        sought_by_item = sought
    answers = compared(node, pc.equal, items, sought_by_item)
    if isinstance(answers, pa.Scalar):
        answers = repeated(answers, len(items))
    is_true, is_null = np.zeros(len(array), np.bool_), np.zeros(len(array), np.bool_)
    is_true[parents[pc.fill_null(answers, False).to_numpy(zero_copy_only=False)]] = True
    is_null[parents[answers.is_null().to_numpy(zero_copy_only=False)]] = True
    unknown = (is_null & ~is_true) | array.is_null().to_numpy(zero_copy_only=False)
    if not isinstance(sought, pa.Scalar):
        unknown |= sought.is_null().to_numpy(zero_copy_only=False)
    elif not sought.is_valid:
        unknown[:] = True
    result = pa.array(is_true, mask=unknown)
    return result[0] if num_rows is None else result


def subscript(
    node: Node, value: Datum, key: Datum, *, first: int = 0, strict: bool = True
) -> Datum:
    """Return the item of a list, the value of a map, or the field of a struct.

    Args:
        node: For messages.
        value: The lists, maps or structs.
        key: A position, counted from `first`; a key; or the name of a field.
        first: The position of the first item.
        strict: Whether a position beyond the end of a list is an error; otherwise it returns null.
    """
    if pa.types.is_struct(value.type) and isinstance(key, pa.Scalar):
        return field_of(node, value, str(key.as_py()))
    if pa.types.is_map(value.type):
        return _map_value(node, value, key)
    array = _as_list(node, value)
    if not pa.types.is_integer(key.type):
        raise refuse(node, f"has {key.type} as the position in a list, which must be an integer")
    num_rows = num_rows_of(value, key)
    if isinstance(value, pa.Scalar) and num_rows is not None:
        array = repeated(array[0], num_rows)
    lengths = pc.list_value_length(array).cast(pa.int64())
    positions = pc.subtract(key.cast(pa.int64()), pa.scalar(first))
    if isinstance(positions, pa.Scalar):
        positions = repeated(positions, len(array))
    is_in = pc.and_(pc.greater_equal(positions, 0), pc.less(positions, lengths))
    if strict and pc.any(pc.invert(is_in)).as_py():
        raise failure(
            "a list has no item at that position; get(list, position) returns null instead"
        )
    starts = np.concatenate(([0], np.cumsum(pc.fill_null(lengths, 0).to_numpy())))[:-1]
    rows = pc.add(positions, pa.array(starts.astype(np.int64)))
    rows = pc.if_else(pc.fill_null(is_in, False), rows, pa.scalar(None, pa.int64()))
    result = pc.list_flatten(array).take(rows)
    return result[0] if num_rows is None else result


def _map_value(node: Node, value: Datum, key: Datum) -> Datum:
    sought = _constant(node, key)
    if sought is None:
        return pa.nulls(len(value), value.type.item_type)
    if kind_of(value.type.key_type) != kind_of(key.type):
        raise refuse(node, f"looks up {key.type} in {value.type}", "cast the key")
    entries = value.cast(pa.map_(value.type.key_type, value.type.item_type))
    lists = _entries(entries)
    parents, flat = _parents(lists), pc.list_flatten(lists)
    is_key = compared(node, pc.equal, flat.field(0), key).to_numpy(zero_copy_only=False)
    rows = np.full(len(value), -1, np.int64)
    positions = np.flatnonzero(is_key)[::-1]
    rows[parents[positions]] = positions  # of equal keys, the first
    return flat.field(1).take(pa.array(rows, mask=rows < 0))


def _entries(maps: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of structs."""
    fields = [maps.type.key_field, maps.type.item_field]
    return maps.cast(pa.list_(pa.field("entries", pa.struct(fields), nullable=False)))


def field_of(node: Node, value: Datum, name: str) -> Datum:
    """Return a field of structs by its name; case does not matter if only one field matches."""
    names = [other.name for other in value.type] if pa.types.is_struct(value.type) else []
    matches = [other for other in names if other == name] or [
        other for other in names if other.lower() == name.lower()
    ]
    if len(matches) != 1:
        raise refuse(
            node, f"names {name!r}, which is not the name of exactly one field of {value.type}"
        )
    return pc.struct_field(value, matches)


def _get(node: Node, values: Sequence[Datum]) -> Datum:
    if not is_list_type(values[0].type):
        raise refuse(node)
    return subscript(node, *values, strict=False)


FUNCTIONS: Final[Mapping[str, Function]] = {
    "lower": Function(_of_text(lower)),
    "lcase": Function(_of_text(lower)),
    "upper": Function(_of_text(upper)),
    "ucase": Function(_of_text(upper)),
    "trim": Function(_trim(pc.utf8_trim), 1, 2),
    "btrim": Function(_trim(pc.utf8_trim), 1, 1),
    "ltrim": Function(_trim(pc.utf8_ltrim), 1, 2),
    "rtrim": Function(_trim(pc.utf8_rtrim), 1, 2),
    "length": Function(_length),
    "len": Function(_length),
    "char_length": Function(_length),
    "character_length": Function(_length),
    "substring": Function(_substring, 2, 3),
    "left": Function(_leading_characters, 2, 2),
    "concat": Function(_concat, 0, None),
    "contains": Function(_matches(pc.match_substring), 2, 2),
    "startswith": Function(_matches(pc.starts_with), 2, 2),
    "starts_with": Function(_matches(pc.starts_with), 2, 2),
    "endswith": Function(_matches(pc.ends_with), 2, 2),
    "ends_with": Function(_matches(pc.ends_with), 2, 2),
    "rlike": Function(_regex, 2, 2),
    "regexp": Function(_regex, 2, 2),
    "regexp_like": Function(_regex, 2, 2),
    "get_json_object": Function(_get_json_object, 2, 2),
    "positive": Function(_positive),
    "abs": Function(_absolute),
    "isnan": Function(_is_nan),
    "isnull": Function(lambda _, values: pc.is_null(values[0])),
    "isnotnull": Function(lambda _, values: pc.is_valid(values[0])),
    "round": Function(_round, 1, 2),
    "date_trunc": Function(_date_trunc, 2, 2),
    "trunc": Function(_trunc, 2, 2),
    "current_date": Function(_clock, 0, 0),
    "current_timestamp": Function(_clock, 0, 0),
    "now": Function(_clock, 0, 0),
    "localtimestamp": Function(_clock, 0, 0),
    "coalesce": Function(_first_valid, 1, None),
    "ifnull": Function(_first_valid, 2, 2),
    "nvl": Function(_first_valid, 2, 2),
    "nullif": Function(_null_if, 2, 2),
    "array": Function(_array, 0, None),
    "size": Function(_size),
    "cardinality": Function(_size),
    "array_size": Function(_size),
    "array_contains": Function(_array_contains, 2, 2),
    "get": Function(_get, 2, 2),
}
"""All functions; `rules` converts the arguments of coalesce and array to a common type."""
