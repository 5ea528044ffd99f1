"""What an external manifest store promises: of several writers that put one version, one succeeds.

A store keeps items, each under the table's base URI and a version:

    base_uri, version  ->  path, size

`path` is where the version's manifest is stored: staged, under a name that no other writer uses, or
under its final name. It consists of the base URI, "/", and the path in the table's directory.

Commits depend on `put_if_not_exists`, and those of several tables at once on
`put_all_if_not_exist`, which puts the items of all or of none; `latest_of_all` is its counterpart
for readers. Each call reads the current state, never a replica that lags behind. A request whose
answer was lost is repeated, a bounded number of times; so "item exists" may mean that this call put
it: the caller recognizes its own path.

A store is a plain value: it may be pickled, and created on a driver for use on workers. Its `repr`
and errors contain no secrets. Connections belong to the process, not to the store.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class ManifestItem(NamedTuple):
    """A store's entry for a version.

    Attributes:
        version: The version.
        path: Where its manifest is stored: "{base uri}/_versions/...".
        size_bytes: The manifest's size; None if its writer did not store it.
    """

    version: int
    path: str
    size_bytes: int | None


class ManifestStore(Protocol):
    """A key-value store of items.

    Every call raises StoreUnavailableError if no attempt was answered, StoreRefusedError if the
    store refuses, and CorruptDataError if an item is damaged.
    """

    @property
    def kind(self) -> str:
        """The kind of store, such as "dynamodb"."""
        ...

    @property
    def where(self) -> str:
        """Return the store's name for errors: "the DynamoDB table 'T' in us-east-1"."""
        ...

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item, unless there is one of its version: at most one caller ever succeeds.

        Returns:
            True if this call put it; False if there is one, possibly this call's own, if an
            answer was lost.
        """
        ...

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Replace the item of a version; False if there is no such item."""
        ...

    def put_all_if_not_exist(self, items: Mapping[str, ManifestItem]) -> frozenset[str]:
        """Put one item for each of several tables in one transaction: all of them or none.

        Args:
            items: The items by base URI, at least one.

        Returns:
            The base URIs whose version exists, if none was put; nothing if all were put. If an
            answer was lost, the items that exist may be this call's own.

        Raises:
            InvalidInputError: They are too many for one transaction of this store.
        """
        ...

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        """Return the item of a version, or None."""
        ...

    def latest(self, base_uri: str) -> ManifestItem | None:
        """Return the item of the newest version, or None if the table has none."""
        ...

    def latest_of_all(self, base_uris: Sequence[str]) -> dict[str, ManifestItem]:
        """Return the items of the newest versions that several tables had at one moment.

        A table that has none is left out.

        Raises:
            InvalidInputError: They are too many for one transaction of this store.
        """
        ...

    def items(self, base_uri: str) -> list[ManifestItem]:
        """Return all items of a table, ascending."""
        ...

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        """Delete the items of versions, if they exist."""
        ...
