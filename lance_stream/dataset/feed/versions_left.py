"""Which versions of a table are left; and for one that was cleaned up, the next one stands.

It is a look at one moment. A version that goes after it is missed when it is read.
"""

from dataclasses import replace
from functools import cached_property
from typing import Final

from lance_stream.commit.version_log import VersionLog
from lance_stream.dataset.feed.positions import Position, mark_of
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest

RECENT: Final = 4
"""So many manifests are kept while a batch is planned."""


class VersionsLeft:
    """The versions that a table has at one moment.

    Args:
        newest: The newest one.
    """

    def __init__(self, newest: TableVersion) -> None:
        self.newest = replace(newest, log=_RecentVersions(newest.log, newest.manifest))

    @cached_property
    def versions(self) -> list[int]:
        """All that are there, ascending."""
        return [each for each in self.newest.log.versions() if each <= self.newest.version]

    def has(self, version: int) -> bool:
        """Return whether a version is there; the time before the first one always is."""
        return not version or version == self.newest.version or version in self._there

    @cached_property
    def _there(self) -> frozenset[int]:
        return frozenset(self.versions)

    def stand_in(self, version: int) -> int:
        """Return a version, or the next one that is left."""
        if self.has(version):
            return version
        return next((each for each in self.versions if each > version), self.newest.version)

    def between(self, after: int, through: int) -> list[int]:
        """Return the versions that are left after one and through another, or its stand-in."""
        last = self.stand_in(through)
        return [each for each in self.versions if after < each <= last]

    def at(self, version: int) -> TableVersion:
        """Return a version.

        Raises:
            NotFoundError: It has gone meanwhile.
        """
        return checkout(self.newest, version)

    def position(self, version: int) -> Position:
        """Return the position after all changes of a version."""
        mark = mark_of(self.at(version).manifest) if version and self.has(version) else ""
        return Position(version, mark=mark)


class _RecentVersions(VersionLog):
    """A log that remembers the last few manifests that were read: a batch asks for some again.

    Args:
        log: The log.
        newest: The newest version's manifest.
    """

    def __init__(self, log: VersionLog, newest: Manifest) -> None:
        self._log = log
        self._recent = {newest.version: newest}

    @property
    def store(self) -> Store:
        """Where the table's files lie."""
        return self._log.store

    def latest(self) -> int:
        """Return the newest version."""
        return self._log.latest()

    def has(self, version: int) -> bool:
        """Return whether a version is there."""
        return self._log.has(version)

    def versions(self) -> list[int]:
        """Return every version that is there."""
        return self._log.versions()

    def read(self, version: int) -> Manifest:
        """Return the manifest of a version."""
        manifest = self._recent.pop(version, None) or self._log.read(version)
        self._recent[version] = manifest
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        return manifest

    def read_latest(self) -> Manifest:
        """Return the manifest of the newest version."""
        return self._log.read_latest()

    def manifest_path(self, version: int) -> str:
        """Return where the manifest of a version that was listed lies."""
        return self._log.manifest_path(version)

    def publish(self, version: int, manifest: bytes) -> bool:
        """Make a manifest the one of a version."""
        return self._log.publish(version, manifest)

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Take note of a version that was published."""
        self._log.remember(manifest, data)
