"""SQL expressions over a table's columns: parsed, checked and evaluated on Arrow batches.

Supported, with SQL's nulls (a comparison with null is null, and a row is selected only if its
predicate is true):

    a = 1   a <> 1   a < 1 ...            comparison
    AND   OR   NOT                        Kleene's three values
    a IN (1, 2)   a BETWEEN 1 AND 2       and their NOT
    a LIKE 'x%'   a ILIKE 'X%'            `_`, `%`; escaped by a backslash, or as ESCAPE says
    a IS NULL   a IS TRUE                 and their NOT
    a + b   -a   a / b   a % b            `/` is always a double; dividing by zero is null
    CAST(a AS bigint)   a::bigint         a value that does not fit is an error
    1   1.5   1e3   'it''s'   X'00ff'   TRUE   NULL   DATE '2024-02-29'
    TIMESTAMP '2024-02-29 12:00:00+01:00' without an offset it is in UTC
    name   `a name`   "a name"   a.b      columns, and parts of structs

Everything else is refused by name. Where engines differ, Spark's semantics apply: `%` has the sign
of the dividend, a float column is compared with `0.1` as a double, and NaN equals NaN and is
greater than any other number, as in the reference, too. Note 001 has the reasons.

The parser is imported with the first expression: reading a table without a filter needs none.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lance_stream.errors import InvalidInputError, NotFoundError


@dataclass(frozen=True)
class Expression:
    """A parsed SQL expression.

    Attributes:
        text: As the user wrote it; sent to workers and stored in transactions.
        node: Its syntax tree, of sqlglot.
        paths: The columns it names, each as the names from the top-level column down.
    """

    text: str
    node: Any
    paths: tuple[tuple[str, ...], ...]

    @property
    def columns(self) -> list[str]:
        """The columns it names, quoted as `schema.projections.project` understands them."""
        return [quote_path(path) for path in self.paths]


def parse_expression(text: str) -> Expression:
    """Parse a SQL expression. Recent results are cached.

    Raises:
        InvalidInputError: It is not one expression, or has an unsupported part; the message names
            the part.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(
            "a condition or value is the text of a SQL expression, such as 'id > 5', 'price * 2' "
            f"or 'NULL', not {text!r:.200}"
        )
    return _parse(text)


@lru_cache(maxsize=256)
def _parse(text: str) -> Expression:
    from lance_stream.expressions.trees import parse_tree

    node, paths = parse_tree(text)
    return Expression(text, node, paths)


def parse_predicate(text: str, schema: pa.Schema) -> Expression:
    """Parse a SQL expression and check it against the existing columns.

    Args:
        text: The expression.
        schema: The columns that it may name, including system columns if available.

    Raises:
        InvalidInputError: It does not parse, its types do not match, or it is not boolean.
        NotFoundError: It names a column that does not exist.
    """
    from lance_stream.expressions.rules import field_at

    expression = parse_expression(text)
    for path in expression.paths:
        try:
            field_at(schema, path)
        except NotFoundError as error:
            if f'"{path[0]}"' in text:
                error.add_note(f"a text is in single quotes: '{path[0]}'")
            raise
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
        InvalidInputError: The types do not match, a cast fails, a number is too large, or the
            expression is not boolean.
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
        InvalidInputError: The types do not match, a cast fails, or a number is too large.
    """
    from lance_stream.expressions.rules import evaluate_node

    try:
        result = evaluate_node(expression.node, batch)
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


def named_twice(name: str) -> str:
    """Return the message for a name that two columns have, and what to do."""
    return (
        f"there are two columns with the name {name!r}, so a single one of them cannot be named; "
        "rename_columns renames the first of them"
    )
