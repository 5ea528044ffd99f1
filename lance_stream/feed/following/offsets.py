"""Positions of the change feed as Spark's offsets, which Spark stores in checkpoints.

    {"columns": null, "format": 4, "mark": "", "position": 0, "snapshot": true, "version": 0}
        nothing has been read; a snapshot comes first
    {"columns": {}, "format": 4, "mark": "5f...", "position": 1000, "snapshot": true, "version": 7}
        the first 1,000 rows of a snapshot of version 7 have been read
    {"columns": {"`x`": 4}, "format": 4, "mark": "5f.../9a...", "position": 250, ...}
        all changes through version 7 have been read, and the first 250 of version 8 (see
        `feed.steps`); the query's column x is field 4 in version 7. Older releases stored the mark
        of version 7 only

`columns` maps the query's columns to their field ids in the version, except for columns whose names
match: {} if all names match, null if nothing has been read.

Spark compares offsets as strings, so the keys are always in alphabetical order. An offset of an
unknown `format` is refused, not misread. Earlier formats are still read: format 1 had neither mark
nor position, format 2 had no columns, and in formats 2 and 3 the two images of an update counted as
one change.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.feed.following.positions import Position

FORMAT: Final = 4

_COUNTS_PAIRS: Final = {2, 3}
"""The formats in which an update counts as one change."""

_KEYS: Final = {
    1: {"format", "snapshot", "version"},
    2: {"format", "mark", "position", "snapshot", "version"},
    3: {"columns", "format", "mark", "position", "snapshot", "version"},
    4: {"columns", "format", "mark", "position", "snapshot", "version"},
}
"""The keys of an offset, by format."""


def to_offset(position: Position) -> dict[str, Any]:
    """Return a position as the offset that Spark stores."""
    columns = position.columns
    return {
        "columns": None if columns is None else dict(sorted(columns.items())),
        "format": FORMAT,
        "mark": position.mark,
        "position": position.num_delivered,
        "snapshot": position.is_snapshot,
        "version": position.version,
    }


def parse_offset(stored: Mapping[str, Any]) -> Position:
    """Parse an offset from a checkpoint.

    Raises:
        UnsupportedFeatureError: A newer release of lance-stream wrote it.
        CorruptDataError: It is not an offset of this project.
    """
    form = stored.get("format")
    if _is_number(form) and form not in _KEYS:
        raise UnsupportedFeatureError(
            f"the checkpoint contains an offset of format {form}, from another release of "
            f"lance-stream; this release supports the formats {', '.join(map(str, _KEYS))}"
        )
    version, snapshot = stored.get("version"), stored.get("snapshot")
    num_delivered, mark = stored.get("position", 0), stored.get("mark", "")
    columns = stored.get("columns")
    if (
        not _is_number(form)
        or set(stored) != _KEYS[form]
        or not _is_number(version)
        or not _is_number(num_delivered)
        or not isinstance(snapshot, bool)
        or not isinstance(mark, str)
        or not _are_columns(columns)
    ):
        raise CorruptDataError(
            f"the checkpoint contains {dict(stored)!r}, which is not an offset of a Lance change "
            "feed. Does it belong to another query?"
        )
    counts_pairs = form in _COUNTS_PAIRS and num_delivered > 0 and not snapshot
    return Position(version, num_delivered, snapshot, mark, counts_pairs, columns)


def _are_columns(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and all(
            isinstance(name, str) and (column is None or _is_number(column))
            for name, column in value.items()
        )
    )


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
