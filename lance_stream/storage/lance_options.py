"""The location and options with which pylance opens a store, for work that we delegate to it."""

from collections.abc import Mapping
from typing import NamedTuple

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.storage.store import Store


class LanceLocation(NamedTuple):
    """A table's directory for pylance.

    Attributes:
        uri: A path or URI.
        storage_options: Settings, possibly with secrets.
    """

    uri: str
    storage_options: Mapping[str, str]


def lance_location(store: Store) -> LanceLocation:
    """Return the location and options of a store's directory for pylance.

    Raises:
        UnsupportedFeatureError: pylance cannot open the store: it is in this process's memory, or
            on an fsspec filesystem.
        InvalidInputError: A setting has no counterpart in pylance.
    """
    options = store.lance_options()
    if options is None:
        raise UnsupportedFeatureError(
            f"pylance cannot read {store.uri}, so it cannot build indices there. It reads local "
            "disks, S3, Google Cloud Storage and Azure: move the table to one of them"
        )
    return LanceLocation(store.local_path("") or store.uri, options)
