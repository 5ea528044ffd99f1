"""Resolves column names by Spark's setting `spark.sql.caseSensitive`, in all Spark interfaces.

    setting             a name means                                     `v` and `V` in one table
    false (default)     the column of that name, whatever its case       refused where one is named
    true                the column of exactly that name                  two columns

Stored columns keep the table's spelling: a batch's `ID` is stored as the table's `id`.

The sink uses the setting of its batch's session. The format's code runs in processes without a
session, and uses the value from when `register` was called. Fields of structs follow the same rule
in paths ("address.City"); the structs of a batch need the exact field names. The interfaces without
Spark (Python, the command line) accept exact names only; in their expressions, case does not matter
if only one column matches.
"""

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from lance_stream.arguments import did_you_mean
from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import parse_expression, rename_paths
from lance_stream.schema.column_paths import quote_path, split_path

SETTING = "spark.sql.caseSensitive"


def find_column(name: str, columns: Iterable[str], *, case_sensitive: bool) -> str | None:
    """Return the column that a name means; None if there is none.

    Raises:
        InvalidInputError: The name is ambiguous.
    """
    columns = list(columns)
    if case_sensitive:
        return name if name in columns else None
    alike = sorted({column for column in columns if column.lower() == name.lower()})
    if len(alike) > 1:
        raise InvalidInputError(
            f"the column {name!r} could be {' or '.join(map(repr, alike))}, which Spark does not "
            f"distinguish while {SETTING} is false. Set it to true (for the format, before "
            "calling register(spark)), or rename one of them"
        )
    return alike[0] if alike else None


def column_finder(
    columns: Sequence[str], stored: Sequence[str], owner: str, *, case_sensitive: bool
) -> Callable[[str], str]:
    """Return a function that returns the stored name of a column that a user names, or raises.

    Args:
        columns: The columns' own names.
        stored: The names under which the table stores them, in the same order.
        owner: The owner of these columns and its verb, for the message: "the batch has".
        case_sensitive: Whether Spark distinguishes `v` from `V`.
    """
    by_name = dict(zip(columns, stored, strict=True))

    def find(name: str) -> str:
        column = find_column(name, columns, case_sensitive=case_sensitive)
        if column is None:
            raise InvalidInputError(
                f"{owner} no column {name!r}{did_you_mean(name, columns)}; there are: "
                f"{', '.join(columns)}"
            )
        return by_name[column]

    return find


def check_are_distinct(names: Sequence[str], owner: str, *, case_sensitive: bool) -> None:
    """Refuse columns that Spark does not distinguish.

    Args:
        names: The columns' names.
        owner: The owner of these columns, for the message.
        case_sensitive: Whether Spark distinguishes `v` from `V`.

    Raises:
        InvalidInputError: Two columns have the same name for Spark.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = name if case_sensitive else name.lower()
        if key in seen:
            remedy = "" if seen[key] == name else f", or set {SETTING} to true"
            raise InvalidInputError(
                f"{owner} has the columns {seen[key]!r} and {name!r}, which Spark does not "
                f"distinguish. Rename one of them{remedy}"
            )
        seen[key] = name


def names_in_table(
    incoming: Sequence[str], table: Sequence[str], *, case_sensitive: bool
) -> list[str]:
    """Return the names under which a table stores incoming columns, in their order.

    Args:
        incoming: The columns' own names.
        table: The names of the table's columns.
        case_sensitive: Whether Spark distinguishes `v` from `V`.

    Raises:
        InvalidInputError: A name could mean several of the table's columns, or two are one column.
    """
    check_are_distinct(incoming, "the batch", case_sensitive=case_sensitive)
    return [find_column(name, table, case_sensitive=case_sensitive) or name for name in incoming]


def resolve_columns(
    columns: Sequence[str] | None, schema: pa.Schema, *, case_sensitive: bool
) -> tuple[str, ...] | None:
    """Return a user's column names in the table's spelling; unknown names are unchanged.

    Args:
        columns: Names, or paths into structs; None for all columns.
        schema: The columns that can be named.
        case_sensitive: Whether Spark distinguishes `v` from `V`.

    Raises:
        InvalidInputError: A name could mean several columns.
    """
    if columns is None or case_sensitive:
        return None if columns is None else tuple(columns)
    return tuple(_resolve_column(column, schema) for column in columns)


def resolve_filter(text: str | None, schema: pa.Schema, *, case_sensitive: bool) -> str | None:
    """Return a condition with column names in the table's spelling; unknown ones are unchanged.

    Args:
        text: The condition; None for none.
        schema: The columns that can be named.
        case_sensitive: Whether Spark distinguishes `v` from `V`.

    Raises:
        InvalidInputError: It is not a condition, or a name could mean several columns.
    """
    if text is None or case_sensitive:
        return text
    paths = parse_expression(text).paths
    resolved = {
        path: resolved for path in paths if (resolved := _resolve_path(path, schema)) != path
    }
    if not resolved:
        return text
    return rename_paths(text, resolved)


def _resolve_column(column: str, schema: pa.Schema) -> str:
    if column in schema.names and not _has_twin(column, schema.names):
        return column
    whole = find_column(column, schema.names, case_sensitive=False)
    if whole is not None:
        return whole
    path = split_path(column)
    resolved = _resolve_path(path, schema)
    return column if resolved == path else quote_path(resolved)


def _has_twin(name: str, columns: Iterable[str]) -> bool:
    return sum(column.lower() == name.lower() for column in columns) > 1


def _resolve_path(path: tuple[str, ...], schema: pa.Schema) -> tuple[str, ...]:
    fields: Iterable[pa.Field] = schema
    resolved: list[str] = []
    for name in path:
        by_name = {field.name: field for field in fields}
        column = find_column(name, by_name, case_sensitive=False)
        if column is None:
            return path
        resolved.append(column)
        fields = _parts_of(by_name[column].type)
    return tuple(resolved)


def _parts_of(arrow: pa.DataType) -> Iterable[pa.Field]:
    while pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        arrow = arrow.value_type
    return list(arrow) if pa.types.is_struct(arrow) else ()
