"""The matches of a batch whose upsert is planned again, since another writer has committed."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.fragment_matches import Matches
from lance_stream.keys.key_matcher import KeyMatcher
from lance_stream.keys.workers import Threads
from lance_stream.read.units import WorkUnit


class Batch:
    """A batch that has the keys 0 to 19."""

    on = ("id",)
    lookup = KeyLookup([pa.array(range(20))])
    scanned_columns = ("id", "seq")


class CountingThreads(Threads):
    """Threads that count the fragments that they read."""

    num_read = 0

    def find_matches(self, *arguments: Any, **options: Any) -> Sequence[Matches]:
        units: Sequence[WorkUnit] = arguments[2]
        self.num_read += len(units)
        return super().find_matches(*arguments, **options)


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": numbers, "seq": pa.array(numbers, pa.int32()), "x": numbers})


@pytest.mark.parametrize(
    ("change", "num_read"),
    [
        (lambda ds: ds, 0),
        (lambda ds: ds.append(rows(9, 12)), 1),
        (lambda ds: ds.delete("id = 3"), 0),
        (lambda ds: ds.delete("id < 10"), 0),
        (lambda ds: ds.update({"seq": "seq + 100"}, where="id = 13"), 1),
        (lambda ds: ds.compact(), 1),
        (lambda ds: ds.restore(ds.version - 1), 1),
        (lambda ds: ds.alter_columns({"path": "seq", "data_type": pa.int64()}), 2),
    ],
    ids=["nothing", "append", "delete", "drop", "update", "compact", "restore", "new type"],
)
def test_only_changed_fragments_are_searched(
    change: Callable[[Dataset], Dataset], num_read: int
) -> None:
    """A row that another writer has deleted must not match, one that it has restored must."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows(0, 10))
    ds = ds.append(rows(10, 30)).delete("id = 15")
    threads = CountingThreads()
    matcher = KeyMatcher(threads)
    before = matcher.look_up(ds.table, Batch())
    assert (len(before.addresses), threads.num_read) == (19, 2)
    ds = change(ds)
    again, fresh = matcher.look_up(ds.table, Batch()), KeyMatcher().look_up(ds.table, Batch())
    assert threads.num_read == 2 + num_read
    assert again.addresses.tolist() == fresh.addresses.tolist()
    assert again.keys.tolist() == fresh.keys.tolist()
    assert again.sequence is not None
    assert again.sequence.equals(fresh.sequence)
