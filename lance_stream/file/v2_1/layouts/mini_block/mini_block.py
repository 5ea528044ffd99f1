"""Mini-block layout: a page's values split into chunks, each decoded as a whole.

The buffers of the page:

    0       chunk table   a word for each chunk: its bytes and its values (`chunk_table`)
    1       chunks        one after the other, each a multiple of 8 bytes
    2       dictionary    the distinct values, if the chunks contain indices; otherwise the next
    buffer last    rows          with repetition levels: the rows that end in each chunk
    (`chunk_table`)

`chunk_bytes` describes a chunk.

A row of lists can begin in one chunk and end in a later one. A chunk's levels are those of its
values, with the entries without a value before them; the last chunk has the remaining ones.

Reading requests the chunks of the rows. Table, dictionary and rows, if they are unknown, come one
round earlier; but together with all chunks if most chunks contain a requested row.

Source:  encodings21.MiniBlockLayout in the proto.
Differs: Chunks that we write contain up to 16 KiB of values, the reference's 8.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Positions
from lance_stream.byte_ranges import ByteRange, ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.arrow_blocks import array_from_block, look_up
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, starts_of
from lance_stream.file.blocks.data_blocks import DataBlock, FixedWidthBlock
from lance_stream.file.blocks.scattered_bytes import MAX_GAP_SHARE, read_joined
from lance_stream.file.metadata.columns import MAX_ITEMS, Page
from lance_stream.file.v2_1.codecs import (
    EncodedBlock,
    EncodedMiniBlock,
    decode_block,
    decode_mini_block,
    encode_block,
    encode_mini_block,
    num_mini_block_buffers,
    pick_mini_block,
)
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout, part
from lance_stream.file.v2_1.layouts.leaf_rows import (
    LeafColumn,
    RowSelection,
    as_bytes,
    as_positions,
    as_range,
)
from lance_stream.file.v2_1.layouts.level_chunks import (
    actual_counts,
    decode_level_chunks,
    encode_level_chunks,
)
from lance_stream.file.v2_1.layouts.levels import (
    LevelArray,
    Levels,
    check_layers,
    checked_levels,
    layers_of,
)
from lance_stream.file.v2_1.layouts.mini_block.chunk_bytes import split_chunks, zip_chunks
from lance_stream.file.v2_1.layouts.mini_block.chunk_table import (
    Chunks,
    encode_chunk_table,
    encode_row_index,
    parse_chunk_table,
    parse_row_index,
    word_bytes,
)

MAX_CHUNK_VALUES = 4096
MAX_VALUE_BYTES = 16 * 1024 - 64
"""The most bytes of values in a chunk that we write, if it has more than two values."""

_INDEX_BITS = (8, 16, 32, 64)


class MiniBlockPage:
    """A page in the mini-block layout.

    Args:
        message: Its layout message.
        page: Its buffers.
        leaf: The page's column.

    Raises:
        CorruptDataError: The message contradicts itself, the buffers or the column's type.
        UnsupportedFeatureError: The values' encoding is unknown; the message names it.
    """

    def __init__(self, message: pb.MiniBlockLayout, page: Page, leaf: LeafColumn) -> None:
        self._message = message
        self._page = page
        self._leaf = leaf
        self._layers = layers_of(tuple(message.layers))
        check_layers(self._layers, leaf.is_list)
        self._has_repetition = message.HasField("rep_compression")
        self._has_definition = message.HasField("def_compression")
        self._has_dictionary = message.HasField("dictionary")
        if self._has_repetition != (self._layers.max_repetition > 0):
            raise CorruptDataError("repetition levels are stored without lists, or lists without")
        if self._has_repetition and message.repetition_index_depth < 1:
            raise CorruptDataError("a page of lists does not state the rows of its chunks")
        num_buffers = 2 + self._has_dictionary + self._has_repetition
        if len(page.buffers) < num_buffers:
            raise CorruptDataError(
                f"a mini-block page has {len(page.buffers)} buffers instead of {num_buffers}"
            )
        count = num_mini_block_buffers(message.value_compression)
        if message.num_buffers != count:
            raise CorruptDataError(
                f"chunks claim to have {message.num_buffers} value buffers, but their encoding "
                f"has {count}"
            )
        self._num_buffers = count
        if not self._has_repetition and message.num_items != page.length:
            raise CorruptDataError(
                f"a page of {page.length} rows claims to have {message.num_items} values"
            )
        self._chunks: Chunks | None = None
        self._dictionary: pa.Array | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows of the page."""
        return self._page.length

    def read(self, rows: RowSelection) -> ByteRequests["ReadChunks"]:
        """Read some rows: first one round for all or many rows, or two for a few; later one.

        The chunks are decoded later, by `decode_pages`.
        """
        data = None
        if self._chunks is None:
            ranges = self._table_ranges()
            if self._needs_many_chunks(rows):
                *tables, data = yield [*ranges, self._page.buffers[1]]
            else:
                tables = yield ranges
            self._load_tables(tables)
        chunks = self._loaded_chunks()
        chosen, slots = chunks.containing(rows)
        if data is not None:
            return ReadChunks(self, chosen, as_bytes(data), chunks.starts[chosen], rows, slots)
        base = self._page.buffers[1].start
        joined, starts = yield from read_joined(
            base + chunks.starts[chosen], base + chunks.starts[chosen + 1]
        )
        return ReadChunks(self, chosen, joined, starts, rows, slots)

    def _needs_many_chunks(self, rows: RowSelection) -> bool:
        """Return whether most chunks have one of some rows, as far as can be told without a table.

        All chunks are taken to have as many rows. Later reads join the chunks of as many rows, too.
        """
        if isinstance(rows, range):
            return len(rows) == self._page.length
        num_chunks = self._page.buffers[0].size_bytes // word_bytes(
            has_large_chunk=self._message.has_large_chunk
        )
        min_chunks = (1 - MAX_GAP_SHARE) * num_chunks
        if len(rows) < min_chunks or num_chunks * self._page.length > MAX_ITEMS:
            return False
        chunks = rows * num_chunks // self._page.length
        return 1 + int(np.count_nonzero(chunks[1:] != chunks[:-1])) >= min_chunks

    def _table_ranges(self) -> list[ByteRange]:
        buffers = self._page.buffers
        ranges = [buffers[0]]
        if self._has_dictionary:
            ranges.append(buffers[2])
        if self._has_repetition:
            ranges.append(buffers[-1])
        return ranges

    def _load_tables(self, buffers: Sequence[memoryview]) -> None:
        starts, values = parse_chunk_table(
            as_bytes(buffers[0]),
            num_values=self._message.num_items,
            size_bytes=self._page.buffers[1].size_bytes,
            has_large_chunk=self._message.has_large_chunk,
        )
        rows, continues = values, None
        if self._has_repetition:
            rows, continues = parse_row_index(
                as_bytes(buffers[-1]),
                depth=self._message.repetition_index_depth,
                num_chunks=len(starts) - 1,
                num_rows=self._page.length,
            )
        if self._has_dictionary:
            self._dictionary = self._parse_dictionary(buffers[1])
        self._chunks = Chunks(starts, values, rows, continues)

    def _parse_dictionary(self, buffer: memoryview) -> pa.Array:
        arrow_type = self._leaf.arrow_type
        if pa.types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        block = decode_block(
            self._message.dictionary, as_bytes(buffer), self._message.num_dictionary_items
        )
        return array_from_block(block, arrow_type)

    def measure(self, chosen: Positions) -> tuple[Positions, Positions, Positions, int]:
        """Return the bytes, values and rows of some chunks, and the first row of the first."""
        chunks = self._loaded_chunks()
        return (
            chunks.starts[chosen + 1] - chunks.starts[chosen],
            chunks.values[chosen + 1] - chunks.values[chosen],
            chunks.rows[chosen + 1] - chunks.rows[chosen],
            int(chunks.rows[chosen[0]]),
        )

    def _loaded_chunks(self) -> Chunks:
        if self._chunks is None:
            raise CorruptDataError("a page has no chunk table")
        return self._chunks

    def rows_within(
        self, chosen: Positions, rows: Positions, slots: Positions, num_levels: Positions
    ) -> tuple[RowSelection, Positions | None]:
        """Return the requested rows among those that start in some chunks.

        Args:
            chosen: The chunks.
            rows: The rows, counted in the page.
            slots: (num_rows,) the position among the chunks of the one in which each starts.
            num_levels: (num_chosen,) the entries of each chunk.

        Returns:
            The rows, counted from the first that starts in the chunks; and, for a page of lists,
            the entries at which chunks were omitted.
        """
        chunks = self._loaded_chunks()
        firsts = chunks.rows[chosen]
        omitted = firsts - starts_of(chunks.rows[chosen + 1] - firsts)
        inside = as_range(rows - omitted[slots])
        if not self._has_repetition:
            return inside, None
        heads = np.flatnonzero(np.diff(chosen, prepend=-2) > 1)
        return as_positions(inside), starts_of(num_levels)[heads]

    def split(self, data: Bytes, starts: Positions, sizes: Positions) -> "ChunkParts":
        """Split chunks into their buffers."""
        num_levels, levels, values = split_chunks(
            data,
            starts,
            sizes,
            num_level_buffers=self._has_repetition + self._has_definition,
            num_value_buffers=self._num_buffers,
            has_large_chunk=self._message.has_large_chunk,
        )
        if self._has_repetition:
            num_levels = actual_counts(self._message.rep_compression, levels[0], num_levels)
        if self._has_definition:
            num_levels = actual_counts(self._message.def_compression, levels[-1], num_levels)
        return ChunkParts(
            num_levels,
            levels[0] if self._has_repetition else None,
            levels[-1] if self._has_definition else None,
            values,
        )

    def decode_levels(self, parts: "ChunkParts", counts: Positions) -> Levels:
        """Decode the levels of some chunks, given the values of each."""
        if parts.repetition is None and parts.definition is None:
            return Levels(self._layers, None, None, int(counts.sum()))
        if parts.repetition is None and (parts.num_levels != counts).any():
            raise CorruptDataError("a chunk does not have one level for each value")
        if (parts.num_levels < counts).any():
            raise CorruptDataError("a chunk has fewer levels than values")
        repetition: LevelArray | None = None
        definition: LevelArray | None = None
        if parts.repetition is not None:
            repetition = decode_level_chunks(
                self._message.rep_compression, parts.repetition, parts.num_levels
            )
        if parts.definition is not None:
            definition = decode_level_chunks(
                self._message.def_compression, parts.definition, parts.num_levels
            )
        levels = checked_levels(
            Levels(self._layers, repetition, definition, int(parts.num_levels.sum()))
        )
        if levels.num_visible() != int(counts.sum()):
            raise CorruptDataError(
                f"the levels describe {levels.num_visible()} values instead of {counts.sum()}"
            )
        return levels

    def decode_values(self, buffers: Sequence[ChunkedBuffer], counts: Positions) -> pa.Array:
        """Decode the values of some chunks, or the indices into the dictionary."""
        block = decode_mini_block(self._message.value_compression, buffers, counts)
        stored = self._stored_values(block)
        if len(stored) != int(counts.sum()):
            raise CorruptDataError(f"there are {len(stored)} values instead of {counts.sum()}")
        return stored

    def pick_values(
        self, buffers: Sequence[ChunkedBuffer], counts: Positions, positions: Positions
    ) -> pa.Array | None:
        """Decode some values of some chunks, or indices; None if only all can be decoded."""
        block = pick_mini_block(self._message.value_compression, buffers, counts, positions)
        return None if block is None else self._stored_values(block)

    def _stored_values(self, block: DataBlock) -> pa.Array:
        if not self._has_dictionary:
            return array_from_block(block, self._leaf.arrow_type)
        if not isinstance(block, FixedWidthBlock) or block.bits_per_value not in _INDEX_BITS:
            raise CorruptDataError("the indices of a dictionary are not words")
        return array_from_block(block, pa.from_numpy_dtype(f"uint{block.bits_per_value}"))

    def resolved(self, stored: pa.Array, levels: Levels) -> pa.Array:
        """Return the values for the result of `decode_values`: items in place of indices."""
        if self._dictionary is None:
            return stored
        valid = None
        if levels.definition is not None:
            visible = levels.visible()
            valid = (levels.definition if visible is None else levels.definition[visible]) == 0
        return look_up(stored, self._dictionary, self._leaf.arrow_type, valid)

    def key_of_values(self) -> bytes | None:
        """Return a key that pages share if their values can be decoded together, if any can."""
        if self._has_dictionary:
            return None
        return self._message.value_compression.SerializeToString()

    def key_of_levels(self) -> tuple[object, ...]:
        """Return a key that pages share if their levels can be decoded together."""
        message = self._message
        return (
            self._layers,
            message.rep_compression.SerializeToString(),
            message.def_compression.SerializeToString(),
            message.has_large_chunk,
            self._num_buffers,
        )


class ReadChunks(NamedTuple):
    """Chunks of a page that are read, but not decoded yet.

    Attributes:
        page: The page.
        chosen: The chunks, ascending.
        data: Their bytes, possibly with others between them.
        starts: (num_chosen,) the start of each in `data`.
        rows: The requested rows, counted in the page.
        slots: (num_rows,) the position in `chosen` of the chunk in which each starts; empty for a
            range.
    """

    page: MiniBlockPage
    chosen: Positions
    data: Bytes
    starts: Positions
    rows: RowSelection
    slots: Positions


class ChunkParts(NamedTuple):
    """The buffers of some chunks, and the number of levels of each chunk."""

    num_levels: Positions
    repetition: ChunkedBuffer | None
    definition: ChunkedBuffer | None
    values: list[ChunkedBuffer]


def encode_mini_block_page(
    levels: Levels,
    values: DataBlock | EncodedMiniBlock,
    items: DataBlock | EncodedBlock | None,
    *,
    has_large_chunk: bool,
) -> EncodedLayout | None:
    """Encode a page in the mini-block layout.

    Args:
        levels: The page's levels.
        values: A value for each visible entry, or an index into `items`; at least one. Values that
            a codec has split into chunks are kept so; others are stored plain.
        items: The dictionary's items, if there is a dictionary.
        has_large_chunk: Whether sizes are u32, as in 2.2.

    Returns:
        The layout; None if the levels of a chunk (or of any two values, if we split) do not fit.
    """
    if isinstance(values, EncodedMiniBlock):
        return _encode_chunks(levels, values, items, has_large_chunk=has_large_chunk)
    max_values = MAX_CHUNK_VALUES
    while max_values > 1:
        encoded = encode_mini_block(
            values, max_chunk_values=max_values, max_chunk_bytes=MAX_VALUE_BYTES
        )
        layout = _encode_chunks(levels, encoded, items, has_large_chunk=has_large_chunk)
        if layout is not None:
            return layout
        if int(encoded.num_values.max()) > max_values:
            break  # values of less than a byte cannot be split further
        max_values = int(encoded.num_values.max()) // 2
    return None


def _encode_chunks(
    levels: Levels,
    encoded: EncodedMiniBlock,
    items: DataBlock | EncodedBlock | None,
    *,
    has_large_chunk: bool,
) -> EncodedLayout | None:
    starts = _level_starts(levels, encoded.num_values)
    num_levels = np.diff(np.append(starts, levels.num_levels))
    message = pb.MiniBlockLayout(
        value_compression=encoded.encoding,
        layers=levels.layers.kinds,  # type: ignore[arg-type]  # an int is one
        num_buffers=len(encoded.buffers),
        num_items=int(encoded.num_values.sum()),
        has_large_chunk=has_large_chunk,
    )
    streams = []
    if levels.repetition is not None:
        encoding, stream = encode_level_chunks(levels.repetition, starts, as_runs=has_large_chunk)
        message.rep_compression.CopyFrom(encoding)
        streams.append(stream)
    if levels.definition is not None:
        encoding, stream = encode_level_chunks(levels.definition, starts, as_runs=has_large_chunk)
        message.def_compression.CopyFrom(encoding)
        streams.append(stream)
    chunks = zip_chunks(
        num_levels if streams else np.zeros_like(num_levels),
        streams,
        encoded.buffers,
        has_large_chunk=has_large_chunk,
    )
    if chunks is None:
        return None
    sizes, data = chunks
    table = encode_chunk_table(sizes, encoded.num_values, has_large_chunk=has_large_chunk)
    buffers = [part(table), part(data)]
    if items is not None:
        stored = items if isinstance(items, EncodedBlock) else encode_block(items)
        message.dictionary.CopyFrom(stored.encoding)
        message.num_dictionary_items = stored.num_values
        buffers.append(part(stored.data))
    if levels.repetition is not None:
        message.repetition_index_depth = 1
        buffers.append(part(encode_row_index(levels, starts)))
    return EncodedLayout(pb.PageLayout(mini_block_layout=message), tuple(buffers))


def _level_starts(levels: Levels, num_values: Positions) -> Positions:
    """Return the first entry of each chunk: the one after the last value of the previous chunk."""
    starts = starts_of(num_values)
    visible = levels.visible()
    if visible is not None:
        starts[1:] = np.flatnonzero(visible)[starts[1:] - 1] + 1
    return starts
