"""Several threads read batches ahead of their consumer."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.byte_ranges import ByteRange
from lance_stream.read import prefetch
from lance_stream.read.fragment import BATCH_BYTES
from lance_stream.read.prefetch import BatchRead, plan_batches, read_ahead
from lance_stream.read.units import unit_of
from lance_stream.storage import local_store
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.store import NUM_READERS

BATCH = pa.record_batch({"id": [1]})


def fail() -> pa.RecordBatch:
    raise OSError("the store is away")


@pytest.mark.parametrize("ends_by", ["error", "consumer"])
def test_abandoned_reads_end_on_consumer_threads(ends_by: str) -> None:
    """A read may have started threads, which cannot join themselves."""
    ended_on = []

    def reads() -> Iterator[BatchRead]:
        try:
            yield BatchRead(lambda: BATCH, 1)
            yield BatchRead(fail if ends_by == "error" else lambda: BATCH, 1)
            for _ in range(100):
                yield BatchRead(lambda: BATCH, 1)
        finally:
            ended_on.append(threading.current_thread())

    reader = reads()  # as the frames of a traceback would keep it
    batches = read_ahead(reader, 2)
    next(batches)
    if ends_by == "error":
        with pytest.raises(OSError, match="the store is away"):
            list(batches)
    else:
        batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert ended_on == [threading.current_thread()]


def test_reading_threads_start_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a scan keep all cores busy; more threads within each only take turns."""
    started_by = []

    class Threads(ThreadPoolExecutor):
        def __init__(self, num_threads: int) -> None:
            started_by.append(threading.current_thread())
            super().__init__(num_threads)

    monkeypatch.setattr(local_store, "_PARALLEL_BYTES", 1)
    monkeypatch.setattr(local_store, "_NUM_THREADS", 2)
    monkeypatch.setattr(local_store, "ThreadPoolExecutor", Threads)
    store = LocalStore(str(tmp_path))
    store.write("file", bytes(100))

    def read() -> pa.RecordBatch:
        (data,) = store.read_ranges("file", [ByteRange(0, 100)])
        return pa.record_batch({"id": [len(data)]})

    assert list(read_ahead(iter([BatchRead(read, 1)] * 3), 2)) == [read()] * 3
    assert started_by == [threading.current_thread()]


@pytest.mark.parametrize("num_threads", [NUM_READERS, NUM_READERS + 1, 64])
@pytest.mark.parametrize("sizes", [[], [1], [BATCH_BYTES + 1], [BATCH_BYTES + 1] * 9, [1] * 99])
def test_batches_of_any_size_are_read(num_threads: int, sizes: list[int]) -> None:
    """The first may be larger than what waits in memory at once, and must not wait for another."""
    batches = [pa.record_batch({"id": [index]}) for index in range(len(sizes))]
    empty = BatchRead(lambda: BATCH[:0], 1)
    reads = [
        BatchRead(lambda batch=batch: batch, size)
        for batch, size in zip(batches, sizes, strict=True)
    ]
    assert list(read_ahead(iter([*reads, empty]), num_threads)) == batches


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_units_without_rows_are_passed(monkeypatch: pytest.MonkeyPatch, empty: int) -> None:
    """Far stores select the rows of the next units ahead, of which a unit may have none."""
    monkeypatch.setattr(prefetch, "num_readers", lambda _units: NUM_READERS + 1)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"n": [1, 2, 3]}))
    unit = unit_of(ds.table, 0, columns=("n",))
    units = [replace(unit, stop=0 if index == empty else 1 + index) for index in range(3)]
    planned = list(plan_batches(units))
    assert [batch.unit_index for batch in planned] == [n for n in range(3) if n != empty]
    assert [batch.selection.num_rows for batch in planned] == [
        1 + n for n in range(3) if n != empty
    ]
