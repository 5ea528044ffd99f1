r"""SQL expressions over a table's columns: parsed, checked and evaluated on Arrow batches.

They have the meaning of Spark SQL with default settings and the session time zone UTC, with SQL's
nulls (a comparison with null is null, and a row is selected only if its predicate is true):

    a = 1   a <=> 1   a < 1 ...           comparison
    AND   OR   NOT                        three-valued logic
    a IN (1, 2)   a BETWEEN 1 AND 2       and their NOT
    a LIKE 'x%'   a ILIKE 'X%'   a RLIKE  `_`, `%`; escaped by a backslash or the ESCAPE character
    a IS NULL   a IS TRUE                 and their NOT; a IS DISTINCT FROM b
    a + b   -a   a / b   a % b   a DIV b  dividing by zero is an error
    CAST(a AS bigint)   a::bigint         a value that does not fit is an error
    1   1.5   1e3   'it\'s'   "text"   X'00ff'   TRUE   NULL   DATE '2024-02-29'
    TIMESTAMP '2024-02-29 12:00:00+01:00' without an offset, it is in UTC
    name   `a name`   a.b   a[0]          columns, struct fields, list items and map values
    lower(a)   coalesce(a, b) ...         functions: see `functions`

Everything else is refused, with an error that names it. docs/reference/expressions.md lists the
differences from Spark and pylance; decision 001 has the reasons.

The parser is imported with the first expression: reading a table without a filter does not need it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_paths import quote_path, resolve_name


@dataclass(frozen=True)
class Expression:
    """A parsed SQL expression.

    Attributes:
        text: The user's text, which is sent to workers and stored in transactions.
        node: The tree; see `nodes`.
        paths: The columns that it names, as names from the top-level column down.
        columns_in_text: The positions of these names: path, start and stop.
        clocks_in_text: The calls that return the current time: function, start and stop.
    """

    text: str
    node: Any
    paths: tuple[tuple[str, ...], ...]
    columns_in_text: tuple[tuple[tuple[str, ...], int, int], ...]
    clocks_in_text: tuple[tuple[str, int, int], ...]

    @property
    def columns(self) -> list[str]:
        """The columns that it names, quoted for `schema.projections.project`."""
        return [quote_path(path) for path in self.paths]


def parse_expression(text: str) -> Expression:
    """Parse a SQL expression. Recent results are cached.

    Raises:
        InvalidInputError: The text is not one expression, or has an unsupported part, which the
            message names.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(
            "a condition or value must be the text of a SQL expression, such as 'id > 5', "
            f"'price * 2' or 'NULL', not {text!r:.200}"
        )
    return _parse(text)


@lru_cache(maxsize=256)
def _parse(text: str) -> Expression:
    from lance_stream.expressions.evaluation.rules import check_tree
    from lance_stream.expressions.grammar import parse_tree

    tree = parse_tree(text)
    check_tree(tree.node)
    paths = dict.fromkeys(column.path for column in tree.columns)
    return Expression(text, tree.node, tuple(paths), tree.columns, tree.clocks)


def parse_predicate(text: str, schema: pa.Schema, *, exact: bool = False) -> Expression:
    """Parse a SQL expression and check it against the existing columns.

    Args:
        text: The expression.
        schema: The available columns, including system columns.
        exact: Whether the unchanged text is evaluated later: it must use the columns' spelling of
            names, and must not call a function of the current time.

    Returns:
        The expression with the columns' spelling of names, and a literal for the current time, so
        its text may differ.

    Raises:
        InvalidInputError: The text does not parse, its types do not match, it uses the value of a
            JSON column, or it is not boolean.
        NotFoundError: The expression names a column that does not exist.
    """
    expression = parse_expression(text) if exact else bind(text, schema)
    evaluate_predicate(expression, _checked_columns(expression, schema))
    return expression


def parse_value(text: str, schema: pa.Schema) -> Expression:
    """Parse a SQL expression for a value, and check it like `parse_predicate`."""
    expression = bind(text, schema)
    evaluate(expression, _checked_columns(expression, schema))
    return expression


def _checked_columns(expression: Expression, schema: pa.Schema) -> pa.RecordBatch:
    """Check the columns of an expression, and return a batch of them without rows."""
    from lance_stream.expressions.evaluation.rules import field_at
    from lance_stream.expressions.json_uses import check_json_uses

    for path in expression.paths:
        field_at(schema, path)
    names = {path[0] for path in expression.paths}
    columns = pa.schema([field for field in schema if field.name in names])
    arrays = [pa.nulls(0, field.type) for field in columns]
    no_rows = pa.RecordBatch.from_arrays(arrays, names=columns.names)
    check_json_uses(expression.node, schema, no_rows)
    return no_rows


def bind(text: str, schema: pa.Schema) -> Expression:
    """Parse an expression, resolve its names, and fix the current time.

    If no column has exactly the name, case is ignored. Names of columns that do not exist are not
    changed.

    Raises:
        InvalidInputError: The text does not parse, or a name is ambiguous.
    """
    expression = parse_expression(text)
    spelled = {path: _spelled(path, schema) for path in expression.paths}
    parts = [
        (start, stop, quote_path(spelled[path]))
        for path, start, stop in expression.columns_in_text
        if spelled[path] != path
    ]
    if expression.clocks_in_text:
        now = datetime.now(UTC)
        parts += [(start, stop, _now(name, now)) for name, start, stop in expression.clocks_in_text]
    return parse_expression(_replaced(text, parts)) if parts else expression


def with_fixed_time(text: str) -> str:
    """Return an expression with a literal for each use of the current date or time."""
    return bind(text, pa.schema([])).text


def rename_paths(text: str, renamed: Mapping[tuple[str, ...], tuple[str, ...]]) -> str:
    """Return the text of an expression with some of its columns' paths replaced."""
    columns = parse_expression(text).columns_in_text
    parts = [(start, stop, quote_path(renamed[p])) for p, start, stop in columns if p in renamed]
    return _replaced(text, parts)


def _replaced(text: str, parts: Iterable[tuple[int, int, str]]) -> str:
    for start, stop, new in sorted(parts, reverse=True):
        text = f"{text[:start]}{new}{text[stop:]}"
    return text


def _spelled(path: tuple[str, ...], schema: pa.Schema) -> tuple[str, ...]:
    fields: Iterable[pa.Field] = schema
    spelled: list[str] = []
    for name in path:
        by_name = {field.name: field for field in fields}
        column = resolve_name(name, by_name)
        if column is None:
            break
        spelled.append(column)
        arrow = by_name[column].type
        fields = arrow if pa.types.is_struct(arrow) else ()
    return (*spelled, *path[len(spelled) :])


def _now(name: str, now: datetime) -> str:
    if name == "current_date":
        return f"DATE '{now:%Y-%m-%d}'"
    kind = "TIMESTAMP_NTZ" if name == "localtimestamp" else "TIMESTAMP_LTZ"
    return f"{kind} '{now:%Y-%m-%d %H:%M:%S.%f}'"


def columns_of(text: str) -> list[str]:
    """Return the columns that a SQL expression names, quoted for `project`.

    Raises:
        InvalidInputError: The text does not parse.
    """
    return parse_expression(text).columns


def evaluate_predicate(predicate: Expression, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return whether a predicate is true, false or null for each row of a batch.

    Args:
        predicate: The predicate; the batch has its columns.
        batch: The rows.

    Returns:
        (num_rows,) booleans with nulls; `batch.filter` drops rows with false and null.

    Raises:
        InvalidInputError: The types do not match, a cast fails, a number is too large, or the
            expression is not boolean.
    """
    result = evaluate(predicate, batch)
    if pa.types.is_null(result.type):
        return pa.nulls(batch.num_rows, pa.bool_())
    if not pa.types.is_boolean(result.type):
        raise InvalidInputError(
            f"a condition must be boolean, but {predicate.text!r} has the type {result.type}"
        )
    return result


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """Return the value of a SQL expression for each row of a batch.

    Raises:
        InvalidInputError: The types do not match, a cast fails, or a number is too large.
    """
    from lance_stream.expressions.evaluation.numbers import repeated
    from lance_stream.expressions.evaluation.rules import evaluate_node

    try:
        result = evaluate_node(expression.node, batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"{expression.text!r} cannot be computed: {error}") from None
    except RecursionError:
        raise InvalidInputError(
            f"the SQL expression is nested too deeply: {expression.text[:80]!r}"
        ) from None
    if isinstance(result, pa.Scalar):
        return repeated(result, batch.num_rows)
    return result
