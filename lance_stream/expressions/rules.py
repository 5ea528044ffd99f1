"""How each kind of node of a SQL expression is evaluated on Arrow batches: one table, `RULES`.

A rule takes a node and a record batch and returns a datum: an Arrow array, or a scalar if the value
is the same for all rows. It lists the node's arguments that it supports; `predicates` refuses a
node with others, or without a rule, and describes the rules' meaning.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lance_stream.arguments import did_you_mean
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.predicates import named_twice

Datum: TypeAlias = Any
"""An Arrow array, or an Arrow scalar if the value is the same for all rows."""

DIALECT: Final = "sqlite"
"""The dialect whose quoting applies: names in double quotes or backticks, strings in single quotes
without backslash escapes."""


def refuse(node: exp.Expression, why: str = "is not supported") -> InvalidInputError:
    """Return the error for a node that cannot be evaluated, and why."""
    kind = type(node).__name__
    try:
        text = node.sql(dialect=DIALECT)
    except (SqlglotError, RecursionError, ValueError):
        text = kind
    return InvalidInputError(
        f"{text[:200]!r} ({kind}) {why} in an expression; supported are comparison, AND OR NOT, "
        "IN, BETWEEN, LIKE, IS NULL, arithmetic and %, CAST, literals and columns"
    )


def path_of(node: exp.Expression) -> tuple[str, ...]:
    """Return the names in a column's node, from the top-level column down."""
    parts = node.parts if isinstance(node, exp.Column | exp.Dot) else [node]
    if not all(isinstance(part, exp.Identifier) for part in parts):
        raise refuse(node)
    return tuple(part.name for part in parts)


def field_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.Field:
    """Return the column, or part of a struct, that a path names.

    Raises:
        NotFoundError: There is none; the message lists those that exist.
        InvalidInputError: Two columns have the name.
    """
    if schema.names.count(path[0]) > 1:
        raise InvalidInputError(named_twice(path[0]))
    fields = {each.name: each for each in schema}
    for depth, name in enumerate(path):
        if name not in fields:
            where = f" in {'.'.join(path[:depth])!r}" if depth else ""
            raise NotFoundError(
                f"there is no column {name!r}{where}{did_you_mean(name, fields)}; there are: "
                f"{', '.join(fields) or 'none'}"
            )
        found = fields[name]
        fields = {each.name: each for each in found.type} if pa.types.is_struct(found.type) else {}
    return found


def evaluate_node(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    """Return the value of a node that has a rule, for the rows of a batch."""
    value = RULES[type(node)].evaluate(node, batch)
    return pc.invert(_truth(node, value)) if node.args.get("negate") else value


def _column(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    path = path_of(node)
    field_at(batch.schema, path)
    column = batch.column(path[0])
    if len(path) > 1:
        column = pc.struct_field(column, list(path[1:]))
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    return column


# --- literals


def _literal(node: exp.Expression, _: pa.RecordBatch) -> pa.Scalar:
    text = str(node.this)
    if node.is_string:
        return pa.scalar(text)
    return _number(node, text)


def _number(node: exp.Expression, text: str) -> pa.Scalar:
    try:
        if "e" in text.lower():
            return pa.scalar(float(text))
        if "." in text:
            return pa.scalar(Decimal(text))
        number = int(text)
    except (ValueError, ArithmeticError, pa.ArrowInvalid):
        raise refuse(node, "is not a number that is supported") from None
    if number < 1 << 63:
        return pa.scalar(number, pa.int64())
    return pa.scalar(number, pa.uint64()) if number < 1 << 64 else pa.scalar(Decimal(number))


def _boolean(node: exp.Expression, _: pa.RecordBatch) -> pa.Scalar:
    return pa.scalar(bool(node.this))


def _null(_node: exp.Expression, _: pa.RecordBatch) -> pa.Scalar:
    return pa.scalar(None, pa.null())


def _bytes(node: exp.Expression, _: pa.RecordBatch) -> pa.Scalar:
    try:
        return pa.scalar(bytes.fromhex(str(node.this)), pa.binary())
    except ValueError:
        raise refuse(node, "is not a string of hexadecimal bytes and not supported") from None


def _negated(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(node, f"-{node.this.this}")
    value = evaluate_node(node.this, batch)
    _demand_number(node, value)
    return pc.negate_checked(_widened(value))


# --- truth


def _truth(node: exp.Expression, value: Datum) -> Datum:
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise refuse(node, f"is a {value.type}, not a truth value, and is not supported")
    return value


def _operands(node: exp.Expression, kind: type[exp.Expression]) -> list[exp.Expression]:
    """Return the operands of a chain of one connective, however long, without recursion."""
    operands: list[exp.Expression] = []
    pending = [node]
    while pending:
        each = pending.pop()
        if type(each) is kind:
            pending += [each.expression, each.this]
        else:
            operands.append(each)
    return operands


def _connect(connect: Callable[[Datum, Datum], Datum]) -> Callable[..., Datum]:
    def evaluate_chain(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
        first, *others = _operands(node, type(node))
        value = _truth(first, evaluate_node(first, batch))
        for each in others:
            value = connect(value, _truth(each, evaluate_node(each, batch)))
        return value

    return evaluate_chain


def _not(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    return pc.invert(_truth(node.this, evaluate_node(node.this, batch)))


def _is(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.this, batch)
    if isinstance(node.expression, exp.Null):
        return pc.is_null(value)
    if not isinstance(node.expression, exp.Boolean):
        raise refuse(node)
    wanted = pa.scalar(bool(node.expression.this))
    return pc.fill_null(pc.equal(_truth(node.this, value), wanted), False)


# --- comparison


def _compare(function: Callable[[Datum, Datum], Datum]) -> Callable[..., Datum]:
    def evaluate_comparison(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
        left, right = evaluate_node(node.this, batch), evaluate_node(node.expression, batch)
        return _compared(node, function, left, right)

    return evaluate_comparison


def _compared(
    node: exp.Expression, function: Callable[[Datum, Datum], Datum], left: Datum, right: Datum
) -> Datum:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, pa.bool_())
    left, right = _harmonised(node, left, right)
    answer = function(left, right)
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return _WITH_NAN[function](answer, _is_nan(left), _is_nan(right))
    return answer


def _is_nan(value: Datum) -> Datum:
    """Return where a value is NaN: null where it is null, false for types without NaN."""
    if pa.types.is_floating(value.type):
        return pc.is_nan(value)
    return pc.if_else(pc.is_valid(value), pa.scalar(False), pa.scalar(None, pa.bool_()))


# A comparison with a null gives null: these `and_` and `or_` are not Kleene's.
_WITH_NAN: Mapping[Callable[[Datum, Datum], Datum], Callable[[Datum, Datum, Datum], Datum]] = {
    pc.equal: lambda plain, left, right: pc.or_(plain, pc.and_(left, right)),
    pc.not_equal: lambda plain, left, right: pc.and_not(plain, pc.and_(left, right)),
    pc.less: lambda plain, left, right: pc.or_(plain, pc.and_not(right, left)),
    pc.less_equal: lambda plain, _, right: pc.or_(plain, right),
    pc.greater: lambda plain, left, right: pc.or_(plain, pc.and_not(left, right)),
    pc.greater_equal: lambda plain, left, _: pc.or_(plain, left),
}
"""Corrects Arrow's results for NaN: it equals NaN, and is greater than all other values."""


def _harmonised(node: exp.Expression, left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Convert two values to types that Arrow compares exactly."""
    kinds = _kind_of(left.type), _kind_of(right.type)
    if kinds == ("temporal", "string") and isinstance(right, pa.Scalar):
        return _harmonised(node, left, _temporal_of(node, right, left.type))
    if kinds == ("string", "temporal") and isinstance(left, pa.Scalar):
        return _harmonised(node, _temporal_of(node, left, right.type), right)
    if kinds[0] != kinds[1] or kinds[0] is None:
        raise refuse(node, f"compares a {left.type} with a {right.type}, which is not supported")
    if kinds[0] == "temporal":
        return _in_one_unit(_at_utc(left, right), _at_utc(right, left))
    left, right = _floats_beside(left, right)
    if {left.type, right.type} != {pa.uint64()} and pa.types.is_uint64(left.type):
        return _beside_uint64(left, right)
    if {left.type, right.type} != {pa.uint64()} and pa.types.is_uint64(right.type):
        right, left = _beside_uint64(right, left)
    return left, right


def _floats_beside(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Convert a decimal that is combined with a float to a double."""
    if pa.types.is_floating(left.type) and pa.types.is_decimal(right.type):
        return left, as_float(right, pa.float64())
    if pa.types.is_decimal(left.type) and pa.types.is_floating(right.type):
        return as_float(left, pa.float64()), right
    return left, right


def as_float(value: Datum, target: pa.DataType) -> Datum:
    """Return numbers as floats; decimals as the nearest ones.

    Arrow's own cast of a decimal (26) rounds twice if it has more digits than a double, so
    `x = 0.10000000149011612` would not be true for exactly this number.

    Args:
        value: Numbers, or anything else that Arrow casts.
        target: A type of floats.
    """
    if pa.types.is_decimal(value.type):
        return value.cast(pa.string()).cast(target)
    return value.cast(target)


def _kind_of(arrow: pa.DataType) -> str | None:
    return next((name for name, accepts in _KINDS.items() if accepts(arrow)), None)


_KINDS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "number": lambda t: bool(
        pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t)
    ),
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


def _beside_uint64(unsigned: Datum, other: Datum) -> tuple[Datum, Datum]:
    """Convert a u64 combined with a signed integer: Arrow casts it to i64, a decimal fits both."""
    if isinstance(other, pa.Scalar) and pa.types.is_integer(other.type):
        number = other.as_py()
        if number is not None and 0 <= number < 1 << 64:
            return unsigned, pa.scalar(number, pa.uint64())
    if pa.types.is_signed_integer(other.type):
        return unsigned.cast(pa.decimal128(20, 0)), other.cast(pa.decimal128(20, 0))
    return unsigned, other


def _at_utc(value: Datum, other: Datum) -> Datum:
    """Interpret a time without a zone as UTC if it is combined with one with a zone."""
    if pa.types.is_timestamp(other.type) and other.type.tz is not None:
        unit = value.type.unit if pa.types.is_timestamp(value.type) else "s"
        return value.cast(pa.timestamp(unit, "UTC"))
    if pa.types.is_timestamp(value.type) and value.type.tz is not None:
        return value.cast(pa.timestamp(value.type.unit, "UTC"))
    return value


def _in_one_unit(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Convert two times to the finer unit; to decimals if they exceed that unit's range.

    The year 9999 in nanoseconds is not a timestamp, but every row of such a column is before it.
    """
    if left.type.equals(right.type):
        return left, right
    ticks = min(_TICKS_OF_DAY.index(_unit_of(each.type)) for each in (left, right))
    zone = next((each.type.tz for each in (left, right) if pa.types.is_timestamp(each.type)), None)
    finer = pa.timestamp(_TICKS_OF_DAY[ticks], zone) if _TICKS_OF_DAY[ticks] != "D" else None
    if finer is None:
        return left.cast(pa.date32()), right.cast(pa.date32())
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
    """Return times as decimals, which fit every time of every unit in nanoseconds."""
    unit = _unit_of(value.type)
    ticks = value.cast(pa.int32()) if unit == "D" else value
    number = ticks.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return pc.multiply(number, pa.scalar(Decimal(_NANOSECONDS[unit]), pa.decimal128(18, 0)))


def _temporal_of(node: exp.Expression, text: pa.Scalar, arrow: pa.DataType) -> pa.Scalar:
    if pa.types.is_date(arrow) and len(text.as_py() or "") <= 10:
        return _date_of(node, text)
    return _timestamp_of(node, text)


def _date_of(node: exp.Expression, text: pa.Scalar) -> pa.Scalar:
    try:
        return text.cast(pa.date32())
    except pa.ArrowInvalid:
        raise refuse(
            node, f"has {text.as_py()!r}, which is no date as in '2024-02-29', and is not supported"
        ) from None


def _timestamp_of(node: exp.Expression, text: pa.Scalar) -> pa.Scalar:
    fraction = (text.as_py() or "").partition(".")[2]
    digits = len(fraction) - len(fraction.lstrip("0123456789"))
    unit = "ns" if digits > 6 else "us"
    for arrow in (pa.timestamp(unit), pa.timestamp(unit, "UTC")):
        try:
            return text.cast(arrow)
        except pa.ArrowInvalid:
            continue
    raise refuse(
        node,
        f"has {text.as_py()!r}, which is no time as in '2024-02-29 12:00:00', and is not supported",
    )


def _between(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.this, batch)
    low, high = (evaluate_node(node.args[name], batch) for name in ("low", "high"))
    return pc.and_kleene(
        _compared(node, pc.greater_equal, value, low), _compared(node, pc.less_equal, value, high)
    )


def _in(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.this, batch)
    if not node.expressions or pa.types.is_null(value.type):
        if not node.expressions:
            raise refuse(node)
        return pa.scalar(None, pa.bool_())
    members, others = _members(node, value.type)
    result: Datum = pa.scalar(False)
    for each in others:
        result = pc.or_kleene(result, _compared(node, pc.equal, value, evaluate_node(each, batch)))
    if members and isinstance(value, pa.Array):
        found = pc.is_in(value, value_set=members, skip_nulls=True)
        found = pc.if_else(pc.is_valid(value), found, pa.scalar(None, pa.bool_()))
        return pc.or_kleene(found, result)
    for member in members:
        result = pc.or_kleene(result, pc.equal(value, member))
    return result


def listed_members(node: exp.In, arrow: pa.DataType) -> pa.Array:
    """Return the constants of an IN that are of exactly a column's type.

    Those of other types, and nulls, are left out.
    """
    return _members(node, arrow)[0]


def _members(node: exp.Expression, arrow: pa.DataType) -> tuple[pa.Array, list[exp.Expression]]:
    """Return the constants of an IN that are of exactly a type, and what else it lists."""
    kept: KeptMembers | None = node.meta.get(KEPT_MEMBERS)
    found = None if kept is None else kept.by_type.get(arrow)
    if found is not None:
        return found
    plain: list[Any] = []
    others: list[exp.Expression] = []
    for each in node.expressions:
        is_constant = isinstance(each, exp.Literal) or each.find(exp.Column) is None
        member = _as_member(arrow, evaluate_node(each, _NO_ROWS)) if is_constant else None
        if member is None:
            others.append(each)
        else:
            plain.append(member)
    found = pa.array(plain, arrow if plain else pa.null()), others
    if kept is not None:
        kept.by_type[arrow] = found
    return found


KEPT_MEMBERS: Final = "lance_stream.members"
"""Where the node of an IN in a parsed filter has its `KeptMembers`."""


class KeptMembers:
    """What an IN lists, by the type of its column: it is evaluated for each batch, in any thread.

    Attributes:
        by_type: The constants of exactly that type, and all other nodes.
    """

    def __init__(self) -> None:
        self.by_type: dict[pa.DataType, tuple[pa.Array, list[exp.Expression]]] = {}

    def __deepcopy__(self, _memo: object) -> "KeptMembers":
        """Return one that has nothing, for the copy of a node."""
        return KeptMembers()


_NO_ROWS: Final = pa.RecordBatch.from_arrays([], names=[])


def _as_member(arrow: pa.DataType, listed: Datum) -> Any:
    """Return a listed constant as a Python value of exactly a column's type, or None."""
    if not isinstance(listed, pa.Scalar) or not listed.is_valid:
        return None
    both_integers = pa.types.is_integer(arrow) and pa.types.is_integer(listed.type)
    both_strings = _kind_of(arrow) == "string" == _kind_of(listed.type)
    if not both_integers and not both_strings:
        return None
    plain = listed.as_py()
    if both_integers:
        bounds = np.iinfo(arrow.to_pandas_dtype())
        if not bounds.min <= plain <= bounds.max:
            return None
    return plain


def _like(*, ignore_case: bool) -> Callable[..., Datum]:
    def evaluate_like(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
        return _matched(node, batch, escape="\\", ignore_case=ignore_case)

    return evaluate_like


def _like_with_escape(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    like, escape = node.this, node.expression
    if not isinstance(like, exp.Like | exp.ILike) or not isinstance(escape, exp.Literal):
        raise refuse(node)
    if len(str(escape.this)) != 1:
        raise refuse(node, "needs one character after ESCAPE; this is not supported")
    result = _matched(like, batch, escape=str(escape.this), ignore_case=isinstance(like, exp.ILike))
    return pc.invert(result) if like.args.get("negate") else result


def _matched(
    node: exp.Expression, batch: pa.RecordBatch, *, escape: str, ignore_case: bool
) -> Datum:
    value, pattern = evaluate_node(node.this, batch), evaluate_node(node.expression, batch)
    if pa.types.is_null(value.type) or pa.types.is_null(pattern.type):
        return pa.scalar(None, pa.bool_())
    if not isinstance(pattern, pa.Scalar) or _kind_of(pattern.type) != "string":
        raise refuse(node, "needs a string literal as its pattern; this is not supported")
    if _kind_of(value.type) != "string":
        raise refuse(node, f"matches a {value.type}, which is not supported")
    parts = _parts_of_pattern(node, pattern.as_py(), escape)
    if any(part in _NEEDS_ESCAPE for part, is_plain in parts if is_plain):
        # Arrow's LIKE (26) mistakes the backslash of an escape for a letter in some simple patterns
        regex = "".join(
            re.escape(part) if is_plain else _WILDCARDS[part] for part, is_plain in parts
        )
        return pc.match_substring_regex(value, rf"(?s)\A{regex}\z", ignore_case=ignore_case)
    plain = "".join(part for part, _ in parts)
    return pc.match_like(value, plain, ignore_case=ignore_case)


_NEEDS_ESCAPE: Final = frozenset("%_\\")
_WILDCARDS: Final[Mapping[str, str]] = {"%": ".*", "_": "."}


def _parts_of_pattern(node: exp.Expression, pattern: str, escape: str) -> list[tuple[str, bool]]:
    """Return the characters of a pattern without escapes, and whether each is literal."""
    parts: list[tuple[str, bool]] = []
    letters = iter(pattern)
    for letter in letters:
        if letter != escape:
            parts.append((letter, letter not in _WILDCARDS))
            continue
        escaped = next(letters, None)
        if escaped is None:
            raise refuse(node, "has an escape at the end of its pattern; not supported")
        parts.append((escaped, True))
    return parts


# --- arithmetic and casts


def _demand_number(node: exp.Expression, *values: Datum) -> None:
    for each in values:
        if not pa.types.is_null(each.type) and _kind_of(each.type) != "number":
            raise refuse(node, f"calculates with a {each.type}, which is not supported")


def _widened(value: Datum) -> Datum:
    """Convert integers to i64, so that arithmetic on a narrow column does not overflow."""
    if pa.types.is_integer(value.type) and not pa.types.is_uint64(value.type):
        return value.cast(pa.int64())
    return value


def _arithmetic(function: Callable[[Datum, Datum], Datum]) -> Callable[..., Datum]:
    def evaluate_arithmetic(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
        left, right = evaluate_node(node.this, batch), evaluate_node(node.expression, batch)
        _demand_number(node, left, right)
        left, right = _floats_beside(_widened(left), _widened(right))
        if pa.types.is_uint64(left.type) != pa.types.is_uint64(right.type):
            left, right = _without_uint64(left), _without_uint64(right)
        return function(left, right)

    return evaluate_arithmetic


def _without_uint64(value: Datum) -> Datum:
    return value.cast(pa.decimal128(20, 0)) if pa.types.is_uint64(value.type) else value


def _quotient(left: Datum, right: Datum) -> Datum:
    left, right = as_float(left, pa.float64()), as_float(right, pa.float64())
    return pc.divide(left, _null_where_zero(right))


def _remainder(left: Datum, right: Datum) -> Datum:
    if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
        left, right = _whole_or_double(left), _whole_or_double(right)
    right = _null_where_zero(right)
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return _float_remainder(left.cast(pa.float64()), right.cast(pa.float64()))
    if pa.types.is_signed_integer(right.type):
        # the smallest integer divided by -1 overflows, and the divisor's sign does not matter
        right = pc.if_else(pc.equal(right, -1), pa.scalar(1, right.type), right)
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _whole_or_double(value: Datum) -> Datum:
    if pa.types.is_decimal(value.type):
        whole = value.type.scale == 0 and value.type.precision <= 20
        return value.cast(pa.int64()) if whole else as_float(value, pa.float64())
    return value


def _float_remainder(left: Datum, right: Datum) -> Datum:
    def plain(value: Datum) -> Any:
        return (
            np.float64("nan" if not value.is_valid else value.as_py())
            if isinstance(value, pa.Scalar)
            else value.to_numpy(zero_copy_only=False)
        )

    known = pc.and_(pc.is_valid(left), pc.is_valid(right))
    with np.errstate(invalid="ignore"):
        result = np.fmod(plain(left), plain(right))
    if isinstance(known, pa.Scalar):
        return pa.scalar(float(result) if known.as_py() else None, pa.float64())
    return pc.if_else(known, pa.array(result), pa.scalar(None, pa.float64()))


def _null_where_zero(value: Datum) -> Datum:
    if pa.types.is_null(value.type):
        return value
    zero = pa.scalar(0).cast(value.type)
    return pc.if_else(pc.equal(value, zero), pa.scalar(None, value.type), value)


def _cast(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    wanted, value = cast_type_of(node), evaluate_node(node.this, batch)
    if isinstance(value, pa.Scalar) and _kind_of(value.type) == "string":
        if pa.types.is_timestamp(wanted):
            return _timestamp_of(node, value)
        if pa.types.is_date(wanted):
            return _date_of(node, value)
    if pa.types.is_integer(wanted) and pa.types.is_floating(value.type):
        value = pc.trunc(value)
    if pa.types.is_integer(wanted) and pa.types.is_decimal(value.type):
        value = pc.trunc(value).cast(pa.decimal128(value.type.precision, 0))
    if pa.types.is_date(wanted) and pa.types.is_timestamp(value.type):
        value = value.cast(pa.timestamp(value.type.unit))
    return as_float(value, wanted) if pa.types.is_floating(wanted) else value.cast(wanted)


def cast_type_of(node: exp.Expression) -> pa.DataType:
    """Return the Arrow type that a CAST names.

    Raises:
        InvalidInputError: It is not supported.
    """
    to = node.args["to"]
    name = to.this.value if hasattr(to.this, "value") else str(to.this)
    if name == "DECIMAL":
        numbers = [int(each.name) for each in to.expressions if each.name.isdecimal()]
        precision, scale = (*numbers, 10, 0)[:2] if not numbers else (*numbers, 0)[:2]
        if not 0 < precision <= 38 or scale > precision:
            raise refuse(node, "casts to a decimal that is not supported")
        return pa.decimal128(precision, scale)
    if name not in _CASTS:
        raise refuse(node, f"casts to {name}, which is not supported")
    return _CASTS[name]


_CASTS: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True)
class Rule:
    """How one kind of node is evaluated, and which of its arguments that covers."""

    evaluate: Callable[[exp.Expression, pa.RecordBatch], Datum]
    arguments: frozenset[str] = frozenset({"this", "expression"})


RULES: Mapping[type[exp.Expression], Rule] = {
    exp.Column: Rule(_column, frozenset({"this", "table", "db", "catalog"})),
    exp.Dot: Rule(_column),
    exp.Literal: Rule(_literal, frozenset({"this", "is_string"})),
    exp.HexString: Rule(_bytes),
    exp.Boolean: Rule(_boolean),
    exp.Null: Rule(_null),
    exp.Paren: Rule(lambda node, batch: evaluate_node(node.this, batch)),
    exp.Neg: Rule(_negated),
    exp.And: Rule(_connect(pc.and_kleene)),
    exp.Or: Rule(_connect(pc.or_kleene)),
    exp.Not: Rule(_not),
    exp.Is: Rule(_is),
    exp.EQ: Rule(_compare(pc.equal)),
    exp.NEQ: Rule(_compare(pc.not_equal)),
    exp.LT: Rule(_compare(pc.less)),
    exp.LTE: Rule(_compare(pc.less_equal)),
    exp.GT: Rule(_compare(pc.greater)),
    exp.GTE: Rule(_compare(pc.greater_equal)),
    exp.In: Rule(_in, frozenset({"this", "expressions", "negate"})),
    exp.Between: Rule(_between, frozenset({"this", "low", "high", "negate"})),
    exp.Like: Rule(_like(ignore_case=False), frozenset({"this", "expression", "negate"})),
    exp.ILike: Rule(_like(ignore_case=True), frozenset({"this", "expression", "negate"})),
    exp.Escape: Rule(_like_with_escape),
    exp.Add: Rule(_arithmetic(pc.add_checked)),
    exp.Sub: Rule(_arithmetic(pc.subtract_checked)),
    exp.Mul: Rule(_arithmetic(pc.multiply_checked)),
    exp.Div: Rule(_arithmetic(_quotient), frozenset({"this", "expression", "typed", "safe"})),
    exp.Mod: Rule(_arithmetic(_remainder)),
    exp.Cast: Rule(_cast, frozenset({"this", "to"})),
}
"""Every supported kind of node."""
