"""Positions in a table's history, and limits on the size of one batch.

    Position(7)                          all changes of versions 1 to 7 have been delivered
    Position(7, num_delivered=250)       and the first 250 of version 8
    Position(0, is_snapshot=True)        nothing yet; starts with a snapshot of a version to be
                                         chosen
    Position(7, 1000, is_snapshot=True)  the first 1,000 rows of version 7, as inserts

A snapshot of version 7 ends at `Position(7)`, where its changes continue: no overlap, no gap.

A position belongs to one table. A table that was deleted and re-created at the same location has
versions with the same numbers, so each position carries the mark of its version
(`table.version_marks`), and a position inside a version also that version's mark:

    Position(7, mark="5f..")    version 7 is known
    Position(7, num_delivered=250, mark="5f../9a..")    so is version 8, of which 250 row changes
                                                        have been delivered

Positions of older releases have only the first mark, or none; missing marks are not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_SEPARATOR: Final = "/"


@dataclass(frozen=True)
class Position:
    """A place in a table's history.

    Attributes:
        version: The last version whose changes have all been delivered, or the one whose rows
            are being delivered; 0 for none.
        num_delivered: How many of the next version's row changes have been delivered as well (see
            `steps`), or how many live rows of a snapshot, in scan order.
        is_snapshot: Whether rows of a snapshot are being delivered.
        counts_pairs: Whether `num_delivered` counts an update as one row change, as positions
            inside a version did in earlier releases.
        mark: The version's mark (`table.version_marks.mark_of`); empty for version 0, and if
            unknown. Inside a version, that version's mark follows (see `joined_marks`).
        columns: The field ids of the follower's columns in the version (in version 1 for
            version 0), where their names do not already give them; None if unknown. Carried
            along with a position, but not part of it.
    """

    version: int
    num_delivered: int = 0
    is_snapshot: bool = False
    mark: str = ""
    counts_pairs: bool = False
    columns: Mapping[str, int | None] | None = field(default=None, compare=False)

    @property
    def marks(self) -> dict[int, str]:
        """The mark of each version that the position knows."""
        before, _, inside = self.mark.partition(_SEPARATOR)
        counts = {self.version: before, self.version + 1: inside}
        return {version: mark for version, mark in counts.items() if mark}

    @property
    def last_version(self) -> int:
        """The newest version of which anything has been delivered."""
        return self.version + bool(self.num_delivered and not self.is_snapshot)


@dataclass(frozen=True)
class Limits:
    """The maximum size of one batch; None for no limit. All limits hold together.

    At least one row change is always taken, whatever its size.

    Attributes:
        versions: Maximum number of versions that change rows.
        rows: Maximum number of rows.
        size_bytes: Approximate maximum in bytes, as the rows' share of their data files.
    """

    versions: int | None = None
    rows: int | None = None
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
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
