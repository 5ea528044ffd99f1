"""Tables to clean up, and what is left of them."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache

import pyarrow as pa

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.environment import MACHINE, Environment
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.table.manifest import Manifest
from lance_stream.table.named_files import nameable, names_of
from tests.contracts.watched_stores import WatchedStore
from tests.dataset.table_copies import copy_of

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64())])
DAY = timedelta(days=1)
ALL = CleanupRules(older_than=None)
NOBODY_WRITES = CleanupRules(older_than=None, delete_unverified=True)


def new_table() -> Dataset:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "x": [id_ % 7 for id_ in ids]}, schema=SCHEMA)


@cache
def template() -> Dataset:
    ds = new_table().append(rows(*range(10))).append(rows(*range(10, 20)))
    ds = ds.delete("id = 3").delete("id = 4").update({"id": "id", "x": "x + 1"}, "id > 15")
    return ds.compact().append(rows(50))


def busy_table() -> Dataset:
    """Eight versions; the last ones need no file of the first six."""
    return copy_of(template())


def in_days(days: float) -> Environment:
    """Return an environment whose clock is ahead."""
    later = timedelta(days=days) // timedelta(microseconds=1) * 1000
    return replace(MACHINE, now_nanos=lambda: MACHINE.now_nanos() + later)


def paths_of(ds: Dataset) -> list[str]:
    return [file.path for file in ds.table.store.list()]


def unnamed_files(ds: Dataset) -> list[str]:
    """Return the files of the table that no existing version names."""
    named = {
        name
        for version in ds.table.log.versions()
        for name in names_of(ds.table.log.read(version), set())
    }
    files = [(path, nameable(path)) for path in paths_of(ds)]
    return [path for path, what in files if what is not None and what.name not in named]


def names_of_data(manifest: Manifest) -> set[str]:
    return {text for text in names_of(manifest, set()) if text.startswith("data/")}


def on(ds: Dataset, store: WatchedStore) -> Dataset:
    """Return a table whose store is watched."""
    return Dataset(replace(ds.table, store=store, log=ObjectStoreLog(store)))


def at_first(event: Callable[[str, str], bool], act: Callable[[], object]) -> Callable[..., None]:
    """Return a watch that acts at the first call of a kind."""
    results: list[bool] = []

    def watch(call: str, path: str) -> None:
        if not results and event(call, path):
            results.append(True)
            act()

    return watch


def deletes_manifest(call: str, path: str) -> bool:
    return call == "delete" and path.startswith("_versions/")


def lists_tags(call: str, path: str) -> bool:
    return call == "list" and path == "_refs/tags"
