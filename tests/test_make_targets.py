"""Every test runs in some target of the Makefile: nobody notices one that is always skipped."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = {
    path: path.read_text()
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if path != Path(__file__)
}


def containing(pattern: str) -> set[Path]:
    """Return the files of tests that contain a regular expression."""
    return {path for path, text in TEXTS.items() if re.search(pattern, text)}


@pytest.mark.parametrize("marker", ["recipes", "cluster"])
def test_targets_name_marked_test_folders(marker: str) -> None:
    """Other targets skip these tests, and their own target names the folders that it runs."""
    command = re.search(rf"-m pytest .*-m {marker} (.*)", (ROOT / "Makefile").read_text())
    assert command is not None
    roots = [ROOT / word for word in command[1].split() if word.startswith("tests/")]
    marked = containing(rf"\bmark\.{marker}\b")
    assert len(marked) > 5
    assert [path for path in marked if not any(map(path.is_relative_to, roots))] == []
    assert [root for root in roots if not any(path.is_relative_to(root) for path in marked)] == []


def test_tests_of_other_packages_are_recipes() -> None:
    """`need` skips a test, except in the environment of `make test-recipes`."""
    needing = containing(r"from tests\.recipes import .*\bneed\b")
    assert len(needing) > 5
    assert needing - containing(r"\bmark\.recipes\b") == set()


def test_other_tests_require_their_packages() -> None:
    """`importorskip` skips in every target, so it is for packages of the extra dev only."""
    pattern = re.compile(r"importorskip\(\s*\"([\w.]+)\"")
    modules = {module for text in TEXTS.values() for module in pattern.findall(text)}
    assert len(modules) > 3
    without_wheel = {"grpc_tools", "wordllama"} if sys.version_info >= (3, 14) else set()
    modules -= without_wheel
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
