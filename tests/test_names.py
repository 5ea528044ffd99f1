"""Names are nouns and verbs of the field, and those of tests are short sentences."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import lance_stream

PACKAGE = Path(lance_stream.__file__).parent
ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "examples", "lance_stream", "scripts", "tests")

FORBIDDEN = frozenset(
    [
        "asked",
        "besides",
        "dead",
        "deed",
        "each",
        "found",
        "given",
        "gone",
        "held",
        "kept",
        "known",
        "least",
        "left",
        "made",
        "mine",
        "most",
        "own",
        "place",
        "places",
        "said",
        "settled",
        "shown",
        "stands",
        "told",
        "wanted",
        "who",
        "whose",
    ]
)

TERMS = ("at_least", "at_most", "in_place", "not_found")
"""Terms that contain a forbidden word: bounds, an update in place, and `NotFoundError`."""

MAX_WORDS = 6
"""Words in the name of a test after `test`."""


def words_of(name: str) -> list[str]:
    """Return the words of a name in snake case, camel case or capitals."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    for term in TERMS:
        snake = re.sub(rf"(?<![a-z]){term}(?![a-z])", "", snake)
    return snake.split("_")


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each variable, parameter, attribute, function and class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def forbidden_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each definition whose name has a forbidden word.

    `left` is a noun next to `right`. The name of a test is a sentence, which may say "each" and
    "found", but not too many words.
    """
    names = list(names_in(ast.parse(source)))
    has_right = any("right" in words_of(name) for _, name in names)
    forbidden = FORBIDDEN - {"left"} if has_right else FORBIDDEN
    for line, name in names:
        is_test = name.startswith("test_")
        if name.count("_") > MAX_WORDS if is_test else forbidden & {*words_of(name)}:
            yield line, name


def forbidden_names_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names in a module that have a forbidden word, and its own at line 0."""
    if not FORBIDDEN.isdisjoint(words_of(path.stem)):
        yield 0, path.stem
    yield from forbidden_names(path.read_text())


def modules() -> dict[str, list[Path]]:
    """Return the modules of the project, by the first two folders of their paths."""
    paths: defaultdict[str, list[Path]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            paths["/".join(path.relative_to(ROOT).parent.parts[:2])].append(path)
    return paths


@pytest.mark.parametrize(("folder", "paths"), modules().items(), ids=modules())
def test_names_are_nouns_and_verbs(folder: str, paths: list[Path]) -> None:
    """A reader of `for each in found` has to look up what both stand for."""
    names = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in paths
        for line, name in forbidden_names_of(path)
    ]
    assert names == [], folder


def test_forbidden_names_are_noticed() -> None:
    """Every definition is checked: the words of compound names, and the length of test names."""
    source = (
        "class KeptPages:\n"
        "    own_size: int\n"
        "    def _held(self, wanted_bytes, *, size):\n"
        "        for each in wanted_bytes:\n"
        "            self._known = left = (found := each)\n"
        "def test_each_name_states_what_was_found(): ...\n"
        "def test_this_name_has_one_word_too_many(): ...\n"
    )
    names = (
        "KeptPages own_size _held wanted_bytes each _known left found "
        "test_this_name_has_one_word_too_many"
    )
    assert Counter(name for _, name in forbidden_names(source)) == Counter(names.split())


def test_terms_of_the_field_are_allowed() -> None:
    """`in_place` and `NotFoundError` are what users and other projects call them."""
    source = "class NotFoundError:\n    num_in_place: int\ndef merge(left, right_keys): ...\n"
    assert list(forbidden_names(source)) == []


def test_array_types_have_one_definition() -> None:
    """`Offsets` of 32 bits in one module and of 64 in the next are two terms, not one."""
    definition = re.compile(r"^(\w+)(?:: TypeAlias)? = npt\.NDArray\[", re.M)
    names = Counter(
        name for path in PACKAGE.rglob("*.py") for name in definition.findall(path.read_text())
    )
    assert [name for name, count in names.items() if count > 1] == []
