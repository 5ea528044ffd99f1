"""The existing versions of a table; a removed version is replaced by the next existing one.

This is a view of one moment. A version that is removed later is missed when it is read.

One listing returns the newest few versions; older ones are listed only on demand. Manifests that a
batch needs are read once, several side by side.
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

MAX_RECENT: Final = 128
"""How many manifests are cached while a batch is planned."""

MAX_RECENT_FRAGMENTS: Final = 400_000
"""How many fragments the cached manifests may list together, except for the last few."""

_LEAST_RECENT: Final = 4


class ExistingVersions:
    """The versions that a table has at one moment.

    Args:
        table: Any version of the table.
        state: Which versions there are.
    """

    def __init__(self, table: TableVersion, state: LogState) -> None:
        self._log = _RecentVersions(table.log, state)
        self.newest = replace(table.at(state.newest), log=self._log)
        self._listed = list(state.etags)
        self._is_all = state.is_all

    @cached_property
    def versions(self) -> list[int]:
        """All existing versions, ascending."""
        if not self._is_all:
            self._list(0)
        return self._listed

    def has(self, version: int) -> bool:
        """Return whether a version exists; version 0 always does."""
        return not version or version == self.newest.version or version in self._after(version - 1)

    def _after(self, version: int) -> Sequence[int]:
        """Return existing versions, ascending, including all after one."""
        if not self._is_all and self._listed[0] > version + 1:
            self._list(version)
        return self._listed

    def _list(self, after: int) -> None:
        versions = self.newest.log.versions(after)
        self._listed = [
            version for version in versions if version <= self.newest.version
        ] or self._listed
        self._is_all = not after

    def prefetch(self, first: int, last: int) -> None:
        """Read manifests that will be needed concurrently.

        Args:
            first: The first version.
            last: The last one; fewer are read if they are large.
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
        """Return the existing versions after one, through another or the next that exists."""
        last = self.next_existing(through)
        return [version for version in self._after(after) if after < version <= last]

    def at(self, version: int) -> TableVersion:
        """Return a version.

        Raises:
            NotFoundError: It has been removed meanwhile.
        """
        return checkout(self.newest, version)

    def mark(self, version: int) -> str:
        """Return the mark of a version; empty if it does not exist, and for version 0."""
        is_there = 0 < version <= self.newest.version and self.has(version)
        return mark_of(self.at(version).manifest) if is_there else ""

    def position(self, version: int, num_delivered: int = 0) -> Position:
        """Return the position after all row changes of a version.

        Args:
            version: The version.
            num_delivered: How many row changes of the next version have been delivered as well.
        """
        mark = self.mark(version)
        if num_delivered:
            mark = joined_marks(mark, self.mark(version + 1))
        return Position(version, num_delivered, mark=mark)


class _RecentVersions(VersionLog):
    """A log that caches manifests: a batch reads most of them more than once.

    Args:
        log: The log.
        seen: Which versions there are.
    """

    def __init__(self, log: VersionLog, seen: LogState) -> None:
        self._log = log
        self._seen = seen
        self._recent = {seen.newest.version: seen.newest}
        self._num_fragments = len(seen.newest.fragments)

    @property
    def store(self) -> Store:
        """Where the table's files are stored."""
        return self._log.store

    def latest(self) -> int:
        """Return the newest version."""
        return self._log.latest()

    def has(self, version: int) -> bool:
        """Return whether a version is there."""
        return self._log.has(version)

    def versions(self, after: int = 0) -> list[int]:
        """Return every existing version."""
        return self._log.versions(after)

    def read_state(self) -> LogState:
        """Return which versions there are now."""
        return self._log.read_state()

    def read(self, version: int, etag: str = "") -> Manifest:
        """Return the manifest of a version."""
        manifest = self._recent.get(version) or self._read(version, etag)
        self._keep(manifest)
        return manifest

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version that may exist by now."""
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
        """Config entries that each version contains."""
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
        """Return the history of another table that is published in the same way."""
        return self._log.for_store(store)

    def claiming(self) -> VersionLog:
        """Return the history, whose versions may follow any."""
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
        """Return which of some staged manifests are no longer needed."""
        return self._log.obsolete_staged_files(paths)

    def prefetch(self, versions: Sequence[int]) -> None:
        """Read manifests concurrently, as many as fit the cache; see `VersionLog.prefetch`."""
        room = MAX_RECENT_FRAGMENTS // max(len(self._seen.newest.fragments), 1)
        missing = [version for version in versions if version not in self._recent]
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
        """Keep a manifest as the one used last."""
        self._drop(manifest.version)
        self._recent[manifest.version] = manifest
        self._num_fragments += len(manifest.fragments)
        while len(self._recent) > MAX_RECENT or (
            self._num_fragments > MAX_RECENT_FRAGMENTS and len(self._recent) > _LEAST_RECENT
        ):
            self._drop(next(iter(self._recent)))

    def _drop(self, version: int) -> None:
        dropped = self._recent.pop(version, None)
        self._num_fragments -= 0 if dropped is None else len(dropped.fragments)
