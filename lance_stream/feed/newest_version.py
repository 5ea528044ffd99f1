"""Asking again and again whether a table has a new version, at the cost of one small request.

Versions follow each other without a gap when they are made, so there is news once the next one is
there: its manifest is asked for by name, whatever the history's length, and is read once it is
there. Only a cleanup that took the next version away again, or a table that was deleted or made
anew, is not seen by that; so every so often the newest versions are listed instead.
"""

from typing import Final

from lance_stream.commit.version_log import Look, VersionLog
from lance_stream.table.version_marks import mark_of

LOOKS_PER_LISTING: Final = 20
"""After so many looks without news the newest versions are listed."""


class NewestVersion:
    """The newest version of a table, as it was seen last.

    Args:
        log: Its history.

    Attributes:
        seen: Its number; 0 before the first look.
        mark: What `table.version_marks.mark_of` says of it.
        listed: What the last look has listed; None if it had no need to.
    """

    def __init__(self, log: VersionLog) -> None:
        self._log = log
        self.seen = 0
        self._looks = 0
        self.mark = ""
        self.listed: Look | None = None

    def look(self) -> int:
        """Return the newest version.

        Raises:
            NotFoundError: There is no table.
            BadDataError: The newest manifest is damaged.
        """
        self._looks += 1
        self.listed = None
        if not self.seen or self._looks > LOOKS_PER_LISTING or self._log.find(self.seen + 1):
            self.list()
        return self.seen

    def list(self) -> int:
        """Return the newest version, as a listing says; see `look`."""
        self.listed = self._log.look()
        newest = self.listed.newest
        self.seen, self.mark, self._looks = newest.version, mark_of(newest), 0
        return self.seen
