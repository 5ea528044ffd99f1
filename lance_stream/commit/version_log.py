"""The history of a table: its versions in order, each with its manifest.

Publishing is a compare-and-swap on the version number: if several writers publish version N, one
succeeds, and from then on every reader gets its manifest under that number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore
from lance_stream.errors import NotFoundError
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest


class Publisher(Protocol):
    """Puts the items of one table; see `commit_groups.Member`."""

    def put_if_not_exists(
        self, manifests: ManifestStore, base_uri: str, item: ManifestItem
    ) -> bool:
        """Put an item into a manifest store; see `ManifestStore.put_if_not_exists`."""
        ...


@dataclass(frozen=True)
class LogState:
    """A table's history at one moment.

    Attributes:
        newest: The newest version's manifest.
        etags: The newest few existing versions, ascending, each with its manifest's ETag in a
            listing; empty if unknown. From the first of them on, they are complete.
        is_all: Whether these are all existing versions.
    """

    newest: Manifest
    etags: Mapping[int, str]
    is_all: bool


class ExternalVersions(Protocol):
    """The versions of a table that are published in a manifest store, as their users need them."""

    @property
    def store(self) -> Store:
        """Where the table's files are stored."""
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
        """Return the same history, with a publisher that puts its items."""
        ...

    def unmarked(self) -> "VersionLog":
        """Return the same history, whose versions do not get the manifest store's mark."""
        ...

    def forget(self, through: int | None = None) -> None:
        """Delete versions from the manifest store, and the table with the last of them.

        Args:
            through: The last version to delete; None for all.
        """
        ...


class VersionLog(Protocol):
    """The versions of one table.

    A log relies on no cached state that another writer could have changed or that could outlive
    the table: a table that was deleted and re-created at the same location is read again.
    """

    @property
    def store(self) -> Store:
        """Where the table's files are stored."""
        ...

    @property
    def mark(self) -> Mapping[str, str]:
        """Config entries of each version that tell other writers how versions are published."""
        ...

    @property
    def creates_names_once(self) -> bool:
        """Whether `Store.create_once` can be relied on, because publishing depends on it.

        If not, a file that must not be shared gets a random name.
        """
        ...

    @property
    def external(self) -> ExternalVersions | None:
        """These versions, if they are published in a manifest store."""
        ...

    def for_store(self, store: Store) -> "VersionLog":
        """Return the history of another table or branch that is published in the same way.

        Args:
            store: The directory of the table or branch.

        Raises:
            UnsupportedFeatureError: The manifest store identifies this table by a name that a user
                chose.
        """
        ...

    def claiming(self) -> "VersionLog":
        """Return the same history, whose versions may follow ones that were published elsewhere."""
        ...

    def check_may_follow(self, newest: Manifest | None) -> None:
        """Raise unless this log may publish versions after one.

        Args:
            newest: The newest version, as this log has just read it; None if there is no table.

        Raises:
            InvalidInputError: Its versions are published elsewhere; the message says where, and
                what to do.
        """
        ...

    def latest(self) -> int:
        """Return the newest version. One listing, however long the history.

        Raises:
            NotFoundError: There is no table.
            CorruptDataError: The manifests have names of both schemes.
        """
        ...

    def has(self, version: int) -> bool:
        """Return whether a version exists. One request, however long the history."""
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
            etag: Its ETag in a state just read: if cached, it costs no request.

        Raises:
            NotFoundError: There is no such version, or no table.
            BadDataError: The manifest is damaged, or states another version than its name.
        """
        ...

    def prefetch(self, versions: Sequence[int]) -> None:
        """Read manifests that will be needed, if this log caches them; some may not exist."""
        ...

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version that may be newer than a state; None if it is missing.

        One request, however long the history.

        Raises:
            BadDataError: The manifest is damaged, or states another version than its name.
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
        """Publish a manifest as a version, if the version is not taken.

        Returns:
            True if this call published it; False if the version is taken, possibly by this call
            itself: see `publishing`.

        Raises:
            OSError: Or another: it is unknown whether it was published.
        """
        ...

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Cache a version that was published, so that reading it soon costs less.

        Args:
            manifest: The version.
            data: Its manifest, as published.
        """
        ...

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions other than the newest. Only their manifests are deleted."""
        ...

    def undo_remove(self, version: int, manifest: bytes) -> None:
        """Undo the removal of a version, given the bytes of its manifest."""
        ...

    def obsolete_staged_files(self, paths: Sequence[str]) -> set[str]:
        """Return which staged manifests are no longer needed; all were written long ago.

        Args:
            paths: Files whose names `parse_staged_manifest_name` recognizes.
        """
        ...


def version_not_found(uri: str, version: int, existing: Sequence[int]) -> NotFoundError:
    """Return the error for a version that does not exist.

    Args:
        uri: Of the dataset.
        version: The version.
        existing: The versions that exist, ascending; at least one.
    """
    oldest, newest = existing[0], existing[-1]
    if len(existing) == 1:
        others = f"its only version is {newest}"
    else:
        others = f"it has {len(existing)} versions, the oldest {oldest} and the newest {newest}"
    return NotFoundError(f"the dataset at {uri} has no version {version}: {others}")
