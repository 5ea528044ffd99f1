"""Columns as text: paths of names, quoted by backticks, and names that differ in case.

    name   `a name`   struct.part   `a.b`.`part``s`

The grammar of SQL expressions reads the same paths; see `expressions.tokens`.
"""

from collections.abc import Collection

from lance_stream.errors import InvalidInputError


def quote_path(path: tuple[str, ...]) -> str:
    """Return a path of names as one string, every name in backticks."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


def split_path(column: str) -> tuple[str, ...]:
    """Return the names in a dotted path; backticks quote names that contain dots.

    Raises:
        InvalidInputError: A backtick is not closed, a name is empty, or it is no text.
    """
    if not isinstance(column, str):
        raise InvalidInputError(f"{column!r:.200} is not a column name or a path of names")
    names: list[str] = []
    name, is_quoted, position = "", False, 0
    while position < len(column):
        character = column[position]
        if character == "`":
            if is_quoted and column[position + 1 : position + 2] == "`":
                name += "`"
                position += 1
            else:
                is_quoted = not is_quoted
        elif character == "." and not is_quoted:
            names.append(name)
            name = ""
        else:
            name += character
        position += 1
    names.append(name)
    if is_quoted or not all(names):
        raise InvalidInputError(f"{column!r} is not a column name or a path of names")
    return tuple(names)


def resolve_name(name: str, names: Collection[str]) -> str | None:
    """Return the name that is equal, or else the one that differs only in case; None if none does.

    Raises:
        InvalidInputError: Several names differ only in case.
    """
    if name in names:
        return name
    matches = [candidate for candidate in names if candidate.lower() == name.lower()]
    if len(matches) > 1:
        raise InvalidInputError(
            f"the column {name!r} could be {' or '.join(map(repr, matches))}; spell it as one of "
            "them"
        )
    return matches[0] if matches else None


def duplicate_name_problem(name: str) -> str:
    """Return the message, with the remedy, for a name that two columns share."""
    return (
        f"there are two columns with the name {name!r}, so the name is ambiguous; rename_columns "
        "renames the first of them"
    )
