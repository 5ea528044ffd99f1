"""SQL predicates: which rows they choose, when they are null, and what is refused."""

import re
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.evaluation import rules
from lance_stream.expressions.grammar import MAX_CHARACTERS
from lance_stream.expressions.nodes import path_of
from lance_stream.expressions.predicates import (
    columns_of,
    evaluate_predicate,
    parse_expression,
    parse_predicate,
)


def chosen(text: str, rows: list[dict[str, Any]], schema: pa.Schema) -> list[bool | None]:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    result: list[bool | None] = evaluate_predicate(parse_predicate(text, schema), batch).to_pylist()
    return result


def one(text: str, value: Any, arrow: pa.DataType) -> bool | None:
    return chosen(text, [{"a": value}], pa.schema([("a", arrow)]))[0]


# --- against another engine

INTEGERS = [None, 0, 1, -1, 2, 7, -7, 5, 2**62]
STRINGS = [
    None,
    "",
    "a",
    "ab",
    "aB",
    "a%b",
    "axb",
    "é",
    "a\nb",
    "it's",
    "\\",
    "a\\",
    "\\b",
    "a\\\\b",
]

comparisons = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "=="])
integer_literals = st.sampled_from(["0", "1", "-1", "2", "5", "-7", "NULL"])
string_literals = st.sampled_from(["''", "'a'", "'ab'", "'it''s'", "NULL"])
patterns = st.sampled_from(
    ["''", "'a%'", "'%b'", "'a_b'", "'%'", "'_'"]
    + [f"'{name}' ESCAPE '!'" for name in ("a!%b", "%\\", "\\%", "%\\%", "a\\", "%!_\\b", "_\\%")]
)


@st.composite
def integers(draw: st.DrawFn, depth: int = 0) -> str:
    kind = draw(st.integers(0, 5 if depth < 2 else 1))
    if kind == 0:
        return draw(st.sampled_from(["i", "j"]))
    if kind == 1:
        return draw(integer_literals)
    if kind == 2:
        return f"-({draw(integers(depth=depth + 1))} % 1000)"
    operator = draw(st.sampled_from(["+", "-", "*"]))
    left, right = (f"({draw(integers(depth=depth + 1))} % 1000)" for _ in range(2))
    return f"({left} {operator} {right})" if kind < 5 else f"({left} % nullif({right}, 0))"


@st.composite
def predicates(draw: st.DrawFn, depth: int = 0) -> str:
    kind = draw(st.integers(0, 9 if depth < 3 else 6))
    no = draw(st.sampled_from(["", "NOT "]))
    if kind == 0:
        return f"{draw(integers())} {draw(comparisons)} {draw(integers())}"
    if kind == 1:
        return f"s {draw(comparisons)} {draw(string_literals)}"
    if kind == 2:
        values = ", ".join(draw(st.lists(integer_literals, min_size=1, max_size=4)))
        return f"{draw(integers())} {no}IN ({values})"
    if kind == 3:
        values = ", ".join(draw(st.lists(string_literals, min_size=1, max_size=4)))
        return f"s {no}IN ({values})"
    if kind == 4:
        return f"{draw(integers())} {no}BETWEEN {draw(integers())} AND {draw(integers())}"
    if kind == 5:
        return f"s {no}LIKE {draw(patterns)}"
    if kind == 6:
        return f"{draw(st.sampled_from(['i', 's', 'i + j']))} IS {no}NULL"
    if kind == 7:
        return f"NOT ({draw(predicates(depth=depth + 1))})"
    connective = draw(st.sampled_from(["AND", "OR"]))
    parts = [f"({draw(predicates(depth=depth + 1))})" for _ in range(draw(st.integers(2, 3)))]
    return f" {connective} ".join(parts)


@settings(max_examples=150, deadline=None)
@given(predicates())
def test_predicates_agree_with_sqlite(text: str) -> None:
    """SQLite is an independent judge of precedence, null logic, LIKE and arithmetic."""
    rows = [
        {"i": i, "j": INTEGERS[(index * 5 + 3) % len(INTEGERS)], "s": s}
        for index, i in enumerate(INTEGERS)
        for s in STRINGS
    ]
    schema = pa.schema([("i", pa.int64()), ("j", pa.int64()), ("s", pa.string())])
    with sqlite3.connect(":memory:") as engine:
        engine.execute("PRAGMA case_sensitive_like = ON")
        engine.execute("CREATE TABLE t (i INTEGER, j INTEGER, s TEXT)")
        engine.executemany("INSERT INTO t VALUES (?, ?, ?)", [tuple(row.values()) for row in rows])
        expected = [
            None if value is None else bool(value)
            for (value,) in engine.execute(f"SELECT ({text}) FROM t ORDER BY rowid")
        ]
    engine.close()
    in_spark = text.replace("\\", "\\\\")  # SQLite's strings have no escapes
    assert chosen(in_spark, rows, schema) == expected


# --- nulls

NULLS = [
    ("a = NULL", 1, None),
    ("a <> 1", None, None),
    ("a IN (1, NULL)", 1, True),
    ("a IN (1, NULL)", 2, None),
    ("a NOT IN (1, NULL)", 2, None),
    ("a NOT IN (1, NULL)", 1, False),
    ("a NOT IN (1, 2)", None, None),
    ("NOT (a = 1)", None, None),
    ("NOT (a IS NULL)", None, False),
    ("a = 1 OR TRUE", None, True),
    ("a = 1 AND FALSE", None, False),
    ("a = 1 AND TRUE", None, None),
    ("a BETWEEN 1 AND NULL", 0, False),
    ("a BETWEEN 1 AND NULL", 2, None),
    ("NULL", 1, None),
    ("NULL IS NULL", 1, True),
    ("a % nullif(0, 0) = 0", 1, None),
    ("a / nullif(0, 0) > 0", 1, None),
    ("a / 0 > 0", None, None),
    ("(a > 0) IS TRUE", None, False),
    ("(a > 0) IS NOT TRUE", None, True),
]


@pytest.mark.floors
@pytest.mark.parametrize(("text", "value", "expected"), NULLS)
def test_nulls_follow_three_valued_logic(text: str, value: Any, expected: bool | None) -> None:
    """A null that counts as true would delete rows about which nothing is known."""
    assert one(text, value, pa.int64()) is expected


# --- patterns with backslashes, and floats, of which Arrow would say something else


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"%\\", "a\\"),
        (r"\\%", "\\b"),
        (r"%\\b", "a\\b"),
        (r"%\\b%", "a\\bc"),
        (r"C:\\temp\\%", r"C:\temp\x"),
        (r"%\%\_\\", "a%_\\"),
    ],
)
def test_an_escaped_backslash_is_one_backslash(pattern: str, value: str) -> None:
    """Spark unescapes the string literal first and the LIKE pattern second."""
    pattern = pattern.replace("\\", "\\\\")  # in a string, each backslash is written twice
    assert one(f"a LIKE '{pattern}'", value, pa.string()) is True
    assert one(f"a ILIKE '{pattern}'", value.upper(), pa.large_string()) is True
    assert one(f"a LIKE '{pattern}'", value.replace("\\", "/"), pa.string()) is False


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-3, 1e9), st.sampled_from([1, -1]))
def test_floats_mean_what_their_digits_say(size: float, sign: int) -> None:
    """A literal with a decimal point is an exact decimal in Spark, and no rounding may lose the
    match with its float.
    """
    value = sign * size
    text = f"{Decimal(repr(value)):f}"
    text += "" if "." in text else ".0"
    for condition in (
        *(f"a = {text}", f"{text} = a", f"a IN ({text})", f"a BETWEEN {text} AND {text}"),
        *(f"CAST({text} AS double) = a", "CAST(d AS double) = a", "d = a"),
        *(f"a - {text} = 0", f"{text} / 1 = a"),
    ):
        schema = pa.schema([("a", pa.float64()), ("d", pa.decimal128(38, 24))])
        exact = Decimal(repr(value))
        assert chosen(condition, [{"a": value, "d": exact}], schema) == [True], condition


# --- types

TYPED = [
    ("a > 5", 2**63, pa.uint64(), True),
    ("a > -1", 0, pa.uint64(), True),
    ("a IN (-1, 300)", 3, pa.uint8(), False),
    ("a < 300", 255, pa.uint8(), True),
    ("a = 18446744073709551615", 2**64 - 1, pa.uint64(), True),
    ("a + 1 = 128", 127, pa.int8(), True),
    ("a > 9007199254740992.5", 2**53 + 1, pa.int64(), True),
    ("a / 2 = 3.5", 7, pa.int32(), True),
    ("a % 3 = -1", -7, pa.int32(), True),
    ("a % -1 = 0", -(2**63), pa.int64(), True),
    ("a % 2.5 = 0.5", 5.5, pa.float64(), True),
    ("a = 1.5", np.float16(1.5), pa.float16(), True),
    ("a = 0.1", 0.1, pa.float64(), True),
    ("a >= 1.10", Decimal("1.10"), pa.decimal128(10, 2), True),
    ("a = 'x'", "x", pa.dictionary(pa.int8(), pa.string()), True),
    ("a IN ('x', 'y')", "y", pa.large_string(), True),
    ("a = X'0aff'", b"\x0a\xff", pa.binary(2), True),
    ("a = DATE '2024-02-29'", date(2024, 2, 29), pa.date32(), True),
    ("a > '2024-02-28'", date(2024, 2, 29), pa.date32(), True),
    ("a = '2024-02-29 00:00:01'", date(2024, 2, 29), pa.date32(), True),
    ("a >= TIMESTAMP '2024-02-29 00:00:00'", date(2024, 2, 29), pa.date64(), True),
    (
        "a = TIMESTAMP '2024-02-29 12:00:00+01:00'",
        datetime(2024, 2, 29, 11, tzinfo=UTC),
        pa.timestamp("us", "America/New_York"),
        True,
    ),
    (
        "a = TIMESTAMP '2024-02-29 11:00:00'",
        datetime(2024, 2, 29, 11, tzinfo=UTC),
        pa.timestamp("ns", "UTC"),
        True,
    ),
    ("a = '2024-02-29T11:00:00Z'", datetime(2024, 2, 29, 11), pa.timestamp("ms"), True),
    ("CAST(a AS date) = DATE '1969-12-31'", -1, pa.timestamp("us"), True),
    ("CAST(a AS int) = 1", 1.9, pa.float32(), True),
    ("a::bigint = 12", "12", pa.string(), True),
    ("CAST(a AS decimal(10, 2)) = 1.25", 1.25, pa.float64(), True),
    ("CAST(a AS string) = '5'", 5, pa.int16(), True),
    ("a", True, pa.bool_(), True),
    ("NOT a", True, pa.bool_(), False),
    ("a = FALSE", True, pa.bool_(), False),
]


@pytest.mark.floors
@pytest.mark.parametrize(("text", "value", "arrow", "expected"), TYPED)
def test_a_value_is_compared_exactly(
    text: str, value: Any, arrow: pa.DataType, expected: bool
) -> None:
    """A comparison through a narrower or inexact type would match neighbouring values."""
    if pa.types.is_timestamp(arrow) and isinstance(value, int):
        value = pa.scalar(value, arrow)
    assert one(text, value, arrow) is expected


def test_struct_fields_are_addressed_with_dots() -> None:
    """A field is null where its struct is null."""
    schema = pa.schema([("a", pa.struct([("b", pa.struct([("c d", pa.int32())]))]))])
    rows = [{"a": {"b": {"c d": 1}}}, {"a": {"b": None}}, {"a": None}, {"a": {"b": {"c d": 2}}}]
    assert chosen("a.b.`c d` = 1", rows, schema) == [True, None, None, False]
    assert chosen("a.`b` IS NULL", rows, schema) == [False, True, True, False]


def test_columns_of_predicates_are_quoted() -> None:
    """A reader requests each column once, by a name that needs no further quoting."""
    assert columns_of("a.b > 1 AND `x y` = 'z' OR a.b IS NULL") == ["`x y`", "`a`.`b`"] or (
        columns_of("a.b > 1 AND `x y` = 'z' OR a.b IS NULL") == ["`a`.`b`", "`x y`"]
    )
    assert columns_of("TRUE") == []


def test_two_thousand_alternatives_are_evaluated() -> None:
    """Generated conditions have long OR chains, which must not exhaust the recursion limit."""
    text = " OR ".join(f"a = {number}" for number in range(2000))
    assert one(text, 1999, pa.int64()) is True


def test_list_constants_follow_the_column_type() -> None:
    """The cached expression is shared by tables, so converted constants must not leak from one
    column type to another.
    """
    text = "a IN (1, 300, -1, 2.5, NULL)"
    small = pa.schema([("a", pa.uint8())])
    large = pa.schema([("a", pa.int64())])
    floats = pa.schema([("a", pa.float64())])
    for _ in range(2):  # the parsed expression is kept, and shared by all of them
        assert chosen(text, [{"a": 1}, {"a": 44}, {"a": 255}], small) == [True, None, None]
        assert chosen(text, [{"a": 300}, {"a": -1}, {"a": 2}], large) == [True, True, None]
        assert chosen(text, [{"a": 2.5}, {"a": 1.0}, {"a": 44.0}], floats) == [True, True, None]


def test_list_constants_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing a thousand constants again for each batch would dominate the time of a scan."""
    members = ", ".join(str(number) for number in range(1000))
    schema = pa.schema([("a", pa.int64())])
    predicate = parse_predicate(f"a IN ({members}, a + 1)", schema)
    read: list[str] = []
    number = rules._number
    monkeypatch.setattr(
        rules, "_number", lambda node, text: read.append(text) or number(node, text)
    )
    batch = pa.RecordBatch.from_pydict({"a": [5, 999, 1000, None]}, schema=schema)
    for _ in range(3):
        assert evaluate_predicate(predicate, batch).to_pylist() == [True, True, False, None]
    assert read == ["1"] * 3  # of `a + 1`


# --- what is refused

REFUSED = [
    ("soundex(a) = 'X'", "soundex"),
    ("a IN (SELECT 1)", "a query is not supported"),
    ("CASE WHEN a THEN 1 END", "CASE is not supported"),
    ("a > 5 foo", "unexpected 'foo' at character 7"),
    ("a || X'00' = 'y'", "concatenates binary"),
    ("DELETE FROM t", "unexpected 'FROM'"),
    ("a = 1; a = 2", "unexpected ';' at character 6"),
    ("a >", "not a SQL expression: the expression is incomplete after '>', at character 3"),
    ("(a > 1", r"not a SQL expression: '\)' is missing after '1', at character 6"),
    ("a > 1)", r"not a SQL expression: unexpected '\)' at character 6"),
    ("'open", "not a SQL expression: a quote or comment is not closed"),
    ("", "must be the text of a SQL expression"),
    ("a = 'x'", "compares"),
    ("a + 1", "must be boolean"),
    ("a AND TRUE", "truth value"),
    ("a LIKE 'x'", "matches"),
    ("a LIKE a", "pattern"),
    ("CAST(a AS interval) = 1", "INTERVAL|interval"),
    ("a = DATE '2024-02-30'", "not a date"),
    ("a > 1e400", "'1e400' is out of the range of double"),
    ("a > -1e39F", "'1e39F' is out of the range of float"),
    ("a > 128Y", "'128Y' is out of the range of int8"),
    ("a > -129Y", "'129Y' is out of the range of int8"),
    ("a > 9223372036854775808L", "out of the range of int64"),
    ("(1, 2) = (a, a)", "a list in parentheses"),
    ("(" * 5000 + "a" + ")" * 5000, "deeply|SQL"),
]


@pytest.mark.parametrize(("text", "named"), REFUSED)
def test_unsupported_syntax_is_refused_by_name(text: str, named: str) -> None:
    """A user can only rewrite a condition if the error names the part that is not supported."""
    with pytest.raises(InvalidInputError, match=named):
        parse_predicate(text, pa.schema([("a", pa.int64())]))


def test_ambiguous_syntax_is_refused() -> None:
    """Older versions of the parser take the keyword for a column."""
    with pytest.raises((InvalidInputError, NotFoundError), match=r"(?i)symmetric"):
        parse_predicate("a BETWEEN SYMMETRIC 2 AND 1", pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize("text", [5, None, True, "", " \n"])
def test_only_texts_are_expressions(text: Any) -> None:
    """A number or an empty option must not be a condition."""
    with pytest.raises(InvalidInputError, match=re.escape(f"'NULL', not {text!r}")):
        parse_expression(text)


def test_the_longest_text_is_parsed() -> None:
    """The limit belongs to the texts that are allowed."""
    assert parse_expression("a = 7".ljust(MAX_CHARACTERS)).paths == (("a",),)


def test_other_nodes_are_no_paths() -> None:
    """A caller that forgets to ask would read another column."""
    assert path_of(parse_expression("a.b.c").node) == ("a", "b", "c")
    for text in ("(a).b", "a + 1", "a[0].b"):
        with pytest.raises(InvalidInputError):
            path_of(parse_expression(text).node)


def test_missing_columns_list_the_existing_ones() -> None:
    """The list shows a typing mistake at once, at the top level and in structs."""
    with pytest.raises(NotFoundError, match=r"no column 'b'.*there are: a"):
        parse_predicate("b = 1", pa.schema([("a", pa.int64())]))
    with pytest.raises(NotFoundError, match="no column 'b' in 'a'"):
        parse_predicate("a.b = 1", pa.schema([("a", pa.int64())]))


def test_overflowing_numbers_are_errors() -> None:
    """Wrapped integers would silently choose wrong rows; Spark's ANSI mode fails as well."""
    with pytest.raises(InvalidInputError, match="overflow"):
        one("a + 1 > 0", 2**63 - 1, pa.int64())
    with pytest.raises(InvalidInputError, match="cannot be computed"):
        one("CAST(a AS tinyint) = 1", 1000, pa.int64())


def test_a_parsed_expression_keeps_its_text() -> None:
    """Error messages and commit records quote the condition as the user wrote it."""
    assert parse_expression("a  >  5").text == "a  >  5"


def test_long_lists_parse_in_linear_time() -> None:
    """A filter may list the ids of a whole batch."""

    def seconds(num_members: int) -> float:
        text = f"a IN ({', '.join(map(str, range(num_members)))})"
        start = process_time()
        parse_expression(text)
        return process_time() - start

    few = min(seconds(2000 + repetition) for repetition in range(3))
    assert seconds(24_000) < few * 48  # twelve times as many


@pytest.mark.parametrize(
    "text", ["1" * 200_000 + "x", "1." + "1" * 200_000 + "x", " " * 200_000 + "#"]
)
def test_malformed_texts_fail_in_linear_time(text: str) -> None:
    """A regular expression that tries each split of the digits would take minutes."""
    start = process_time()
    with pytest.raises(InvalidInputError, match="unexpected"):
        parse_expression(text)
    assert process_time() - start < 5
