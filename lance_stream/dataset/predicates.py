"""SQL expressions over a table's columns: parsed, checked and evaluated on Arrow batches.

What is understood, with SQL's own nulls (a comparison with null is null, and a row is chosen only
when its predicate is true):

    a = 1   a <> 1   a < 1 ...            comparison
    AND   OR   NOT                        Kleene's three values
    a IN (1, 2)   a BETWEEN 1 AND 2       and their NOT
    a LIKE 'x%'   a ILIKE 'X%'            `_`, `%`; a backslash, or ESCAPE, makes them plain
    a IS NULL   a IS TRUE                 and their NOT
    a + b   -a   a / b   a % b            `/` is always a double; dividing by zero is null
    CAST(a AS bigint)   a::bigint         a value that does not fit is an error
    1   1.5   1e3   'it''s'   X'00ff'   TRUE   NULL   DATE '2024-02-29'
    TIMESTAMP '2024-02-29 12:00:00+01:00' without an offset it is in UTC
    name   `a name`   "a name"   a.b      columns, and parts of structs

Everything else is refused by name. Where engines differ, Spark's meaning is taken: `%` has the
sign of the dividend, and a float column is compared with `0.1` as a double. Note 001 has the why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lance_stream.errors import InvalidInputError, NotFoundError

Datum: TypeAlias = Any
"""An Arrow array, or an Arrow scalar that stands for as many equal values as there are rows."""

# Identifiers in double quotes or backticks, strings in single quotes without backslash escapes.
_DIALECT = "sqlite"
_MAX_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class Expression:
    """A parsed SQL expression.

    Attributes:
        text: As the user wrote it; what is sent to workers and stored in transactions.
        node: Its syntax tree.
        paths: The columns it names, each as the names from the top-level column down.
    """

    text: str
    node: exp.Expression
    paths: tuple[tuple[str, ...], ...]

    @property
    def columns(self) -> list[str]:
        """The columns it names, quoted as `schema.projections.project` understands them."""
        return [quote_path(path) for path in self.paths]


@lru_cache(maxsize=256)
def parse_expression(text: str) -> Expression:
    """Parse a SQL expression; one that was parsed lately is not parsed again.

    Raises:
        InvalidInputError: It is not one expression, or has a part that is not supported; the
            message names the part.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"a filter is a SQL expression such as 'id > 5', not {text!r}")
    if len(text) > _MAX_CHARACTERS:
        raise InvalidInputError(
            f"the SQL expression has {len(text)} characters; at most {_MAX_CHARACTERS} are taken"
        )
    try:
        statements = sqlglot.parse(text, dialect=_DIALECT)
    except SqlglotError as error:
        problem = _problem_of(error)
        raise InvalidInputError(f"{text!r} is not a SQL expression: {problem}") from None
    except RecursionError:
        raise InvalidInputError(f"the SQL expression is nested too deeply: {text[:80]!r}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Expression):
        raise InvalidInputError(f"{text!r} is not one SQL expression")
    node = statements[0]
    paths: dict[tuple[str, ...], None] = {}
    try:
        _check(node, paths)
    except RecursionError:
        raise InvalidInputError(f"the SQL expression is nested too deeply: {text[:80]!r}") from None
    return Expression(text, node, tuple(paths))


def parse_predicate(text: str, schema: pa.Schema) -> Expression:
    """Parse a SQL expression and check it against the columns there are.

    Args:
        text: The expression.
        schema: The columns that it may name, system columns too where they can be had.

    Raises:
        InvalidInputError: It does not parse, its types do not fit, or it is not a truth value.
        NotFoundError: It names a column that is not there.
    """
    expression = parse_expression(text)
    for path in expression.paths:
        _field_at(schema, path)
    names = {path[0] for path in expression.paths}
    needed = pa.schema([each for each in schema if each.name in names])
    no_rows = [pa.nulls(0, each.type) for each in needed]
    evaluate_predicate(expression, pa.RecordBatch.from_arrays(no_rows, names=needed.names))
    return expression


def columns_of(text: str) -> list[str]:
    """Return the columns that a SQL expression names, as `project` understands them.

    Raises:
        InvalidInputError: It does not parse.
    """
    return parse_expression(text).columns


def evaluate_predicate(predicate: Expression, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return for each row of a batch whether a predicate is true, false or null.

    Args:
        predicate: Parsed; the batch has the columns it names.
        batch: The rows.

    Returns:
        (num_rows,) booleans with nulls; `batch.filter` drops rows with false and null.

    Raises:
        InvalidInputError: The types do not fit, a cast fails, a number is too large, or the
            expression is not a truth value.
    """
    result = evaluate(predicate, batch)
    if pa.types.is_null(result.type):
        return pa.nulls(batch.num_rows, pa.bool_())
    if not pa.types.is_boolean(result.type):
        raise InvalidInputError(
            f"a filter is true or false for a row, but {predicate.text!r} is a {result.type}"
        )
    return result


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """Return the value of a SQL expression for each row of a batch.

    Raises:
        InvalidInputError: The types do not fit, a cast fails, or a number is too large.
    """
    try:
        result = _evaluate(expression.node, batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"{expression.text!r} cannot be computed: {error}") from None
    except RecursionError:
        raise InvalidInputError(
            f"the SQL expression is nested too deeply: {expression.text[:80]!r}"
        ) from None
    if isinstance(result, pa.Scalar):
        return pa.repeat(result, batch.num_rows)
    return result


def quote_path(path: tuple[str, ...]) -> str:
    """Return a path of names as one string, every name in backticks."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


def _problem_of(error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if not details:
        return str(error).splitlines()[0]
    first = details[0]
    return f"{first.get('description')} at column {first.get('col')}"


def _refuse(node: exp.Expression, why: str = "is not supported") -> InvalidInputError:
    kind = type(node).__name__
    try:
        text = node.sql(dialect=_DIALECT)
    except (SqlglotError, RecursionError, ValueError):
        text = kind
    return InvalidInputError(
        f"{text[:200]!r} ({kind}) {why} in an expression; supported are comparison, AND OR NOT, "
        "IN, BETWEEN, LIKE, IS NULL, arithmetic and %, CAST, literals and columns"
    )


# --- what is understood


def _path_of(node: exp.Expression) -> tuple[str, ...]:
    parts = node.parts if isinstance(node, exp.Column | exp.Dot) else [node]
    if not all(isinstance(part, exp.Identifier) for part in parts):
        raise _refuse(node)
    return tuple(part.name for part in parts)


def _check(node: exp.Expression, paths: dict[tuple[str, ...], None]) -> None:
    """Walk the tree, refuse what no rule is for, and collect the columns named."""
    pending = [node]
    while pending:
        each = pending.pop()
        rule = _RULES.get(type(each))
        if rule is None:
            raise _refuse(each)
        unknown = sorted(
            name for name, value in each.args.items() if value and name not in rule.arguments
        )
        if unknown:
            raise _refuse(each, f"with {', '.join(unknown)} is not supported")
        if isinstance(each, exp.Column | exp.Dot):
            paths[_path_of(each)] = None
        elif not isinstance(each, exp.Cast):
            pending.extend(each.iter_expressions())
        else:
            _type_of(each)
            pending.append(each.this)


def _field_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.Field:
    fields = {each.name: each for each in schema}
    for depth, name in enumerate(path):
        if name not in fields:
            where = f" in {'.'.join(path[:depth])!r}" if depth else ""
            raise NotFoundError(
                f"there is no column {name!r}{where}; there are: {', '.join(fields) or 'none'}"
            )
        found = fields[name]
        fields = {each.name: each for each in found.type} if pa.types.is_struct(found.type) else {}
    return found


def _evaluate(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    value = _RULES[type(node)].evaluate(node, batch)
    return pc.invert(_truth(node, value)) if node.args.get("negate") else value


def _column(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    path = _path_of(node)
    _field_at(batch.schema, path)
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
        raise _refuse(node, "is not a number that is supported") from None
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
        raise _refuse(node, "is not a string of hexadecimal bytes and not supported") from None


def _negated(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(node, f"-{node.this.this}")
    value = _evaluate(node.this, batch)
    _demand_number(node, value)
    return pc.negate_checked(_widened(value))


# --- truth


def _truth(node: exp.Expression, value: Datum) -> Datum:
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise _refuse(node, f"is a {value.type}, not a truth value, and is not supported")
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
        value = _truth(first, _evaluate(first, batch))
        for each in others:
            value = connect(value, _truth(each, _evaluate(each, batch)))
        return value

    return evaluate_chain


def _not(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    return pc.invert(_truth(node.this, _evaluate(node.this, batch)))


def _is(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    value = _evaluate(node.this, batch)
    if isinstance(node.expression, exp.Null):
        return pc.is_null(value)
    if not isinstance(node.expression, exp.Boolean):
        raise _refuse(node)
    wanted = pa.scalar(bool(node.expression.this))
    return pc.fill_null(pc.equal(_truth(node.this, value), wanted), False)


# --- comparison


def _compare(function: Callable[[Datum, Datum], Datum]) -> Callable[..., Datum]:
    def evaluate_comparison(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
        left, right = _evaluate(node.this, batch), _evaluate(node.expression, batch)
        return _compared(node, function, left, right)

    return evaluate_comparison


def _compared(
    node: exp.Expression, function: Callable[[Datum, Datum], Datum], left: Datum, right: Datum
) -> Datum:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, pa.bool_())
    left, right = _harmonised(node, left, right)
    return function(left, right)


def _harmonised(node: exp.Expression, left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Bring two values to types that Arrow compares exactly."""
    kinds = _kind_of(left.type), _kind_of(right.type)
    if kinds == ("temporal", "string") and isinstance(right, pa.Scalar):
        return _harmonised(node, left, _temporal_of(node, right, left.type))
    if kinds == ("string", "temporal") and isinstance(left, pa.Scalar):
        return _harmonised(node, _temporal_of(node, left, right.type), right)
    if kinds[0] != kinds[1] or kinds[0] is None:
        raise _refuse(node, f"compares a {left.type} with a {right.type}, which is not supported")
    if kinds[0] == "temporal":
        return _at_utc(left, right), _at_utc(right, left)
    if {left.type, right.type} != {pa.uint64()} and pa.types.is_uint64(left.type):
        return _beside_uint64(left, right)
    if {left.type, right.type} != {pa.uint64()} and pa.types.is_uint64(right.type):
        right, left = _beside_uint64(right, left)
    return left, right


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
"""Kinds of types of which each can be compared with its like."""


def _beside_uint64(unsigned: Datum, other: Datum) -> tuple[Datum, Datum]:
    """Arrow would cast a u64 beside a signed integer to i64; a decimal holds both."""
    if isinstance(other, pa.Scalar) and pa.types.is_integer(other.type):
        number = other.as_py()
        if number is not None and 0 <= number < 1 << 64:
            return unsigned, pa.scalar(number, pa.uint64())
    if pa.types.is_signed_integer(other.type):
        return unsigned.cast(pa.decimal128(20, 0)), other.cast(pa.decimal128(20, 0))
    return unsigned, other


def _at_utc(value: Datum, other: Datum) -> Datum:
    """A time without a zone is in UTC, as soon as one with a zone stands beside it."""
    if pa.types.is_timestamp(other.type) and other.type.tz is not None:
        unit = value.type.unit if pa.types.is_timestamp(value.type) else other.type.unit
        return value.cast(pa.timestamp(unit, "UTC"))
    if pa.types.is_timestamp(value.type) and value.type.tz is not None:
        return value.cast(pa.timestamp(value.type.unit, "UTC"))
    return value


def _temporal_of(node: exp.Expression, text: pa.Scalar, arrow: pa.DataType) -> pa.Scalar:
    if pa.types.is_date(arrow) and len(text.as_py() or "") <= 10:
        return _date_of(node, text)
    return _timestamp_of(node, text)


def _date_of(node: exp.Expression, text: pa.Scalar) -> pa.Scalar:
    try:
        return text.cast(pa.date32())
    except pa.ArrowInvalid:
        raise _refuse(
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
    raise _refuse(
        node,
        f"has {text.as_py()!r}, which is no time as in '2024-02-29 12:00:00', and is not supported",
    )


def _between(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    value = _evaluate(node.this, batch)
    low, high = (_evaluate(node.args[name], batch) for name in ("low", "high"))
    return pc.and_kleene(
        _compared(node, pc.greater_equal, value, low), _compared(node, pc.less_equal, value, high)
    )


def _in(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    value = _evaluate(node.this, batch)
    if not node.expressions or pa.types.is_null(value.type):
        if not node.expressions:
            raise _refuse(node)
        return pa.scalar(None, pa.bool_())
    listed = [_evaluate(each, batch) for each in node.expressions]
    same_type: list[Any] = []
    result: Datum = pa.scalar(False)
    for each in listed:
        plain = _as_member(value.type, each)
        if plain is None:
            result = pc.or_kleene(result, _compared(node, pc.equal, value, each))
        else:
            same_type.append(plain)
    if same_type and isinstance(value, pa.Array):
        found = pc.is_in(value, value_set=pa.array(same_type, value.type), skip_nulls=True)
        found = pc.if_else(pc.is_valid(value), found, pa.scalar(None, pa.bool_()))
        return pc.or_kleene(found, result)
    for member in same_type:
        result = pc.or_kleene(result, pc.equal(value, pa.scalar(member, value.type)))
    return result


def _as_member(arrow: pa.DataType, listed: Datum) -> Any:
    """Return a listed literal as a Python value of exactly the column's type, or None."""
    if not isinstance(listed, pa.Scalar) or not listed.is_valid:
        return None
    both_integers = pa.types.is_integer(arrow) and pa.types.is_integer(listed.type)
    both_strings = _kind_of(arrow) == "string" == _kind_of(listed.type)
    if not both_integers and not both_strings:
        return None
    plain = listed.as_py()
    if both_integers:
        try:
            pa.scalar(plain, arrow)
        except (pa.ArrowInvalid, OverflowError):
            return None
    return plain


def _like(*, ignore_case: bool) -> Callable[..., Datum]:
    def evaluate_like(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
        return _matched(node, batch, escape="\\", ignore_case=ignore_case)

    return evaluate_like


def _like_with_escape(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
    like, escape = node.this, node.expression
    if not isinstance(like, exp.Like | exp.ILike) or not isinstance(escape, exp.Literal):
        raise _refuse(node)
    if len(str(escape.this)) != 1:
        raise _refuse(node, "needs one character after ESCAPE; this is not supported")
    result = _matched(like, batch, escape=str(escape.this), ignore_case=isinstance(like, exp.ILike))
    return pc.invert(result) if like.args.get("negate") else result


def _matched(
    node: exp.Expression, batch: pa.RecordBatch, *, escape: str, ignore_case: bool
) -> Datum:
    value, pattern = _evaluate(node.this, batch), _evaluate(node.expression, batch)
    if pa.types.is_null(value.type) or pa.types.is_null(pattern.type):
        return pa.scalar(None, pa.bool_())
    if not isinstance(pattern, pa.Scalar) or _kind_of(pattern.type) != "string":
        raise _refuse(node, "needs a string literal as its pattern; this is not supported")
    if _kind_of(value.type) != "string":
        raise _refuse(node, f"matches a {value.type}, which is not supported")
    pattern = _plain_pattern(node, pattern.as_py(), escape)
    return pc.match_like(value, pattern, ignore_case=ignore_case)


def _plain_pattern(node: exp.Expression, pattern: str, escape: str) -> str:
    """Return the pattern with a backslash before exactly those characters that are plain."""
    result, place = "", 0
    while place < len(pattern):
        letter = pattern[place]
        if letter == escape:
            place += 1
            if place == len(pattern):
                raise _refuse(node, "has an escape at the end of its pattern; not supported")
            letter = pattern[place]
            result += "\\" + letter if letter in "%_\\" else letter
        else:
            result += "\\\\" if letter == "\\" else letter
        place += 1
    return result


# --- arithmetic and casts


def _demand_number(node: exp.Expression, *values: Datum) -> None:
    for each in values:
        if not pa.types.is_null(each.type) and _kind_of(each.type) != "number":
            raise _refuse(node, f"calculates with a {each.type}, which is not supported")


def _widened(value: Datum) -> Datum:
    """Integers are calculated with as i64, so that a narrow column does not overflow."""
    if pa.types.is_integer(value.type) and not pa.types.is_uint64(value.type):
        return value.cast(pa.int64())
    return value


def _arithmetic(function: Callable[[Datum, Datum], Datum]) -> Callable[..., Datum]:
    def evaluate_arithmetic(node: exp.Expression, batch: pa.RecordBatch) -> Datum:
        left, right = _evaluate(node.this, batch), _evaluate(node.expression, batch)
        _demand_number(node, left, right)
        left, right = _widened(left), _widened(right)
        if pa.types.is_uint64(left.type) != pa.types.is_uint64(right.type):
            left, right = _without_uint64(left), _without_uint64(right)
        return function(left, right)

    return evaluate_arithmetic


def _without_uint64(value: Datum) -> Datum:
    return value.cast(pa.decimal128(20, 0)) if pa.types.is_uint64(value.type) else value


def _quotient(left: Datum, right: Datum) -> Datum:
    left, right = left.cast(pa.float64()), right.cast(pa.float64())
    return pc.divide(left, _null_where_zero(right))


def _remainder(left: Datum, right: Datum) -> Datum:
    if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
        left, right = _whole_or_double(left), _whole_or_double(right)
    right = _null_where_zero(right)
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return _float_remainder(left.cast(pa.float64()), right.cast(pa.float64()))
    if pa.types.is_signed_integer(right.type):
        # the smallest integer divided by -1 overflows, and the sign of the divisor is no matter
        right = pc.if_else(pc.equal(right, -1), pa.scalar(1, right.type), right)
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _whole_or_double(value: Datum) -> Datum:
    if pa.types.is_decimal(value.type):
        whole = value.type.scale == 0 and value.type.precision <= 20
        return value.cast(pa.int64() if whole else pa.float64())
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
    wanted, value = _type_of(node), _evaluate(node.this, batch)
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
    return value.cast(wanted)


def _type_of(node: exp.Expression) -> pa.DataType:
    to = node.args["to"]
    name = to.this.value if hasattr(to.this, "value") else str(to.this)
    if name == "DECIMAL":
        numbers = [int(each.name) for each in to.expressions if each.name.isdecimal()]
        precision, scale = (*numbers, 10, 0)[:2] if not numbers else (*numbers, 0)[:2]
        if not 0 < precision <= 38 or scale > precision:
            raise _refuse(node, "casts to a decimal that is not supported")
        return pa.decimal128(precision, scale)
    if name not in _CASTS:
        raise _refuse(node, f"casts to {name}, which is not supported")
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
class _Rule:
    """How one kind of node is evaluated, and which of its arguments that covers."""

    evaluate: Callable[[exp.Expression, pa.RecordBatch], Datum]
    arguments: frozenset[str] = frozenset({"this", "expression"})


_RULES: Mapping[type[exp.Expression], _Rule] = {
    exp.Column: _Rule(_column, frozenset({"this", "table", "db", "catalog"})),
    exp.Dot: _Rule(_column),
    exp.Literal: _Rule(_literal, frozenset({"this", "is_string"})),
    exp.HexString: _Rule(_bytes),
    exp.Boolean: _Rule(_boolean),
    exp.Null: _Rule(_null),
    exp.Paren: _Rule(lambda node, batch: _evaluate(node.this, batch)),
    exp.Neg: _Rule(_negated),
    exp.And: _Rule(_connect(pc.and_kleene)),
    exp.Or: _Rule(_connect(pc.or_kleene)),
    exp.Not: _Rule(_not),
    exp.Is: _Rule(_is),
    exp.EQ: _Rule(_compare(pc.equal)),
    exp.NEQ: _Rule(_compare(pc.not_equal)),
    exp.LT: _Rule(_compare(pc.less)),
    exp.LTE: _Rule(_compare(pc.less_equal)),
    exp.GT: _Rule(_compare(pc.greater)),
    exp.GTE: _Rule(_compare(pc.greater_equal)),
    exp.In: _Rule(_in, frozenset({"this", "expressions", "negate"})),
    exp.Between: _Rule(_between, frozenset({"this", "low", "high", "negate"})),
    exp.Like: _Rule(_like(ignore_case=False), frozenset({"this", "expression", "negate"})),
    exp.ILike: _Rule(_like(ignore_case=True), frozenset({"this", "expression", "negate"})),
    exp.Escape: _Rule(_like_with_escape),
    exp.Add: _Rule(_arithmetic(pc.add_checked)),
    exp.Sub: _Rule(_arithmetic(pc.subtract_checked)),
    exp.Mul: _Rule(_arithmetic(pc.multiply_checked)),
    exp.Div: _Rule(_arithmetic(_quotient), frozenset({"this", "expression", "typed", "safe"})),
    exp.Mod: _Rule(_arithmetic(_remainder)),
    exp.Cast: _Rule(_cast, frozenset({"this", "to"})),
}
