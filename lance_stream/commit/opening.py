"""Which history a table has: the one place that chooses the kind of its log."""

import os
from collections.abc import Mapping
from typing import Any

from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.version_log import VersionLog
from lance_stream.storage.locations import open_store


def open_log(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> VersionLog:
    """Return the history of the table at a location, which need not exist yet.

    Args:
        uri: A path or URI.
        storage_options: Settings of its store.

    Raises:
        InvalidInputError: The location or an option makes no sense.
        UnsupportedFeatureError: There is no store for its protocol.
    """
    return ObjectStoreLog(open_store(uri, storage_options))
