"""Where somebody who follows a table stands, and how much is taken in one go.

    Position(7)                          all changes of versions 1 to 7 have been given
    Position(7, events=250)              and of version 8 the first 250
    Position(0, is_snapshot=True)        nothing yet; a snapshot comes first, of a version to choose
    Position(7, 1000, is_snapshot=True)  the first 1,000 rows of version 7, as inserts

A snapshot of version 7 ends at `Position(7)`, from where its changes go on: no overlap, no gap.

A position belongs to one table. One that was deleted and made anew under the same location has
versions of the same numbers, so each position bears the mark of its version: a digest of what a
manifest says of itself, which no other version says.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from lance_stream.table.manifest import Manifest

_MARK_DIGITS: Final = 16


@dataclass(frozen=True)
class Position:
    """A place in a table's history.

    Attributes:
        version: The last version whose changes have all been given, or the one whose rows are
            being given; 0 for none.
        events: How many of the next version's events have been given as well (see `steps`), or how
            many live rows of a snapshot, in scan order.
        is_snapshot: Whether rows of a snapshot are being given.
        mark: What `mark_of` says of the version; empty for version 0, and where it is not known.
    """

    version: int
    events: int = 0
    is_snapshot: bool = False
    mark: str = ""


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


def mark_of(manifest: Manifest) -> str:
    """Return a digest by which a version is known from one of another table with its number."""
    said = f"{manifest.version}\n{manifest.timestamp_nanos}\n{manifest.transaction_file}"
    return hashlib.sha256(said.encode()).hexdigest()[:_MARK_DIGITS]
