"""Reads the rows of work units; workers import this without the planning of scans."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lance_stream.read.fragment import MAX_EXPECTED_ROWS, FragmentReader
from lance_stream.read.prefetch import num_readers, plan_batches, read_ahead
from lance_stream.read.units import WorkUnit
from lance_stream.storage.store import NUM_READERS


def read_units(units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of work units in order; several threads read ahead.

    A few rows of a local store are read without threads, which take as long to start as to read.
    """
    if num_readers(units) <= NUM_READERS and _are_few(units):
        for planned in plan_batches(units):
            batch = planned.reader.read(planned.selection)
            if batch.num_rows:
                yield batch
        return
    reads = (planned.read_with(FragmentReader.read) for planned in plan_batches(units))
    yield from read_ahead(reads, num_readers(units))


def _are_few(units: Sequence[WorkUnit]) -> bool:
    num_rows = 0
    for unit in units:
        if unit.offsets is None:
            return False
        num_rows += len(unit.offsets)
    return num_rows <= MAX_EXPECTED_ROWS
