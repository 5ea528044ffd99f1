"""Rows in Arrow's stream and file formats, from arrays of any origin."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.arrow_streams import decode_batches, encode_batches

VALUES = pa.array([2, 3, 5, 7, 11], pa.int32())
BYTES = pa.array([b"primesnumbers"]).buffers()[2]


def from_offsets(kind: pa.DataType, width: pa.DataType) -> pa.Array:
    """Return values whose first offset is not 0, as Rust slices arrays."""
    offsets = pa.array([2, 4, 4, 5], width).buffers()[1]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.Array.from_buffers(kind, 3, [None, offsets], children=[VALUES])
    return pa.Array.from_buffers(kind, 3, [None, offsets, BYTES])


@pytest.mark.floors
@pytest.mark.parametrize("open_writer", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize(
    ("kind", "width"),
    [
        (pa.string(), pa.int32()),
        (pa.large_binary(), pa.int64()),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.large_list(pa.int32()), pa.int64()),
    ],
    ids=str,
)
def test_shifted_offsets_round_trip(
    kind: pa.DataType, width: pa.DataType, open_writer: Callable[..., Any]
) -> None:
    """pyarrow before version 21 writes other values, or offsets that point to none."""
    array = from_offsets(kind, width)
    array.validate(full=True)
    nested = pa.StructArray.from_arrays([array], fields=[pa.field("part", kind)])
    batch = pa.record_batch([array, nested], ["flat", "nested"])
    data = encode_batches(batch.schema, [batch, batch.slice(1)], open_writer)
    if open_writer is pa.ipc.new_stream:
        batches = decode_batches(data)
    else:
        batches = pa.ipc.open_file(data).read_all().to_batches()
    for read in batches:
        read.validate(full=True)
    assert pa.Table.from_batches(batches) == pa.Table.from_batches([batch, batch.slice(1)])
