"""The location and options by which pylance reaches a store, for work that we delegate to it."""

from collections.abc import Mapping
from typing import NamedTuple

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.storage.store import Store


class LanceLocation(NamedTuple):
    """A table's directory for pylance.

    Attributes:
        uri: A path or URI.
        storage_options: Settings, which may be secret.
    """

    uri: str
    storage_options: Mapping[str, str]


def lance_location(store: Store) -> LanceLocation:
    """Return how pylance reaches the directory of a store.

    Raises:
        UnsupportedFeatureError: It cannot: the store is in this process's memory, or on a
            filesystem of fsspec.
        InvalidInputError: A setting has no counterpart there.
    """
    options = store.lance_options()
    if options is None:
        raise UnsupportedFeatureError(
            f"pylance cannot read {store.uri}, so it cannot build indices there. It reads local "
            "disks, S3, Google Cloud Storage and Azure: move the table to one of them"
        )
    return LanceLocation(store.local_path("") or store.uri, options)
