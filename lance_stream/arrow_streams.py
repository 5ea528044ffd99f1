"""Rows in Arrow's stream and file formats: for staged files, for other processes, and for Spark."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa

from lance_stream.byte_ranges import Buffer

_SHIFTS_OFFSETS: Final = int(pa.__version__.partition(".")[0]) >= 21
"""Whether pyarrow writes correct offsets for lists and strings whose first offset is not 0.

Arrow's Rust library slices arrays in that way. Older versions of pyarrow write offsets that point
to other values, or to none: https://github.com/apache/arrow/issues/46407.
"""


def encode_batches(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    open_writer: Callable[..., Any] = pa.ipc.new_stream,
    **options: Any,
) -> bytes:
    """Return rows as one Arrow stream or file.

    Args:
        schema: The schema of the batches.
        batches: The rows.
        open_writer: `pa.ipc.new_file` for the file format.
        options: Further arguments of `open_writer`.
    """
    sink = pa.BufferOutputStream()
    with open_writer(sink, schema, **options) as writer:
        for batch in batches:
            writer.write_batch(writable(batch))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_batches(data: bytes | Buffer) -> list[pa.RecordBatch]:
    """Return the rows of an Arrow stream."""
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def writable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in arrays that this version of pyarrow writes correctly."""
    if _SHIFTS_OFFSETS:
        return batch
    return batch.take(pa.array(range(batch.num_rows), pa.int64()))
