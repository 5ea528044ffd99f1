"""The examples are modules that can be imported, and each has a `main`."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def load(name: str) -> ModuleType:
    """Return an example as a module; its `main` takes the existing session."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_a_main(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that it imports exist; what it does is tested in `test_examples`."""
    monkeypatch.syspath_prepend(EXAMPLES)
    assert callable(load(name).main)
