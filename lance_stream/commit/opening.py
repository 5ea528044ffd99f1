"""Chooses the kind of version log that a table has.

What few tables need is imported for them: manifest stores, and what knows services by name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lance_stream.commit.manifest_stores.choice import choose
from lance_stream.commit.manifest_stores.protocol import ManifestStore
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.locations import open_store
from lance_stream.storage.options.names import as_options
from lance_stream.storage.store import Store


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
    from lance_stream.commit.external_log import ExternalLog

    base_uri = chosen.base_uri or _base_uri(store, chosen.manifests)
    return ExternalLog(store, chosen.manifests, base_uri)


def log_beside(log: VersionLog, store: Store) -> VersionLog:
    """Return the history of a table or branch that is published in the same way as another.

    Args:
        log: The history of the other one.
        store: The directory of the table or branch.

    Raises:
        UnsupportedFeatureError: The manifest store identifies the other one by a name that a user
            chose.
    """
    if isinstance(log, ObjectStoreLog):
        return ObjectStoreLog(store)
    from lance_stream.commit.external_log import ExternalLog

    if not isinstance(log, ExternalLog):
        return ObjectStoreLog(store)
    if log.base_uri != _base_uri(log.store, log.manifests):
        raise UnsupportedFeatureError(
            f"{log.manifests.where} identifies {log.store.uri} by the chosen name "
            f"{log.base_uri!r}; under which name it has {store.uri} is unknown"
        )
    return ExternalLog(store, log.manifests, _base_uri(store, log.manifests))


def _base_uri(store: Store, manifests: ManifestStore) -> str:
    """Return the name by which a manifest store identifies a table, the same for all its writers.

    It does not contain the endpoint, which writers may reach by different names: two services with
    a bucket of the same name need two manifest stores, or a base URI each. For S3 with DynamoDB it
    is the reference's: the table's key in its bucket. So two buckets must not have tables of the
    same path in one DynamoDB table.

    Raises:
        InvalidInputError: The table is a bucket's root, whose key is empty.
    """
    if isinstance(store, LocalStore):
        return f"file://{quote(str(Path(store.root).resolve()))}"
    from lance_stream.storage.engine.azure import AzureSettings
    from lance_stream.storage.objects.object_store import ObjectStore

    if isinstance(store, ObjectStore) and isinstance(store.settings, AzureSettings):
        return f"az://{store.settings.account}/{store.container}/{quote(store.root)}"
    is_s3 = isinstance(store, ObjectStore) and store.settings.scheme == "s3"
    if not (is_s3 and manifests.kind == "dynamodb"):
        return store.uri.rstrip("/")
    assert isinstance(store, ObjectStore)
    if not store.root:
        raise InvalidInputError(
            f"{store.uri} is a whole bucket, and DynamoDB identifies a table by its key in the "
            "bucket: use a folder"
        )
    return store.root
