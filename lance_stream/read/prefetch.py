"""Reads work units with several threads, ahead of the consumer of the batches.

    unit 7    its rows are selected    by a thread, because this may open files
    unit 6    a batch is read          by a thread
    unit 6    a batch is read          by a thread
    unit 5    a batch waits            until the consumer has taken the batches before it

The store determines the number of threads (`Store.num_readers`): on a local disk one per core; on
an object store more, since they mostly wait. There, the rows of the next units are selected ahead
as well, and batches share pages (`page_cache`). Read-ahead is bounded: as many batches as cores,
and more only if they are small. On an object store it is bounded by the size of one batch until the
consumer has taken the first batch, which may be all that it needs.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from lance_stream.read.fragment import BATCH_BYTES, FragmentReader
from lance_stream.read.page_cache import PageCache
from lance_stream.read.selections import Selection
from lance_stream.read.units import WorkUnit
from lance_stream.storage.store import NUM_READERS
from lance_stream.threads import check_is_not_forked, map_ahead, mark_as_reader

T = TypeVar("T")
U = TypeVar("U")

MAX_WAITING_BYTES: Final = NUM_READERS * BATCH_BYTES
"""The approximate limit of read-ahead if there are more threads than cores."""


class BatchRead(NamedTuple):
    """A batch to read.

    Attributes:
        call: Reads the batch.
        num_bytes: Its approximate size.
    """

    call: Callable[[], pa.RecordBatch]
    num_bytes: int


class PlannedBatch(NamedTuple):
    """The rows of one batch.

    Attributes:
        unit_index: The index of their work unit.
        reader: The reader of its fragment.
        selection: The rows.
    """

    unit_index: int
    reader: FragmentReader
    selection: Selection

    def read_with(self, read: Callable[..., pa.RecordBatch], *arguments: object) -> BatchRead:
        """Return the batch, to be read by `read(*arguments, reader, selection)`."""
        call = partial(read, *arguments, self.reader, self.selection)
        return BatchRead(call, self.reader.num_bytes_of(self.selection))


def num_readers(units: Sequence[WorkUnit]) -> int:
    """Return the best number of threads for reading work units of one table."""
    return units[0].files.store.num_readers if units else NUM_READERS


def plan_batches(units: Sequence[WorkUnit]) -> Iterator[PlannedBatch]:
    """Yield the batches of work units in order, without reading them."""
    if num_readers(units) <= NUM_READERS:
        for index, unit in enumerate(units):
            reader = FragmentReader(unit)
            for selection in reader.selections():
                yield PlannedBatch(index, reader, selection)
        return
    pages = PageCache()
    readers = [(unit, pages, index == 0) for index, unit in enumerate(units)]
    started = map_ahead(_start_unit, readers, num_readers(units))
    for index, (reader, selections) in enumerate(started):
        for selection in selections:
            yield PlannedBatch(index, reader, selection)


def _start_unit(
    arguments: tuple[WorkUnit, PageCache, bool],
) -> tuple[FragmentReader, Iterator[Selection]]:
    """Select the first rows of a unit, which may open files."""
    unit, pages, is_first = arguments
    reader = FragmentReader(unit, pages, is_first=is_first)
    selections = reader.selections()
    first = next(selections, None)
    return reader, selections if first is None else chain([first], selections)


def read_ahead(
    reads: Iterator[BatchRead], num_threads: int = NUM_READERS
) -> Iterator[pa.RecordBatch]:
    """Yield batches in order, without empty ones.

    Args:
        reads: The batches to read.
        num_threads: The number of threads that read ahead of the consumer. A single batch of a
            local store is read without a thread, which takes as long to start as to read a few
            rows.

    Raises:
        InvalidInputError: The process was forked after the first batch.
    """
    planned = reads
    if num_threads <= NUM_READERS:
        first_reads = list(islice(planned, 2))
        if len(first_reads) < 2:
            for read in first_reads:
                batch = read.call()
                if batch.num_rows:
                    yield batch
            return
        reads = chain(first_reads, planned)
    with ThreadPoolExecutor(num_threads, "lance-stream-scan", mark_as_reader) as threads:
        process = os.getpid()
        pending: deque[tuple[Future[pa.RecordBatch], int]] = deque()
        waiting_bytes = 0
        first_is_taken = num_threads <= NUM_READERS
        try:
            for call, num_bytes in reads:
                while pending and not first_is_taken and waiting_bytes + num_bytes > BATCH_BYTES:
                    future, first_bytes = pending.popleft()
                    waiting_bytes -= first_bytes
                    first_is_taken = True
                    yield from _unless_empty(future.result(), process)
                pending.append((threads.submit(call), num_bytes))
                waiting_bytes += num_bytes
                while len(pending) > NUM_READERS and (
                    len(pending) > num_threads or waiting_bytes > MAX_WAITING_BYTES
                ):
                    future, num_bytes = pending.popleft()
                    waiting_bytes -= num_bytes
                    yield from _unless_empty(future.result(), process)
            while pending:
                yield from _unless_empty(pending.popleft()[0].result(), process)
        finally:
            for future, _ in pending:
                future.cancel()
            # The garbage collector might close it on one of the threads that it joins.
            if isinstance(planned, Generator):
                planned.close()


def _unless_empty(batch: pa.RecordBatch, process: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch that has rows; then check that the reader continues in the same process."""
    if batch.num_rows:
        yield batch
        check_is_not_forked(process)
