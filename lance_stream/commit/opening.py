"""Opens the version log of a table: in its directory, or in a manifest store.

Manifest stores are imported only when they are used.
"""

import os
from collections.abc import Mapping
from typing import Any

from lance_stream.commit.manifest_stores.choice import choose
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.version_log import VersionLog
from lance_stream.storage.locations import open_store
from lance_stream.storage.options.names import as_options


def open_log(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> VersionLog:
    """Return the version log of the table at a location, which need not exist yet.

    Args:
        uri: A path or URI. With "s3+ddb://", versions are published in DynamoDB.
        storage_options: Settings of the store; with `manifest_store`, versions are published in an
            external manifest store (see `manifest_stores.choice`).

    Raises:
        InvalidInputError: The location or an option is invalid.
        UnsupportedFeatureError: No store supports its protocol.
    """
    options = as_options(storage_options)
    choice = choose(uri, options)
    store = open_store(choice.uri, options)
    if choice.manifests is None:
        return ObjectStoreLog(store)
    from lance_stream.commit.external_log import ExternalLog, base_uri_of

    base_uri = choice.base_uri or base_uri_of(store, choice.manifests)
    return ExternalLog(store, choice.manifests, base_uri)
