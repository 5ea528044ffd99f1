"""The interface of external manifest stores: only one of several writers can put a version.

A store has items, by the table's base URI and the version:

    base_uri, version  ->  path, size

`path` is the path of the version's manifest: a staged name, which no other writer uses, or its
final name. It consists of the base URI, "/", and the path in the table's directory.

Commits depend on `put_if_not_exists`, and commits to several tables on `put_all_if_not_exist`,
which puts the items of all tables or none; `latest_of_all` is its counterpart for readers. All
calls read the current state, never a stale replica. A request whose answer was lost is repeated, a
limited number of times. So "item exists" may mean that this call put the item: the caller compares
the path of the item.

A store can be pickled, to be used on workers. Its `repr` and errors contain no secrets. Connections
belong to the process, not to the store.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class ManifestItem(NamedTuple):
    """A store's entry for a version.

    Attributes:
        version: The version.
        path: The path of its manifest: "{base uri}/_versions/...".
        size_bytes: The size of the manifest; None if its writer did not store it.
    """

    version: int
    path: str
    size_bytes: int | None


class ManifestStore(Protocol):
    """A key-value store of items.

    All calls raise StoreUnavailableError if no attempt was answered, StoreRefusedError if the store
    refuses, and CorruptDataError if an item is damaged.
    """

    @property
    def kind(self) -> str:
        """The kind of store, such as "dynamodb"."""
        ...

    @property
    def where(self) -> str:
        """The store's name in errors: "the DynamoDB table 'T' in us-east-1"."""
        ...

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item unless its version has one: at most one caller ever succeeds.

        Returns:
            True if this call put it; False if the item exists. If an answer was lost, this call may
            have put it.
        """
        ...

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Replace the item of a version; return False if it does not exist."""
        ...

    def put_all_if_not_exist(self, items: Mapping[str, ManifestItem]) -> frozenset[str]:
        """Put one item per table in one transaction: all of them or none.

        Args:
            items: The items by base URI, at least one.

        Returns:
            The base URIs whose version exists, if no item was put; empty if all were put. If an
            answer was lost, this call may have put the items that exist.

        Raises:
            InvalidInputError: There are too many tables for one transaction of this store.
        """
        ...

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        """Return the item of a version, or None."""
        ...

    def latest(self, base_uri: str) -> ManifestItem | None:
        """Return the item of the newest version, or None if the table has none."""
        ...

    def latest_of_all(self, base_uris: Sequence[str]) -> dict[str, ManifestItem]:
        """Return the items of the newest versions of several tables at one point in time.

        Tables without items are omitted.

        Raises:
            InvalidInputError: There are too many tables for one transaction of this store.
        """
        ...

    def items(self, base_uri: str) -> list[ManifestItem]:
        """Return all items of a table, ascending."""
        ...

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        """Delete the items of versions, if they exist."""
        ...
