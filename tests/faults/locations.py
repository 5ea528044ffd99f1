"""The locations of test tables: on a local disk, or in a bucket of a store.

A test's parameter `kind` names the store, and `folder_on` returns the URI of a folder there. This
module remembers the storage options of each URI, so that a test opens tables by URI alone and has
the same lines for every store.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

from lance_stream import Dataset, create_dataset, open_dataset
from lance_stream.spark import LanceSink, lance_sink
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store

BUCKETS: Final = {"s3": "s3_bucket", "google": "google_bucket", "azure": "azure_container"}
"""The fixture of each kind of store."""

SERVERS: Final = {"s3": "moto", "google": "fake_gcs", "azure": "azurite"}

_options: dict[str, dict[str, str]] = {}


def on(kind: str, *values: Any) -> Any:
    """Return a case of a test, on a kind of store: its values, and the kind."""
    marks = [pytest.mark.server(SERVERS[kind])] if kind in SERVERS else []
    return pytest.param(*values, kind, marks=marks, id="-".join([*map(str, values), kind]))


def kinds(*, slow: Sequence[str] = ()) -> list[Any]:
    """Return a case for each kind of store: a fixture's parameters.

    Args:
        slow: Those that are left to the whole suite.
    """
    marks = {kind: [pytest.mark.server(server)] for kind, server in SERVERS.items()}
    return [
        pytest.param(
            kind, marks=marks.get(kind, []) + ([pytest.mark.slow] if kind in slow else []), id=kind
        )
        for kind in ("local", *SERVERS)
    ]


def folder_on(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the URI of a folder that no other test uses."""
    if kind == "local":
        return str(request.getfixturevalue("tmp_path"))
    bucket = request.getfixturevalue(BUCKETS[kind])
    _options[bucket.uri] = bucket.storage_options
    return f"{bucket.uri}/folder"


def options_of(uri: str) -> Mapping[str, str]:
    """Return the storage options for a URI."""
    return next((option for root, option in _options.items() if uri.startswith(f"{root}/")), {})


def open_table(uri: str, version: int | None = None) -> Dataset:
    return open_dataset(uri, version, storage_options=options_of(uri))


def store_of(uri: str) -> Store:
    return open_store(uri, options_of(uri))


def create_table(uri: str, schema: pa.Schema, **arguments: Any) -> Dataset:
    return create_dataset(uri, schema, storage_options=options_of(uri), **arguments)


def delete_table(uri: str) -> None:
    store = store_of(uri)
    for file in store.list():
        store.delete(file.path)


def sink_into(uri: str, **arguments: Any) -> LanceSink:
    return lance_sink(uri, storage_options=options_of(uri), **arguments)


def is_seen_by_pylance(uri: str) -> bool:
    """Return whether pylance can open tables there; our Google server lacks its interface."""
    return not uri.startswith("gs:")


def open_by_pylance(uri: str) -> Any:
    return lance.dataset(uri, storage_options=dict(options_of(uri)) or None)
