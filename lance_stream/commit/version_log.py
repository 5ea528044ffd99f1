"""The history of a table: its versions in order, each with its manifest, and the next one.

Publishing is a compare-and-swap on the version number: of many writers who publish version N, one
succeeds, and from then on everybody reads its manifest under that number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest


@dataclass(frozen=True)
class Look:
    """What there is of a table at one moment.

    Attributes:
        newest: The newest version's manifest.
        etags: The newest few versions that are there, ascending, each with what a listing says of
            its manifest's bytes, or nothing. No version after the first of them is missing here
            that is there.
        is_all: Whether they are all there are.
    """

    newest: Manifest
    etags: Mapping[int, str]
    is_all: bool


class VersionLog(Protocol):
    """The versions of one table.

    A log believes nothing from memory that another writer could have changed, and nothing that
    would outlive the table: one that was deleted and made anew under the same location is read
    anew.
    """

    @property
    def store(self) -> Store:
        """Where the table's files lie."""
        ...

    @property
    def mark(self) -> Mapping[str, str]:
        """Config entries that each version gets, so that others learn how it is published."""
        ...

    @property
    def creates_names_once(self) -> bool:
        """Whether `Store.create_once` can be relied on, for publishing stands on it.

        Where it is not, a file that must be nobody else's gets a name that nobody else chooses.
        """
        ...

    def check_may_follow(self, newest: Manifest | None) -> None:
        """Check that this log may publish versions after one.

        Args:
            newest: The newest version, as this log has just read it; None if there is no table.

        Raises:
            InvalidInputError: Its versions are published another way; says which, and how to go
                on.
        """
        ...

    def latest(self) -> int:
        """Return the newest version; one listing, whatever the history's length.

        Raises:
            NotFoundError: There is no table.
            CorruptDataError: The manifests have names of both schemes.
        """
        ...

    def has(self, version: int) -> bool:
        """Return whether a version is there; one look, whatever the history's length."""
        ...

    def versions(self, after: int = 0) -> list[int]:
        """Return every version after one that is still there, ascending. There may be gaps.

        Raises:
            NotFoundError: There is no table.
            CorruptDataError: The manifests have names of both schemes.
        """
        ...

    def look(self) -> Look:
        """Return what there is: one listing, and one more request for a manifest not met before.

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
            etag: What a look has just said of it: it costs no request where it was met before.

        Raises:
            NotFoundError: There is no such version, or no table.
            BadDataError: The manifest is damaged, or states another version than its name.
        """
        ...

    def find(self, version: int) -> Manifest | None:
        """Return the manifest of a version that may have come since a look; None if it has not.

        It is one request, whatever the history's length.

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
        """Return where the manifest of a version that was listed lies in the store."""
        ...

    def publish(self, version: int, manifest: bytes) -> bool:
        """Make a manifest the one of a version, if the version is not taken.

        Returns:
            True when this call published it; False when the version is taken, which may be by
            this very call: see `landed`.

        Raises:
            OSError: Or another: it is not known whether it was published.
        """
        ...

    def remember(self, manifest: Manifest, data: bytes) -> None:
        """Take note of a version that was published, so that reading it soon costs less.

        Args:
            manifest: The version.
            data: Its manifest, as it was published.
        """
        ...

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions that are not the newest. Their other files stay."""
        ...

    def undo_remove(self, version: int, manifest: bytes) -> None:
        """Undo the removal of a version, given its manifest as it was."""
        ...

    def obsolete_staged_files(self, paths: Sequence[str]) -> set[str]:
        """Return those of some staged manifests, all written long ago, that are of no use any more.

        Args:
            paths: Of files whose names `parse_staged_manifest_name` knows.
        """
        ...
