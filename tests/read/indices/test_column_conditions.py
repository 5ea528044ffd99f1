"""The parts of a filter that indices can serve."""

import pytest

from lance_stream.expressions.nodes import source_of
from lance_stream.expressions.predicates import parse_expression
from lance_stream.read.indices.column_conditions import (
    AllOf,
    AnyOf,
    ColumnCondition,
    Condition,
    condition_of,
)

INDEXED = [("a",), ("b",), ("p", "q")]


def as_text(condition: Condition | None) -> str:
    if condition is None:
        return "nothing"
    if isinstance(condition, ColumnCondition):
        joined = " & " if condition.is_and else " | "
        return joined.join(map(source_of, condition.nodes))
    names = "any of" if isinstance(condition, AnyOf) else "all of"
    return f"{names} [{'; '.join(map(as_text, condition.parts))}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 5", "a = 5"),
        ("5 > a", "5 > a"),
        ("a > 1 AND a < 3", "a > 1 AND a < 3"),
        ("a > 1 AND c = 2 AND a < 3", "a > 1 & a < 3"),
        ("a > 1 AND b = 2", "any of [a > 1; b = 2]"),
        ("a > 1 OR b = 2 OR a = 0", "all of [a > 1 | a = 0; b = 2]"),
        ("a > 1 OR c = 2", "nothing"),
        ("(a = 1 OR b = 2) AND c = 3", "all of [a = 1; b = 2]"),
        ("p.q = 'x' AND a + 1 = 2", "p.q = 'x'"),
        ("NOT (a = 1)", "NOT (a = 1)"),
        ("NOT (a = 1 AND c = 2)", "nothing"),
        ("a IN (1, 2)", "a IN (1, 2)"),
        ("a IN (1, b)", "nothing"),
        ("a = b", "nothing"),
        ("a + 1 = 2", "nothing"),
        ("CAST(a AS bigint) = 2", "nothing"),
        ("a = 1 + 1", "a = 1 + 1"),
        ("a = CAST('5' AS bigint)", "a = CAST('5' AS bigint)"),
        ("a IS NULL", "a IS NULL"),
        ("a LIKE 'x%'", "a LIKE 'x%'"),
        ("a", "a"),
        ("TRUE", "nothing"),
        ("1 = 1 AND a = 2", "1 = 1 AND a = 2"),
        ("a BETWEEN 1 AND 2", "a BETWEEN 1 AND 2"),
        ("a BETWEEN 1 AND c", "nothing"),
        ("(p).q = 'x'", "nothing"),
        ("(a) = 5", "(a) = 5"),
        ("(a) IN (1, 2)", "nothing"),
        ("NOT a IN (1, 2)", "NOT a IN (1, 2)"),
        ("a + 1 IN (1, 2)", "nothing"),
        ("1 IN (a, 2)", "nothing"),
    ],
)
def test_parts_on_indexed_columns_are_served(text: str, expected: str) -> None:
    """A part that no index can serve must never exclude candidates."""
    assert as_text(condition_of(parse_expression(text).node, INDEXED)) == expected


def test_long_chains_are_served() -> None:
    """Thousands of alternatives must not exhaust the recursion limit."""
    text = " OR ".join(f"a = {number}" for number in range(3000))
    condition = condition_of(parse_expression(text).node, INDEXED)
    assert isinstance(condition, ColumnCondition)


def test_alternatives_keep_their_nested_conjunctions() -> None:
    """An OR needs the candidates of all its alternatives, while inside an AND one part
    is enough.
    """
    condition = condition_of(parse_expression("a = 1 OR (b = 2 AND p.q = 'x')").node, INDEXED)
    assert isinstance(condition, AllOf)
    assert as_text(condition) == "all of [any of [b = 2; p.q = 'x']; a = 1]"
