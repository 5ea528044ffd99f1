import inspect
import pickle

import pytest

from lance_stream import errors

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
