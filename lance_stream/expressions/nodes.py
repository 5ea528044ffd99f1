"""The tree of a SQL expression: one class per kind of node.

    a + 1 > 2 AND lower(s) LIKE 'x%'

    And
        Greater
            Add         Column a, Literal 1
            Literal 2
        Like
            Call lower  Column s
            Literal x%

`grammar` builds trees, `rules` evaluates them. A node stores its part of the text, for messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from lance_stream.errors import InvalidInputError

Datum: TypeAlias = Any
"""An Arrow array, or an Arrow scalar if the value is the same for all rows."""

NodeT = TypeVar("NodeT", bound="Node")


@dataclass(eq=False)
class Node:
    """A node.

    Attributes:
        source: The expression's text, and the start and stop of the node in it.
    """

    source: tuple[str, int, int] = field(default=("", 0, 0), init=False, repr=False)

    def children(self) -> Iterator["Node"]:
        """Yield the child nodes, in the order of the text."""
        for part in vars(self).values():
            if isinstance(part, Node):
                yield part
            elif isinstance(part, list):
                yield from part

    def walk(self) -> Iterator["Node"]:
        """Yield the node and all nodes below it, without recursion."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += reversed(list(node.children()))

    def find_all(self, *kinds: type[NodeT]) -> Iterator[NodeT]:
        """Yield the nodes of `walk` that are of some kinds."""
        return (node for node in self.walk() if isinstance(node, kinds))


# --- values


@dataclass(eq=False)
class Column(Node):
    """A column, by name."""

    name: str


@dataclass(eq=False)
class Literal(Node):
    """A string, or a number as written.

    Attributes:
        text: The string's value, or the number's digits.
        is_string: Whether it is a string.
        is_decimal: Whether a number has the suffix of a decimal.
    """

    text: str
    is_string: bool
    is_decimal: bool = False


@dataclass(eq=False)
class Bytes(Node):
    """A binary literal, as hexadecimal digits."""

    digits: str


@dataclass(eq=False)
class Boolean(Node):
    """TRUE or FALSE."""

    value: bool


@dataclass(eq=False)
class Null(Node):
    """NULL."""


# --- operators


@dataclass(eq=False)
class Unary(Node):
    """An operator with one operand."""

    operand: Node


class Parentheses(Unary):
    """(a)."""


class Negative(Unary):
    """-a."""


class Not(Unary):
    """NOT a."""


@dataclass(eq=False)
class FieldAccess(Unary):
    """a.b: a field of a struct, by name."""

    name: str


@dataclass(eq=False)
class Subscript(Unary):
    """a[b]: an item of a list, or a value of a map."""

    key: Node


@dataclass(eq=False)
class Cast(Unary):
    """A cast.

    Attributes:
        to: The type.
        is_literal: Whether it is a literal with a type, such as DATE '2024-02-29' or 1L.
    """

    to: pa.DataType
    is_literal: bool = False


class TryCast(Cast):
    """A cast that returns null for a value that does not fit."""


@dataclass(eq=False)
class Is(Unary):
    """a IS NULL, a IS TRUE, a IS FALSE; the constant is a `Null` or a `Boolean`."""

    constant: Node


@dataclass(eq=False)
class Between(Unary):
    """a BETWEEN b AND c."""

    low: Node
    high: Node


@dataclass(eq=False)
class In(Unary):
    """a IN (b, c).

    Attributes:
        members: The members of the list.
        constants: By the type of the operand, the constants of exactly that type, and all other
            members. They are computed for the first batch, by any thread.
    """

    members: list[Node]
    constants: dict[pa.DataType, tuple[pa.Array, list[Node]]] = field(
        default_factory=dict, init=False, repr=False
    )


@dataclass(eq=False)
class Pattern(Unary):
    """A comparison with a pattern."""

    pattern: Node


class Like(Pattern):
    """a LIKE b."""


class ILike(Pattern):
    """a ILIKE b: LIKE without regard to case."""


@dataclass(eq=False)
class Escape(Node):
    """a LIKE b ESCAPE c; without ESCAPE, the character is a backslash."""

    operand: Pattern
    character: str


@dataclass(eq=False)
class Binary(Node):
    """An operator with two operands."""

    left: Node
    right: Node


class And(Binary):
    """a AND b."""


class Or(Binary):
    """a OR b."""


class Comparison(Binary):
    """A comparison by order."""


class Equal(Comparison):
    """a = b."""


class NotEqual(Comparison):
    """a <> b."""


class Less(Comparison):
    """a < b."""


class LessOrEqual(Comparison):
    """a <= b."""


class Greater(Comparison):
    """a > b."""


class GreaterOrEqual(Comparison):
    """a >= b."""


class NullSafeEqual(Binary):
    """a <=> b: nulls are equal."""


class Arithmetic(Binary):
    """An arithmetic operator with two numbers."""


class Add(Arithmetic):
    """a + b."""


class Subtract(Arithmetic):
    """a - b."""


class Multiply(Arithmetic):
    """a * b."""


class Divide(Arithmetic):
    """a / b."""


class Remainder(Arithmetic):
    """a % b."""


class WholeDivide(Arithmetic):
    """a DIV b."""


class Concatenate(Binary):
    """a || b."""


@dataclass(eq=False)
class Call(Node):
    """A function.

    Attributes:
        name: The name, in lower case.
        arguments: The arguments.
        has_from: Whether they are written with FROM, as in trim(a FROM b).
    """

    name: str
    arguments: list[Node]
    has_from: bool = False


# --- functions of nodes


def source_of(node: Node) -> str:
    """Return a node as the user wrote it."""
    text, start, stop = node.source
    return text[start:stop]


def refuse(
    node: Node, problem: str = "is not supported", remedy: str | None = None
) -> InvalidInputError:
    """Return the error for a node that cannot be evaluated.

    Args:
        node: The node; the message begins with its part of the text.
        problem: The rest of the sentence.
        remedy: The remedy.
    """
    advice = "" if remedy is None else f"; {remedy}"
    return InvalidInputError(
        f"{source_of(node)[:200]!r} {problem}{advice}. "
        "docs/reference/expressions.md lists the supported syntax"
    )


def failure(problem: str) -> pa.ArrowInvalid:
    """Return the error for the value of a row, which AND, OR and coalesce may not need."""
    return pa.ArrowInvalid(problem)


def operands_of(node: And | Or) -> list[Node]:
    """Return the operands of a chain of one connective of any length, without recursion."""
    operands: list[Node] = []
    pending: list[Node] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, type(node)):
            pending += [part.right, part.left]
        else:
            operands.append(part)
    return operands


def path_of(node: Node) -> tuple[str, ...]:
    """Return the names in a column's node, from the top-level column down."""
    names: list[str] = []
    while isinstance(node, FieldAccess):
        names.append(node.name)
        node = node.operand
    if not isinstance(node, Column):
        raise refuse(node)
    return (node.name, *reversed(names))


def is_path(node: Node) -> bool:
    """Return whether a node is a column, or a struct field that is reached by names alone."""
    while isinstance(node, FieldAccess):
        node = node.operand
    return isinstance(node, Column)
