"""Rules for the names of new columns.

    top level    not empty, without a dot, neither in `SYSTEM_COLUMNS` nor `DELETES`
    parts        unique within their struct

A dot separates the parts of a struct in a path, so other readers cannot name a column with a dot in
its name. Tables that already have such a column keep it.

Source:  names that pylance refuses, and names that it writes and cannot read back.
Differs: pylance writes a column with an empty name, and a struct with two parts of one name; it
         reads neither.
"""

from collections import Counter
from collections.abc import Iterable

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import Field
from lance_stream.schema.system_columns import CHANGE_COLUMNS, DELETES, SYSTEM_COLUMNS
from lance_stream.schema.types.logical_types import STRUCT


def check_new_name(name: object, *, is_part: bool = False) -> None:
    """Raise unless a column, or a part of a struct, can have a name.

    Raises:
        InvalidInputError: It cannot.
    """
    if not isinstance(name, str) or not name or "." in name:
        raise InvalidInputError(
            f"a column cannot be called {name!r}: names must not be empty or contain a dot, which "
            "separates the parts of a struct"
        )
    if name in {*SYSTEM_COLUMNS, DELETES} and not is_part:
        remedy = (
            "To apply the changes of a feed, use mode='apply_changes'; to store them as rows, "
            "rename its columns, such as _change_type to change_type, or leave them out"
            if name in CHANGE_COLUMNS.names
            else "Rename the column, or leave it out"
        )
        raise InvalidInputError(
            f"a column must not be called {name!r}: the name is reserved for a system column. "
            f"{remedy}"
        )


def check_new_columns(columns: Iterable[Field]) -> None:
    """Raise unless new top-level columns, and all parts of them, can have their names.

    Raises:
        InvalidInputError: One cannot.
    """
    for column in columns:
        check_new_name(column.name)
        for field in column.walk():
            counts = Counter(part.name for part in field.children)
            repeated = sorted(name for name, count in counts.items() if count > 1)
            if field.logical_type == STRUCT and repeated:
                raise InvalidInputError(
                    f"column {column.name!r}: the parts of a struct must have different names, "
                    f"but {repeated} occur twice"
                )
