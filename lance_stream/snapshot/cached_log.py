"""A version log that caches manifests, for the change feed, which reads most of them twice.

One pass goes forward, from version to version; the other one follows columns back to older versions
(`feed.ancestry`).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from lance_stream.commit.version_log import ExternalVersions, LogState, VersionLog
from lance_stream.errors import NotFoundError
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest

MAX_CACHED_MANIFESTS: Final = 128
"""The maximum number of cached manifests."""

MAX_CACHED_FRAGMENTS: Final = 400_000
"""The maximum number of fragments in all cached manifests, except for the last few."""

_MIN_CACHED_MANIFESTS: Final = 4


class CachedLog(VersionLog):
    """A log that caches manifests.

    Args:
        log: The log that reads and publishes versions.
        newest: The manifest of a version that the caller has read, usually the newest.
        etags: The ETags of the manifests of some versions in a new listing.
    """

    def __init__(
        self, log: VersionLog, newest: Manifest, etags: Mapping[int, str] | None = None
    ) -> None:
        self._log = log
        self._etags = etags or {}
        self._manifests = {newest.version: newest}
        self._fragments_per_version = max(len(newest.fragments), 1)
        self._num_fragments = len(newest.fragments)

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
        room = MAX_CACHED_FRAGMENTS // self._fragments_per_version
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
        return self._log.read(version, etag or self._etags.get(version, ""))

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
