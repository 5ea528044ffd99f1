"""Corrections of quarantined rows by the user, before they are checked again."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import evaluate, parse_value
from lance_stream.write.arrow_input import one_batch

Fix: TypeAlias = Callable[[pa.Table], pa.Table] | Mapping[str, str]
"""Corrects rows: a function of a table of rows, or SQL expressions by column."""


def corrected(rows: pa.Table, fix: Fix | None) -> pa.Table:
    """Return rows with the user's corrections applied.

    Raises:
        InvalidInputError: The function returns another number of rows, or an expression is invalid.
    """
    if fix is None:
        return rows
    if not isinstance(fix, Mapping):
        if not callable(fix):
            raise InvalidInputError(
                "fix must be a mapping of columns to SQL expressions, such as "
                f"{{'price': '-price'}}, or a function of a table of rows, not {fix!r:.200}"
            )
        fixed = fix(rows)
        if not isinstance(fixed, pa.Table) or fixed.num_rows != rows.num_rows:
            result = f"{fixed.num_rows}" if isinstance(fixed, pa.Table) else type(fixed).__name__
            raise InvalidInputError(
                f"fix must return as many rows as it receives, in the same order: it received "
                f"{rows.num_rows} and returned {result}"
            )
        return fixed
    batch = one_batch(rows)
    for name, text in fix.items():
        values = evaluate(parse_value(text, batch.schema), batch)
        index = rows.schema.get_field_index(name)
        if index < 0:
            rows = rows.append_column(name, values)
        else:
            rows = rows.set_column(index, name, _in_type_of(rows.field(index), values))
    return rows


def _in_type_of(column: pa.Field, values: pa.Array) -> pa.Array:
    """Cast the values of an expression to the type of its column, since arithmetic widens types.

    Raises:
        InvalidInputError: A value does not fit.
    """
    try:
        return values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the expression for {column.name!r} returns values that do not fit {column.type}: "
            f"{error}"
        ) from None
