"""What a table costs after 10,000 batches: as much as after 1,000.

Both tables have the same rows. Their histories are forged: as many manifests as batches, and a
compacted fragment whose rows are in the order in which that many batches updated them, so that its
lineage has a run for each batch. A few batches are committed behind that. Costs are counted in
calls of functions, Python's and C's, which are the same on every machine.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.maintenance.compaction.automatic import CompactionTrigger
from lance_stream.maintenance.compaction.background import ROUND
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage import protocols
from lance_stream.storage.protocols import StoreKind
from lance_stream.table.lineage.row_ids import encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.table.manifest import FragmentList, Manifest, encode_manifest
from lance_stream.table.paths import manifest_path
from lance_stream.write.fragments import write_fragments, write_target
from tests.contracts.object_service import ObjectService
from tests.sampling import ALL_CASES

pytestmark = pytest.mark.xdist_group("long lives")  # one process forges what all look at

YOUNG, OLD = 1_000, 10_000
NUM_ROWS = 20_000
NUM_COMMITTED = 6
BATCH = 50


def rows(keys: np.ndarray, value: int) -> pa.Table:
    return pa.table({"key": keys, "value": np.full(len(keys), value)})


def forge(service: ObjectService, uri: str, num_batches: int) -> None:
    """Make a table as compactions leave it behind after some batches, and its history."""
    schema = rows(np.arange(1), 0).schema
    ds = lance_stream.create_dataset(uri, schema, primary_key=["key"])
    (fragment,) = write_fragments(rows(np.arange(NUM_ROWS), 0).to_batches(), write_target(ds.table))
    # As many rows for each batch that is still the last one to have updated some.
    updated = np.sort(np.arange(NUM_ROWS) % (num_batches - 2)) + 2
    ids = np.random.default_rng(0).permutation(NUM_ROWS)
    ids = ids[np.lexsort((ids, updated))]
    first = ds.table.manifest
    compacted = replace(
        fragment,
        row_ids=encode_row_ids(ids),
        created_at_versions=encode_row_versions(RowVersionSequence.uniform(NUM_ROWS, 2)),
        last_updated_at_versions=encode_row_versions(RowVersionSequence.from_array(updated)),
    )
    newest = replace(
        _at(first, num_batches),
        fragments=FragmentList.of([compacted]),
        max_fragment_id=0,
        next_row_id=NUM_ROWS,
    )
    folder = uri.removeprefix("test://bucket/")
    history = [_at(first, version) for version in range(2, num_batches)]
    for value in (*history, newest):
        service.objects[f"{folder}/{manifest_path(value.version)}"] = encode_manifest(value)
    for number in range(NUM_COMMITTED):
        upsert(uri, number)


def _at(manifest: Manifest, version: int) -> Manifest:
    assert manifest.timestamp_nanos is not None
    nanos = manifest.timestamp_nanos + version * 1_000_000
    return replace(manifest, version=version, timestamp_nanos=nanos)


def open_dataset(uri: str) -> Dataset:
    return lance_stream.open_dataset(uri)


def upsert(uri: str, number: int = 0) -> None:
    keys = np.random.default_rng(number).choice(NUM_ROWS, BATCH, replace=False)
    assert open_dataset(uri).upsert(rows(keys, number), on=["key"]).count_rows() == NUM_ROWS


def feed(uri: str) -> None:
    ds = open_dataset(uri)
    assert ds.changes(ds.version - 1).read_all().num_rows == 2 * BATCH


def read_key(uri: str) -> None:
    assert open_dataset(uri).to_table(filter="key = 4711").num_rows == 1


def decide_on_compaction(uri: str) -> None:
    CompactionTrigger(ROUND).reason(open_newest(uri))


def plan_cleanup(uri: str) -> None:
    ds = open_dataset(uri)
    assert len(ds.cleanup(retain_versions=1, dry_run=True).versions) == ds.version - 1


def num_calls(action: Callable[[str], object], uri: str) -> int:
    """Return how many functions an action calls in this thread, once all caches are filled."""
    action(uri)
    return min(_num_calls(action, uri) for _ in range(3))


def _num_calls(action: Callable[[str], object], uri: str) -> int:
    count = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # a collection calls the finalizers of whatever other tests have left behind
    sys.setprofile(note)
    try:
        action(uri)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.fixture(scope="module")
def tables() -> Iterator[Callable[[int], str]]:
    """Forges a table of some batches, once."""
    service = ObjectService()
    forged: set[int] = set()

    def table(num_batches: int) -> str:
        uri = f"test://bucket/t{num_batches}"
        if num_batches not in forged:
            forged.add(num_batches)
            forge(service, uri, num_batches)
        return uri

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            protocols.PROTOCOLS,
            "test",
            StoreKind("test", lambda _, rest, __: service.store(rest.removeprefix("//bucket/"))),
        )
        yield table


@pytest.mark.parametrize("action", [open_dataset, upsert, feed, read_key, decide_on_compaction])
def test_tenfold_batches_cost_the_same(
    tables: Callable[[int], str], action: Callable[[str], object]
) -> None:
    """A stream runs for years, so no action may grow with the number of batches behind it."""
    young, old = (num_calls(action, tables(value)) for value in (YOUNG, OLD))
    assert old < 1.1 * young


def test_cleanup_plans_grow_linearly(tables: Callable[[int], str]) -> None:
    """Planning compares versions with their neighbours, and anything worse than linear would
    never finish.
    """
    few, many = (1000, 10_000) if ALL_CASES else (300, 1500)
    one, several = (num_calls(plan_cleanup, tables(value)) for value in (few, many))
    assert several / many < 1.1 * one / few
