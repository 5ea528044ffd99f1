"""The versions of a table in an external manifest store, for stores that cannot create a name once.

The manifests are in the table's directory, as always. The manifest store (`manifest_stores`)
decides which of several manifests that were staged for a version is published. A commit has five
steps:

    step                                         if the writer fails after it
    1  write the manifest under a staged name    no version is published; cleanup deletes the file
    2  put version -> staged name, once          the version is published; readers do steps 3 to 5
    3  create the final name with its bytes      readers put the final name, delete the staged file
    4  put version -> final name                 the staged file is left for cleanup
    5  delete the staged file                    -

Step 2 decides which writer wins. A reader that finds a staged name does steps 3 to 5 before it
returns the manifest. If step 3 fails, the reader does not open the table, so that a copy of the
directory has every version that was ever read. Steps 4 and 5 may fail: the next reader repeats
them.

    item         staged file    final file    reader
    staged       exists         -             creates the final file; puts the final name
    staged       exists         the same      puts the final name; deletes the staged file
    staged       exists         different     reads the final file (see below)
    staged       -              exists        puts the final name
    staged       -              -             fails: the version's manifest is lost
    final        -              exists        reads it
    final        -              -             fails; reports that there is no table if no version
                                              has a manifest
    no item of any version                    lists the directory: the table was not published here
                                              before

Lost answers: "item exists" after step 2 may be about our own item, put by a request whose answer
was lost. Then it has the name of our staged file, which no other writer uses. If a reader has put
the final name in the meantime, the manifest there shows whose it is (`publishing`). If step 2 was
not answered at all, the staged file is kept: the item may still be put.

Writers without the manifest store publish by creating the final name once. Step 3 does the same if
the store can, so only one of the two succeeds, and both detect it: a version that another writer
has published under its final name is kept and put into the manifest store, and our commit is
rebased on it. If the store cannot create a name once, the final name is checked before step 1 and
in step 3. Every version has the mark of its manifest store in its config (`manifest_store_mark`),
so that writers of this library that were not configured with the store refuse to write. To stop
using a manifest store, see `maintenance.migrations.manifest_store_moves`.

As in the reference, versions that other writers have published without the manifest store are not
seen until the next commit through it.

Source:  the table format's "External Manifest Store"; measured on the reference.
Differs: The reference copies unconditionally in step 3, and so overwrites a version that another
         writer has published under the final name.
"""

import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from lance_stream.commit.manifest_files import (
    decode_manifest_of,
    read_manifest,
    remember_manifest,
)
from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.version_log import LogState, Publisher, version_not_found
from lance_stream.errors import (
    CommitAbortedError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    StoreRefusedError,
    UnsupportedFeatureError,
)
from lance_stream.storage.store import Store, create_if_absent
from lance_stream.table.config.manifest_store_mark import CONFIG_KEY, is_of_one_table, mark_of
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import (
    VERSIONS_DIRECTORY,
    NamingScheme,
    is_detached,
    manifest_path,
    parse_manifest_name,
    parse_staged_manifest_name,
    staged_manifest_path,
)

_log = logging.getLogger(__name__)

_MAX_READS: Final = 5


class _Location(NamedTuple):
    """The path of a version's manifest, according to its item.

    Attributes:
        item: The item.
        path: The path in the table's directory.
        scheme: The naming scheme of the name.
        is_staged: Whether it is a staged name.
    """

    item: ManifestItem
    path: str
    scheme: NamingScheme
    is_staged: bool

    @property
    def version(self) -> int:
        return self.item.version

    @property
    def final_path(self) -> str:
        return manifest_path(self.version, self.scheme)

    @property
    def final_paths(self) -> tuple[str, ...]:
        """The final paths in both naming schemes: the table may have been migrated since."""
        other = next(scheme for scheme in NamingScheme if scheme is not self.scheme)
        return self.final_path, manifest_path(self.version, other)


@dataclass
class ExternalLog:
    """The versions of a table, published in a manifest store.

    Args:
        store: The table's directory.
        manifests: The manifest store.
        base_uri: The table's name in the manifest store.
        is_marking: Whether versions get the mark of the manifest store.
        is_claiming: Whether versions may follow versions that were published elsewhere.
        publisher: Puts the items in step 2; None if this log puts them.
    """

    store: Store
    manifests: ManifestStore
    base_uri: str
    is_marking: bool = True
    is_claiming: bool = False
    publisher: Publisher | None = None
    _listed: ObjectStoreLog = field(init=False, repr=False, compare=False)
    _scheme: NamingScheme | None = field(default=None, init=False, repr=False, compare=False)
    _newest_seen: int | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._listed = ObjectStoreLog(self.store)

    @property
    def mark(self) -> dict[str, str]:
        """The config entries of every version; see `VersionLog.mark`."""
        return {CONFIG_KEY: self._mark} if self.is_marking else {}

    @property
    def creates_names_once(self) -> bool:
        """Whether `Store.create_once` can be relied on; not needed here."""
        return False

    @property
    def external(self) -> "ExternalLog":
        """This log."""
        return self

    def for_store(self, store: Store) -> "ExternalLog":
        """Return the log of another table or branch; see `VersionLog.for_store`."""
        if self.base_uri != base_uri_of(self.store, self.manifests):
            raise UnsupportedFeatureError(
                f"{self.manifests.where} identifies {self.store.uri} by {self.base_uri!r}, which a "
                f"user chose; its name for {store.uri} is unknown"
            )
        return ExternalLog(store, self.manifests, base_uri_of(store, self.manifests))

    def claiming(self) -> "ExternalLog":
        """Return a log whose versions may follow any; see `VersionLog.claiming`."""
        return replace(self, is_claiming=True)

    def check_may_follow(self, newest: Manifest | None) -> None:
        """Check that versions may be published after one; see `VersionLog.check_may_follow`."""
        if newest is None or (mark := newest.config.get(CONFIG_KEY)) is None or self.is_claiming:
            return
        if self._newest_seen is None:
            self._latest()
        branch = newest.branch
        if mark != self._mark and not (branch and is_of_one_table(mark, self._mark, branch)):
            raise InvalidInputError(
                f"the versions of {self.store.uri} are published in the manifest store {mark!r}, "
                f"not in {self._mark!r}. Set the storage option manifest_store to that store; or, "
                "if the table was moved or copied here and no writer publishes there anymore, "
                "take it over with lance_stream.claim_versions()"
            )
        if self._newest_seen is None:
            raise InvalidInputError(
                f"the versions of {self.store.uri} are published in a manifest store, but "
                f"{self.manifests.where} has no versions under {self.base_uri!r}: it is a "
                "different store, or was emptied. Set the storage option manifest_store to the "
                "right store; or, if no writer publishes there anymore, take over the table with "
                "lance_stream.claim_versions()"
            )

    def latest(self) -> int:
        """Return the newest version; see `VersionLog.latest`."""
        location = self._latest()
        if location is None:
            return self._listed.latest()
        if location.is_staged:
            return self.read_latest().version
        if not any(self.store.exists(final_path) for final_path in location.final_paths):
            raise self._missing_error(location)
        return location.version

    def has(self, version: int) -> bool:
        """Return whether a version exists; usually one request to the manifest store."""
        if self.manifests.get(self.base_uri, version) is not None:
            return True
        return self._is_listed(version) and self._listed.has(version)

    def versions(self, after: int = 0) -> list[int]:
        """Return the existing versions after one; see `VersionLog.versions`."""
        location = self._latest()
        if location is None:
            return self._listed.versions(after)
        newest = self.read_latest().version if location.is_staged else location.version
        versions = [version for version in self._listed.versions(after) if version <= newest]
        if newest > after and newest not in versions:
            raise self._missing_error(location)
        return versions

    def read_state(self) -> LogState:
        """Return the current state, with the newest version only; see `VersionLog.read_state`."""
        newest = self.read_latest()
        return LogState(newest, {newest.version: ""}, is_all=False)

    def read(self, version: int, etag: str = "") -> Manifest:
        """Return the manifest of a version; see `VersionLog.read`."""
        manifest = self._find(version, etag)
        if manifest is None and self._is_listed(version):
            return self._listed.read(version, etag)
        if manifest is not None:
            return manifest
        raise version_not_found(self.store.uri, version, self.versions())

    def prefetch(self, versions: Sequence[int]) -> None:
        """Do nothing: manifests are not cached; see `VersionLog.prefetch`."""

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version that may not exist; see `VersionLog.find`."""
        manifest = self._find(version, "", is_newest=True)
        if manifest is None and self._is_listed(version):
            return self._listed.find(version)
        return manifest

    def read_latest(self) -> Manifest:
        """Return the manifest of the newest version; see `VersionLog.read_latest`."""
        location = None
        for _ in range(_MAX_READS):
            location = self._latest()
            if location is None:
                newest = self._listed.read_latest()
                self._scheme = self._listed.scheme
                return newest
            with suppress(NotFoundError):
                return self._load(location, is_newest=True)
            # The file is missing: another reader has finished the version, or the table was
            # deleted.
        assert location is not None
        raise self._missing_error(location)

    def manifest_path(self, version: int) -> str:
        """Return the path of a version's manifest; see `VersionLog.manifest_path`."""
        return manifest_path(version, self._scheme or NamingScheme.V2)

    def publish(self, version: int, manifest: bytes) -> bool:
        """Publish a manifest as a version; see `VersionLog.publish`."""
        if version < 1 or is_detached(version):
            raise InvalidInputError(f"{version} cannot be the version of a table")
        if (version == 1 or self._scheme is None) and self._has_any() and version == 1:
            return False
        final = self.manifest_path(version)
        if self.store.exists(final):
            self._register_newest()
            return False
        staged = staged_manifest_path(final, str(uuid.uuid4()))
        self.store.write(staged, manifest)
        item = ManifestItem(version, self._key(staged), len(manifest))
        try:
            is_put = self._put_new(item)
        except CommitAbortedError:  # the item was never sent
            self._delete_staged(staged)
            raise
        if not is_put:
            existing = self.manifests.get(self.base_uri, version)
            if existing is None or existing.path != item.path:
                if existing is not None:
                    self._delete_staged(staged)
                return False
        self._newest_seen = max(version, self._newest_seen or 0)
        try:
            return self._finish(self._location_of(item), manifest) == manifest
        except StoreRefusedError as error:  # step 2 was done, so the commit was not refused
            raise StoreError(*error.args) from error

    def unmarked(self) -> "ExternalLog":
        """Return the same log, whose versions do not get the mark."""
        return replace(self, is_marking=False)

    def published_by(self, publisher: Publisher) -> "ExternalLog":
        """Return the same log, with a publisher for step 2."""
        return replace(self, publisher=publisher)

    def read_item(self, item: ManifestItem) -> Manifest | None:
        """Return the manifest that an item names; None if another process has moved or removed it.

        Raises:
            BadDataError: The manifest, or the item, is damaged.
        """
        location = self._location_of(item)
        self._scheme = location.scheme
        with suppress(NotFoundError):
            return self._load(location, is_newest=True)
        return None

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Cache a version that was published; see `VersionLog.remember`."""
        remember_manifest(self.store, self.manifest_path(manifest.version), manifest, data)

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions other than the newest; see `VersionLog.remove`."""
        for version in versions:
            self.store.delete(self.manifest_path(version))
        self.manifests.delete(self.base_uri, versions)

    def undo_remove(self, version: int, manifest: bytes) -> None:
        """Undo `remove`; see `VersionLog.undo_remove`. Versions need no item to be read."""
        create_if_absent(self.store, self.manifest_path(version), manifest)

    def obsolete_staged_files(self, paths: Sequence[str]) -> set[str]:
        """Return unneeded staged manifests; see `VersionLog.obsolete_staged_files`.

        One that no item names was not published and never will be: it was staged long ago.
        """
        locations = map(self._location_of, self.manifests.items(self.base_uri))
        return set(paths) - {location.path for location in locations if location.is_staged}

    def forget(self, through: int | None = None) -> None:
        """Delete versions, and with the last one the table, from the manifest store.

        Args:
            through: The last version to delete; None for all.
        """
        items = self.manifests.items(self.base_uri)
        removed = [item.version for item in items if through is None or item.version <= through]
        self.manifests.delete(self.base_uri, removed)
        self._newest_seen = None

    # --- items

    def _put_new(self, item: ManifestItem) -> bool:
        if self.publisher is not None:
            return self.publisher.put_if_not_exists(self.manifests, self.base_uri, item)
        return self.manifests.put_if_not_exists(self.base_uri, item)

    @property
    def _mark(self) -> str:
        return mark_of(self.manifests.kind, self.base_uri)

    def _key(self, path: str) -> str:
        return f"{self.base_uri}/{path}"

    def _latest(self) -> _Location | None:
        """Return the location of the newest version's manifest; None if there is no item."""
        item = self.manifests.latest(self.base_uri)
        self._newest_seen = item.version if item else None
        if item is None:
            return None
        location = self._location_of(item)
        self._scheme = location.scheme
        return location

    def _location_of(self, item: ManifestItem) -> _Location:
        """Return the location of a version's manifest according to its item.

        Raises:
            CorruptDataError: The path is not that of a manifest of this version in this table.
        """
        prefix = self._key(f"{VERSIONS_DIRECTORY}/")
        name = item.path.removeprefix(prefix)
        final, staged = parse_manifest_name(name), parse_staged_manifest_name(name)
        parsed = final or staged
        if name == item.path or "/" in name or parsed is None or parsed.version != item.version:
            raise CorruptDataError(
                f"{self.manifests.where} has {item.path[:300]!r} as the path of the manifest of "
                f"version {item.version} of {self.base_uri!r}, which is not the path of a manifest"
            )
        return _Location(item, f"{VERSIONS_DIRECTORY}/{name}", parsed.scheme, final is None)

    # --- reading

    def _find(self, version: int, etag: str, *, is_newest: bool = False) -> Manifest | None:
        """Return the manifest that an item names; None if there is no item, or no manifest."""
        tried = None
        while True:
            item = self.manifests.get(self.base_uri, version)
            if item is None or item == tried:
                return None
            with suppress(NotFoundError):
                return self._load(self._location_of(item), etag, is_newest=is_newest)
            tried = item  # another process has finished or removed the version

    def _is_listed(self, version: int) -> bool:
        """Return whether a version without an item may still be in the directory."""
        if self._newest_seen is None:
            self._latest()
        return self._newest_seen is None or version < self._newest_seen

    def _load(self, location: _Location, etag: str = "", *, is_newest: bool) -> Manifest:
        """Return the manifest of a version, after giving it its final name if it is staged.

        Raises:
            NotFoundError: It is not, or no longer, under the item's path.
            CorruptDataError: Its size differs from the size in the item.
            Exception: Giving it its final name failed.
        """
        if location.is_staged:
            return self._repair(location, is_newest=is_newest)
        for path in location.final_paths:
            with suppress(NotFoundError):
                return read_manifest(
                    self.store,
                    path,
                    location.version,
                    etag,
                    is_newest=is_newest,
                    size_bytes=location.item.size_bytes,
                )
        raise NotFoundError(f"there is no file {self.store.uri}/{location.path}")

    def _repair(self, location: _Location, *, is_newest: bool) -> Manifest:
        """Do the remaining steps of a commit, and return the version's manifest."""
        final = location.final_path
        try:
            data = self.store.read(location.path)
        except NotFoundError:
            # Another reader has finished it, and deleted the staged file last; or it is lost.
            data = self.store.read(final)
            self._check_size(location, data)
            self._put_final(location, len(data))
        else:
            self._check_size(location, data)
            data = self._finish(location, data)
        manifest = decode_manifest_of(self.store, final, location.version, data)
        if is_newest:
            remember_manifest(self.store, final, manifest, data)
        return manifest

    def _check_size(self, location: _Location, data: bytes) -> None:
        expected = location.item.size_bytes
        if expected not in (None, len(data)):
            raise CorruptDataError(
                f"the manifest of version {location.version} in {self.store.uri} has {len(data)} "
                f"bytes, but {self.manifests.where} has {expected}"
            )

    def _missing_error(self, location: _Location) -> Exception:
        """Return the error to raise if the newest version's manifest does not exist."""
        try:
            versions = self._listed.versions()
        except NotFoundError:
            return NotFoundError(
                f"there is no dataset at {self.store.uri}, but {self.manifests.where} has versions "
                f"up to {location.version} of {self.base_uri!r}: either the dataset was deleted, "
                "or the versions belong to another dataset with the same name. If it was deleted, "
                "remove it from the manifest store with lance_stream.forget_versions()"
            )
        return CorruptDataError(
            f"{self.manifests.where} has version {location.version} as the newest of "
            f"{self.store.uri}, but its manifest {location.path!r} does not exist; the newest "
            f"manifest is that of version {versions[-1]}. The table was not opened, because a "
            "published version would be missing: restore the file"
        )

    # --- steps 3 to 5

    def _finish(self, location: _Location, data: bytes) -> bytes:
        """Do steps 3 to 5 for a version.

        Returns:
            The manifest of the version; not `data` if another writer has published it under the
            final name.
        """
        final = location.final_path
        try:
            is_created = create_if_absent(self.store, final, data)
            published = data if is_created else self.store.read(final)
        except Exception as error:
            error.add_note(
                f"version {location.version} of {self.store.uri} is published in "
                f"{self.manifests.where}, but its manifest could not be copied to its final name "
                f"{final!r}; the version cannot be read until that succeeds"
            )
            raise
        if not self._put_final(location, len(published)) and is_created:
            # The version was removed in the meantime: the new file must not bring it back.
            self.store.delete(final)
            raise NotFoundError(
                f"version {location.version} of {self.store.uri} was removed while it was read"
            )
        return published

    def _put_final(self, location: _Location, size_bytes: int) -> bool:
        """Do steps 4 and 5; return False if the item was removed.

        The next reader repeats failed steps.
        """
        item = ManifestItem(location.version, self._key(location.final_path), size_bytes)
        try:
            if not self.manifests.put_if_exists(self.base_uri, item):
                return False
        except Exception as error:
            _log.warning(
                "version %d of %s is published, but %s still has its staged name: %s",
                location.version,
                self.store.uri,
                self.manifests.where,
                error,
            )
            return True
        self._delete_staged(location.path)
        return True

    def _delete_staged(self, path: str) -> None:
        try:
            self.store.delete(path)
        except Exception as error:
            _log.warning(
                "%s/%s could not be deleted, and is left for cleanup: %s",
                self.store.uri,
                path,
                error,
            )

    # --- versions that other writers have published without the manifest store

    def _has_any(self) -> bool:
        """Return whether the table has a version; stores the naming scheme of the manifests.

        Raises:
            InvalidInputError: The manifest store has versions of a table that does not exist.
        """
        location = self._latest()
        try:
            self._listed.latest()
        except NotFoundError:
            if location is None:
                return False
            if self.store.exists(location.path):  # staged
                return True
            raise InvalidInputError(str(self._missing_error(location))) from None
        if location is None:
            self._scheme = self._listed.scheme
        return True

    def _register_newest(self) -> None:
        """Put the newest version of the directory into the manifest store, if it is newer."""
        newest = self._listed.latest()
        latest = self._latest()
        if latest is not None and latest.version >= newest:
            return
        path = self._listed.manifest_path(newest)
        item = ManifestItem(newest, self._key(path), self.store.size(path))
        self.manifests.put_if_not_exists(self.base_uri, item)
        _log.warning(
            "version %d of %s was published without %s, and was added to it",
            newest,
            self.store.uri,
            self.manifests.where,
        )


def base_uri_of(store: Store, manifests: ManifestStore) -> str:
    """Return the name by which a manifest store identifies a table, the same for all writers.

    It does not contain the endpoint, which may have different names for different writers. So two
    services with a bucket of the same name need two manifest stores, or different base URIs. For S3
    with DynamoDB, the name is the same as the reference's: the table's key in its bucket. So tables
    with the same path in two buckets must not use the same DynamoDB table.

    Raises:
        InvalidInputError: The table is a bucket's root, whose key is empty.
    """
    uri = store.shared_uri
    if not (manifests.kind == "dynamodb" and uri.startswith("s3://")):
        return uri
    if not store.root:
        raise InvalidInputError(
            f"{store.uri} is the root of a bucket, and DynamoDB identifies a table by its key in "
            "the bucket: use a folder"
        )
    return store.root
