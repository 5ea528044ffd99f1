"""What the rows of a batch mean: the names that the sink and the format as a writer share.

Reading needs their names, too, to say which options are for writing. So this module imports nothing
that writes.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from lance_stream.errors import InvalidInputError

MODES: Final = ("append", "upsert", "apply_changes", "overwrite")

SCHEMA_EVOLUTIONS: Final = ("none", "add_columns", "widen_types")

QUARANTINE: Final = "quarantine"

BAD_ROWS: Final = ("refuse", QUARANTINE)
"""What happens to rows that do not fit the table: an error, or a table beside it."""

BY_KEY: Final = ("upsert", "apply_changes")
"""The modes that update rows of the table by their keys."""

ONLY_WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "on": BY_KEY,
    "skip_unchanged": BY_KEY,
    "sequence_by": ("upsert",),
    "delete_when": ("upsert",),
    "tombstones": ("upsert",),
}
"""The modes that an argument applies to; all others apply to every mode."""


def evolutions(value: object) -> tuple[str, ...]:
    """Return how batches may change the columns: given as a name, several with commas, or a list.

    Raises:
        InvalidInputError: A name is unknown.
    """
    given = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    if all(isinstance(each, str) for each in given):
        given = tuple(part.strip() for each in given for part in str(each).split(","))
    for each in given:
        check_one_of("schema_evolution", each, SCHEMA_EVOLUTIONS)
    if "none" in given and len(set(given)) > 1:
        raise InvalidInputError(f"schema_evolution is none or others, not both: {value!r}")
    return tuple(str(each) for each in given if each != "none")


def check_one_of(argument: str, value: object, known: Sequence[str]) -> None:
    """Raise unless a value is one of those that are known; the message suggests one."""
    if value not in known:
        near = _MEANT.get(str(value).lower()) or get_close_matches(str(value).lower(), known, 1)
        hint = f": did you mean {near[0]!r}?" if near and near[0] in known else ""
        raise InvalidInputError(
            f"{argument} must be one of {', '.join(map(repr, known))}, not {value!r:.200}{hint}"
        )


_MEANT: Final[Mapping[str, tuple[str, ...]]] = {
    "merge": ("upsert",),
    "update": ("upsert",),
    "cdc": ("upsert",),
    "insert": ("append",),
    "complete": ("overwrite",),
    "replace": ("overwrite",),
    "true": ("add_columns",),
    "mergeschema": ("add_columns",),
}
"""Words of other sinks, and ours."""
