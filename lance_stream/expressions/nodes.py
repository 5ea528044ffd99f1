"""Nodes of a SQL expression's tree: what every rule needs to know about one.

The classes are sqlglot's, but `grammar` creates the trees, so that a text means the same with each
of its releases. A function of any name is an `exp.Anonymous`.
"""

from typing import Any, Final, TypeAlias

import pyarrow as pa
from sqlglot import exp

from lance_stream.errors import InvalidInputError

Node: TypeAlias = Any
"""A node of sqlglot's tree; the name of its base class varies between releases."""

Datum: TypeAlias = Any
"""An Arrow array, or an Arrow scalar if the value is the same for all rows."""

_SOURCE: Final = "lance_stream.source"


def with_source(node: Node, text: str, start: int, stop: int) -> Node:
    """Return a node that knows its part of the text, for messages."""
    node.meta[_SOURCE] = (text, start, stop)
    return node


def source_of(node: Node) -> str:
    """Return a node as the user wrote it."""
    text, start, stop = node.meta.get(_SOURCE, (type(node).__name__, 0, 80))
    return str(text[start:stop])


def refuse(node: Node, why: str = "is not supported") -> InvalidInputError:
    """Return the error for a node that cannot be evaluated, and why."""
    return InvalidInputError(
        f"{source_of(node)[:200]!r} {why} in an expression; docs/expressions.md lists what is"
    )


def failure(why: str) -> pa.ArrowInvalid:
    """Return the error for the values of a row, which AND, OR and coalesce may not need."""
    return pa.ArrowInvalid(why)


def path_of(node: Node) -> tuple[str, ...]:
    """Return the names in a column's node, from the top-level column down."""
    names: list[str] = []
    while isinstance(node, exp.Dot):
        names.append(node.expression.name)
        node = node.this
    if not isinstance(node, exp.Column):
        raise refuse(node)
    return (node.name, *reversed(names))


def is_path(node: Node) -> bool:
    """Return whether a node is a column, or part of a struct that is reached by names alone."""
    while isinstance(node, exp.Dot):
        node = node.this
    return isinstance(node, exp.Column)
