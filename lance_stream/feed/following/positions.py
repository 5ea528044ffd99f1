"""Positions in a table's history, and limits on the size of one batch.

    Position(7)                          all changes of versions 1 to 7 have been delivered
    Position(7, num_delivered=250)       and the first 250 changes of version 8
    Position(0, is_snapshot=True)        nothing has been delivered; a snapshot comes first, of a
                                         version that the first batch chooses
    Position(7, 1000, is_snapshot=True)  the first 1,000 rows of version 7, as inserts

A snapshot of version 7 ends at `Position(7)`, where the changes start: no overlap, no gap.

A position belongs to one table. A table that was deleted and re-created at the same location has
versions of the same numbers, so each position has the mark of its version (`table.version_marks`).
A position inside the next version has the mark of that version as well:

    Position(7, mark="5f..")                            the mark of version 7
    Position(7, num_delivered=250, mark="5f../9a..")    the marks of versions 7 and 8

Positions of older releases have only the first mark, or none. A missing mark is not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_SEPARATOR: Final = "/"


@dataclass(frozen=True)
class Position:
    """A point in a table's history.

    Attributes:
        version: The last version whose changes have all been delivered, or the version of a
            snapshot; 0 if there is none.
        num_delivered: The number of delivered row changes of the next version (see `steps`), or of
            delivered live rows of the snapshot, in scan order.
        is_snapshot: Whether the position is inside a snapshot.
        counts_pairs: Whether `num_delivered` counts an update as one row change, as in earlier
            releases.
        mark: The version's mark (`table.version_marks.mark_of`); empty for version 0, and if
            unknown. For a position inside the next version, that version's mark follows (see
            `joined_marks`).
        columns: The field ids of the follower's columns in the version (for version 0, in version
            1), except for columns whose names match; None if unknown. Not part of the position's
            identity.
    """

    version: int
    num_delivered: int = 0
    is_snapshot: bool = False
    mark: str = ""
    counts_pairs: bool = False
    columns: Mapping[str, int | None] | None = field(default=None, compare=False)

    @property
    def marks(self) -> dict[int, str]:
        """The marks by version."""
        before, _, inside = self.mark.partition(_SEPARATOR)
        marks = {self.version: before, self.version + 1: inside}
        return {version: mark for version, mark in marks.items() if mark}

    @property
    def last_version(self) -> int:
        """The newest version whose rows or row changes have been delivered, if only in part."""
        return self.version + bool(self.num_delivered and not self.is_snapshot)


@dataclass(frozen=True)
class Limits:
    """The maximum size of one batch; None for no limit. All limits apply.

    A batch has at least one row change, whatever its size.

    Attributes:
        versions: The maximum number of versions that change rows.
        rows: The maximum number of rows.
        size_bytes: The approximate maximum in bytes, as the rows' share of their data files.
    """

    versions: int | None = None
    rows: int | None = None
    size_bytes: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit at all."""
        return self == NO_LIMITS


NO_LIMITS: Final = Limits()


def joined_marks(before: str, inside: str) -> str:
    """Return the mark of a position inside a version.

    Args:
        before: The mark of the previous version; empty if it has no mark.
        inside: The mark of the version itself.
    """
    return f"{before}{_SEPARATOR}{inside}" if inside else before
