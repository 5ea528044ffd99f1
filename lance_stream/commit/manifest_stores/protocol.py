"""What an external manifest store promises: of many who put one version, one succeeds.

A store keeps items, each under the table's base uri and a version:

    base_uri, version  ->  path, size

`path` is where the version's manifest lies: staged, under a name that nobody else uses, or under
its final name. It is the base uri, "/", and the path in the table's directory.

`put_if_not_exists` is what commits stand on. Each call is answered as of now, never from a copy
that lags behind. An answer that got lost is asked for again, a bounded number of times; so "it was
there" may mean that this very call put it: whoever asks knows its own path.

A store is a plain value: it may be pickled, and made on a driver for use on workers. It shows
nothing secret in its `repr` or in errors. Connections are the process's, not the store's.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ManifestItem(NamedTuple):
    """What a store knows of a version.

    Attributes:
        version: The version.
        path: Where its manifest lies: "{base uri}/_versions/...".
        size_bytes: The manifest's size; None where its writer did not say.
    """

    version: int
    path: str
    size_bytes: int | None


class ManifestStore(Protocol):
    """A key-value store of items.

    Every call raises StoreUnavailableError when it was asked in vain each time, StoreRefusedError
    when the store says no, CorruptDataError when an item is damaged.
    """

    @property
    def kind(self) -> str:
        """What kind of store it is, in a word: "dynamodb"."""
        ...

    @property
    def where(self) -> str:
        """Return in words who is asked: "the DynamoDB table 'T' in us-east-1"."""
        ...

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item, unless there is one of its version: at most one caller ever succeeds.

        Returns:
            True when this call put it; False when there is one, which may be this call's own,
            whose answer got lost.
        """
        ...

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item in the place of its version's; False when there is none."""
        ...

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        """Return the item of a version, or None."""
        ...

    def latest(self, base_uri: str) -> ManifestItem | None:
        """Return the item of the newest version, or None if there is none of the table."""
        ...

    def items(self, base_uri: str) -> list[ManifestItem]:
        """Return all items of a table, ascending."""
        ...

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        """Delete the items of versions; some may be gone already."""
        ...
