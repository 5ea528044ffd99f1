"""What the rows of a batch mean: the names that the sink and the format as a writer share.

Reading needs their names, too, to say which options are for writing. So this module imports nothing
that writes.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from lance_stream.errors import InvalidInputError

MODES: Final = ("append", "upsert", "apply_changes", "overwrite", "scd1", "scd2")

OF_CHANGES: Final = ("scd1", "scd2")
"""The modes that apply changes as Spark's AUTO CDC does; of the sink only."""

WRITER_MODES: Final = tuple(each for each in MODES if each not in OF_CHANGES)
"""The modes of the format as a writer."""

SCHEMA_EVOLUTIONS: Final = ("none", "add_columns", "widen_types")

QUARANTINE: Final = "quarantine"

BAD_ROWS: Final = ("refuse", QUARANTINE)
"""What happens to rows that do not fit the table: an error, or a table beside it."""

BY_KEY: Final = ("upsert", "apply_changes", *OF_CHANGES)
"""The modes that update rows of the table by their keys."""

ONLY_WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "on": BY_KEY,
    "skip_unchanged": ("upsert", "apply_changes"),
    "when_matched": ("upsert",),
    "when_not_matched": ("upsert",),
    "sequence_by": ("upsert", *OF_CHANGES),
    "delete_when": ("upsert", *OF_CHANGES),
    "tombstones": ("upsert", *OF_CHANGES),
}
"""The modes that an argument applies to; all others apply to every mode."""

NAMES_OF_CHANGES: Final[Mapping[str, str | None]] = {
    "keys": "on",
    "apply_as_deletes": "delete_when",
    "except_column_list": "except_columns",
    "column_list": None,
    "track_history_column_list": None,
    "track_history_except_column_list": None,
}
"""The arguments of `OF_CHANGES`, as AUTO CDC calls them, and the other modes, if they have them."""


def check_spelled(mode: str, given: Mapping[str, object]) -> None:
    """Raise if an argument is not one of the mode, but called otherwise there.

    Args:
        mode: One of `MODES`.
        given: The values of arguments by their names; None where one is not given.

    Raises:
        InvalidInputError: One is not; the message says how it is called.
    """
    for theirs, ours in NAMES_OF_CHANGES.items():
        if mode in OF_CHANGES and ours is not None and given.get(ours) is not None:
            raise InvalidInputError(
                f"lance_sink(mode={mode!r}) has the arguments of Spark's AUTO CDC: give "
                f"{theirs}={given[ours]!r} instead of {ours}"
            )
        if mode not in OF_CHANGES and given.get(theirs) is not None:
            way_out = "" if ours is None else f"; there it is {ours}={given[theirs]!r}"
            raise InvalidInputError(
                f"lance_sink({theirs}={given[theirs]!r}) is for "
                f"mode={' or '.join(map(repr, OF_CHANGES))}, not for {mode!r}{way_out}"
            )


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
    "cdc": ("scd1",),
    "scd": ("scd2",),
    "history": ("scd2",),
    "insert": ("append",),
    "complete": ("overwrite",),
    "replace": ("overwrite",),
    "true": ("add_columns",),
    "mergeschema": ("add_columns",),
}
"""Words of other sinks, and ours."""
