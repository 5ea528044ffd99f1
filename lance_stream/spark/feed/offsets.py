"""Positions of the change feed as Spark's offsets: what it writes into checkpoints, and gives back.

    {"columns": null, "format": 3, "mark": "", "position": 0, "snapshot": true, "version": 0}
        nothing is read yet; a snapshot comes first
    {"columns": {}, "format": 3, "mark": "5f...", "position": 1000, "snapshot": true, "version": 7}
        of a snapshot of version 7 the first 1,000 rows are read
    {"columns": {"`x`": 4}, "format": 3, "mark": "5f.../9a...", "position": 250, ...}
        all changes through version 7 are read, and the first 250 of version 8; older releases
        stored the mark of version 7 only. What the query calls x is field 4 there

`columns` says which field ids the query's columns have in the version, as far as their names do not
say it: {} where they do, null where that was not known yet.

Spark compares offsets as texts, so the keys always stand in the same (alphabetical) order. `format`
is for releases to come: an offset of a format that is not known is refused, not misread. Format 1
came first, had neither mark nor position, and format 2 had no columns; both are still read.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.feed.positions import Position

FORMAT: Final = 3

_KEYS: Final = {
    1: {"format", "snapshot", "version"},
    2: {"format", "mark", "position", "snapshot", "version"},
    3: {"columns", "format", "mark", "position", "snapshot", "version"},
}
"""What an offset of each format that is known has."""


def to_offset(position: Position) -> dict[str, Any]:
    """Return a position as Spark stores it."""
    columns = position.columns
    return {
        "columns": None if columns is None else dict(sorted(columns.items())),
        "format": FORMAT,
        "mark": position.mark,
        "position": position.events,
        "snapshot": position.is_snapshot,
        "version": position.version,
    }


def parse_offset(stored: Mapping[str, Any]) -> Position:
    """Return the position that stands in a checkpoint.

    Raises:
        UnsupportedFeatureError: A newer lance-stream wrote it.
        CorruptDataError: It is not one of ours.
    """
    form = stored.get("format")
    if _is_number(form) and form not in _KEYS:
        raise UnsupportedFeatureError(
            f"the checkpoint holds an offset of format {form}, from another lance-stream; this "
            f"one knows the formats {', '.join(map(str, _KEYS))}"
        )
    version, snapshot = stored.get("version"), stored.get("snapshot")
    events, mark = stored.get("position", 0), stored.get("mark", "")
    columns = stored.get("columns")
    if (
        not _is_number(form)
        or set(stored) != _KEYS[form]
        or not _is_number(version)
        or not _is_number(events)
        or not isinstance(snapshot, bool)
        or not isinstance(mark, str)
        or not _are_columns(columns)
    ):
        raise CorruptDataError(
            f"the checkpoint holds {dict(stored)!r}, which is no offset of a Lance change feed. "
            "Does it belong to another query?"
        )
    return Position(version, events, snapshot, mark, columns)


def _are_columns(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and all(
            isinstance(name, str) and (each is None or _is_number(each))
            for name, each in value.items()
        )
    )


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
