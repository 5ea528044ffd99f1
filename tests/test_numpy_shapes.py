"""Shapes that numpy cannot infer when there are no rows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import lance_stream


def reshapes() -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield the location and arguments of each call of `reshape` in the package."""
    package = Path(lance_stream.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr == "reshape":
                yield f"{path.relative_to(package)}:{node.lineno}", node.args


def test_reshape_infers_only_the_first_axis() -> None:
    """With 0 rows, `reshape(num_rows, -1)` raises: numpy cannot tell how wide the rows are."""
    calls = dict(reshapes())
    assert len(calls) > 50
    inferred = [
        location
        for location, (first, *others) in calls.items()
        if not isinstance(first, ast.Constant | ast.UnaryOp)
        and any(ast.unparse(axis) == "-1" for axis in others)
    ]
    assert inferred == []
