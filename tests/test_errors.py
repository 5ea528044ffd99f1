import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_stream import errors

PACKAGE = Path(errors.__file__).parent
PLACEHOLDER = re.compile(r"\{[A-Za-z_][\w.]*([\[(][^{}]*[\])])?(![rsa])?(:[^{}]*)?\}")
MESSAGES = re.compile(r"\w*(Error|refuse|failure|add_note|debug|info|warning|error|exception)")

CLASSES = [
    getmember
    for _, getmember in inspect.getmembers(errors, inspect.isclass)
    if issubclass(getmember, errors.LanceStreamError)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_survive_pickling_to_the_driver(cls: type[Exception]) -> None:
    """Spark pickles an error on the worker, and one that cannot be rebuilt hides its message."""
    conflict = issubclass(cls, errors.CommitConflictError)
    error = cls("what happened", 7) if conflict else cls("what happened")
    error.add_note("where it happened")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == "what happened"
    assert copy.__notes__ == ["where it happened"]
    assert getattr(copy, "version", 7) == 7


def test_the_docstring_lists_every_error() -> None:
    """The tree is what users read to decide which class to catch."""
    tree = errors.__doc__ or ""
    assert [cls.__name__ for cls in CLASSES if cls.__name__ not in tree] == []


def test_invalid_input_is_a_value_error() -> None:
    """Generic code catches ValueError for wrong arguments."""
    assert issubclass(errors.InvalidInputError, ValueError)


def placeholders(source: str) -> Iterator[str]:
    """Yield the placeholders that are literal text in calls that take a message."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call):
            function = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if MESSAGES.fullmatch(function):
                for part in ast.walk(call):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield from (match[0] for match in PLACEHOLDER.finditer(part.value))


def test_messages_have_values_not_placeholders() -> None:
    """A message in several lines needs its f before each of them, and shows braces otherwise."""
    unfilled = [
        f"{path.relative_to(PACKAGE)} {placeholder}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for placeholder in placeholders(path.read_text())
    ]
    assert unfilled == []


def test_an_unfilled_placeholder_is_noticed() -> None:
    """It can follow a part that is filled in, and braces of Python code are none."""
    source = 'raise BadError(f"{a} and " "{names[0]!r}, {b:,}" f"({{{c!r}: None}})")'
    assert list(placeholders(source)) == ["{names[0]!r}", "{b:,}"]
