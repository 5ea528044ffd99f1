"""The modes of a writer, and the other arguments whose values are one of a few names.

A process that only reads needs some of these names, so this module imports nothing that writes.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from lance_stream.errors import InvalidInputError

MODES: Final = ("append", "upsert", "apply_changes", "overwrite")
"""The modes of `lance_sink` and of the format."""

SCD_MODES: Final[Mapping[int, str]] = {1: "scd1", 2: "scd2"}
"""The modes of `auto_cdc_sink`, by its `stored_as_scd_type`."""

SINK_MODES: Final = (*MODES, *SCD_MODES.values())

BY_KEY: Final = ("upsert", "apply_changes")
"""The modes of `MODES` that update rows of the table by their keys."""

ROWS_STAND_ALONE: Final = ("append", "upsert", "overwrite")
"""The modes in which each row means something without the others; a change does not."""

SCHEMA_EVOLUTIONS: Final = ("none", "add_columns", "widen_types")

QUARANTINE: Final = "quarantine"

BAD_ROWS: Final = ("refuse", QUARANTINE)
"""What happens to rows that do not fit the table: an error, or another table."""

_AUTO_CDC: Final = ("cdc", "scd", "history", *SCD_MODES.values())
"""What users call the modes that `auto_cdc_sink` has instead."""


def check_mode(called: str, value: object) -> str:
    """Return a mode of `MODES`.

    Raises:
        InvalidInputError: There is no such mode; the message suggests another.
    """
    if str(value).lower() in _AUTO_CDC:
        raise InvalidInputError(
            f"{called} cannot be {value!r}: a stream of changes, in any order, is written by "
            ".foreachBatch(auto_cdc_sink(uri, keys=[...], sequence_by=...)), which stores the "
            "current row of each key, or with stored_as_scd_type=2 its history"
        )
    return check_one_of(called, value, MODES)


def evolutions(called: str, value: object) -> tuple[str, ...]:
    """Return how batches may change the columns: given as a name, several with commas, or a list.

    Raises:
        InvalidInputError: A name is unknown.
    """
    values = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    if all(isinstance(name, str) for name in values):
        values = tuple(part.strip() for name in values for part in str(name).split(","))
    names = [check_one_of(called, name, SCHEMA_EVOLUTIONS) for name in values]
    if "none" in names and len(set(names)) > 1:
        raise InvalidInputError(f"{called} cannot combine none with other names: {value!r}")
    return tuple(name for name in names if name != "none")


def check_one_of(called: str, value: object, choices: Sequence[str]) -> str:
    """Return a value that is one of some names.

    Raises:
        InvalidInputError: It is not a valid choice; the message suggests one.
    """
    if value in choices:
        return str(value)
    word = str(value).lower()
    near = _SYNONYMS.get(word) or next(iter(get_close_matches(word, choices, 1)), None)
    hint = f": did you mean {near!r}?" if near in choices else ""
    raise InvalidInputError(
        f"{called} must be one of {', '.join(map(repr, choices))}, not {value!r:.200}{hint}"
    )


_SYNONYMS: Final[Mapping[str, str]] = {
    "merge": "upsert",
    "update": "upsert",
    "insert": "append",
    "complete": "overwrite",
    "replace": "overwrite",
    "true": "add_columns",
    "mergeschema": "add_columns",
}
"""Words of other sinks, and ours."""
