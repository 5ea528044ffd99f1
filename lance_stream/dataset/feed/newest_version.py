"""Asking again and again whether a table has a new version, at the cost of one small read.

Versions follow each other without a gap when they are made, so there is news once the next one is
there: one look at one name, whatever the history's length. Only a cleanup that took the next
version away again, or a table that was deleted or made anew, is not seen by that; so every so often
all versions are listed, and the newest manifest is looked at.
"""

from typing import Final

from lance_stream.commit.version_log import VersionLog
from lance_stream.dataset.feed.positions import mark_of

LOOKS_PER_LISTING: Final = 20
"""After so many looks without news all versions are listed."""


class NewestVersion:
    """The newest version of a table, as it was seen last.

    Args:
        log: Its history.

    Attributes:
        seen: Its number; 0 before the first look.
        mark: What `positions.mark_of` says of it.
    """

    def __init__(self, log: VersionLog) -> None:
        self._log = log
        self.seen = 0
        self._looks = 0
        self.mark = ""

    def look(self) -> int:
        """Return the newest version.

        Raises:
            NotFoundError: There is no table.
            BadDataError: The newest manifest is damaged.
        """
        self._looks += 1
        if not self.seen or self._looks > LOOKS_PER_LISTING or self._has_next():
            self.list()
        return self.seen

    def list(self) -> int:
        """Return the newest version, as a listing of all versions says; see `look`."""
        newest = self._log.read_latest()
        self.seen, self.mark, self._looks = newest.version, mark_of(newest), 0
        return self.seen

    def _has_next(self) -> bool:
        return self._log.has(self.seen + 1)
