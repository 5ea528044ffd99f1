"""Finds the parts of a filter that indices on single columns can serve.

    a = 5                       the index on a
    a > 5 AND a < 9             the index on a, with one condition
    a = 5 AND b = 7             one of the two indices, whichever leaves fewer rows
    a = 5 OR b = 7              both indices; none if one of them does not exist
    a = 5 AND f(b, c)           the index on a
    a = b, a + 1 = 5            none: an index has values of one column, not of an expression

Indices serve only parts that cannot raise an error, as a cast or division may: an index also has
values of deleted rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from lance_stream.expressions import nodes
from lance_stream.expressions.nodes import Node, is_path, operands_of, path_of
from lance_stream.read.skipping.row_ranges import Path


@dataclass(frozen=True)
class ColumnCondition:
    """Parts of a filter that name one column and cannot raise an error.

    Attributes:
        path: The column.
        nodes: The parts, at least one.
        is_and: Whether the parts are connected by AND; otherwise by OR.
    """

    path: Path
    nodes: tuple[Node, ...]
    is_and: bool = True


@dataclass(frozen=True)
class AnyOf:
    """Conditions connected by AND: a search for any one of them is sufficient.

    Attributes:
        parts: At least one.
    """

    parts: tuple["Condition", ...]


@dataclass(frozen=True)
class AllOf:
    """Conditions connected by OR: all of them have to be searched for.

    Attributes:
        parts: At least one.
    """

    parts: tuple["Condition", ...]


Condition: TypeAlias = ColumnCondition | AnyOf | AllOf

_NEVER_FAIL: Final = (
    nodes.Column,
    nodes.FieldAccess,
    nodes.Parentheses,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Equal,
    nodes.NotEqual,
    nodes.Less,
    nodes.LessOrEqual,
    nodes.Greater,
    nodes.GreaterOrEqual,
    nodes.In,
    nodes.Between,
    nodes.Is,
    nodes.Like,
)


def condition_of(node: Node, indexed: Iterable[Path]) -> Condition | None:
    """Return the condition in a filter that indices can serve; None if there is none.

    Args:
        node: The filter.
        indexed: The columns with an index.
    """
    try:
        return _condition_of(node, frozenset(indexed))
    except RecursionError:
        return None


def _condition_of(node: Node, indexed: frozenset[Path]) -> Condition | None:
    while isinstance(node, nodes.Parentheses):
        node = node.operand
    path = _only_column_of(node)
    if path is not None:
        return ColumnCondition(path, (node,)) if path in indexed else None
    if not isinstance(node, nodes.And | nodes.Or):
        return None
    is_and = isinstance(node, nodes.And)
    by_path: dict[Path, list[Node]] = {}
    parts: list[Condition] = []
    for operand in operands_of(node):
        column_path = _only_column_of(operand)
        if column_path is not None and column_path in indexed:
            by_path.setdefault(column_path, []).append(operand)
        elif (part := _condition_of(operand, indexed)) is not None:
            parts.append(part)
        elif not is_and:
            return None
    parts += [
        ColumnCondition(column_path, tuple(conditions), is_and)
        for column_path, conditions in by_path.items()
    ]
    if len(parts) < 2:
        return parts[0] if parts else None
    return AnyOf(tuple(parts)) if is_and else AllOf(tuple(parts))


def _only_column_of(node: Node) -> Path | None:
    """Return the column of a node that names one column and cannot raise an error, or None."""
    column_path: Path | None = None
    pending = [node]
    while pending:
        operand = pending.pop()
        if isinstance(operand, nodes.Column | nodes.FieldAccess):
            if not is_path(operand):
                return None
            path = path_of(operand)
            if column_path not in (None, path):
                return None
            column_path = path
        elif isinstance(operand, _NEVER_FAIL):
            if isinstance(operand, nodes.In) and not isinstance(
                operand.operand, nodes.Column | nodes.FieldAccess
            ):
                return None
            pending.extend(operand.children())
        elif any(isinstance(inner, nodes.Column | nodes.FieldAccess) for inner in operand.walk()):
            return None
    return column_path
