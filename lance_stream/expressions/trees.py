"""Parses SQL to a tree of sqlglot, and checks that there is a rule for each of its nodes."""

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lance_stream.errors import InvalidInputError
from lance_stream.expressions.rules import (
    DIALECT,
    KEPT_MEMBERS,
    RULES,
    KeptMembers,
    cast_type_of,
    path_of,
    refuse,
)

_MAX_CHARACTERS = 1 << 20


def parse_tree(text: str) -> tuple[exp.Expression, tuple[tuple[str, ...], ...]]:
    """Return the tree of a SQL expression, and the columns that it names.

    Raises:
        InvalidInputError: It is not one expression, or has an unsupported part.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InvalidInputError(
            f"the SQL expression has {len(text)} characters; at most {_MAX_CHARACTERS} are allowed"
        )
    try:
        statements = sqlglot.parse(text, dialect=DIALECT)
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
    return node, tuple(paths)


def _problem_of(error: SqlglotError) -> str:
    """Return what is wrong with a text, in words of SQL: not those of the parser's classes."""
    details = getattr(error, "errors", None)
    if not details:  # it has no tokens
        return "a quote or comment is not closed"
    first = details[0]
    said, word, column = (first.get(name) for name in ("description", "highlight", "col"))
    if said.startswith("Required keyword"):
        return f"something is missing at {word!r}, at character {column}"
    if said.startswith("Expecting "):
        return (
            f"{said.removeprefix('Expecting ')!r} is missing after {word!r}, at character {column}"
        )
    return f"{word!r} is not expected there, at character {column}"


def _check(node: exp.Expression, paths: dict[tuple[str, ...], None]) -> None:
    """Walk the tree, refuse nodes without a rule, and collect the columns named.

    Each IN gets a place in which its constants are kept.
    """
    pending = [node]
    while pending:
        each = pending.pop()
        rule = RULES.get(type(each))
        if rule is None:
            raise refuse(each)
        unknown = sorted(
            name for name, value in each.args.items() if value and name not in rule.arguments
        )
        if unknown:
            raise refuse(each, f"with {', '.join(unknown)} is not supported")
        if isinstance(each, exp.In):
            each.meta[KEPT_MEMBERS] = KeptMembers()
        if isinstance(each, exp.Column | exp.Dot):
            paths[path_of(each)] = None
        elif not isinstance(each, exp.Cast):
            pending.extend(each.iter_expressions())
        else:
            cast_type_of(each)
            pending.append(each.this)
