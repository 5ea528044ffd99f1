"""Where somebody who follows a table stands, and how much is taken in one go.

    Position(7)                          all changes of versions 1 to 7 have been given
    Position(7, events=250)              and of version 8 the first 250
    Position(0, is_snapshot=True)        nothing yet; a snapshot comes first, of a version to choose
    Position(7, 1000, is_snapshot=True)  the first 1,000 rows of version 7, as inserts

A snapshot of version 7 ends at `Position(7)`, from where its changes go on: no overlap, no gap.

A position belongs to one table. One that was deleted and made anew under the same location has
versions of the same numbers, so each position bears the mark of its version
(`table.version_marks`), and one inside a version also the mark of that version:

    Position(7, mark="5f..")                 version 7 is known
    Position(7, events=250, mark="5f../9a..")  so is version 8, of which 250 events have been given

Positions of older releases bear the first mark only, or none; what is not known is not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_SEPARATOR: Final = "/"


@dataclass(frozen=True)
class Position:
    """A place in a table's history.

    Attributes:
        version: The last version whose changes have all been given, or the one whose rows are
            being given; 0 for none.
        events: How many of the next version's events have been given as well (see `steps`), or how
            many live rows of a snapshot, in scan order.
        is_snapshot: Whether rows of a snapshot are being given.
        mark: What `table.version_marks.mark_of` says of the version; empty for version 0, and where
            it is not known. Inside a version, that one's mark follows it (see `joined_marks`).
        columns: Which field ids the follower's columns have in the version (in version 1 for
            version 0), as far as their names do not say it there; None where nobody knows. It
            goes along with a place and is no part of it.
    """

    version: int
    events: int = 0
    is_snapshot: bool = False
    mark: str = ""
    columns: Mapping[str, int | None] | None = field(default=None, compare=False)

    @property
    def marks(self) -> dict[int, str]:
        """The mark of each version that the position knows."""
        before, _, inside = self.mark.partition(_SEPARATOR)
        known = {self.version: before, self.version + 1: inside}
        return {version: mark for version, mark in known.items() if mark}

    @property
    def last_version(self) -> int:
        """The newest version of which anything has been given."""
        return self.version + bool(self.events and not self.is_snapshot)


@dataclass(frozen=True)
class Limits:
    """How much is taken in one go; None for no limit. All of them hold at once.

    One event is always taken, whatever its size.

    Attributes:
        versions: So many versions.
        rows: So many rows.
        size_bytes: About so many bytes of data files, as the rows' share of their files.
    """

    versions: int | None = None
    rows: int | None = None
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether everything there is may be taken."""
        return self == NO_LIMITS


NO_LIMITS: Final = Limits()


def joined_marks(before: str, inside: str) -> str:
    """Return the mark of a position inside a version.

    Args:
        before: The mark of the version before; empty if there is none.
        inside: The mark of the version itself.
    """
    return f"{before}{_SEPARATOR}{inside}" if inside else before
