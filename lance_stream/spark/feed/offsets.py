"""Where a stream of changes stands: what Spark writes into its checkpoint, and gives back.

    {"format": 1, "snapshot": true,  "version": 0}    nothing is read yet; first comes a snapshot
    {"format": 1, "snapshot": false, "version": 7}    all changes up to version 7 are read

Spark compares offsets as texts, so the keys always stand in the same (alphabetical) order. `format`
is for releases to come: an offset of a format that is not known is refused, not misread.

A batch is what lies between two offsets, and can be made again from these alone, after any restart:

    from {"snapshot": true}  to version 7    the rows of version 7, as inserts
    from version 4           to version 7    the changes of versions 5, 6 and 7
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError

FORMAT: Final = 1


@dataclass(frozen=True)
class FeedOffset:
    """A place in a table's history.

    Attributes:
        version: The last version whose changes have been read; 0 for none.
        snapshot: Whether the next batch is a snapshot rather than changes.
    """

    version: int
    snapshot: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it."""
        return {"format": FORMAT, "snapshot": self.snapshot, "version": self.version}


def parse_offset(stored: Mapping[str, Any]) -> FeedOffset:
    """Return the offset that stands in a checkpoint.

    Raises:
        UnsupportedFeatureError: A newer lance-stream wrote it.
        CorruptDataError: It is not one of ours.
    """
    form, version, snapshot = map(stored.get, ("format", "version", "snapshot"))
    if _is_number(form) and form != FORMAT:
        raise UnsupportedFeatureError(
            f"the checkpoint holds an offset of format {form}, from another lance-stream; this "
            f"one knows format {FORMAT}"
        )
    if (
        not _is_number(form)
        or not _is_number(version)
        or not isinstance(snapshot, bool)
        or set(stored) != {"format", "snapshot", "version"}
    ):
        raise CorruptDataError(
            f"the checkpoint holds {dict(stored)!r}, which is no offset of a Lance change feed. "
            "Does it belong to another query?"
        )
    return FeedOffset(version, snapshot)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
