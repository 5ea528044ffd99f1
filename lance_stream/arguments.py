"""Checks of users' arguments, applied before anything is read, written or allocated."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from lance_stream.errors import InvalidInputError, NotFoundError


def as_number(value: object) -> int | None:
    """Return a whole number as a Python int; None for anything else, including booleans."""
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, Integral) else None


def as_flag(called: str, value: object) -> bool:
    """Return True or False.

    Args:
        called: What the message calls the argument.
        value: The user's argument.

    Raises:
        InvalidInputError: It is neither; "false" would count as true.
    """
    if not isinstance(value, bool):
        raise InvalidInputError(f"{called} must be True or False, not {value!r:.200}")
    return value


def as_count(value: object, what: str) -> int:
    """Return a number of rows, at least 1.

    Args:
        value: The user's argument.
        what: Subject and verb of the message: "a batch has".

    Raises:
        InvalidInputError: It is not a whole number of at least 1.
    """
    number = as_number(value)
    if number is None or number < 1:
        raise InvalidInputError(
            f"{what} at least 1 row: set a whole number of at least 1, not {value!r:.200}"
        )
    return number


def as_names(value: object, argument: str) -> tuple[str, ...]:
    """Return names from one string, several strings, or None.

    Raises:
        InvalidInputError: They are not names.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    several = isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | Mapping)
    names = tuple(value) if several and isinstance(value, Iterable) else ()
    if not several or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(
            f"{argument} must be a list of column names, such as ['id', 'name'], not {value!r:.200}"
        )
    return names


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a suggestion for a misspelled column name; empty if there is none."""
    from difflib import get_close_matches  # not needed by Spark tasks, which import this module

    by_lower = {choice.lower(): choice for choice in choices}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[near[0]]!r}?)" if near else ""


def no_column_error(path: Sequence[str], names: Iterable[str]) -> NotFoundError:
    """Return the error for a column, or a field of a struct, that does not exist.

    Args:
        path: The names of the structs around it, and its own.
        names: The existing ones in the same place; empty in a column that is not a struct.
    """
    *parents, name = path
    existing = list(names)
    problem = f"there is no column {name!r}"
    if parents:
        problem += f" in {'.'.join(parents)!r}"
        if not existing:
            return NotFoundError(f"{problem}, which has no fields")
    listed = ", ".join(existing) or "none"
    return NotFoundError(f"{problem}{did_you_mean(name, existing)}; there are: {listed}")


def repeated_names(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def as_mapping(value: object, what: str) -> Mapping[str, Any]:
    """Return a mapping whose keys are strings.

    Args:
        value: The user's argument.
        what: The start of the message, with an example: "new values are a mapping, {'price':
            'price * 2'}".

    Raises:
        InvalidInputError: It is not a mapping, or a key is not a string.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInputError(f"{what}, not {value!r:.200}")
    return value
