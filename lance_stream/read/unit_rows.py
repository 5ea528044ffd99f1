"""The rows of work units: the part of reading that workers import, without planning."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lance_stream.read.fragment import MOST_EXPECTED_ROWS, FragmentReader
from lance_stream.read.prefetch import choose, num_readers, read_ahead
from lance_stream.read.units import WorkUnit
from lance_stream.storage.store import NUM_READERS


def read_units(units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of work units, in order, read ahead by several threads.

    On a near store, a few rows are read without threads: starting them takes as long as reading.
    """
    if num_readers(units) <= NUM_READERS and _are_few(units):
        for chosen in choose(units):
            batch = chosen.reader.read(chosen.selection)
            if batch.num_rows:
                yield batch
        return
    reads = (choice.read_by(FragmentReader.read) for choice in choose(units))
    yield from read_ahead(reads, num_readers(units))


def _are_few(units: Sequence[WorkUnit]) -> bool:
    num_rows = 0
    for unit in units:
        if unit.offsets is None:
            return False
        num_rows += len(unit.offsets)
    return num_rows <= MOST_EXPECTED_ROWS
