"""Mutations run in memory, or in a new process if they cannot; listed equivalents exist."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = b"""\
LIMIT = len("ab") < 3

def tagged(number=True):
    def inner():
        return number + 1
    return inner

class Rows(list):
    is_open = True

    def count(self):
        return [row for row in self if row > 2]
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[ModuleType]:
    """The module that runs mutations; its folder is no package."""
    folder = str(ROOT / "scripts" / "mutants")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("warm")
    finally:
        sys.path.remove(folder)


def replaced(warm: ModuleType, scope: str, before: str) -> Any:
    operators = importlib.import_module("operators")
    mutation = next(
        mutation
        for mutation in operators.mutations("module.py", SOURCE)
        if (mutation.scope, mutation.before) == (scope, before)
    )
    return warm.replacements(SOURCE, mutation)


@pytest.mark.parametrize(
    ("scope", "before", "call"),
    [
        ("tagged.inner", "number + 1", "tagged(5)() == 4"),
        ("Rows.count", "2", "Rows([3]).count() == []"),
    ],
)
def test_functions_change_wherever_they_are_imported(
    warm: ModuleType, scope: str, before: str, call: str
) -> None:
    """Tests and tables have already imported a function, so its code has to change and not its
    name.
    """
    module: dict[str, Any] = {}
    exec(compile(SOURCE, "module.py", "exec"), module)
    functions = {"tagged": module["tagged"], "Rows.count": module["Rows"].count}
    assert not eval(call, module)
    for old, new in replaced(warm, scope, before):
        if old.co_qualname in functions:
            functions[old.co_qualname].__code__ = new
    assert eval(call, module)


@pytest.mark.parametrize(
    ("scope", "before"), [("", 'len("ab") < 3'), ("tagged", "True"), ("Rows", "True")]
)
def test_import_time_mutations_take_new_processes(
    warm: ModuleType, scope: str, before: str
) -> None:
    """A table, a default or a class attribute has its value before the mutation is made."""
    assert replaced(warm, scope, before) is None


def test_every_listed_equivalent_exists(warm: ModuleType) -> None:
    """A renamed function would silently return its equivalents to the samples, as survivors."""
    operators = importlib.import_module("operators")
    listed = operators.equivalents()
    assert listed
    paths = {name.partition(" ")[0] for name in listed}
    modules = {path: (ROOT / path).read_bytes() for path in paths if (ROOT / path).is_file()}
    existing = {
        str(mutation)
        for path, source in modules.items()
        for mutation in operators.mutations(path, source)
    }
    assert listed <= existing, f"correct or delete in {operators.EQUIVALENTS}"


CONDITIONS = b"""\
def kind(number, names):
    if number > 3 and names:
        return "some"
    return number or names
"""


@pytest.fixture
def conditions(warm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that records what conditions decide; it hooks into imports."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield importlib.import_module("conditions")
    sys.modules.pop("conditions")


BOTH = "number > 3 and names"
DECIDED = {
    "kind(4, [1])": {f"{BOTH} -> False"},
    "kind(4, [])": {f"{BOTH} -> True", f"{BOTH} -> (number > 3)", "number or names -> (names)"},
    "kind(3, [1])": {
        f"{BOTH} -> True",
        f"{BOTH} -> (names)",
        "number > 3 -> (number >= 3)",
        "number or names -> (names)",
    },
    "kind(0, [1])": {f"{BOTH} -> True", f"{BOTH} -> (names)", "number or names -> (number)"},
    "kind(0, 0)": {f"{BOTH} -> True"},
}
"""The mutations with which a call may have another result."""


@pytest.mark.parametrize("call", DECIDED)
def test_decisive_conditions_are_recorded(
    conditions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What is left of all mutations cannot be noticed by a test that makes this call."""
    monkeypatch.setattr(conditions, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_bytes(CONDITIONS)
    rewriting = conditions._Rewriting(path)
    names = {*rewriting.names.values()}
    assert len(names) == 7
    monkeypatch.setattr(conditions, "undecided", {*names})
    module = {conditions._RECORDER: conditions}
    exec(compile(rewriting.tree(), "module.py", "exec"), module)
    eval(call, module)
    assert names - conditions.undecided == {f"module.py kind: {name}" for name in DECIDED[call]}
