"""The versions of a table that still exist; the next one takes the place of a removed version.

The set of versions is that of one moment. If a version is removed later, reading it fails.

The first listing returns the newest few versions; older ones are listed only on demand. The
manifests of a batch are read once, several of them concurrently.
"""

from collections.abc import Sequence
from functools import cached_property

from lance_stream.commit.version_log import LogState
from lance_stream.feed.following.positions import Position, joined_marks
from lance_stream.snapshot.cached_log import CachedLog
from lance_stream.snapshot.resolving import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.version_marks import mark_of


class ExistingVersions:
    """The versions that a table has at one moment.

    Args:
        table: Any version of the table.
        state: The existing versions.
    """

    def __init__(self, table: TableVersion, state: LogState) -> None:
        self._log = CachedLog(table.log, state.newest, state.etags)
        self.newest = table.at(state.newest).with_log(self._log)
        self._listed = list(state.etags)
        self._is_complete = state.is_all

    @cached_property
    def versions(self) -> list[int]:
        """All existing versions, ascending."""
        if not self._is_complete:
            self._list(0)
        return self._listed

    def has(self, version: int) -> bool:
        """Return whether a version exists; version 0 always does."""
        return not version or version == self.newest.version or version in self._after(version - 1)

    def _after(self, version: int) -> Sequence[int]:
        """Return existing versions, ascending: at least all that come after `version`."""
        if not self._is_complete and self._listed[0] > version + 1:
            self._list(version)
        return self._listed

    def _list(self, after: int) -> None:
        versions = self.newest.log.versions(after)
        self._listed = [
            version for version in versions if version <= self.newest.version
        ] or self._listed
        self._is_complete = not after

    def prefetch(self, first: int, last: int) -> None:
        """Read manifests concurrently, into the cache.

        Args:
            first: The first version.
            last: The last version; large manifests are read only as far as they fit the cache.
        """
        first = max(first, 1)
        self._log.prefetch(
            [version for version in self._after(first - 1) if first <= version <= last]
        )

    def next_existing(self, version: int) -> int:
        """Return a version, or the next one that exists."""
        if self.has(version):
            return version
        return next(
            (number for number in self._after(version) if number > version), self.newest.version
        )

    def between(self, after: int, through: int) -> list[int]:
        """Return existing versions after `after`, up to the first one from `through` on."""
        last = self.next_existing(through)
        return [version for version in self._after(after) if after < version <= last]

    def at(self, version: int) -> TableVersion:
        """Return a version.

        Raises:
            NotFoundError: It has been removed since.
        """
        return checkout(self.newest, version)

    def mark(self, version: int) -> str:
        """Return the mark of a version; empty if it does not exist, and for version 0."""
        exists = 0 < version <= self.newest.version and self.has(version)
        return mark_of(self.at(version).manifest) if exists else ""

    def position(self, version: int, num_delivered: int = 0) -> Position:
        """Return the position after all row changes of a version.

        Args:
            version: The version.
            num_delivered: The number of row changes of the next version that were also delivered.
        """
        mark = self.mark(version)
        if num_delivered:
            mark = joined_marks(mark, self.mark(version + 1))
        return Position(version, num_delivered, mark=mark)
