"""Tables with a BTREE and a BITMAP index, and a round that waits at a gate."""

import threading
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.maintenance.indices import background
from lance_stream.maintenance.indices.background import BackgroundIndexing, IndexRound
from lance_stream.maintenance.indices.building import build
from lance_stream.maintenance.indices.child import StoppedChildError
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
from lance_stream.storage.locations import open_store
from lance_stream.table.indices import IndexMetadata, decode_index_section
from lance_stream.table.paths import index_folder

ANY_ROW = RefreshPolicy(rows=1)


def rows(start: int, stop: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(start, stop)), "g": [number % 3 for number in range(start, stop)]}
    )


def indexed_table(uri: str) -> None:
    """Create a table of 60 rows, and its indices."""
    lance_stream.create_dataset(uri, rows(0, 60))
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).create_scalar_index("g", "BITMAP")


def index_named(uri: str, name: str) -> IndexMetadata:
    section = lance_stream.open_dataset(uri).table.manifest.index_section
    (index,) = [entry for entry in decode_index_section(section or b"") if entry.name == name]
    return index


def missing(uri: str) -> set[int | None]:
    return {coverage.rows_unindexed for coverage in lance_stream.open_dataset(uri).index_coverage()}


def damage(uri: str, name: str) -> None:
    """Delete the files of an index."""
    store = lance_stream.open_dataset(uri).table.store
    for file in store.list(index_folder(index_named(uri, name).uuid)):
        store.delete(file.path)


def missing_by_name(uri: str) -> dict[str, int | None]:
    coverage = lance_stream.open_dataset(uri).index_coverage()
    return {entry.name: entry.rows_unindexed for entry in coverage}


class Gate:
    """Builds in this process, once it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_open, self.is_reached = threading.Event(), threading.Event()
        self.num_built = 0
        patch.setattr(background, "build_in_child", self.build)

    def build(self, request: Any, uri: str, options: Any, stop: threading.Event) -> Any:
        self.is_reached.set()
        while not self.is_open.wait(0.01):
            if stop.is_set():
                raise StoppedChildError
        self.num_built += 1
        return build(request, open_store(uri, options))


def append_and_index(
    uri: str, indexing: BackgroundIndexing, start: int, stop: int
) -> IndexRound | None:
    """Append rows, let indices be brought up to date, and return the outcome of the last round."""
    lance_stream.open_dataset(uri).append(rows(start, stop))
    indexing.after_batch(lambda: lance_stream.open_dataset(uri).table)
    assert indexing.wait(60)
    return indexing.last_round
