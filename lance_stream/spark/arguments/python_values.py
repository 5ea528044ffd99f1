"""Checks the values of arguments, and converts them to those that a writer uses.

Each function takes what errors call the argument, and the value, and raises `InvalidInputError` if
the value is invalid. Options of the format come here, too, once their text is parsed.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.utils import is_remote

from lance_stream.arguments import as_names, as_number, repeated_names
from lance_stream.durations import parse_age
from lance_stream.errors import InvalidInputError
from lance_stream.file.versions import FileVersion
from lance_stream.storage.locations import text_of
from lance_stream.storage.options.names import as_options
from lance_stream.storage.trust import trusted_locations
from lance_stream.write.row_checks import Check, as_checks

if TYPE_CHECKING:
    from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy


def as_text(example: str) -> Callable[[str, object], str | None]:
    """Return a function that accepts a text, or None.

    Args:
        example: What the text has to be, with an example.
    """

    def check(called: str, value: object) -> str | None:
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise InvalidInputError(f"{called} must be {example}; not {value!r:.200}")

    return check


def as_location(_called: str, value: Any) -> str | None:
    """Return the location of a table as a text; None for none."""
    return None if value is None else text_of(value)


def as_table(_called: str, value: Any) -> str:
    """Return the location of the table as a text."""
    uri = text_of(value)
    if not uri.strip():
        raise InvalidInputError("a writer needs the path of the table, but it is empty")
    return uri


def names(called: str, value: object) -> tuple[str, ...]:
    """Return column names that may be given as one string, as several, or not at all."""
    several = as_names(value, called)
    if "" in several:
        raise InvalidInputError(f"{called} has an empty name: {list(several)}")
    for name in repeated_names(several):
        raise InvalidInputError(f"{called} names the column {name!r} twice")
    return several


def optional_names(called: str, value: object) -> tuple[str, ...] | None:
    """Return column names as `names` does; None if there are none."""
    return None if value is None else names(called, value)


def age(called: str, value: str | timedelta | None) -> timedelta | None:
    """Return an age; None for none."""
    try:
        return None if value is None else parse_age(value)
    except InvalidInputError as error:
        raise InvalidInputError(f"{called}: {error}") from None


def checks(called: str, value: object) -> tuple[Check, ...]:
    """Return the conditions that rows have to meet."""
    try:
        return as_checks(value)
    except InvalidInputError as error:
        raise InvalidInputError(f"{called}: {error}") from None


def storage_options(_called: str, value: object) -> dict[str, Any]:
    """Return settings of a store; the locations that they trust are valid."""
    options = as_options(value)
    trusted_locations(options)
    return options


def schema(called: str, value: object) -> pa.Schema | None:
    """Return the columns of a new table; None for those of the rows."""
    if value is None or isinstance(value, pa.Schema):
        return value
    raise InvalidInputError(
        f"{called} must be a pyarrow.Schema, not a {type(value).__name__}: "
        "pa.schema([('id', pa.int64())])"
    )


def vectors(called: str, value: Any) -> dict[str, int] | None:
    """Return the number of items of each vector column of a new table."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        sizes = {name: as_number(size) or 0 for name, size in value.items()}
        if all(isinstance(name, str) and size > 0 for name, size in sizes.items()):
            return sizes
    raise InvalidInputError(
        f"{called} must map columns to their numbers of items, such as {{'embedding': 768}}, not "
        f"{value!r:.200}"
    )


def file_version(called: str, value: object) -> str | None:
    """Return the version of a new table's data files; None for the default."""
    checked = as_text("the version as a string, such as '2.1'")(called, value)
    if checked is not None:
        FileVersion.parse(checked).check_supported()
    return checked


def compaction(_called: str, value: Any) -> int | str | None:
    """Return when a sink compacts: "auto", after a number of batches, or None for never."""
    if value is not None:
        from lance_stream.maintenance.compaction.background import check_every

        check_every(value)
    return value  # type: ignore[no-any-return]  # checked


def fresh_indices(_called: str, value: object) -> "RefreshPolicy | None":
    """Return when a sink brings indices up to date; None for never, which imports nothing of it."""
    if value is None or value is False:
        return None
    from lance_stream.maintenance.indices.building import check_pylance
    from lance_stream.maintenance.indices.refresh_policy import as_refresh_policy

    policy = as_refresh_policy(value)
    if not is_remote():  # through Spark Connect a process of the server needs it
        check_pylance()
    return policy


def check_has_columns(schema: pa.Schema, key: Sequence[str]) -> None:
    """Raise unless the columns of a new table have its primary key.

    Raises:
        InvalidInputError: They lack a column of it.
    """
    present = {name.lower() for name in schema.names}
    for name in key:
        if name.lower() not in present:
            raise InvalidInputError(
                f"the schema of the new table has no column {name!r}, which its primary key names; "
                f"it has: {', '.join(schema.names)}"
            )
