"""Which versions of a table are left; and for one that was cleaned up, the next one stands.

It is a look at one moment. A version that goes after it is missed when it is read.

One listing says the newest few versions; older ones are listed only where somebody asks for them.
Manifests that a batch needs are read once, and several side by side.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Final

from lance_stream.commit.version_log import Look, VersionLog
from lance_stream.errors import NotFoundError
from lance_stream.feed.positions import Position, joined_marks
from lance_stream.snapshot.opening import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest
from lance_stream.table.version_marks import mark_of

MAX_RECENT: Final = 128
"""So many manifests are kept while a batch is planned."""

MAX_RECENT_FRAGMENTS: Final = 400_000
"""And no more than name so many fragments together, but for the last few."""

_LEAST_RECENT: Final = 4


class VersionsLeft:
    """The versions that a table has at one moment.

    Args:
        table: Any version of the table.
        look: What there is.
    """

    def __init__(self, table: TableVersion, look: Look) -> None:
        self._log = _RecentVersions(table.log, look)
        self.newest = replace(table.at(look.newest), log=self._log)
        self._listed = list(look.etags)
        self._is_all = look.is_all

    @cached_property
    def versions(self) -> list[int]:
        """All that are there, ascending."""
        if not self._is_all:
            self._list(0)
        return self._listed

    def has(self, version: int) -> bool:
        """Return whether a version is there; the time before the first one always is."""
        return not version or version == self.newest.version or version in self._after(version - 1)

    def _after(self, version: int) -> Sequence[int]:
        """Return the versions that are there, ascending, and all of those after one."""
        if not self._is_all and self._listed[0] > version + 1:
            self._list(version)
        return self._listed

    def _list(self, after: int) -> None:
        found = self.newest.log.versions(after)
        self._listed = [each for each in found if each <= self.newest.version] or self._listed
        self._is_all = not after

    def read_ahead(self, first: int, last: int) -> None:
        """Read manifests that will be asked for, side by side.

        Args:
            first: The first version.
            last: The last one; fewer are read where they are large.
        """
        first = max(first, 1)
        self._log.read_ahead([each for each in self._after(first - 1) if first <= each <= last])

    def stand_in(self, version: int) -> int:
        """Return a version, or the next one that is left."""
        if self.has(version):
            return version
        return next((each for each in self._after(version) if each > version), self.newest.version)

    def between(self, after: int, through: int) -> list[int]:
        """Return the versions that are left after one and through another, or its stand-in."""
        last = self.stand_in(through)
        return [each for each in self._after(after) if after < each <= last]

    def at(self, version: int) -> TableVersion:
        """Return a version.

        Raises:
            NotFoundError: It has gone meanwhile.
        """
        return checkout(self.newest, version)

    def mark(self, version: int) -> str:
        """Return the mark of a version; empty where it is not there, and before the first."""
        is_there = 0 < version <= self.newest.version and self.has(version)
        return mark_of(self.at(version).manifest) if is_there else ""

    def position(self, version: int, events: int = 0) -> Position:
        """Return the position after all changes of a version.

        Args:
            version: The version.
            events: How many events of the next version have been given as well.
        """
        mark = self.mark(version)
        if events:
            mark = joined_marks(mark, self.mark(version + 1))
        return Position(version, events, mark=mark)


def read_ahead(table: TableVersion, versions: Sequence[int]) -> None:
    """Read manifests that will be asked for side by side, if the table's log keeps what it reads.

    Args:
        table: Any version; that of a `VersionsLeft` has a log that does.
        versions: Which; some may have gone.
    """
    if isinstance(table.log, _RecentVersions):
        table.log.read_ahead(versions)


class _RecentVersions(VersionLog):
    """A log that remembers manifests that were read: a batch asks for most of them again.

    Args:
        log: The log.
        seen: What there is.
    """

    def __init__(self, log: VersionLog, seen: Look) -> None:
        self._log = log
        self._seen = seen
        self._recent = {seen.newest.version: seen.newest}

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

    def versions(self, after: int = 0) -> list[int]:
        """Return every version that is there."""
        return self._log.versions(after)

    def look(self) -> Look:
        """Return what there is now."""
        return self._log.look()

    def read(self, version: int, etag: str = "") -> Manifest:
        """Return the manifest of a version."""
        manifest = self._recent.pop(version, None) or self._read(version, etag)
        self._keep(manifest)
        return manifest

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version that may have come."""
        return self._log.find(version)

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

    @property
    def mark(self) -> Mapping[str, str]:
        """Config entries that each version gets."""
        return self._log.mark

    @property
    def creates_names_once(self) -> bool:
        """Whether `Store.create_once` can be relied on."""
        return self._log.creates_names_once

    def check_may_follow(self, newest: Manifest | None) -> None:
        """Check that this log may publish versions after one."""
        self._log.check_may_follow(newest)

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions that are not the newest."""
        self._log.remove(versions)

    def put_back(self, version: int, manifest: bytes) -> None:
        """Undo the removal of a version."""
        self._log.put_back(version, manifest)

    def staged_files_done_with(self, paths: Sequence[str]) -> set[str]:
        """Return those of some staged manifests that are of no use any more."""
        return self._log.staged_files_done_with(paths)

    def read_ahead(self, versions: Sequence[int]) -> None:
        """Read manifests side by side, as many as are kept; some may have gone."""
        room = MAX_RECENT_FRAGMENTS // max(len(self._seen.newest.fragments), 1)
        missing = [each for each in versions if each not in self._recent]
        missing = missing[: max(min(room, MAX_RECENT) - _LEAST_RECENT, 0)]
        if len(missing) < 2:
            return

        def read(version: int) -> Manifest | None:
            with suppress(NotFoundError):
                return self._read(version, "")
            return None

        with ThreadPoolExecutor(min(self.store.num_readers, len(missing))) as threads:
            for manifest in threads.map(read, missing):
                if manifest is not None:
                    self._keep(manifest)

    def _read(self, version: int, etag: str) -> Manifest:
        return self._log.read(version, etag or self._seen.etags.get(version, ""))

    def _keep(self, manifest: Manifest) -> None:
        self._recent[manifest.version] = manifest
        num_fragments = sum(len(each.fragments) for each in self._recent.values())
        while len(self._recent) > MAX_RECENT or (
            num_fragments > MAX_RECENT_FRAGMENTS and len(self._recent) > _LEAST_RECENT
        ):
            gone = self._recent.pop(next(iter(self._recent)))
            num_fragments -= len(gone.fragments)
