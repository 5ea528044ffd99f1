"""Decodes adjacent mini-block pages of a column together if they have the same structure.

Many small pages then cost little more than one large one.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, concatenate_chunks
from lance_stream.file.v2_1.layouts.leaf_rows import (
    LeafRows,
    RowSelection,
    as_positions,
    pick_levels,
    pick_rows,
    pick_values,
)
from lance_stream.file.v2_1.layouts.levels import Levels
from lance_stream.file.v2_1.layouts.mini_block.mini_block import ChunkParts, ReadChunks

SPARSE = 8
"""If at most one in this number of values is needed, they are decoded individually if possible."""


def fit_together(first: ReadChunks, second: ReadChunks) -> bool:
    """Return whether two adjacent pages of a column can be decoded together.

    The requested rows must be adjacent across the end of the first page.
    """
    return (
        isinstance(first.rows, range)
        and isinstance(second.rows, range)
        and first.rows.stop == first.page.num_rows
        and second.rows.start == 0
        and first.page.key_of_levels() == second.page.key_of_levels()
    )


def decode_pages(parts: Sequence[ReadChunks]) -> LeafRows:
    """Decode adjacent pages of a column that all fit together.

    Many small pages cost little more than one large one.

    Raises:
        CorruptDataError: The bytes contradict themselves.
        UnsupportedFeatureError: The values' encoding is unknown; the message names it.
    """
    first = parts[0].page
    measures = [part.page.measure(part.chosen) for part in parts]
    counts, started = (np.concatenate([measure[index] for measure in measures]) for index in (1, 2))
    chunks = _concatenate_parts(
        [
            part.page.split(part.data, part.starts, measure[0])
            for part, measure in zip(parts, measures, strict=True)
        ]
    )
    levels = first.decode_levels(chunks, counts)
    if levels.num_rows() != int(started.sum()):
        raise CorruptDataError(
            f"{levels.num_rows()} rows start in chunks that claim {started.sum()}"
        )
    breaks = None
    rows = parts[0].rows
    if isinstance(rows, range):
        start = rows.start - measures[0][3]
        inside: RowSelection = range(start, start + sum(len(part.rows) for part in parts))
    else:
        inside, breaks = first.rows_within(parts[0].chosen, rows, parts[0].slots, chunks.num_levels)
    entries, positions = pick_rows(levels, inside, breaks)
    if len(parts) == 1 and len(positions) * SPARSE < int(counts.sum()):
        picked = first.pick_values(chunks.values, counts, as_positions(positions))
        if picked is not None:
            levels = pick_levels(levels, entries)
            return LeafRows(levels, first.resolved(picked, levels))
    stops = np.cumsum([len(part.chosen) for part in parts])
    values = _join(_decode_values_of_pages(parts, chunks, counts, levels, stops))
    return LeafRows(pick_levels(levels, entries), pick_values(values, positions))


def _concatenate_parts(pages: Sequence[ChunkParts]) -> ChunkParts:
    """Return the buffers of the chunks of several pages, concatenated."""
    if len(pages) == 1:
        return pages[0]
    return ChunkParts(
        np.concatenate([page.num_levels for page in pages]),
        _concatenate_levels([page.repetition for page in pages]),
        _concatenate_levels([page.definition for page in pages]),
        [
            concatenate_chunks(values)
            for values in zip(*(page.values for page in pages), strict=True)
        ],
    )


def _concatenate_levels(buffers: Sequence[ChunkedBuffer | None]) -> ChunkedBuffer | None:
    """Return the level streams of several pages, concatenated; either all have one, or none."""
    present = [buffer for buffer in buffers if buffer is not None]
    return concatenate_chunks(present) if present else None


def _decode_values_of_pages(
    parts: Sequence[ReadChunks],
    chunks: ChunkParts,
    counts: Positions,
    levels: Levels,
    stops: Positions,
) -> Iterator[pa.Array]:
    """Yield the values of some pages, together for those of one encoding.

    Args:
        parts: The pages.
        chunks: The parts of their chunks.
        counts: (num_chunks,) the number of values of each.
        levels: The levels of all of them.
        stops: (num_pages,) the number of chunks before the end of each page.
    """
    entries = np.append(0, np.cumsum(chunks.num_levels if levels.has_streams() else counts))
    start = 0
    for key, run in groupby(enumerate(parts), lambda numbered: numbered[1].page.key_of_values()):
        positions = [index for index, _ in run]
        for group in [positions] if key is not None else [[index] for index in positions]:
            stop = int(stops[group[-1]])
            page, chunk_slice = parts[group[0]].page, slice(start, stop)
            buffers = [
                ChunkedBuffer(buffer.data, buffer.starts[chunk_slice], buffer.sizes[chunk_slice])
                for buffer in chunks.values
            ]
            stored = page.decode_values(buffers, counts[chunk_slice])
            yield page.resolved(stored, levels.slice(int(entries[start]), int(entries[stop])))
            start = stop


def _join(arrays: Iterable[pa.Array]) -> pa.Array:
    arrays = list(arrays)
    try:
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"the values of several pages do not fit into one Arrow array ({error}); read fewer "
            "rows at a time"
        ) from None
