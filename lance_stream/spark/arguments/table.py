"""Tables of arguments: frozen dataclasses, each field of which is a row.

    on: tuple[str, ...] = argument(
        "The key columns of an upsert.",         what it means, for the reference
        Option("on", names_in_text),             what the format calls it, and how text is parsed
        check=names,                             checks and converts the value, from either caller
        modes=BY_KEY,                            where it has a meaning
    )

An argument comes from a Python function (`lance_sink`) or as an option of the format. Spark passes
options as strings, under lower-cased names. Unknown names and invalid values are refused, because a
user would believe that an ignored option has an effect. Errors call an argument what its user calls
it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeAlias

from lance_stream.errors import InvalidInputError
from lance_stream.spark.arguments.option_values import (
    json_object,
    location,
    secret_json_object,
    trusted_locations,
)

Parse: TypeAlias = Callable[[str, str], Any]
"""Returns the value of an option, given what errors call it, and its text."""

Check: TypeAlias = Callable[[str, Any], Any]
"""Returns the value of an argument, given what errors call it, and what the user gave."""


@dataclass(frozen=True)
class Option:
    """An option of the format.

    Attributes:
        name: Its name.
        parse: Parses its text.
        help: What it means, if it is one of several options of an argument.
    """

    name: str
    parse: Parse
    help: str = ""

    def value(self, text: str) -> Any:
        """Return the parsed text.

        Raises:
            InvalidInputError: It is invalid.
        """
        return self.parse(as_option(self.name), text)


@dataclass(frozen=True)
class Row:
    """An argument.

    Attributes:
        name: The field that holds its value.
        help: What it means, in one sentence or two.
        options: What the format calls it.
        python: What Python functions call it.
        check: Checks and converts its value; None to take it as it is.
        modes: The modes in which it has a meaning; empty for all.
        callers: Who may set it; empty for all.
        reason: Why others may not set it: the predicate of a sentence about it.
        in_views: Whether a view that is read may have it, for its INSERT: "always", or "by key" if
            the view also has a mode.
        default: Its value if it is not set.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    python: str
    check: Check | None
    modes: tuple[str, ...]
    callers: frozenset[str]
    reason: str
    in_views: str
    default: Any


def argument(
    help_: str,
    *options: Option,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    python: str = "",
    check: Check | None = None,
    modes: Sequence[str] = (),
    callers: Sequence[str] = (),
    reason: str = "",
    in_views: str = "",
    is_secret: bool = False,
) -> Any:
    """Declare a field of a table; see `Row` for the arguments."""
    row = {
        "help": help_,
        "options": options,
        "python": python,
        "check": check,
        "modes": tuple(modes),
        "callers": frozenset(callers),
        "reason": reason,
        "in_views": in_views,
    }
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=row, repr=not is_secret)
    return field(default=default, metadata=row, repr=not is_secret)


def storage_options_argument(check: Check) -> Any:
    """Declare the settings of the store, which a reader and a writer take alike.

    Args:
        check: Checks and completes the settings.
    """
    return argument(
        "Settings of the store.",
        Option(
            "storageOptions",
            json_object,
            "Settings of the store, without secrets: Spark shows them in plans.",
        ),
        Option(
            "secretStorageOptions",
            secret_json_object,
            "Settings of the store; Spark shows them nowhere.",
        ),
        Option(
            "trustedLocations",
            trusted_locations,
            "Locations below which the table may name files elsewhere.",
        ),
        default_factory=dict,
        check=check,
        is_secret=True,
    )


@cache
def rows_of(table: type) -> Mapping[str, Row]:
    """Return the rows of a table, by the names of their fields."""
    return {
        column.name: Row(
            column.name,
            **{**column.metadata, "python": column.metadata["python"] or column.name},
            default=(
                column.default if column.default_factory is MISSING else column.default_factory()
            ),
        )
        for column in fields(table)
        if column.metadata
    }


@cache
def options_of(table: type) -> Mapping[str, Option]:
    """Return the options of a table, by their names in lower case."""
    return {
        option.name.lower(): option for row in rows_of(table).values() for option in row.options
    }


def as_option(name: str) -> str:
    """Return what errors call an option."""
    return f"the option {name!r}"


def parse_options(table: type, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a user's options, by the fields of a table.

    Args:
        table: The table.
        options: Names and texts from Spark, all of them options of the table; names in any case.

    Raises:
        InvalidInputError: A value is invalid, or two options say the same.
    """
    texts = {name.lower(): text for name, text in options.items()}
    values: dict[str, Any] = {}
    for row in rows_of(table).values():
        set_by = ""
        for option in row.options:
            if option.name.lower() not in texts:
                continue
            value = option.value(texts[option.name.lower()])
            if set_by:
                value = _joined(values[row.name], value, set_by, option.name)
            values[row.name], set_by = value, option.name
        if set_by and row.check is not None:
            values[row.name] = row.check(as_option(set_by), values[row.name])
    return values


def locate_named(
    values: dict[str, Any], namespace: Mapping[str, str] | None, *, creates: bool
) -> dict[str, Any]:
    """Return the values of options, with the location of a table that the option `table` names.

    Args:
        values: As `parse_options` returns them.
        namespace: The namespace of the session.
        creates: Whether the table is declared if it does not exist.

    Raises:
        InvalidInputError: The path is set as well, or the session has no namespace.
        LanceStreamError: The namespace has no such table, or did not answer.
    """
    if "table_id" not in values:
        return values
    if not namespace:
        raise InvalidInputError(
            "the option 'table' names a table in a Lance namespace, but the session's settings "
            "name no namespace: set spark.lance_stream.namespace.impl and the properties of the "
            "implementation, such as spark.lance_stream.namespace.root, before register(spark)"
        )
    from lance_stream.storage.namespaces.locating import locate

    uri, options = locate(
        values.get("uri"),
        values.get("storage_options"),
        values["table_id"],
        namespace,
        creates=creates,
    )
    return {**values, "uri": location(as_option("table"), str(uri)), "storage_options": options}


def _joined(value: Any, other: Any, name: str, other_name: str) -> dict[str, Any]:
    """Return the value of two options of one argument, which are parts of a mapping."""
    if not isinstance(value, dict):
        raise InvalidInputError(f"{name} and {other_name} select the same: set one of them")
    doubled = sorted(value.keys() & other.keys())
    if doubled:
        raise InvalidInputError(
            f"the storage option {doubled[0]!r} is set in {name} and in {other_name}: leave one of "
            "them out"
        )
    return {**value, **other}


def check_callers(arguments: Any, caller: str) -> None:
    """Raise if an argument is set that has no meaning for its caller.

    Raises:
        InvalidInputError: One is.
    """
    table: type = type(arguments)
    for row in rows_of(table).values():
        if row.callers and caller not in row.callers and is_set(arguments, row):
            names = " or ".join(repr(option.name) for option in row.options)
            raise InvalidInputError(f"the option {names} {row.reason}")


def is_set(arguments: Any, row: Row) -> bool:
    """Return whether an argument has another value than its default."""
    return bool(getattr(arguments, row.name) != row.default)


def nearest(name: str, names: Sequence[str], all_of_them: str) -> str:
    """Return a suggestion for a misspelled name, or else all names: the end of a sentence.

    Args:
        name: The misspelled name.
        names: The valid ones.
        all_of_them: Introduces all names: "the options are".
    """
    by_lower = {other.lower(): other for other in names}
    near = get_close_matches(name.lower(), by_lower, 1)
    if near:
        return f": did you mean {by_lower[near[0]]!r}?"
    return f"; {all_of_them}: {', '.join(sorted(names))}"
