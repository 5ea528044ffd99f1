"""Folders that a newcomer can see at once: few modules, and the order in which to read them."""

import ast
import re
from pathlib import Path

import pytest

import lance_stream

PACKAGE = Path(lance_stream.__file__).parent
FOLDERS = [path.parent for path in PACKAGE.rglob("__init__.py") if path.parent.name != "_proto"]
MAX_MODULES = 12
MAX_WITHOUT_ORDER = 3


def modules_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def first_to_read(folder: Path) -> str:
    """Return the first name after "Read" or "Start with" in the docstring of a folder."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    match = re.search(r"\b(?:Read|Start with)\s+`(\w+)`", docstring)
    return match[1] if match else ""


@pytest.mark.parametrize(
    "package", sorted({*PACKAGE.iterdir()} & {*FOLDERS}), ids=lambda it: it.name
)
def test_folders_have_at_most_twelve_modules(package: Path) -> None:
    """A newcomer reads the names of a folder's modules at once, or not at all."""
    counts = {
        folder.relative_to(PACKAGE).as_posix(): len(modules_in(folder))
        for folder in FOLDERS
        if folder.is_relative_to(package)
    }
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


@pytest.mark.parametrize(
    "folder",
    sorted(folder for folder in FOLDERS if len(modules_in(folder)) > MAX_WITHOUT_ORDER),
    ids=lambda folder: folder.relative_to(PACKAGE).as_posix(),
)
def test_folders_say_what_to_read_first(folder: Path) -> None:
    """Nobody can guess which of ten modules explains the others."""
    subfolders = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert first_to_read(folder) in modules_in(folder) | subfolders
