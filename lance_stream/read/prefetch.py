"""Reads work units with several threads, ahead of the consumer of the batches.

    unit 7    its rows are selected       a thread: this may have to open files
    unit 6    a batch is read            a thread
    unit 6    a batch is read            a thread
    unit 5    a batch waits              until the consumer has taken those before it

The store determines the number of threads (`Store.num_readers`): on a local disk one per core; on
an object store more, since each spends most of its time waiting. There the next units' rows are
selected ahead, too. The amount read ahead is bounded: as many batches as cores, and more only if
they are small; on an object store no more than one batch's worth until the consumer has taken the
first, which may be all it wants. What batches of a unit have in common there is kept between them
(`page_cache`).
"""

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
from lance_stream.threads import map_ahead

T = TypeVar("T")
U = TypeVar("U")

MAX_WAITING_BYTES: Final = NUM_READERS * BATCH_BYTES
"""About how much may be read ahead if there are more threads than cores."""


class Read(NamedTuple):
    """What reads a batch.

    Attributes:
        call: Reads it.
        num_bytes: About how large it is.
    """

    call: Callable[[], pa.RecordBatch]
    num_bytes: int


class Chosen(NamedTuple):
    """Rows that make one batch.

    Attributes:
        unit_index: The index of their work unit.
        reader: Reads its fragment.
        selection: The rows.
    """

    unit_index: int
    reader: FragmentReader
    selection: Selection

    def read_by(self, read: Callable[..., pa.RecordBatch], *more: object) -> Read:
        """Return what reads them: `read`, given more and then reader and selection."""
        call = partial(read, *more, self.reader, self.selection)
        return Read(call, self.reader.num_bytes_of(self.selection))


def num_readers(units: Sequence[WorkUnit]) -> int:
    """Return the best number of threads for reading work units of one table."""
    return units[0].files.store.num_readers if units else NUM_READERS


def choose(units: Sequence[WorkUnit]) -> Iterator[Chosen]:
    """Yield the rows of work units, batch by batch, in order."""
    if num_readers(units) <= NUM_READERS:
        for index, unit in enumerate(units):
            reader = FragmentReader(unit)
            for selection in reader.selections():
                yield Chosen(index, reader, selection)
        return
    pages = PageCache()
    readers = [(unit, pages, index == 0) for index, unit in enumerate(units)]
    begun = map_ahead(_begin, readers, num_readers(units))
    for index, (reader, selections) in enumerate(begun):
        for selection in selections:
            yield Chosen(index, reader, selection)


def _begin(
    what: tuple[WorkUnit, PageCache, bool],
) -> tuple[FragmentReader, Iterator[Selection]]:
    """Select the first rows of a unit, which opens the files needed for that."""
    unit, pages, is_first = what
    reader = FragmentReader(unit, pages, is_first=is_first)
    selections = reader.selections()
    first = next(selections, None)
    return reader, selections if first is None else chain([first], selections)


def read_ahead(reads: Iterator[Read], num_threads: int = NUM_READERS) -> Iterator[pa.RecordBatch]:
    """Yield what some reads give, in order and without empty batches.

    Args:
        reads: Each is called by one of the threads.
        num_threads: How many threads read ahead of the consumer of the batches. A single read near
            by is made by none of them: starting one costs as much as reading a few rows.
    """
    planned = reads
    if num_threads <= NUM_READERS:
        begun = list(islice(planned, 2))
        if len(begun) < 2:
            for read in begun:
                yield from _unless_empty(read.call())
            return
        reads = chain(begun, planned)
    with ThreadPoolExecutor(num_threads, thread_name_prefix="lance-stream-scan") as threads:
        pending: deque[tuple[Future[pa.RecordBatch], int]] = deque()
        waiting_bytes = 0
        has_begun = num_threads <= NUM_READERS
        try:
            for call, num_bytes in reads:
                while pending and not has_begun and waiting_bytes + num_bytes > BATCH_BYTES:
                    batch, first_bytes = pending.popleft()
                    waiting_bytes -= first_bytes
                    has_begun = True
                    yield from _unless_empty(batch.result())
                pending.append((threads.submit(call), num_bytes))
                waiting_bytes += num_bytes
                while len(pending) > NUM_READERS and (
                    len(pending) > num_threads or waiting_bytes > MAX_WAITING_BYTES
                ):
                    batch, num_bytes = pending.popleft()
                    waiting_bytes -= num_bytes
                    yield from _unless_empty(batch.result())
            while pending:
                yield from _unless_empty(pending.popleft()[0].result())
        finally:
            for batch, _ in pending:
                batch.cancel()
            # left to the garbage collector, it might end on one of the threads that it joins
            if isinstance(planned, Generator):
                planned.close()


def _unless_empty(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows:
        yield batch
