"""The versions of a table in its directory: one manifest file per version.

A manifest's name contains its version, and creating the name publishes it. New tables use the
naming scheme V2; tables of scheme V1 keep it; a table with both is refused.

V2 names sort the newest version first. So on every store that lists names in order, the newest
version is found by one request for the first few names, however many versions there are:

    the first names that are manifests are     then
    --------------------------------------     ---------------------------------------------------
    all of V2                                  the first is the newest
    of V1, or of both schemes                  all names are listed; both schemes are refused
    none, and there are more names             all names are listed

A hint file names the version that was the newest when the file was written. It saves the reference
a listing on stores that do not list in order (S3 Express, local disks). On these stores this log
writes it, too, for the reference, but never reads it: a cleanup may have left a gap after the
version that it names, and versions after the gap would not be found.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from lance_stream.commit.manifest_files import read_manifest, remember_manifest
from lance_stream.commit.version_log import LogState, version_not_found
from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError
from lance_stream.storage.store import Store
from lance_stream.table.config import manifest_store_mark
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import (
    LATEST_VERSION_HINT,
    VERSIONS_DIRECTORY,
    NamingScheme,
    is_detached,
    manifest_name,
    manifest_path,
    newest_manifest,
    parse_manifest_name,
    parse_staged_manifest_name,
)

FIRST_NAMES: Final = 8
"""The number of names that are listed to find the newest version."""

_MAX_LISTINGS = 5


@dataclass(frozen=True)
class _Listing:
    """A listing of a table's versions.

    Attributes:
        newest: The newest version; None without versions.
        names: The first names in `_versions`, or all, sorted.
        is_all: Whether `names` has all names.
        etags: The ETags of some of the names.
    """

    newest: int | None
    names: Sequence[str]
    is_all: bool
    etags: Mapping[str, str]

    def versions(self, limit: int | None = None) -> list[int]:
        """Return the versions of the names, or of the first `limit` manifests, ascending."""
        manifests = filter(None, map(parse_manifest_name, self.names))
        return sorted(manifest.version for manifest in islice(manifests, limit))


@dataclass
class ObjectStoreLog:
    """The versions of a table in its directory.

    Args:
        store: The table's directory.
        is_claiming: Whether versions may follow versions that were published in an external
            manifest store.
    """

    store: Store
    is_claiming: bool = False
    _scheme: NamingScheme | None = field(default=None, init=False, repr=False, compare=False)
    _newest: int = field(default=0, init=False, repr=False, compare=False)
    _is_empty: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def mark(self) -> Mapping[str, str]:
        """The config entries of every version: none; see `VersionLog.mark`."""
        return {}

    @property
    def creates_names_once(self) -> bool:
        """Whether `Store.create_once` can be relied on: always, since publishing needs it."""
        return True

    @property
    def external(self) -> None:
        """None: versions are published in the table's directory."""
        return None

    def for_store(self, store: Store) -> "ObjectStoreLog":
        """Return the log of another table or branch; see `VersionLog.for_store`."""
        return ObjectStoreLog(store)

    def claiming(self) -> "ObjectStoreLog":
        """Return a log whose versions may follow any; see `VersionLog.claiming`."""
        return replace(self, is_claiming=True)

    def check_may_follow(self, newest: Manifest | None) -> None:
        """Check that versions may be published after one; see `VersionLog.check_may_follow`."""
        mark = newest.config.get(manifest_store_mark.CONFIG_KEY) if newest else None
        if mark is not None and not self.is_claiming:
            raise InvalidInputError(
                f"the versions of {self.store.uri} are published in an external manifest store, "
                f"{mark!r}; without it, the newest version may be missed. Set the storage option "
                "manifest_store (or use a URI that starts with s3+ddb://), as other writers do. To "
                "stop using it, call lance_stream.leave_manifest_store() once with it; if it no "
                "longer exists, or this is a copy of the table, call "
                "lance_stream.claim_versions() without it"
            )

    @property
    def scheme(self) -> NamingScheme:
        """The naming scheme of the manifests, as last seen."""
        return self._scheme or NamingScheme.V2

    def latest(self) -> int:
        """Return the newest version; see `VersionLog.latest`."""
        newest = self._list_first().newest
        if newest is None:
            raise self._missing_error()
        return newest

    def has(self, version: int) -> bool:
        """Return whether a version exists; see `VersionLog.has`.

        If the table has not been listed yet, the names of both schemes are checked.
        """
        return any(self.store.exists(manifest_path(version, scheme)) for scheme in self._schemes())

    def versions(self, after: int = 0) -> list[int]:
        """Return the existing versions after one; see `VersionLog.versions`."""
        listing = self._list_all() if after <= 0 else self._list_after(after)
        if listing.newest is None:
            raise self._missing_error()
        return [version for version in listing.versions() if version > after]

    def _list_after(self, version: int) -> _Listing:
        """Return a listing with all existing versions after one.

        Apart from files that are not manifests, there are at most as many names between the newest
        version and this one as there are numbers between them. The newest version is from the last
        listing, or from the first one here.
        """
        for _ in range(2):
            listing = self._list_first(max(self._newest - version, 0) + FIRST_NAMES)
            if self._lists_all_after(version, listing):
                return listing
        return self._list_all()

    @staticmethod
    def _lists_all_after(version: int, listing: _Listing) -> bool:
        return listing.is_all or min(listing.versions(), default=0) <= version + 1

    def read_state(self) -> LogState:
        """Return the current state; see `VersionLog.read_state`."""
        for _ in range(_MAX_LISTINGS):
            listing = self._list_first()
            newest = listing.newest
            if newest is None:
                raise self._missing_error()
            scheme = self.scheme
            few = FIRST_NAMES if scheme is NamingScheme.V2 else None
            versions = listing.versions(few)
            etags = {
                version: listing.etags.get(manifest_name(version, scheme), "")
                for version in versions
            }
            with suppress(NotFoundError):
                manifest = self._read(newest, scheme, etags[newest], is_newest=True)
                return LogState(
                    manifest, etags, listing.is_all and (not few or len(versions) < few)
                )
            # Removed after it was listed: the table was deleted, and perhaps re-created.
        raise NotFoundError(f"the dataset at {self.store.uri} was deleted while it was opened")

    def read_latest(self) -> Manifest:
        """Return the manifest of the newest version; see `VersionLog.read_latest`."""
        return self.read_state().newest

    def read(self, version: int, etag: str = "") -> Manifest:
        """Return the manifest of a version; see `VersionLog.read`."""
        for scheme in self._schemes_to_try():
            with suppress(NotFoundError):
                return self._read(version, scheme, etag)
        raise version_not_found(self.store.uri, version, self.versions())

    def prefetch(self, versions: Sequence[int]) -> None:
        """Do nothing: manifests are not cached; see `VersionLog.prefetch`."""

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version that may not exist; see `VersionLog.find`."""
        for scheme in self._schemes():
            with suppress(NotFoundError):
                return self._read(version, scheme, is_newest=True)
        return None

    def manifest_path(self, version: int) -> str:
        """Return the path of a version's manifest; see `VersionLog.manifest_path`."""
        return manifest_path(version, self.scheme)

    def publish(self, version: int, manifest: bytes) -> bool:
        """Publish a manifest as a version; see `VersionLog.publish`.

        The naming scheme is that of the last listing: a commit has just listed the directory.
        """
        if version < 1 or is_detached(version):
            raise InvalidInputError(f"{version} cannot be the version of a table")
        if (version == 1 or self._scheme is None) and not self._is_empty:
            self._list_first()
        if version == 1 and self._scheme is not None:
            return False
        self._is_empty = False
        if not self.store.create_once(self.manifest_path(version), manifest):
            return False
        if not self.store.lists_in_order:
            # Best effort: the version is published even if this fails.
            with suppress(Exception):
                self.store.write(LATEST_VERSION_HINT, b'{"version":%d}' % version, is_hint=True)
        return True

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Cache a version that was published; see `VersionLog.remember`."""
        remember_manifest(self.store, self.manifest_path(manifest.version), manifest, data)

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions other than the newest; see `VersionLog.remove`."""
        for version in versions:
            self.store.delete(self.manifest_path(version))

    def undo_remove(self, version: int, manifest: bytes) -> None:
        """Undo `remove`; see `VersionLog.undo_remove`."""
        self.store.create_once(self.manifest_path(version), manifest)

    def obsolete_staged_files(self, paths: Sequence[str]) -> set[str]:
        """Return unneeded staged manifests; see `VersionLog.obsolete_staged_files`.

        A manifest store that this log does not know may have a newer version: its staged file is
        kept.
        """
        newest = self.latest()
        return {path for path in paths if _staged_version(path) <= newest}

    def _missing_error(self) -> NotFoundError:
        return NotFoundError(f"there is no dataset at {self.store.uri}")

    def _schemes(self) -> tuple[NamingScheme, ...]:
        """Return the table's naming scheme; both if it is unknown."""
        return (self._scheme,) if self._scheme else (NamingScheme.V2, NamingScheme.V1)

    def _schemes_to_try(self) -> tuple[NamingScheme, ...]:
        """Return both schemes, the known one first: the table may have been re-created."""
        if self._scheme is NamingScheme.V1:
            return NamingScheme.V1, NamingScheme.V2
        return NamingScheme.V2, NamingScheme.V1

    def _list_first(self, limit: int = FIRST_NAMES) -> _Listing:
        """List the first few names if they suffice to find the newest version; otherwise all."""
        if not self.store.lists_in_order:
            return self._list_all()
        files = self.store.list_files(VERSIONS_DIRECTORY, limit)
        etags = {file.path.rpartition("/")[2]: file.etag for file in files}
        is_all = len(files) < limit
        schemes = {name.scheme for name in map(parse_manifest_name, etags) if name}
        if is_all or schemes == {NamingScheme.V2}:
            return self._remember_listing(list(etags), etags, is_all=is_all)
        return self._list_all()

    def _list_all(self) -> _Listing:
        return self._remember_listing(self.store.list_names(VERSIONS_DIRECTORY), {}, is_all=True)

    def _remember_listing(
        self, names: Sequence[str], etags: Mapping[str, str], *, is_all: bool
    ) -> _Listing:
        """Return the listing of sorted names; stores their scheme and the newest version."""
        try:
            newest = newest_manifest(names)
        except BadDataError as error:
            error.add_note(f"dataset {self.store.uri}")
            raise
        self._scheme = newest.scheme if newest else None
        self._newest = newest.version if newest else 0
        self._is_empty = newest is None
        return _Listing(newest.version if newest else None, names, is_all, etags)

    def _read(
        self, version: int, scheme: NamingScheme, etag: str = "", *, is_newest: bool = False
    ) -> Manifest:
        path = manifest_path(version, scheme)
        return read_manifest(self.store, path, version, etag, is_newest=is_newest)


def _staged_version(path: str) -> float:
    staged = parse_staged_manifest_name(path.rpartition("/")[2])
    return math.inf if staged is None else staged.version
