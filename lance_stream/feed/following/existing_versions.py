"""The versions of a table that still exist; the next one takes the place of a removed version.

The set of versions is that of one moment. If a version is removed later, reading it fails.

The first listing returns the newest few versions; older ones are listed only on demand. The
manifests of a batch are read once, several of them concurrently.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Final

from lance_stream.commit.version_log import ExternalVersions, LogState, VersionLog
from lance_stream.errors import NotFoundError
from lance_stream.feed.following.positions import Position, joined_marks
from lance_stream.snapshot.resolving import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest
from lance_stream.table.version_marks import mark_of

MAX_CACHED_MANIFESTS: Final = 128
"""The maximum number of cached manifests."""

MAX_CACHED_FRAGMENTS: Final = 400_000
"""The maximum number of fragments in all cached manifests, except for the last few."""

_MIN_CACHED_MANIFESTS: Final = 4


class ExistingVersions:
    """The versions that a table has at one moment.

    Args:
        table: Any version of the table.
        state: The existing versions.
    """

    def __init__(self, table: TableVersion, state: LogState) -> None:
        self._log = _CachedLog(table.log, state)
        self.newest = replace(table.at(state.newest), log=self._log)
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


class _CachedLog(VersionLog):
    """A log that caches manifests: a batch reads most of them more than once.

    Args:
        log: The log.
        state: The existing versions.
    """

    def __init__(self, log: VersionLog, state: LogState) -> None:
        self._log = log
        self._state = state
        self._manifests = {state.newest.version: state.newest}
        self._num_fragments = len(state.newest.fragments)

    @property
    def store(self) -> Store:
        """Where the table's files are stored."""
        return self._log.store

    def latest(self) -> int:
        """Return the newest version."""
        return self._log.latest()

    def has(self, version: int) -> bool:
        """Return whether a version exists."""
        return self._log.has(version)

    def versions(self, after: int = 0) -> list[int]:
        """Return every existing version."""
        return self._log.versions(after)

    def read_state(self) -> LogState:
        """Return the versions that exist now."""
        return self._log.read_state()

    def read(self, version: int, etag: str = "") -> Manifest:
        """Return the manifest of a version."""
        manifest = self._manifests.get(version) or self._read(version, etag)
        self._cache(manifest)
        return manifest

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version; None if the version does not exist."""
        return self._log.find(version)

    def read_latest(self) -> Manifest:
        """Return the manifest of the newest version."""
        return self._log.read_latest()

    def manifest_path(self, version: int) -> str:
        """Return the path of the manifest of a listed version."""
        return self._log.manifest_path(version)

    def publish(self, version: int, manifest: bytes) -> bool:
        """Publish a manifest as a version."""
        return self._log.publish(version, manifest)

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Record a version that was published."""
        self._log.remember(manifest, data)

    @property
    def mark(self) -> Mapping[str, str]:
        """The config entries that mark each version of this log."""
        return self._log.mark

    @property
    def creates_names_once(self) -> bool:
        """Whether `Store.create_once` is reliable."""
        return self._log.creates_names_once

    @property
    def external(self) -> ExternalVersions | None:
        """The versions, if they are published in a manifest store."""
        return self._log.external

    def for_store(self, store: Store) -> VersionLog:
        """Return the log of another table that is published in the same way."""
        return self._log.for_store(store)

    def claiming(self) -> VersionLog:
        """Return a log whose versions may follow those of any log."""
        return self._log.claiming()

    def check_may_follow(self, newest: Manifest | None) -> None:
        """Check that this log may publish versions after one."""
        self._log.check_may_follow(newest)

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions that are not the newest."""
        self._log.remove(versions)

    def undo_remove(self, version: int, manifest: bytes) -> None:
        """Undo the removal of a version."""
        self._log.undo_remove(version, manifest)

    def obsolete_staged_files(self, paths: Sequence[str]) -> set[str]:
        """Return which of these staged manifests are no longer needed."""
        return self._log.obsolete_staged_files(paths)

    def prefetch(self, versions: Sequence[int]) -> None:
        """Read manifests concurrently, as many as fit the cache; see `VersionLog.prefetch`."""
        room = MAX_CACHED_FRAGMENTS // max(len(self._state.newest.fragments), 1)
        missing = [version for version in versions if version not in self._manifests]
        missing = missing[: max(min(room, MAX_CACHED_MANIFESTS) - _MIN_CACHED_MANIFESTS, 0)]
        if len(missing) < 2:
            return

        def read(version: int) -> Manifest | None:
            with suppress(NotFoundError):
                return self._read(version, "")
            return None

        with ThreadPoolExecutor(min(self.store.num_readers, len(missing))) as threads:
            for manifest in threads.map(read, missing):
                if manifest is not None:
                    self._cache(manifest)

    def _read(self, version: int, etag: str) -> Manifest:
        return self._log.read(version, etag or self._state.etags.get(version, ""))

    def _cache(self, manifest: Manifest) -> None:
        """Add a manifest as the most recently used one, and evict others beyond the limits."""
        self._evict(manifest.version)
        self._manifests[manifest.version] = manifest
        self._num_fragments += len(manifest.fragments)
        while len(self._manifests) > MAX_CACHED_MANIFESTS or (
            self._num_fragments > MAX_CACHED_FRAGMENTS
            and len(self._manifests) > _MIN_CACHED_MANIFESTS
        ):
            self._evict(next(iter(self._manifests)))

    def _evict(self, version: int) -> None:
        dropped = self._manifests.pop(version, None)
        self._num_fragments -= 0 if dropped is None else len(dropped.fragments)
