"""Docstrings name the parameters that there are, and tests state why their outcomes matter."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lance_stream

PACKAGE = Path(lance_stream.__file__).parent
TESTS = Path(__file__).parent

Function = ast.FunctionDef | ast.AsyncFunctionDef


def documented(docstring: str) -> list[str]:
    """Return the names in the section Args of a docstring."""
    section = re.search(r"^( *)Args:\n((?:(?:\1    .*)?\n)+)", f"{docstring}\n", re.M)
    if section is None:
        return []
    entry = re.compile(rf" {{{len(section[1]) + 4}}}\*{{0,2}}([a-z_]\w*(?:, [a-z_]\w*)*):")
    matches = map(entry.match, section[2].split("\n"))
    return [name for match in matches if match is not None for name in match[1].split(", ")]


def parameters(function: Function) -> set[str]:
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {part.arg for part in (*named, arguments.vararg, arguments.kwarg) if part is not None}


def wrong_names(source: str) -> Iterator[str]:
    """Yield the names in docstrings of functions and classes that are no parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            function: Function | None = node
        elif isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, Function))
            function = next((part for part in methods if part.name == "__init__"), None)
        else:
            continue
        if function is not None:
            names = documented(ast.get_docstring(node, clean=False) or "")
            yield from (
                f"{node.name}: {name}" for name in names if name not in parameters(function)
            )


def test_docstrings_name_existing_parameters() -> None:
    """A parameter that is renamed keeps its old name in the docstring of its class."""
    wrong = [
        f"{path.relative_to(PACKAGE)} {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in wrong_names(path.read_text())
    ]
    assert wrong == []


def test_an_old_name_is_noticed() -> None:
    """It must be found in docstrings of classes and functions, and among several parameters in
    one line.
    """
    source = (
        'class A:\n    """A.\n\n    Args:\n        old: It.\n    """\n'
        "    def __init__(self, new): ...\n"
        'def f(a, *, b):\n    """F.\n\n    Args:\n        a, c: Both.\n        b: It.\n    """\n'
    )
    assert list(wrong_names(source)) == ["A: old", "f: c"]


def names_without_reason(source: str) -> list[str]:
    """Return the names of the tests that have no docstring."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, Function)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


def folders() -> list[str]:
    """Return the folders of tests, and the modules outside of folders."""
    return sorted({path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py")})


@pytest.mark.parametrize("folder", folders())
def test_every_test_states_its_reason(folder: str) -> None:
    """Developers who break a test have to judge whether its outcome still matters."""
    root = TESTS / folder
    paths = [root] if root.is_file() else sorted(root.rglob("*.py"))
    missing = [
        f"{path.relative_to(TESTS)} {name}"
        for path in paths
        for name in names_without_reason(path.read_text())
    ]
    assert missing == []


def test_a_missing_reason_is_noticed() -> None:
    """Methods of classes are tests as well, and helpers need no reason."""
    source = (
        "def helper(): ...\n"
        'def test_a():\n    """A reason."""\n'
        "class TestB:\n    def test_b(self): ...\n"
    )
    assert names_without_reason(source) == ["test_b"]
