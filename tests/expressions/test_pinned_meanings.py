"""Meanings on which deletes depend, and which a new release of a dependency could change.

Another tree for the same text would be another set of rows, so the grammar is ours. Private parts
of PySpark are bounded, too.
"""

import ast
import re
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.expressions import nodes
from lance_stream.expressions.evaluation.rules import RULES
from lance_stream.expressions.nodes import Node
from lance_stream.expressions.predicates import parse_expression

ROOT = Path(lance_stream.__file__).parents[1]

ROWS = pa.table(
    {
        "id": pa.array([0, 1, 2, 3, 4], pa.int64()),
        "n": pa.array([-1, 0, 7, None, 8], pa.int32()),
        "s": pa.array(["a", "B_", "", None, "a%b"]),
        "x": pa.array([0.5, -0.0, float("nan"), None, 1e300]),
        "b": pa.array([True, False, None, True, False]),
    }
)

MEANINGS = {
    # precedence
    "id = 0 OR id = 1 AND n = 7": [0],
    "(id = 0 OR id = 1) AND n = 0": [1],
    "NOT b AND id = 1": [1],
    "NOT (b AND id = 1)": [0, 1, 2, 3, 4],
    "NOT b OR id = 0": [0, 1, 4],
    "n + 1 * 2 = 9": [2],
    "(n + 1) * 2 = 16": [2],
    "-n = 1": [0],
    "n - 1 - 1 = 5": [2],
    # nulls
    "n = NULL": [],
    "n <> 7": [0, 1, 4],
    "n IS NULL": [3],
    "n IS NOT NULL AND n > 0": [2, 4],
    "n NOT IN (7)": [0, 1, 4],
    "n IN (7, NULL)": [2],
    "n NOT IN (7, NULL)": [],
    "b IS TRUE": [0, 3],
    "b IS NOT TRUE": [1, 2, 4],
    "NOT b IS NULL": [0, 1, 3, 4],
    # ranges and lists
    "id BETWEEN 1 AND 2 AND n = 7": [2],
    "id NOT BETWEEN 1 AND 3": [0, 4],
    "id IN (1, 3) OR id = 4": [1, 3, 4],
    # texts
    "s LIKE 'a%'": [0, 4],
    "s LIKE '_'": [0],
    "s LIKE 'B\\\\_'": [1],
    "s LIKE 'B\\_'": [1],
    's = "a"': [0],
    "s NOT LIKE 'a%'": [1, 2],
    "s = ''": [2],
    "s = 'A'": [],
    # numbers
    "x = 0": [1],
    "x > 1": [2, 4],
    "n = 7.0": [2],
    "id % 2 = 1": [1, 3],
    "id / 2 = 1.5": [3],
    "CAST(n AS STRING) = '7'": [2],
    "CAST(0.1 AS float) = CAST(0.1 AS double)": [],
    "x = CAST(0.1 AS float)": [],
}


@pytest.mark.floors
@pytest.mark.parametrize("condition", MEANINGS)
def test_conditions_keep_choosing_the_same_rows(tmp_path: Path, condition: str) -> None:
    """A delete whose condition changes its meaning with a dependency would remove other rows."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS.schema).append(ROWS)
    assert ds.to_table(["id"], filter=condition)["id"].to_pylist() == MEANINGS[condition]
    remaining = [number for number in range(5) if number not in MEANINGS[condition]]
    assert ds.delete(condition).to_table(["id"])["id"].to_pylist() == remaining


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "id = 1; id = 2",
        "id = 1 -- or id = 2\n OR",
        "id = (SELECT 1)",
        "EXISTS (SELECT 1)",
        "id = 1 UNION SELECT 2",
        "DELETE FROM t",
        "id = ?",
        "id = :x",
        "id == 1 = 2 =",
        "n @> 1",
        "rand() < 1",
        "id = 'one'",
        "id",
    ],
)
def test_invalid_conditions_delete_nothing(tmp_path: Path, condition: str) -> None:
    """A condition that cannot be understood must fail before any row is deleted."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS.schema).append(ROWS)
    with pytest.raises(InvalidInputError):
        ds.delete(condition)
    assert lance_stream.open_dataset(ds.uri).count_rows() == 5


SHAPES = {
    "a = 1 OR b = 2 AND NOT c": "((a = 1) OR ((b = 2) AND (NOT c)))",
    "NOT a = b": "(NOT (a = b))",
    "a NOT IN (1)": "(NOT (a IN 1))",
    "a NOT BETWEEN 1 AND 2 AND b": "((NOT (a BETWEEN 1 2)) AND b)",
    "a BETWEEN 1 AND b = c": "(a BETWEEN 1 (b = c))",
    "a IS NOT NULL": "(NOT (a IS NULL))",
    "a = b IS NULL": "((a = b) IS NULL)",
    "a = b < c": "((a = b) < c)",
    "a < b = c": "((a < b) = c)",
    "a || b + c": "((a || b) + c)",
    "a - b - c * d / e": "((a - b) - ((c * d) / e))",
    "-a % 2": "((- a) % 2)",
    "-a::int": "(- (a :: int32))",
    "a % b DIV c": "((a % b) DIV c)",
    "CAST(a AS float)": "(a :: float)",
    "a LIKE 'x' ESCAPE '!' AND b": "(((a LIKE x) ESCAPE !) AND b)",
    "a.b[0].c": "(((a . b) [] 0) . c)",
    "a RLIKE 'x' OR b": "((rlike a x) OR b)",
    "lower(a) = 'x'": "((lower a) = x)",
    "a <=> b": "(a <=> b)",
}

OPERATORS = {
    nodes.Or: "OR",
    nodes.And: "AND",
    nodes.Not: "NOT",
    nodes.In: "IN",
    nodes.Between: "BETWEEN",
    nodes.Is: "IS",
    nodes.Equal: "=",
    nodes.Less: "<",
    nodes.NullSafeEqual: "<=>",
    nodes.Concatenate: "||",
    nodes.Add: "+",
    nodes.Subtract: "-",
    nodes.Multiply: "*",
    nodes.Divide: "/",
    nodes.Remainder: "%",
    nodes.WholeDivide: "DIV",
    nodes.Negative: "-",
    nodes.Like: "LIKE",
    nodes.Subscript: "[]",
}


def shape_of(node: Node) -> str:
    """Return a tree in one line, with parentheses around each operator and its operands."""
    match node:
        case nodes.Call():
            return f"({' '.join([node.name, *map(shape_of, node.arguments)])})"
        case nodes.Cast():
            return f"({shape_of(node.operand)} :: {node.to})"
        case nodes.FieldAccess():
            return f"({shape_of(node.operand)} . {node.name})"
        case nodes.Escape():
            return f"({shape_of(node.operand)} ESCAPE {node.character})"
        case nodes.Literal():
            return node.text
        case nodes.Column():
            return node.name
        case nodes.Null():
            return "NULL"
        case nodes.Parentheses():
            return shape_of(node.operand)
    first, *others = (shape_of(child) for child in node.children())
    if not others:
        return f"({OPERATORS[type(node)]} {first})"
    return f"({' '.join([first, OPERATORS[type(node)], *others])})"


def test_every_node_has_a_rule() -> None:
    """A kind of node without a rule would fail while rows are read."""
    kinds = {kind for kind in vars(nodes).values() if isinstance(kind, type)}
    leaves = {kind for kind in kinds if issubclass(kind, Node) and not kind.__subclasses__()}
    assert leaves | {nodes.Cast} == set(RULES)


@pytest.mark.floors
@pytest.mark.parametrize("text", SHAPES)
def test_operators_bind_as_in_sparks_grammar(text: str) -> None:
    """Another tree for a text would be another set of rows to delete."""
    assert shape_of(parse_expression(text).node) == SHAPES[text]


def test_unstable_dependencies_are_bounded_above() -> None:
    """We use private parts of these libraries, or depend on their decisions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounded = {
        re.split(r"[><=\[]", value)[0] for value in project["dependencies"] if re.search("<", value)
    }
    assert {"pyspark", "protobuf"} <= bounded


PUBLIC = {"_asdict", "_replace"}  # of a named tuple
PRIVATE_PARTS_OF_PYSPARK = {"_jdf", "_jc", "_jsparkSession", "_jvm", "_jwrite", "_session"}


def test_no_other_private_parts_are_used() -> None:
    """Our own private parts are those of `self`, of `cls` and of names of ours."""
    used: set[str] = set()
    names: set[str] = set()
    seen = 0
    for path in (ROOT / "lance_stream" / "spark").rglob("*.py"):
        tree = ast.parse(path.read_text())
        seen += 1
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case ast.ClassDef(name=name):
                    names.add(name)
                case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                    names.add(name)
                case ast.Assign(targets=targets):
                    names.update(
                        field.attr if isinstance(field, ast.Attribute) else getattr(field, "id", "")
                        for target in targets
                        for field in ast.walk(target)
                        if isinstance(field, ast.Attribute | ast.Name)
                    )
        used |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        }
    assert seen > 20
    assert used - names - PUBLIC == PRIVATE_PARTS_OF_PYSPARK
