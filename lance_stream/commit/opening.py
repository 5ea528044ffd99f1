"""Which history a table has: the one place that chooses the kind of its log."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.manifest_stores.choice import choose
from lance_stream.commit.manifest_stores.protocol import ManifestStore
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.engine.azure import AzureSettings
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.locations import open_store
from lance_stream.storage.object_store import ObjectStore
from lance_stream.storage.options.names import as_options
from lance_stream.storage.store import Store


def open_log(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> VersionLog:
    """Return the history of the table at a location, which need not exist yet.

    Args:
        uri: A path or URI. One that begins with "s3+ddb://" has its versions in DynamoDB.
        storage_options: Settings of its store; and `manifest_store`, where the versions are
            published in an external manifest store (see `manifest_stores.choice`).

    Raises:
        InvalidInputError: The location or an option makes no sense.
        UnsupportedFeatureError: There is no store for its protocol.
    """
    options = as_options(storage_options)
    chosen = choose(uri, options)
    store = open_store(chosen.uri, options)
    if chosen.manifests is None:
        return ObjectStoreLog(store)
    base_uri = chosen.base_uri or _base_uri(store, chosen.manifests)
    return ExternalLog(store, chosen.manifests, base_uri)


def log_beside(log: VersionLog, store: Store) -> VersionLog:
    """Return the history of a table, or branch, that is published as another one is.

    Args:
        log: The other one's.
        store: Where the table or branch lies.

    Raises:
        UnsupportedFeatureError: The manifest store knows the other one by a name that a user chose.
    """
    if not isinstance(log, ExternalLog):
        return ObjectStoreLog(store)
    if log.base_uri != _base_uri(log.store, log.manifests):
        raise UnsupportedFeatureError(
            f"{log.manifests.where} knows {log.store.uri} by the chosen name {log.base_uri!r}, and "
            f"by which one it knows {store.uri} is not known here"
        )
    return ExternalLog(store, log.manifests, _base_uri(store, log.manifests))


def _base_uri(store: Store, manifests: ManifestStore) -> str:
    """Return what a manifest store knows a table by, the same for all who write to it.

    It says nothing of the endpoint, which writers may reach by different names: two services with
    a bucket of one name need two manifest stores, or a base uri each. For S3 with DynamoDB it is
    the reference's: the table's key in its bucket. So two buckets must not have tables of one path
    in one table of DynamoDB.

    Raises:
        InvalidInputError: The table is a bucket's root, whose key is empty.
    """
    if isinstance(store, LocalStore):
        return f"file://{quote(str(Path(store.root).resolve()))}"
    if isinstance(store, ObjectStore) and isinstance(store.settings, AzureSettings):
        return f"az://{store.settings.account}/{store.container}/{quote(store.root)}"
    is_s3 = isinstance(store, ObjectStore) and store.settings.scheme == "s3"
    if not (is_s3 and manifests.kind == "dynamodb"):
        return store.uri.rstrip("/")
    assert isinstance(store, ObjectStore)
    if not store.root:
        raise InvalidInputError(
            f"{store.uri} is a whole bucket, which DynamoDB cannot know a table by: use a folder"
        )
    return store.root
