"""The bytes of a mini-block chunk: the sizes of its levels and value buffers, then the buffers.

    u16               number of levels; 0 without levels
    u16               bytes of repetition levels, if there are any
    u16               bytes of definition levels, if there are any
    u16 or u32, each  bytes of each value buffer; u32 if has_large_chunk
    padding, repetition, padding, definition, padding, value buffers with padding each, to 8 bytes

All chunks are split, and assembled, at once.

Source:  encodings21.MiniBlockLayout in the proto.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lance_stream.arrays import Bytes, Positions
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, starts_of
from lance_stream.file.v2_1.layouts.mini_block.chunk_table import ALIGNMENT

MAX_SMALL_CHUNK_BYTES = 32 * 1024
"""The most bytes of a chunk whose word in the chunk table is a u16."""

MAX_LEVEL_BYTES = 2**16 - 1
"""The most bytes (and number) of a chunk's levels: their sizes are u16."""


class SplitChunks(NamedTuple):
    """The buffers of some chunks.

    Attributes:
        num_levels: (num_chunks,) the stored number of levels of each chunk.
        levels: The level streams, repetition first.
        values: The value buffers.
    """

    num_levels: Positions
    levels: list[ChunkedBuffer]
    values: list[ChunkedBuffer]


def split_chunks(
    data: Bytes,
    starts: Positions,
    sizes: Positions,
    *,
    num_level_buffers: int,
    num_value_buffers: int,
    has_large_chunk: bool,
) -> SplitChunks:
    """Split chunks into their buffers.

    Args:
        data: Bytes that contain the chunks.
        starts: (num_chunks,) the start of each in `data`.
        sizes: (num_chunks,) the bytes of each.
        num_level_buffers: The number of level streams of each chunk.
        num_value_buffers: The number of value buffers of each chunk.
        has_large_chunk: Whether sizes of value buffers are u32.

    Raises:
        CorruptDataError: The stated sizes of the buffers exceed their chunk.
    """
    head_bytes = 2 + 2 * num_level_buffers + (4 if has_large_chunk else 2) * num_value_buffers
    head_bytes = _padded(head_bytes)
    if len(sizes) and sizes.min() < head_bytes:
        raise CorruptDataError(f"a chunk of {sizes.min()} bytes is too short for its header")
    halves = data.view("<u2")
    position = starts // 2
    num_levels = halves[position].astype(np.int64)
    lengths: list[Positions] = []
    for _ in range(num_level_buffers):
        position = position + 1
        lengths.append(halves[position].astype(np.int64))
    for _ in range(num_value_buffers):
        position = position + 1
        length = halves[position].astype(np.int64)
        if has_large_chunk:
            position = position + 1
            length |= halves[position].astype(np.int64) << 16
        lengths.append(length)
    buffers = []
    at = starts + head_bytes
    for length in lengths:
        buffers.append(ChunkedBuffer(data, at, length))
        at = at + _padded(length)
    if (at > starts + sizes).any():
        raise CorruptDataError("the buffers of a chunk are longer than the chunk")
    return SplitChunks(num_levels, buffers[:num_level_buffers], buffers[num_level_buffers:])


def zip_chunks(
    num_levels: Positions,
    streams: Sequence[ChunkedBuffer],
    values: Sequence[ChunkedBuffer],
    *,
    has_large_chunk: bool,
) -> tuple[Positions, Bytes] | None:
    """Assemble chunks.

    Args:
        num_levels: (num_chunks,) entries of each chunk.
        streams: The level streams.
        values: The value buffers.
        has_large_chunk: Whether sizes of value buffers are u32, as in 2.2.

    Returns:
        The bytes of each chunk, and all of them; None if a chunk is too large.
    """
    head_bytes = _padded(2 + 2 * len(streams) + (4 if has_large_chunk else 2) * len(values))
    buffers = [*streams, *values]
    sizes = head_bytes + sum(_padded(buffer.sizes) for buffer in buffers)
    if any(
        part.max() > MAX_LEVEL_BYTES for part in (num_levels, *(stream.sizes for stream in streams))
    ):
        return None
    if not has_large_chunk and sizes.max() > MAX_SMALL_CHUNK_BYTES:
        return None
    starts = starts_of(sizes)
    chunks = np.zeros(int(sizes.sum()), np.uint8)
    halves = chunks.view("<u2")
    position = starts // 2
    halves[position] = num_levels
    for stream in streams:
        position = position + 1
        halves[position] = stream.sizes
    for value in values:
        position = position + 1
        halves[position] = value.sizes & 0xFFFF
        if has_large_chunk:
            position = position + 1
            halves[position] = value.sizes >> 16
    at = starts + head_bytes
    for buffer in buffers:
        _copy_slices(chunks, at, buffer)
        at = at + _padded(buffer.sizes)
    return sizes, chunks


def _copy_slices(target: Bytes, starts: Positions, source: ChunkedBuffer) -> None:
    """Copy slices of bytes to their positions: evenly spaced ones all at once."""
    even = len(starts) - 1
    if even > 1:
        steps, source_steps = np.diff(starts[:-1]), np.diff(source.starts[:-1])
        size, step, source_step = int(source.sizes[0]), int(steps[0]), int(source_steps[0])
        if (
            (source.sizes[:-1] == size).all()
            and (steps == step).all()
            and (source_steps == source_step).all()
        ):
            as_strided(target[int(starts[0]) :], (even, size), (step, 1))[:] = as_strided(
                source.data[int(source.starts[0]) :], (even, size), (source_step, 1)
            )
            starts = starts[-1:]
            source = ChunkedBuffer(source.data, source.starts[-1:], source.sizes[-1:])
    to, of = target.data, source.data.data
    for start, first, size in zip(
        starts.tolist(), source.starts.tolist(), source.sizes.tolist(), strict=True
    ):
        to[start : start + size] = of[first : first + size]


def _padded(size: Any) -> Any:
    """Return sizes up to the next multiple of 8."""
    return -(-size // ALIGNMENT) * ALIGNMENT
