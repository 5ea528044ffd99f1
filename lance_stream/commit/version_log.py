"""The interface of version logs: the versions of a table in order, with their manifests.

Publishing is a compare-and-swap on the version number: if several writers publish version N, only
one succeeds, and all readers get its manifest from then on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore
from lance_stream.errors import NotFoundError
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest


class Publisher(Protocol):
    """Puts the manifest store items of one table; see `commit_groups.Member`."""

    def put_if_not_exists(
        self, manifests: ManifestStore, base_uri: str, item: ManifestItem
    ) -> bool:
        """Put an item into a manifest store; see `ManifestStore.put_if_not_exists`."""
        ...


@dataclass(frozen=True)
class LogState:
    """The state of a version log at one point in time.

    Attributes:
        newest: The manifest of the newest version.
        etags: The newest few existing versions, ascending and without gaps, with the ETags of their
            manifests in a listing; "" if unknown.
        is_all: Whether `etags` has all existing versions.
    """

    newest: Manifest
    etags: Mapping[int, str]
    is_all: bool


class ExternalVersions(Protocol):
    """What callers need of versions that are published in a manifest store."""

    @property
    def store(self) -> Store:
        """The store of the table's directory."""
        ...

    @property
    def manifests(self) -> ManifestStore:
        """The manifest store."""
        ...

    @property
    def base_uri(self) -> str:
        """The name of the table in the manifest store."""
        ...

    def read_item(self, item: ManifestItem) -> Manifest | None:
        """Return the manifest that an item names; None if it was finished or removed meanwhile.

        Raises:
            BadDataError: The manifest, or the item, is damaged.
        """
        ...

    def published_by(self, publisher: Publisher) -> "VersionLog":
        """Return the same log, with a publisher that puts its items."""
        ...

    def unmarked(self) -> "VersionLog":
        """Return the same log, whose versions do not get the manifest store's mark."""
        ...

    def forget(self, through: int | None = None) -> None:
        """Delete versions, and with the last one the table, from the manifest store.

        Args:
            through: The last version to delete; None for all.
        """
        ...


class VersionLog(Protocol):
    """The versions of one table.

    A log never relies on cached state that another writer could have changed, or that could belong
    to a deleted table: a table that was re-created at the same location is read again.
    """

    @property
    def store(self) -> Store:
        """The store of the table's directory."""
        ...

    @property
    def mark(self) -> Mapping[str, str]:
        """The config entries that tell other writers where versions are published."""
        ...

    @property
    def creates_names_once(self) -> bool:
        """Whether `Store.create_once` can be relied on, because publishing depends on it.

        If not, a file that two writers must not share gets a random name.
        """
        ...

    @property
    def external(self) -> ExternalVersions | None:
        """This log, if it publishes in a manifest store; otherwise None."""
        ...

    def for_store(self, store: Store) -> "VersionLog":
        """Return the log of another table or branch that is published in the same way.

        Args:
            store: The directory of the table or branch.

        Raises:
            UnsupportedFeatureError: The manifest store has a user's name for this table, so the
                other table's name is unknown.
        """
        ...

    def claiming(self) -> "VersionLog":
        """Return the same log, whose versions may follow versions that were published elsewhere."""
        ...

    def check_may_follow(self, newest: Manifest | None) -> None:
        """Raise unless this log may publish the next version of a table.

        Args:
            newest: The newest version, as this log has just read it; None if there is no table.

        Raises:
            InvalidInputError: The table's versions are published elsewhere; the message names
                where, and a remedy.
        """
        ...

    def latest(self) -> int:
        """Return the newest version; one listing, however many versions there are.

        Raises:
            NotFoundError: There is no table.
            CorruptDataError: The manifests have names of both schemes.
        """
        ...

    def has(self, version: int) -> bool:
        """Return whether a version exists; one request, however many versions there are."""
        ...

    def versions(self, after: int = 0) -> list[int]:
        """Return the existing versions after one, ascending. There may be gaps.

        Raises:
            NotFoundError: There is no table.
            CorruptDataError: The manifests have names of both schemes.
        """
        ...

    def read_state(self) -> LogState:
        """Return the current state: one listing, and one more request for an uncached manifest.

        Raises:
            NotFoundError: There is no table.
            CorruptDataError: The manifests have names of both schemes.
            BadDataError: The newest manifest is damaged.
        """
        ...

    def read(self, version: int, etag: str = "") -> Manifest:
        """Return the manifest of a version.

        Args:
            version: The version.
            etag: The ETag of its manifest in a new state: if it is cached, no request is sent.

        Raises:
            NotFoundError: There is no such version, or no table.
            BadDataError: The manifest is damaged, or describes another version.
        """
        ...

    def prefetch(self, versions: Sequence[int]) -> None:
        """Read manifests that will be needed, if this log caches them. They may not exist."""
        ...

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version that may not exist yet, or None.

        One request, however many versions there are.

        Raises:
            BadDataError: The manifest is damaged, or describes another version.
        """
        ...

    def read_latest(self) -> Manifest:
        """Return the manifest of the newest version.

        Raises:
            NotFoundError: There is no table.
            BadDataError: The manifest is damaged.
        """
        ...

    def manifest_path(self, version: int) -> str:
        """Return the path of a listed version's manifest."""
        ...

    def publish(self, version: int, manifest: bytes) -> bool:
        """Publish a manifest as a version, if the version does not exist.

        Returns:
            True if this call published it; False if the version exists. This call may have
            published it even then: see `publishing`.

        Raises:
            Exception: It is unknown whether it was published.
        """
        ...

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Cache a published version.

        Args:
            manifest: The version.
            data: The bytes of its manifest.
        """
        ...

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions other than the newest one. Only their manifests are deleted."""
        ...

    def undo_remove(self, version: int, manifest: bytes) -> None:
        """Undo the removal of a version, given the bytes of its manifest."""
        ...

    def obsolete_staged_files(self, paths: Sequence[str]) -> set[str]:
        """Return which staged manifests are no longer needed.

        Args:
            paths: Files that were written long ago, with names that `parse_staged_manifest_name`
                recognizes.
        """
        ...


def version_not_found(uri: str, version: int, existing: Sequence[int]) -> NotFoundError:
    """Return the error for a version that does not exist.

    Args:
        uri: The location of the dataset.
        version: The version.
        existing: The existing versions, ascending, at least one.
    """
    oldest, newest = existing[0], existing[-1]
    if len(existing) == 1:
        others = f"its only version is {newest}"
    else:
        others = f"it has {len(existing)} versions, the oldest {oldest} and the newest {newest}"
    return NotFoundError(f"the dataset at {uri} has no version {version}: {others}")
