"""The rows of work units: what a worker needs, without planning."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lance_stream.read.fragment import FragmentReader
from lance_stream.read.reading_ahead import choose, num_readers, read_ahead
from lance_stream.read.units import WorkUnit


def read_units(units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of work units, in order, read ahead by several threads."""
    reads = (each.read_by(FragmentReader.read) for each in choose(units))
    return read_ahead(reads, num_readers(units))
