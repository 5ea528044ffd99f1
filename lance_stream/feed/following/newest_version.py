"""Polls a table for new versions, at the cost of one small request.

Versions are created without gaps, so a poll requests the next manifest by name, whatever the length
of the history. This does not notice that the next version was already removed by a cleanup, or that
the table was deleted or re-created. So after a number of polls the newest versions are listed
instead.
"""

from typing import Final

from lance_stream.commit.version_log import LogState, VersionLog
from lance_stream.table.version_marks import mark_of

POLLS_PER_LISTING: Final = 20
"""How many polls without a new version come before a listing."""


class NewestVersion:
    """The newest version of a table, as of the last poll.

    Args:
        log: The table's version log.

    Attributes:
        version: Its number; 0 before the first poll.
        mark: Its mark, from `table.version_marks.mark_of`.
        listing: The listing of the last poll; None if that did not list.
    """

    def __init__(self, log: VersionLog) -> None:
        self._log = log
        self.version = 0
        self._polls = 0
        self.mark = ""
        self.listing: LogState | None = None

    def poll(self) -> int:
        """Return the newest version.

        Raises:
            NotFoundError: The table does not exist.
            BadDataError: The newest manifest is damaged.
        """
        self._polls += 1
        self.listing = None
        if not self.version or self._polls > POLLS_PER_LISTING or self._log.find(self.version + 1):
            self.list()
        return self.version

    def list(self) -> int:
        """Return the newest version from a listing; see `poll`."""
        self.listing = self._log.read_state()
        newest = self.listing.newest
        self.version, self.mark, self._polls = newest.version, mark_of(newest), 0
        return self.version
