"""Names of variables: nouns of the field, not participles and pronouns."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lance_stream

PACKAGE = Path(lance_stream.__file__).parent

FORBIDDEN = frozenset(
    [
        "asked",
        "each",
        "found",
        "given",
        "gone",
        "held",
        "kept",
        "known",
        "left",
        "made",
        "own",
        "place",
        "said",
        "shown",
        "told",
        "wanted",
    ]
)


def forbidden_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable and parameter with a forbidden name.

    `left` is a noun next to `right`.
    """
    tree = ast.parse(source)
    names = [
        (node.lineno, node.id if isinstance(node, ast.Name) else node.arg)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        or isinstance(node, ast.arg)
    ]
    has_right = any(name == "right" for _, name in names)
    for line, name in names:
        if name.strip("_") in FORBIDDEN and not (name == "left" and has_right):
            yield line, name


def packages() -> list[str]:
    return sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("package", packages())
def test_variables_are_named_by_nouns(package: str) -> None:
    """A reader of `for each in found` has to look for what it is."""
    root = PACKAGE / package
    paths = [root] if root.is_file() else sorted(root.rglob("*.py"))
    names = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in paths
        for line, name in forbidden_names(path.read_text())
    ]
    assert names == []


def test_a_forbidden_name_is_noticed() -> None:
    """Loop variables, parameters, assignments and walrus targets are variables."""
    source = "def f(own, *, size):\n    for each in own:\n        left = (found := each)\n"
    assert Counter(name for _, name in forbidden_names(source)) == Counter(
        ("own", "each", "left", "found")
    )
