"""Several threads read batches ahead of their consumer."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from lance_stream.read.prefetch import BatchRead, read_ahead

BATCH = pa.record_batch({"id": [1]})


def fail() -> pa.RecordBatch:
    raise OSError("the store is away")


@pytest.mark.parametrize("ends_by", ["error", "consumer"])
def test_abandoned_reads_end_on_the_consumers_thread(ends_by: str) -> None:
    """They may have started threads, which none of those threads can join."""
    ended_on = []

    def reads() -> Iterator[BatchRead]:
        try:
            yield BatchRead(lambda: BATCH, 1)
            yield BatchRead(fail if ends_by == "error" else lambda: BATCH, 1)
            for _ in range(100):
                yield BatchRead(lambda: BATCH, 1)
        finally:
            ended_on.append(threading.current_thread())

    kept = reads()  # as the frames of a traceback would keep it
    batches = read_ahead(kept, 2)
    next(batches)
    if ends_by == "error":
        with pytest.raises(OSError, match="the store is away"):
            list(batches)
    else:
        batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert ended_on == [threading.current_thread()]
