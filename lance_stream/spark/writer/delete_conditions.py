"""The condition `deleteWhen` of the format as a writer, which no process with Spark evaluates.

A task of a writer has rows, but no Spark session, so the condition is evaluated by
`lance_stream.expressions`. That must never choose other rows than Spark would, as it does for the
sink. So what may differ is refused, and left to the query, which can compute a column:

    casts, arithmetic,        a value that does not fit is an error or null in Spark, by its
    subscripts                settings
    functions of times        by the session's time zone
    collations                Spark compares other strings as equal
    CHAR(n)                   Spark pads literals beside such a column with blanks
    times beside literals     Spark reads a literal in the session's time zone
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import CharType, StructField, StructType

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions import nodes
from lance_stream.expressions.nodes import Node, is_path, path_of
from lance_stream.expressions.predicates import parse_expression, parse_predicate
from lance_stream.spark.session.column_names import resolve_filter
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.writer.batch_types import collation_in

_COMPARISONS = (nodes.Comparison, nodes.NullSafeEqual, nodes.In, nodes.Between)
_ARITHMETIC = (nodes.Arithmetic, nodes.Negative)
_SAME_IN_EVERY_SESSION = frozenset(
    [
        *("lower", "lcase", "upper", "ucase", "trim", "btrim", "ltrim", "rtrim", "length", "len"),
        *("char_length", "character_length", "contains", "startswith", "endswith", "rlike"),
        *("regexp", "regexp_like", "coalesce", "ifnull", "nvl", "nullif", "isnan"),
        *("isnull", "isnotnull"),
    ]
)


def resolve_delete_condition(text: str, incoming: StructType, *, case_sensitive: bool) -> str:
    """Return the condition with the columns' own spelling of their names.

    Args:
        text: The condition.
        incoming: The columns of the rows.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.

    Raises:
        InvalidInputError: It is not a condition on these columns, or Spark could evaluate it
            differently.
    """
    remedy = (
        "Compute a column in the query, .withColumn('gone', expr(...)), and set "
        "deleteWhen='gone' and exceptColumns='gone'"
    )
    try:
        # Only columns that it names: another one may have a type that cannot be stored.
        names = {path[0].lower() for path in parse_expression(text).paths}
        named = StructType([item for item in incoming if item.name.lower() in names])
        unknown = sorted(names - {name.lower() for name in incoming.names})
        if unknown:
            raise NotFoundError(
                f"the rows have no column {unknown[0]!r}; they have: {', '.join(incoming.names)}"
            )
        schema = stored_schema(to_nullable(named))
        resolved = resolve_filter(text, schema, case_sensitive=case_sensitive) or text
        parse_predicate(resolved, schema, exact=True)
    except (InvalidInputError, NotFoundError) as error:
        raise InvalidInputError(
            f"deleteWhen={text!r} is not a condition that a writer can evaluate: {error}. {remedy}"
        ) from None
    for why in _differences(parse_expression(resolved).node, named):
        raise InvalidInputError(f"deleteWhen={text!r} {why}. {remedy}")
    return resolved


def _differences(node: Node, columns: StructType) -> Iterator[str]:
    """Yield why Spark may evaluate a condition differently."""
    kinds = {item.name: item.dataType for item in columns}
    for call in node.find_all(nodes.Call):
        if call.name not in _SAME_IN_EVERY_SESSION:
            yield f"calls {call.name}, which Spark may evaluate differently by its settings"
    if any(not is_path(part) for part in node.find_all(nodes.FieldAccess, nodes.Subscript)):
        yield "has a subscript, and Spark's settings decide what a missing item is"
    for field in columns:
        if _is_padded(field):
            yield f"names {field.name!r}, a CHAR column, to whose length Spark pads literals"
    for item in node.find_all(nodes.Cast):
        if not _is_date(item):
            yield "has a cast or a time, which Spark may evaluate differently"
    if any(not _is_negative_number(item) for item in node.find_all(*_ARITHMETIC)):
        yield "computes, and Spark's settings decide what an overflow or a division by zero is"
    for name, kind in kinds.items():
        collation = collation_in(kind)
        if collation is not None:
            yield f"names {name!r}, which Spark compares by the collation {collation}"
    for comparison in node.find_all(*_COMPARISONS):
        has_times = any(
            kinds[path_of(column)[0]].typeName().startswith("timestamp")
            or kinds[path_of(column)[0]].typeName() in ("struct", "time")
            for column in comparison.find_all(nodes.Column)
        )
        if has_times and any(literal.is_string for literal in comparison.find_all(nodes.Literal)):
            yield "compares a time with a literal, which Spark reads in the session's time zone"


def _is_padded(field: StructField) -> bool:
    """Return whether a column, or a part of one, is a CHAR(n)."""
    written = str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
    return isinstance(field.dataType, CharType) or "char(" in written.replace("varchar(", "")


def _is_negative_number(node: Node) -> bool:
    return isinstance(node, nodes.Negative) and isinstance(node.operand, nodes.Literal)


def _is_date(node: Node) -> bool:
    """Return whether a node is a literal such as DATE '2026-01-02'."""
    return isinstance(node, nodes.Cast) and node.is_literal and node.to == pa.date32()
