"""The evaluation of every kind of node of a SQL expression on Arrow batches: the table `RULES`.

A rule takes a node and a record batch and returns a datum: an Arrow array, or a scalar if the value
is the same for all rows. `comparisons`, `arithmetic` and `casts` implement the operators.

AND, OR, coalesce and right operands behave as in Spark, which evaluates row by row: an error is
ignored in a row whose value is not needed, as in `b <> 0 AND a / b > 1`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arguments import no_column_error
from lance_stream.errors import InvalidInputError
from lance_stream.expressions import nodes
from lance_stream.expressions.evaluation import arithmetic, casts, functions
from lance_stream.expressions.evaluation.comparisons import compared, kind_of
from lance_stream.expressions.evaluation.numbers import (
    INTEGER_DIGITS,
    common_decimal,
    decimal_type,
    is_float,
    is_number,
    null_where_not,
    rounded_to_compare,
    to_decimal,
    to_double,
)
from lance_stream.expressions.evaluation.patterns import WILDCARDS, parts_of_like
from lance_stream.expressions.nodes import Datum, Node, operands_of, refuse
from lance_stream.schema.column_paths import duplicate_name_problem

Rule: TypeAlias = Callable[[Any, pa.RecordBatch], Datum]
"""Evaluates one kind of node."""


def field_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.Field:
    """Return the column or struct field at a path.

    Raises:
        NotFoundError: It does not exist; the message lists the existing columns.
        InvalidInputError: Two columns have the name.
    """
    if schema.names.count(path[0]) > 1:
        raise InvalidInputError(duplicate_name_problem(path[0]))
    fields = {field.name: field for field in schema}
    for depth, name in enumerate(path):
        if name not in fields:
            raise no_column_error(path[: depth + 1], fields)
        field = fields[name]
        fields = {part.name: part for part in field.type} if pa.types.is_struct(field.type) else {}
    return field


def check_tree(node: Node) -> None:
    """Raise unless all functions exist and have a valid number of arguments, and no IN is empty."""
    for part in node.walk():
        if isinstance(part, nodes.In) and not part.members:
            raise refuse(part, "has an empty list")
        if isinstance(part, nodes.Call):
            function = functions.FUNCTIONS.get(part.name)
            if function is None:
                remedy = _JSON_REMEDY if part.name.startswith("json_") else None
                raise refuse(part, f"calls {part.name}, which is not supported", remedy)
            count = len(part.arguments)
            if count < function.minimum or (
                function.maximum is not None and count > function.maximum
            ):
                raise refuse(part, f"has {count} arguments, which {part.name} does not accept")


_JSON_REMEDY: Final = "get_json_object(column, '$.name[0]') extracts a part of JSON"


def evaluate_node(node: Node, batch: pa.RecordBatch) -> Datum:
    """Return the value of a node for the rows of a batch."""
    return RULES[type(node)](node, batch)


def evaluate_where(node: Node, batch: pa.RecordBatch, is_needed: Datum) -> Datum:
    """Return the value of a node; rows that do not need it have any value, and never fail.

    Args:
        node: The node.
        batch: The rows.
        is_needed: The rows that need the value: booleans; null means false.
    """
    try:
        return evaluate_node(node, batch)
    except pa.ArrowInvalid:
        if isinstance(is_needed, pa.Scalar):
            if is_needed.as_py():
                raise
            return pa.scalar(None, evaluate_node(node, batch.slice(0, 0)).type)
        mask = pc.fill_null(is_needed, False).to_numpy(zero_copy_only=False)
        if mask.all():  # no second attempt: nested ones would take exponential time
            raise
    value = evaluate_node(node, batch.filter(pa.array(mask)))
    return value if isinstance(value, pa.Scalar) else _scattered(value, mask)


def _scattered(value: pa.Array, mask: Any) -> pa.Array:
    return value.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


def _column(node: nodes.Column, batch: pa.RecordBatch) -> Datum:
    field_at(batch.schema, (node.name,))
    return _plain(batch.column(node.name))


def _field(node: nodes.FieldAccess, batch: pa.RecordBatch) -> Datum:
    return _plain(functions.field_of(node, evaluate_node(node.operand, batch), node.name))


def _plain(column: Datum) -> Datum:
    """Return values without a dictionary, and halves as floats."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    return column


# --- literals


def _literal(node: nodes.Literal, _: pa.RecordBatch) -> pa.Scalar:
    return pa.scalar(node.text) if node.is_string else _number(node, node.text)


def _number(node: nodes.Literal, text: str) -> pa.Scalar:
    if "e" in text.lower() and not node.is_decimal:
        return _in_range(node, pa.scalar(float(text)))
    try:
        if "." in text or node.is_decimal:
            return _decimal(node, Decimal(text))
        number = int(text)
    except (ValueError, ArithmeticError, pa.ArrowInvalid):
        raise refuse(node, "is a number that no type can hold") from None
    if -(1 << 63) <= number < 1 << 63:
        return pa.scalar(number, pa.int64())
    return (
        pa.scalar(number, pa.uint64()) if 0 < number < 1 << 64 else _decimal(node, Decimal(number))
    )


def _in_range(node: Node, number: pa.Scalar) -> pa.Scalar:
    if is_float(number.type) and not np.isfinite(number.as_py()):
        raise _out_of_range(node, number.type)
    return number


def _out_of_range(node: Node, arrow: pa.DataType) -> InvalidInputError:
    return refuse(node, f"is out of the range of {arrow}")


def _decimal(node: Node, number: Decimal) -> pa.Scalar:
    _, digits, exponent = number.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits) + max(int(exponent), 0), scale)
    if precision > 38:
        raise refuse(node, "has more than 38 digits, the most that a decimal has")
    return pa.scalar(number, pa.decimal128(precision, scale))


def _digits_of(node: Node, value: Datum, batch: pa.RecordBatch) -> int | None:
    """Return the digits of an integer next to a decimal; for a literal, its written digits."""
    literal = node
    while isinstance(literal, nodes.Parentheses):
        literal = literal.operand
    if isinstance(literal, nodes.Negative):  # -5 is a literal, but -(5) is not
        literal = literal.operand
    if isinstance(literal, nodes.Cast) and literal.is_literal:  # 5L
        literal = literal.operand
    if isinstance(literal, nodes.Literal) and literal.text.isdigit():
        return len(str(int(literal.text)))
    if not pa.types.is_signed_integer(value.type):
        return None
    return INTEGER_DIGITS[_spark_integer(node, batch)]


def _with_decimals(
    operands: Sequence[Node], values: Sequence[Datum], batch: pa.RecordBatch
) -> list[Datum]:
    """Return numbers, integers as decimals with Spark's digits."""
    return [
        to_decimal(value, _digits_of(operand, value, batch))
        if pa.types.is_integer(value.type)
        else value
        for operand, value in zip(operands, values, strict=True)
    ]


def _spark_types(
    operands: Sequence[Node], types: Sequence[pa.DataType], batch: pa.RecordBatch
) -> list[pa.DataType]:
    """Return the types of operands with a common type; next to decimals, integers as in Spark."""
    if not any(map(pa.types.is_decimal, types)):
        return list(types)
    return [
        _spark_integer(operand, batch) if pa.types.is_signed_integer(arrow) else arrow
        for operand, arrow in zip(operands, types, strict=True)
    ]


def _spark_integer(node: Node, batch: pa.RecordBatch) -> pa.DataType:
    """Return the type of an integer node in Spark, where arithmetic does not widen integers."""
    if isinstance(node, nodes.Literal):
        return pa.int32() if abs(int(node.text)) < 1 << 31 else pa.int64()
    if isinstance(node, nodes.Add | nodes.Subtract | nodes.Multiply | nodes.Remainder):
        operands = [node.left, node.right]
    elif isinstance(node, nodes.Parentheses | nodes.Negative):
        operands = [node.operand]
    elif isinstance(node, nodes.Call) and node.name in _KEEP_INTEGERS:
        operands = node.arguments[: 1 if node.name in ("round", "nullif") else None]
    else:
        operands = []
    types = [_spark_integer(operand, batch) for operand in operands]
    if not operands:
        return evaluate_node(node, batch.slice(0, 0)).type
    integers = [arrow for arrow in types if pa.types.is_integer(arrow)]
    return max(integers, key=INTEGER_DIGITS.__getitem__, default=pa.int64())


def _boolean(node: nodes.Boolean, _: pa.RecordBatch) -> pa.Scalar:
    return pa.scalar(node.value)


def _null(_node: nodes.Null, _: pa.RecordBatch) -> pa.Scalar:
    return pa.scalar(None, pa.null())


def _bytes(node: nodes.Bytes, _: pa.RecordBatch) -> pa.Scalar:
    digits = node.digits
    try:
        return pa.scalar(bytes.fromhex("0" * (len(digits) % 2) + digits), pa.binary())
    except ValueError:
        raise refuse(node, "has other characters than hexadecimal digits") from None


def _negated(node: nodes.Negative, batch: pa.RecordBatch) -> Datum:
    literal = node.operand
    if isinstance(literal, nodes.Cast) and literal.is_literal and pa.types.is_integer(literal.to):
        number = literal.operand  # -128Y
        if isinstance(number, nodes.Literal):
            return _typed_literal(literal, _number(number, f"-{number.text}"))
    if isinstance(literal, nodes.Literal) and not literal.is_string:
        return _number(literal, f"-{literal.text}")
    value = evaluate_node(node.operand, batch)
    _demand_number(node, value)
    return arithmetic.negate(value)


# --- truth


def _truth(node: Node, value: Datum) -> Datum:
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise refuse(node, f"is {value.type}, not a truth value", "compare it")
    return value


def _connect(connect: Callable[[Datum, Datum], Datum], decisive: bool) -> Rule:
    """Return the rule of a connective.

    Args:
        connect: Arrow's function.
        decisive: The value of a first operand that determines the result.
    """

    def evaluate_chain(node: nodes.And | nodes.Or, batch: pa.RecordBatch) -> Datum:
        first, *others = operands_of(node)
        value = _truth(first, evaluate_node(first, batch))
        for other in others:
            is_needed = pc.fill_null(pc.not_equal(value, decisive), True)
            value = connect(value, _truth(other, evaluate_where(other, batch, is_needed)))
        return value

    return evaluate_chain


def _not(node: nodes.Not, batch: pa.RecordBatch) -> Datum:
    return pc.invert(_truth(node.operand, evaluate_node(node.operand, batch)))


def _is(node: nodes.Is, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.operand, batch)
    if isinstance(node.constant, nodes.Null):
        return pc.is_null(value)
    constant = evaluate_node(node.constant, batch)
    return pc.fill_null(pc.equal(_truth(node.operand, value), constant), False)


# --- comparison


def _two(node: nodes.Binary, batch: pa.RecordBatch) -> tuple[Datum, Datum]:
    left = evaluate_node(node.left, batch)
    return left, evaluate_where(node.right, batch, pc.is_valid(left))


def _compared(
    node: Node,
    function: Callable[[Datum, Datum], Datum],
    operands: tuple[Node, Node],
    values: tuple[Datum, Datum],
    batch: pa.RecordBatch,
) -> Datum:
    """Return the result of a comparison; next to a decimal, an integer has Spark's digits."""
    digits: tuple[int | None, int | None] = None, None
    if any(pa.types.is_decimal(value.type) for value in values):
        digits = (
            _digits_of(operands[0], values[0], batch),
            _digits_of(operands[1], values[1], batch),
        )
    return compared(node, function, *values, digits)


def _compare(function: Callable[[Datum, Datum], Datum]) -> Rule:
    def evaluate_comparison(node: nodes.Comparison, batch: pa.RecordBatch) -> Datum:
        return _compared(node, function, (node.left, node.right), _two(node, batch), batch)

    return evaluate_comparison


def _null_safe_equal(node: nodes.NullSafeEqual, batch: pa.RecordBatch) -> Datum:
    left, right = evaluate_node(node.left, batch), evaluate_node(node.right, batch)
    operands = node.left, node.right
    answer = pc.fill_null(_compared(node, pc.equal, operands, (left, right), batch), False)
    return pc.or_(answer, pc.and_(pc.is_null(left), pc.is_null(right)))


def _between(node: nodes.Between, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.operand, batch)
    low = evaluate_where(node.low, batch, pc.is_valid(value))
    operands = node.operand, node.low
    is_above = _compared(node, pc.greater_equal, operands, (value, low), batch)
    is_needed = pc.and_(pc.is_valid(value), pc.fill_null(is_above, True))
    high = evaluate_where(node.high, batch, is_needed)
    operands = node.operand, node.high
    is_below = _compared(node, pc.less_equal, operands, (value, high), batch)
    return pc.and_kleene(is_above, is_below)


def _in(node: nodes.In, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.operand, batch)
    if pa.types.is_null(value.type):
        return pa.scalar(None, pa.bool_())
    members, others = _members(node, value.type)
    result = _is_member(value, members) if len(members) else pa.scalar(False)
    operands: list[Datum] = []
    for other in others:
        is_needed = pc.and_(pc.is_valid(value), pc.invert(pc.fill_null(result, False)))
        operands.append(evaluate_where(other, batch, is_needed))
        result = pc.or_kleene(result, compared(node, pc.equal, value, operands[-1]))
    convert = _common_conversion([node.operand, *others], [value, *operands], batch)
    if convert is None:
        return result
    value = convert(value)
    result = _is_member(value, convert(members)) if len(members) else pa.scalar(False)
    for operand in operands:
        if not pa.types.is_null(operand.type):
            operand = convert(operand)
        result = pc.or_kleene(result, compared(node, pc.equal, value, operand))
    return result


def _common_conversion(
    operands: list[Node], values: list[Datum], batch: pa.RecordBatch
) -> Callable[[Datum], Datum] | None:
    """Return the conversion of all numbers of an IN before the comparison; None if not needed.

    Spark compares all of them as doubles if one is a float, and as decimals of one type if one is
    a decimal.
    """
    types = [value.type for value in values]
    if not is_number(types[0]):
        return None
    if any(map(is_float, types)):
        return to_double
    if not any(map(pa.types.is_decimal, types)):
        return None
    decimals = [
        decimal_type(arrow)
        for arrow in _spark_types(operands, types, batch)
        if not pa.types.is_null(arrow)
    ]
    return partial(rounded_to_compare, common=common_decimal(decimals))


def _is_member(value: Datum, members: pa.Array) -> Datum:
    if isinstance(value, pa.Array):
        is_member = pc.is_in(value, value_set=members, skip_nulls=True)
        return pc.if_else(pc.is_valid(value), is_member, pa.scalar(None, pa.bool_()))
    result: Datum = pa.scalar(False)
    for member in members:
        result = pc.or_kleene(result, pc.equal(value, member))
    return result


def listed_members(node: nodes.In, arrow: pa.DataType) -> pa.Array:
    """Return the constants of an IN that have exactly a column's type.

    Constants of other types and nulls are omitted.
    """
    return _members(node, arrow)[0]


def _members(node: nodes.In, arrow: pa.DataType) -> tuple[pa.Array, list[Node]]:
    """Return the constants of an IN that have exactly a type, and its other members."""
    cached = node.constants.get(arrow)
    if cached is not None:
        return cached
    plain: list[Any] = []
    others: list[Node] = []
    for member in node.members:
        is_constant = next(member.find_all(nodes.Column), None) is None
        constant = _as_member(arrow, evaluate_node(member, _NO_ROWS)) if is_constant else None
        if constant is None:
            others.append(member)
        else:
            plain.append(constant)
    constants = pa.array(plain, arrow if plain else pa.null())
    node.constants[arrow] = constants, others
    return constants, others


_NO_ROWS: Final = pa.RecordBatch.from_arrays([], names=[])


def _as_member(arrow: pa.DataType, listed: pa.Scalar) -> Any:
    """Return a constant as a Python value of exactly a column's type; None if it has another."""
    if not listed.is_valid:
        return None
    both_integers = pa.types.is_integer(arrow) and pa.types.is_integer(listed.type)
    both_strings = kind_of(arrow) == "string" == kind_of(listed.type)
    if not both_integers and not both_strings:
        return None
    plain = listed.as_py()
    if both_integers:
        bounds = np.iinfo(arrow.to_pandas_dtype())
        if not bounds.min <= plain <= bounds.max:
            return None
    return plain


def _like(*, ignore_case: bool) -> Rule:
    def evaluate_like(node: nodes.Pattern, batch: pa.RecordBatch) -> Datum:
        return _matched(node, batch, escape="\\", ignore_case=ignore_case)

    return evaluate_like


def _like_with_escape(node: nodes.Escape, batch: pa.RecordBatch) -> Datum:
    if len(node.character) != 1:
        raise refuse(node, "needs exactly one character after ESCAPE")
    ignore_case = isinstance(node.operand, nodes.ILike)
    return _matched(node.operand, batch, escape=node.character, ignore_case=ignore_case)


def _matched(
    node: nodes.Pattern, batch: pa.RecordBatch, *, escape: str, ignore_case: bool
) -> Datum:
    value, pattern = evaluate_node(node.operand, batch), evaluate_node(node.pattern, batch)
    if pa.types.is_null(value.type) or pa.types.is_null(pattern.type):
        return pa.scalar(None, pa.bool_())
    if not isinstance(pattern, pa.Scalar) or kind_of(pattern.type) != "string":
        raise refuse(node, "needs a string literal as its pattern")
    if kind_of(value.type) != "string":
        raise refuse(node, f"matches {value.type} with a pattern", "cast it to a string")
    if not pattern.is_valid:
        return pa.scalar(None, pa.bool_())
    parts = parts_of_like(node, pattern.as_py(), escape)
    if ignore_case:
        value = functions.lower(value)
        parts = [(part.lower(), is_plain) for part, is_plain in parts]
    if any(part in _NEEDS_ESCAPE for part, is_plain in parts if is_plain):
        # In some simple patterns, Arrow's LIKE (26) takes the backslash of an escape literally.
        regex = "".join(
            re.escape(part) if is_plain else WILDCARDS[part] for part, is_plain in parts
        )
        return pc.match_substring_regex(value, rf"(?s)\A{regex}\z")
    return pc.match_like(value, "".join(part for part, _ in parts))


_NEEDS_ESCAPE: Final = frozenset("%_\\")


# --- arithmetic, casts and functions


def _demand_number(node: Node, *values: Datum) -> None:
    for value in values:
        if not pa.types.is_null(value.type) and kind_of(value.type) != "number":
            raise refuse(node, f"calculates with {value.type}", "cast it to a number")


def _arithmetic(function: Callable[[Datum, Datum], Datum], *, divides: bool = False) -> Rule:
    def evaluate_arithmetic(node: nodes.Arithmetic, batch: pa.RecordBatch) -> Datum:
        if divides:  # the divisor first
            right = evaluate_node(node.right, batch)
            left = evaluate_where(node.left, batch, pc.is_valid(right))
        else:
            left, right = _two(node, batch)
        _demand_number(node, left, right)
        if pa.types.is_null(left.type) or pa.types.is_null(right.type):
            left, right = (_typed(value, other) for value, other in ((left, right), (right, left)))
        if function is arithmetic.whole_quotient and (is_float(left.type) or is_float(right.type)):
            raise refuse(node, "divides floats with DIV, which takes integers and decimals")
        if any(pa.types.is_decimal(value.type) for value in (left, right)):
            both = pc.and_(pc.is_valid(left), pc.is_valid(right))
            values = [null_where_not(left, both), null_where_not(right, both)]
            left, right = _with_decimals([node.left, node.right], values, batch)
        return function(left, right)

    return evaluate_arithmetic


def _typed(value: Datum, other: Datum) -> Datum:
    """Return a NULL as a number of the other operand's type."""
    if not pa.types.is_null(value.type):
        return value
    return value.cast(pa.float64() if pa.types.is_null(other.type) else other.type)


def _cast(node: nodes.Cast, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.operand, batch)
    return _typed_literal(node, value) if node.is_literal else casts.cast(node, value, node.to)


def _typed_literal(node: nodes.Cast, value: pa.Scalar) -> pa.Scalar:
    """Return a literal such as 1L or DATE '2024-02-29' as a value of its type."""
    try:
        return _in_range(node, casts.cast(node, value, node.to))
    except pa.ArrowInvalid:
        raise _out_of_range(node, node.to) from None


def _try_cast(node: nodes.TryCast, batch: pa.RecordBatch) -> Datum:
    return casts.try_cast(node, evaluate_node(node.operand, batch), node.to)


def _concatenate(node: nodes.Concatenate, batch: pa.RecordBatch) -> Datum:
    operands = (evaluate_node(operand, batch) for operand in (node.left, node.right))
    return functions.concatenated(node, tuple(operands))


def _subscript(node: nodes.Subscript, batch: pa.RecordBatch) -> Datum:
    value = evaluate_node(node.operand, batch)
    key = evaluate_where(node.key, batch, pc.is_valid(value))
    return _plain(functions.subscript(node, value, key))


def _call(node: nodes.Call, batch: pa.RecordBatch) -> Datum:
    values: list[Datum] = []
    is_needed: Datum = pa.scalar(True)
    for argument in node.arguments:
        values.append(evaluate_where(argument, batch, is_needed))
        if node.name in _FIRST_VALID:
            is_needed = pc.and_(is_needed, pc.is_null(values[-1]))
        elif node.name in _NEED_ALL:
            is_needed = pc.and_(is_needed, pc.is_valid(values[-1]))
    if node.name == "nullif":
        first, second = node.arguments
        values[1] = _compared(node, pc.equal, (first, second), (values[0], values[1]), batch)
    if node.name in _OF_ONE_TYPE:
        types = _spark_types(node.arguments, [value.type for value in values], batch)
        arrow = functions.common_type(node, types)
        values = [functions.converted(value, arrow) for value in values]
    return functions.FUNCTIONS[node.name].evaluate(node, values)


_FIRST_VALID: Final = frozenset({"coalesce", "ifnull", "nvl"})
"""Functions that evaluate an argument only where all previous ones are null."""

_NEED_ALL: Final = frozenset({"array_contains", "get", "nullif", "substring"})
"""Functions that do not evaluate later arguments where one is null."""

_OF_ONE_TYPE: Final = _FIRST_VALID | {"array"}
"""Functions whose arguments are converted to one common type."""

_KEEP_INTEGERS: Final = _FIRST_VALID | {"abs", "positive", "round", "nullif"}
"""Functions of integers whose result has the type of their arguments."""


RULES: Mapping[type[Node], Rule] = {
    nodes.Column: _column,
    nodes.FieldAccess: _field,
    nodes.Subscript: _subscript,
    nodes.Literal: _literal,
    nodes.Bytes: _bytes,
    nodes.Boolean: _boolean,
    nodes.Null: _null,
    nodes.Parentheses: lambda node, batch: evaluate_node(node.operand, batch),
    nodes.Negative: _negated,
    nodes.And: _connect(pc.and_kleene, decisive=False),
    nodes.Or: _connect(pc.or_kleene, decisive=True),
    nodes.Not: _not,
    nodes.Is: _is,
    nodes.Equal: _compare(pc.equal),
    nodes.NullSafeEqual: _null_safe_equal,
    nodes.NotEqual: _compare(pc.not_equal),
    nodes.Less: _compare(pc.less),
    nodes.LessOrEqual: _compare(pc.less_equal),
    nodes.Greater: _compare(pc.greater),
    nodes.GreaterOrEqual: _compare(pc.greater_equal),
    nodes.In: _in,
    nodes.Between: _between,
    nodes.Like: _like(ignore_case=False),
    nodes.ILike: _like(ignore_case=True),
    nodes.Escape: _like_with_escape,
    nodes.Add: _arithmetic(arithmetic.add),
    nodes.Subtract: _arithmetic(arithmetic.subtract),
    nodes.Multiply: _arithmetic(arithmetic.multiply),
    nodes.Divide: _arithmetic(arithmetic.divide, divides=True),
    nodes.Remainder: _arithmetic(arithmetic.remainder, divides=True),
    nodes.WholeDivide: _arithmetic(arithmetic.whole_quotient, divides=True),
    nodes.Concatenate: _concatenate,
    nodes.Cast: _cast,
    nodes.TryCast: _try_cast,
    nodes.Call: _call,
}
"""The rules of all supported kinds of nodes."""
