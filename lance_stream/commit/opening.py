"""Opens the version log of a table, of the kind that the table uses.

Manifest stores are imported for the few tables that have one.
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
    """Return the history of the table at a location, which need not exist yet.

    Args:
        uri: A path or URI. With "s3+ddb://", the versions are published in DynamoDB.
        storage_options: Settings of the store; and `manifest_store`, if the versions are published
            in an external manifest store (see `manifest_stores.choice`).

    Raises:
        InvalidInputError: The location or an option is invalid.
        UnsupportedFeatureError: No store supports its protocol.
    """
    options = as_options(storage_options)
    chosen = choose(uri, options)
    store = open_store(chosen.uri, options)
    if chosen.manifests is None:
        return ObjectStoreLog(store)
    from lance_stream.commit.external_log import ExternalLog, base_uri_of

    base_uri = chosen.base_uri or base_uri_of(store, chosen.manifests)
    return ExternalLog(store, chosen.manifests, base_uri)
