"""Joins small batches, because each batch has a fixed cost for its receiver.

A version that changed a few rows in each of many fragments has one batch per fragment.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

SMALL_BATCH_ROWS: Final = 4096
SMALL_BATCH_BYTES: Final = 1 << 20
"""A batch that is below both limits is joined with its neighbors."""


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join adjacent small batches of one schema; the order of rows stays the same.

    Joined batches are at most twice as large as a small batch.

    Args:
        batches: Consumed lazily.
    """
    small: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        size = batch.nbytes
        if batch.num_rows >= SMALL_BATCH_ROWS or size >= SMALL_BATCH_BYTES:
            yield from _joined(small)
            small, num_rows, num_bytes = [], 0, 0
            yield batch
            continue
        small.append(batch)
        num_rows += batch.num_rows
        num_bytes += size
        if num_rows >= SMALL_BATCH_ROWS or num_bytes >= SMALL_BATCH_BYTES:
            yield from _joined(small)
            small, num_rows, num_bytes = [], 0, 0
    yield from _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
