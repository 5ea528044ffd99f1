"""docs/architecture.md has a row for every package, as the packages describe themselves."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def packages() -> ModuleType:
    path = ROOT / "scripts" / "package_map.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_lists_the_existing_packages(packages: ModuleType) -> None:
    """A stale map misleads newcomers; the script that repairs it takes no time."""
    current = packages.PAGE.read_text()
    remedy = "docs/architecture.md is not current: run `python scripts/package_map.py --write`"
    assert current == packages.page_with(packages.package_table()), remedy


def test_packages_without_docstrings_are_named(packages: ModuleType, tmp_path: Path) -> None:
    """An empty row would say nothing."""
    (tmp_path / "__init__.py").write_text("")
    with pytest.raises(ValueError, match=r"__init__\.py has no docstring"):
        packages.summary_of(tmp_path / "__init__.py")
