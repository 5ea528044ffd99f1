"""Polls a table for new versions, at the cost of one small request.

Versions are created without gaps, so there is news once the next one exists: its manifest is
requested by name, however long the history, and read once it exists. This misses only a cleanup
that removed the next version again, or a table that was deleted or re-created; so every so often
the newest versions are listed instead.
"""

from typing import Final

from lance_stream.commit.version_log import LogState, VersionLog
from lance_stream.table.version_marks import mark_of

POLLS_PER_LISTING: Final = 20
"""After how many polls without news the newest versions are listed."""


class NewestVersion:
    """The newest version of a table seen so far.

    Args:
        log: Its history.

    Attributes:
        seen: Its number; 0 before the first state.
        mark: Its mark, from `table.version_marks.mark_of`.
        listed: What the last poll listed; None if it did not list.
    """

    def __init__(self, log: VersionLog) -> None:
        self._log = log
        self.seen = 0
        self._polls = 0
        self.mark = ""
        self.listed: LogState | None = None

    def poll(self) -> int:
        """Return the newest version.

        Raises:
            NotFoundError: The table does not exist.
            BadDataError: The newest manifest is damaged.
        """
        self._polls += 1
        self.listed = None
        if not self.seen or self._polls > POLLS_PER_LISTING or self._log.find(self.seen + 1):
            self.list()
        return self.seen

    def list(self) -> int:
        """Return the newest version from a listing; see `poll`."""
        self.listed = self._log.read_state()
        newest = self.listed.newest
        self.seen, self.mark, self._polls = newest.version, mark_of(newest), 0
        return self.seen
