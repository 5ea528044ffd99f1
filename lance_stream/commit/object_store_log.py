"""The history of a table in its own directory: one manifest file a version.

The name of a manifest says its version, and creating a name once is what publishes it. New tables
name them by scheme V2; a table of scheme V1 goes on with it; a table with both is refused.

The hint file says which version was the newest when it was written. It saves the reference a
listing on stores that cannot sort; here it is written for its sake, and never read.
"""

from contextlib import suppress
from dataclasses import dataclass, field

from lance_stream.commit.manifest_files import read_manifest, remember_manifest
from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import (
    LATEST_VERSION_HINT,
    VERSIONS_DIRECTORY,
    NamingScheme,
    is_detached,
    manifest_path,
    newest_manifest,
    parse_manifest_name,
)

_TRIES = 5


@dataclass
class ObjectStoreLog:
    """The versions of the table that lies in a store.

    Args:
        store: The table's directory.
    """

    store: Store
    _scheme: NamingScheme | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def scheme(self) -> NamingScheme:
        """How manifests are named, as it was seen last."""
        return self._scheme or NamingScheme.V2

    def latest(self) -> int:
        """Return the newest version; see `VersionLog.latest`."""
        newest, _ = self._list()
        if newest is None:
            raise NotFoundError(f"there is no dataset at {self.store.uri}")
        return newest

    def has(self, version: int) -> bool:
        """Return whether a version is there; one look, whatever the history's length.

        Tables that were not listed before are looked at under the names of both schemes.
        """
        schemes = (self._scheme,) if self._scheme else (NamingScheme.V2, NamingScheme.V1)
        return any(self.store.exists(manifest_path(version, each)) for each in schemes)

    def versions(self) -> list[int]:
        """Return every version that is there, ascending; see `VersionLog.versions`."""
        newest, names = self._list()
        if newest is None:
            raise NotFoundError(f"there is no dataset at {self.store.uri}")
        return sorted(each.version for name in names if (each := parse_manifest_name(name)))

    def read(self, version: int) -> Manifest:
        """Return the manifest of a version; see `VersionLog.read`."""
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            with suppress(NotFoundError):
                return self._read(version, scheme)
        versions = self.versions()
        raise NotFoundError(
            f"the dataset at {self.store.uri} has no version {version}: it has "
            f"{len(versions)}, the oldest {versions[0]} and the newest {versions[-1]}"
        )

    def read_latest(self) -> Manifest:
        """Return the manifest of the newest version; see `VersionLog.read_latest`."""
        for _ in range(_TRIES):
            version = self.latest()
            with suppress(NotFoundError):
                return self._read(version, self._scheme or NamingScheme.V2, is_newest=True)
            # It went away after it was listed: the table was deleted, and perhaps made anew.
        raise NotFoundError(f"the dataset at {self.store.uri} goes away while it is being opened")

    def manifest_path(self, version: int) -> str:
        """Return where the manifest of a version lies; see `VersionLog.manifest_path`."""
        return manifest_path(version, self._scheme or NamingScheme.V2)

    def publish(self, version: int, manifest: bytes) -> bool:
        """Make a manifest the one of a version; see `VersionLog.publish`.

        The table's naming scheme is the one that was seen last: a commit has just listed.
        """
        if version < 1 or is_detached(version):
            raise InvalidInputError(f"{version} cannot be the version of a table")
        if version == 1 or self._scheme is None:
            newest, _ = self._list()
            if version == 1 and newest is not None:
                return False
        path = self.manifest_path(version)
        if not self.store.create_once(path, manifest):
            return False
        # Best effort: the version is published, whatever becomes of the hint.
        with suppress(Exception):
            self.store.write(LATEST_VERSION_HINT, b'{"version":%d}' % version)
        return True

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Take note of a version that was published; see `VersionLog.remember`."""
        path = self.manifest_path(manifest.version)
        remember_manifest(self.store, path, manifest, data)

    def _list(self) -> tuple[int | None, list[str]]:
        """Return the newest version, and the names of all; notice the scheme that they have."""
        names = self.store.list_names(VERSIONS_DIRECTORY)
        try:
            newest = newest_manifest(names)
        except BadDataError as error:
            error.add_note(f"dataset {self.store.uri}")
            raise
        self._scheme = newest.scheme if newest else None
        return (newest.version if newest else None), names

    def _read(self, version: int, scheme: NamingScheme, *, is_newest: bool = False) -> Manifest:
        path = manifest_path(version, scheme)
        return read_manifest(self.store, path, version, is_newest=is_newest)
