"""Small tables with text keys, and which of their files are read."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

import lance_stream
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.index import key_index, run_files, run_format, run_merging, sorted_words
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.rules import UpsertRules
from tests.contracts.watched_stores import WatchedStore

ON_ID = UpsertRules(("id",))

SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("seq", pa.int64()), ("x", pa.int64())]
)


SetAttribute = Callable[[object, str, object], None]


def use_small_runs(set_attribute: SetAttribute) -> None:
    """Have runs of a few rows written, shared and merged, in chunks of 16 keys."""
    for module in (run_format, run_files, run_merging):
        set_attribute(module, "CHUNK_ROWS", 16)
    set_attribute(run_files, "_MANY_CHUNKS", 1)
    set_attribute(key_index, "MIN_SAVED_ROWS", 50)
    set_attribute(key_index, "MIN_SHARED_ROWS", 1)
    set_attribute(cached_key_bounds, "MIN_UNSAVED_WORK", 1)
    set_attribute(sorted_words, "MANY_WORDS", 1)


def rows(numbers: Sequence[int], x: int) -> pa.Table:
    """Return rows whose keys are in another order than their numbers."""
    names = [f"key {number * 7919 % 99991:05d}" for number in numbers]
    return pa.table({"id": names, "seq": [x] * len(names), "x": [x] * len(names)}, SCHEMA)


def table_of(num_fragments: int = 6) -> TableVersion:
    """Return a table with 50 rows in each fragment."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    for number in range(num_fragments):
        ds = ds.append(rows(range(number * 50, number * 50 + 50), 0))
    return ds.table


def watched(table: TableVersion) -> tuple[TableVersion, WatchedStore]:
    """Return the table with a store that counts its calls."""
    store = WatchedStore(table.store)
    return replace(table, store=store), store


def num_read(store: WatchedStore) -> int:
    """Return how often data files were read."""
    return sum(call == "read_ranges" and "data/" in path for call, path in store.calls)
