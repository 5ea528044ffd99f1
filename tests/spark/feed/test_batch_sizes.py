"""Small batches are joined, and large ones are not changed."""

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.spark.feed.batch_sizes import SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, join_small


def batch(num_rows: int, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + num_rows), pa.int64())})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 3000, SMALL_BATCH_ROWS - 1, SMALL_BATCH_ROWS, 9000])))
def test_small_batches_are_joined_in_order(sizes: list[int]) -> None:
    """Each batch has a cost in Spark, so of two neighbors at most one may be small."""
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    batches = [batch(size, first) for size, first in zip(sizes, firsts, strict=True)]
    joined = list(join_small(batches))
    rows = [row for record in joined for row in record["n"].to_pylist()]
    assert rows == list(range(sum(sizes)))
    small = [value.num_rows < SMALL_BATCH_ROWS for value in joined]
    assert not any(one and two for one, two in pairwise(small))
    large = [value for value in batches if value.num_rows >= SMALL_BATCH_ROWS]
    assert all(any(value is other for other in joined) for value in large)
    assert all(value.num_rows < 2 * SMALL_BATCH_ROWS or value.num_rows == 9000 for value in joined)


def test_batches_of_large_rows_stay_bounded() -> None:
    """Rows alone do not limit a joined batch, since a few wide rows could exceed the worker's
    memory.
    """
    wide = pa.record_batch({"text": pa.array(["x" * (SMALL_BATCH_BYTES // 3)])})
    assert [value.num_rows for value in join_small([wide] * 8)] == [3, 3, 2]


def test_batches_are_consumed_one_by_one() -> None:
    """Joining must not read ahead, or a task would hold all of its rows in memory."""
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for size in (SMALL_BATCH_ROWS, SMALL_BATCH_ROWS):
            taken.append(size)
            yield batch(size)

    joined = join_small(batches())
    assert next(joined).num_rows == SMALL_BATCH_ROWS
    assert len(taken) == 1
