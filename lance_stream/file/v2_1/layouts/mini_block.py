"""Mini-block layout: a page's values cut into chunks, each decoded as a whole.

The buffers of the page:

    0       chunk table   a word for each chunk, u16, or u32 if has_large_chunk (2.2):
                          (bytes of the chunk / 8 - 1) << 4 | log2 of its values;
                          0 in place of the logarithm says: all the values that are left
    1       chunks        one after the other, each a multiple of 8 bytes
    2       dictionary    the distinct values, if the chunks hold indices; else the next buffer
    last    rows          with repetition levels: (u64, u64) for each chunk: rows that end in it,
                          entries after the last end (0: the last row ends with the chunk)

A chunk:

    u16               number of levels; 0 without levels
    u16               bytes of repetition levels, if there are such
    u16               bytes of definition levels, if there are such
    u16 or u32, each  bytes of each value buffer; u32 if has_large_chunk
    padding, repetition, padding, definition, padding, value buffers with padding each, to 8 bytes

A row of lists can begin in one chunk and end in a later one. A chunk's levels are those of its
values, with the entries that hold no value before them; the last chunk has what is left.

Reading asks for the chunks that hold the rows, together with table, dictionary and rows if these
are not known and the whole page is wanted; else these come one round earlier.

Source:  encodings21.MiniBlockLayout in the proto.
Differs: Chunks that we write hold up to 16 KiB of values, the reference's 8.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.byte_ranges import Asking, ByteRange
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.arrow_blocks import array_from_block, look_up
from lance_stream.file.chunked_buffers import ChunkedBuffer, starts_of
from lance_stream.file.columns import Page
from lance_stream.file.data_blocks import Bytes, DataBlock, FixedWidthBlock
from lance_stream.file.scattered_bytes import read_joined
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
    LeafRows,
    RowsAsked,
    as_bytes,
    as_places,
    as_range,
    first_of,
    last_of,
    pick_levels,
    pick_rows,
    pick_values,
    spread,
)
from lance_stream.file.v2_1.layouts.level_chunks import (
    decode_level_chunks,
    encode_level_chunks,
    true_counts,
)
from lance_stream.file.v2_1.layouts.levels import (
    LevelArray,
    Levels,
    Places,
    check_layers,
    checked_levels,
    layers_of,
)

MAX_LOG_VALUES = 15
"""A chunk's number of values is stored as its logarithm in 4 bits."""

MAX_CHUNK_VALUES = 4096
MAX_VALUE_BYTES = 16 * 1024 - 64
"""Bytes of values in a chunk that we write, as long as it has more than two values."""

MAX_SMALL_CHUNK_BYTES = 32 * 1024
"""A chunk's bytes at most, if its word in the chunk table is a u16."""

MAX_LEVEL_BYTES = 2**16 - 1
"""Bytes (and number) of a chunk's levels at most: their sizes are u16."""

SPARSE = 8
"""If only one of so many values is wanted, they are decoded one by one where that can be done."""

_ALIGNMENT = 8
_INDEX_BITS = (8, 16, 32, 64)


class _Chunks(NamedTuple):
    """Where the chunks of a page lie, and what they hold."""

    starts: Places  # (num_chunks + 1,) bytes, from the start of the buffer
    values: Places  # (num_chunks + 1,) values before each
    rows: Places  # (num_chunks + 1,) rows that start before each
    goes_on: npt.NDArray[np.bool_] | None  # whether the last row of each goes on in the next


class MiniBlockPage:
    """A page in the mini-block layout.

    Args:
        message: Its layout.
        page: Its buffers.
        leaf: The column it belongs to.

    Raises:
        CorruptDataError: The message contradicts itself, the buffers or the column's type.
        UnsupportedFeatureError: The values' encoding is none that we know, by name.
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
            raise CorruptDataError("a page of lists does not say which rows its chunks hold")
        wanted = 2 + self._has_dictionary + self._has_repetition
        if len(page.buffers) < wanted:
            raise CorruptDataError(
                f"a mini-block page has {len(page.buffers)} buffers in place of {wanted}"
            )
        count = num_mini_block_buffers(message.value_compression)
        if message.num_buffers != count:
            raise CorruptDataError(
                f"chunks are said to have {message.num_buffers} value buffers, but their encoding "
                f"has {count}"
            )
        self._num_buffers = count
        if not self._has_repetition and message.num_items != page.length:
            raise CorruptDataError(
                f"a page of {page.length} rows is said to hold {message.num_items} values"
            )
        self._chunks: _Chunks | None = None
        self._dictionary: pa.Array | None = None

    @property
    def num_rows(self) -> int:
        """How many rows the page has."""
        return self._page.length

    def read(self, rows: RowsAsked) -> Asking["ReadChunks"]:
        """Read some rows: one round for all rows at first, else two at first and then one.

        The chunks are decoded later, by `decode_pages`.
        """
        data = None
        if self._chunks is None:
            ranges = self._table_ranges()
            if isinstance(rows, range) and len(rows) == self._page.length:
                *tables, data = yield [*ranges, self._page.buffers[1]]
            else:
                tables = yield ranges
            self._load_tables(tables)
        chunks = self._known_chunks()
        chosen = self._choose(chunks, rows)
        if data is not None:
            return ReadChunks(self, chosen, as_bytes(data), chunks.starts[chosen], rows)
        base = self._page.buffers[1].start
        joined, starts = yield from read_joined(
            base + chunks.starts[chosen], base + chunks.starts[chosen + 1]
        )
        return ReadChunks(self, chosen, joined, starts, rows)

    def _table_ranges(self) -> list[ByteRange]:
        buffers = self._page.buffers
        ranges = [buffers[0]]
        if self._has_dictionary:
            ranges.append(buffers[2])
        if self._has_repetition:
            ranges.append(buffers[-1])
        return ranges

    def _load_tables(self, buffers: Sequence[memoryview]) -> None:
        starts, values = self._parse_table(as_bytes(buffers[0]))
        rows, goes_on = values, None
        if self._has_repetition:
            rows, goes_on = self._parse_rows(as_bytes(buffers[-1]), len(starts) - 1)
        if self._has_dictionary:
            self._dictionary = self._parse_dictionary(buffers[1])
        self._chunks = _Chunks(starts, values, rows, goes_on)

    def _parse_table(self, table: Bytes) -> tuple[Places, Places]:
        width = 4 if self._message.has_large_chunk else 2
        if len(table) % width or len(table) == 0:
            raise CorruptDataError(f"a chunk table of {len(table)} bytes has no whole words")
        words = table.view(f"<u{width}").astype(np.int64)
        starts = np.zeros(len(words) + 1, np.int64)
        np.cumsum(((words >> 4) + 1) * _ALIGNMENT, out=starts[1:])
        if starts[-1] != self._page.buffers[1].size_bytes:
            raise CorruptDataError(
                f"the chunk table tells of {starts[-1]} bytes, but the chunks have "
                f"{self._page.buffers[1].size_bytes}"
            )
        logs = words & MAX_LOG_VALUES
        values = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.int64(1) << logs[:-1], out=values[1:-1])
        rest = self._message.num_items - int(values[-2])
        if (logs[:-1] == 0).any() or not 0 <= rest <= 1 << MAX_LOG_VALUES:
            raise CorruptDataError(
                f"the chunk table tells of {values[-2]} values before the last chunk, and the page "
                f"has {self._message.num_items}"
            )
        values[-1] = self._message.num_items
        if logs[-1] and rest != 1 << int(logs[-1]):
            raise CorruptDataError(
                f"the last chunk is said to hold {1 << int(logs[-1])} values, but {rest} are left"
            )
        return starts, values

    def _parse_rows(self, index: Bytes, num_chunks: int) -> tuple[Places, npt.NDArray[np.bool_]]:
        stride = self._message.repetition_index_depth + 1
        if len(index) != num_chunks * stride * 8:
            raise CorruptDataError(
                f"{len(index)} bytes tell of the rows of {num_chunks} chunks, {stride} words each"
            )
        words = index.view("<u8").reshape(num_chunks, stride)
        if (words[:, 0] > self._page.length).any():
            raise CorruptDataError(f"{words[:, 0].max()} rows are said to end in one chunk")
        goes_on = words[:, 1] > 0
        # A row that goes on starts here and ends later; the row that came over started before.
        started = words[:, 0].astype(np.int64) + goes_on
        started[1:] -= goes_on[:-1]
        rows = np.zeros(num_chunks + 1, np.int64)
        np.cumsum(started, out=rows[1:])
        if (started < 0).any() or goes_on[-1] or rows[-1] != self._page.length:
            raise CorruptDataError(
                f"the chunks are said to hold {rows[-1]} rows, but the page has {self._page.length}"
            )
        return rows, goes_on

    def _parse_dictionary(self, buffer: memoryview) -> pa.Array:
        arrow_type = self._leaf.arrow_type
        if pa.types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        block = decode_block(
            self._message.dictionary, as_bytes(buffer), self._message.num_dictionary_items
        )
        return array_from_block(block, arrow_type)

    def _choose(self, chunks: _Chunks, rows: RowsAsked) -> Places:
        """Return the chunks that some rows need, ascending."""
        if chunks.goes_on is None:
            if isinstance(rows, range):
                ends = _holders(chunks.rows, np.array([rows.start, rows.stop - 1]))
                return np.arange(ends[0], ends[1] + 1)
            return np.unique(_holders(chunks.rows, rows))
        first = int(_holders(chunks.rows, np.array([first_of(rows)]))[0])
        places = np.array([last_of(rows)]) if isinstance(rows, range) else rows
        firsts = _holders(chunks.rows, places)
        # A row that goes on ends where another one starts, or where none goes on.
        ends = np.flatnonzero((np.diff(chunks.rows) > 0) | ~chunks.goes_on)
        goes_on = chunks.goes_on[firsts] & (places == chunks.rows[firsts + 1] - 1)
        after = np.minimum(np.searchsorted(ends, firsts, side="right"), len(ends) - 1)
        lasts = np.where(goes_on, ends[after], firsts)
        if isinstance(rows, range):
            return np.arange(first, int(lasts[-1]) + 1)
        return np.unique(spread(firsts, lasts + 1))

    def measure(self, chosen: Places) -> tuple[Places, Places, Places, int]:
        """Return of some chunks their bytes, values and rows, and the first row of the first."""
        chunks = self._known_chunks()
        return (
            chunks.starts[chosen + 1] - chunks.starts[chosen],
            chunks.values[chosen + 1] - chunks.values[chosen],
            chunks.rows[chosen + 1] - chunks.rows[chosen],
            int(chunks.rows[chosen[0]]),
        )

    def _known_chunks(self) -> _Chunks:
        if self._chunks is None:
            raise CorruptDataError("a page has no chunk table")
        return self._chunks

    def places_in(
        self, chosen: Places, rows: Places, num_levels: Places
    ) -> tuple[RowsAsked, Places | None]:
        """Return which of the rows that start in some chunks are asked for.

        Args:
            chosen: The chunks.
            rows: The rows, counted in the page.
            num_levels: (num_chosen,) the entries of each chunk.

        Returns:
            The rows, counted from the first that starts in the chunks; and the entries at which
            chunks were left out, of a page of lists.
        """
        chunks = self._known_chunks()
        slots = np.searchsorted(chosen, _holders(chunks.rows, rows))
        started = chunks.rows[chosen + 1] - chunks.rows[chosen]
        inside = as_range(starts_of(started)[slots] + rows - chunks.rows[chosen[slots]])
        if not self._has_repetition:
            return inside, None
        heads = np.flatnonzero(np.diff(chosen, prepend=-2) > 1)
        return as_places(inside), starts_of(num_levels)[heads]

    def part(self, data: Bytes, starts: Places, sizes: Places) -> "_ChunkParts":
        """Part chunks into their buffers."""
        large = self._message.has_large_chunk
        num_level_buffers = self._has_repetition + self._has_definition
        head_bytes = 2 + 2 * num_level_buffers + (4 if large else 2) * self._num_buffers
        head_bytes = _padded(head_bytes)
        if len(sizes) and sizes.min() < head_bytes:
            raise CorruptDataError(f"a chunk of {sizes.min()} bytes is too short for its head")
        halves = data.view("<u2")
        place = starts // 2
        num_levels = halves[place].astype(np.int64)
        lengths: list[Places] = []
        for _ in range(num_level_buffers):
            place = place + 1
            lengths.append(halves[place].astype(np.int64))
        for _ in range(self._num_buffers):
            place = place + 1
            length = halves[place].astype(np.int64)
            if large:
                place = place + 1
                length |= halves[place].astype(np.int64) << 16
            lengths.append(length)
        buffers = []
        at = starts + head_bytes
        for length in lengths:
            buffers.append(ChunkedBuffer(data, at, length))
            at = at + _padded(length)
        if (at > starts + sizes).any():
            raise CorruptDataError("the buffers of a chunk are longer than the chunk")
        levels, values = buffers[:num_level_buffers], buffers[num_level_buffers:]
        if self._has_repetition:
            num_levels = true_counts(self._message.rep_compression, levels[0], num_levels)
        if self._has_definition:
            num_levels = true_counts(self._message.def_compression, levels[-1], num_levels)
        return _ChunkParts(
            num_levels,
            levels[0] if self._has_repetition else None,
            levels[-1] if self._has_definition else None,
            values,
        )

    def decode_levels(self, parts: "_ChunkParts", counts: Places) -> Levels:
        """Decode the levels of some chunks that hold so many values each."""
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
                f"the levels are those of {levels.num_visible()} values in place of {counts.sum()}"
            )
        return levels

    def decode_values(self, buffers: Sequence[ChunkedBuffer], counts: Places) -> pa.Array:
        """Decode the values of some chunks, or the indices into the dictionary."""
        block = decode_mini_block(self._message.value_compression, buffers, counts)
        stored = self._stored_values(block)
        if len(stored) != int(counts.sum()):
            raise CorruptDataError(f"{len(stored)} values are there in place of {counts.sum()}")
        return stored

    def pick_values(
        self, buffers: Sequence[ChunkedBuffer], counts: Places, places: Places
    ) -> pa.Array | None:
        """Decode some values of some chunks, or indices; None: only all can be decoded."""
        block = pick_mini_block(self._message.value_compression, buffers, counts, places)
        return None if block is None else self._stored_values(block)

    def _stored_values(self, block: DataBlock) -> pa.Array:
        if not self._has_dictionary:
            return array_from_block(block, self._leaf.arrow_type)
        if not isinstance(block, FixedWidthBlock) or block.bits_per_value not in _INDEX_BITS:
            raise CorruptDataError("the indices of a dictionary are not words")
        return array_from_block(block, pa.from_numpy_dtype(f"uint{block.bits_per_value}"))

    def finished(self, stored: pa.Array, levels: Levels) -> pa.Array:
        """Return the values of which `decode_values` gave some, and that have these levels."""
        if self._dictionary is None:
            return stored
        valid = None
        if levels.definition is not None:
            visible = levels.visible()
            valid = (levels.definition if visible is None else levels.definition[visible]) == 0
        return look_up(stored, self._dictionary, self._leaf.arrow_type, valid)

    def key_of_values(self) -> bytes | None:
        """Return what pages have in common whose values can be decoded together, if any can."""
        if self._has_dictionary:
            return None
        return self._message.value_compression.SerializeToString()

    def key_of_levels(self) -> tuple[object, ...]:
        """Return what pages have in common whose levels can be decoded together."""
        message = self._message
        return (
            self._layers,
            message.rep_compression.SerializeToString(),
            message.def_compression.SerializeToString(),
            message.has_large_chunk,
            self._num_buffers,
        )


class ReadChunks(NamedTuple):
    """Chunks of a page that were read, but not decoded yet.

    Attributes:
        page: The page.
        chosen: Which chunks, ascending.
        data: Their bytes, perhaps with others between them.
        starts: (num_chosen,) where in `data` each of them starts.
        rows: Which of their rows are asked for, counted in the page.
    """

    page: MiniBlockPage
    chosen: Places
    data: Bytes
    starts: Places
    rows: RowsAsked


class _ChunkParts(NamedTuple):
    num_levels: Places
    repetition: ChunkedBuffer | None
    definition: ChunkedBuffer | None
    values: list[ChunkedBuffer]


def fit_together(one: ReadChunks, next_one: ReadChunks) -> bool:
    """Say whether two neighbouring pages of a column can be decoded together.

    The rows asked for must stand together, across the end of the first page.
    """
    return (
        isinstance(one.rows, range)
        and isinstance(next_one.rows, range)
        and one.rows.stop == one.page.num_rows
        and next_one.rows.start == 0
        and one.page.key_of_levels() == next_one.page.key_of_levels()
    )


def decode_pages(parts: Sequence[ReadChunks]) -> LeafRows:
    """Decode neighbouring pages of a column that all fit together.

    Many small pages cost little more than one large one.

    Raises:
        CorruptDataError: The bytes contradict themselves.
        UnsupportedFeatureError: The values' encoding is none that we know, by name.
    """
    first = parts[0].page
    measures = [each.page.measure(each.chosen) for each in parts]
    sizes, counts, started = (
        np.concatenate([each[place] for each in measures]) for place in range(3)
    )
    if len(parts) == 1:
        data, starts = parts[0].data, parts[0].starts
    else:
        data = np.concatenate([each.data for each in parts])
        before = starts_of(np.array([len(each.data) for each in parts]))
        starts = np.concatenate([each.starts + at for each, at in zip(parts, before, strict=True)])
    chunks = first.part(data, starts, sizes)
    levels = first.decode_levels(chunks, counts)
    if levels.num_rows() != int(started.sum()):
        raise CorruptDataError(
            f"{levels.num_rows()} rows start in chunks that are said to start {started.sum()}"
        )
    breaks = None
    asked = parts[0].rows
    if isinstance(asked, range):
        start = asked.start - measures[0][3]
        inside: RowsAsked = range(start, start + sum(len(each.rows) for each in parts))
    else:
        inside, breaks = first.places_in(parts[0].chosen, asked, chunks.num_levels)
    entries, places = pick_rows(levels, inside, breaks)
    if len(parts) == 1 and len(places) * SPARSE < int(counts.sum()):
        picked = first.pick_values(chunks.values, counts, as_places(places))
        if picked is not None:
            levels = pick_levels(levels, entries)
            return LeafRows(levels, first.finished(picked, levels))
    stops = np.cumsum([len(each.chosen) for each in parts])
    values = _join(_decode_values_of_pages(parts, chunks, counts, levels, stops))
    return LeafRows(pick_levels(levels, entries), pick_values(values, places))


def _decode_values_of_pages(
    parts: Sequence[ReadChunks],
    chunks: _ChunkParts,
    counts: Places,
    levels: Levels,
    stops: Places,
) -> Iterator[pa.Array]:
    """Yield the values of some pages, of as many at once as have one encoding.

    Args:
        parts: The pages.
        chunks: What their chunks were parted into.
        counts: (num_chunks,) the values of each.
        levels: Of all of them.
        stops: (num_pages,) how many chunks stand before the end of each page.
    """
    entries = np.append(0, np.cumsum(chunks.num_levels if levels.has_streams() else counts))
    start = 0
    for key, run in groupby(enumerate(parts), lambda each: each[1].page.key_of_values()):
        places = [place for place, _ in run]
        for some in [places] if key is not None else [[place] for place in places]:
            stop = int(stops[some[-1]])
            page, here = parts[some[0]].page, slice(start, stop)
            buffers = [
                ChunkedBuffer(of.data, of.starts[here], of.sizes[here]) for of in chunks.values
            ]
            stored = page.decode_values(buffers, counts[here])
            yield page.finished(stored, levels.slice(int(entries[start]), int(entries[stop])))
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
        values: A value for each visible entry, or an index into `items`; at least one. Those that
            a codec has cut into chunks are kept so; others are stored as they are.
        items: The dictionary's items, if there is a dictionary.
        has_large_chunk: Whether sizes are u32, as in 2.2.

    Returns:
        The layout; None if the levels of a chunk (of any two values, if we cut) do not fit.
    """
    if isinstance(values, EncodedMiniBlock):
        return _encode_chunks(levels, values, items, has_large_chunk=has_large_chunk)
    most = MAX_CHUNK_VALUES
    while most > 1:
        encoded = encode_mini_block(values, max_chunk_values=most, max_chunk_bytes=MAX_VALUE_BYTES)
        layout = _encode_chunks(levels, encoded, items, has_large_chunk=has_large_chunk)
        if layout is not None:
            return layout
        if int(encoded.num_values.max()) > most:
            break  # values of less than a byte do not part further
        most = int(encoded.num_values.max()) // 2
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
    chunks = _zip_chunks(
        num_levels if streams else np.zeros_like(num_levels),
        streams,
        encoded.buffers,
        has_large_chunk=has_large_chunk,
    )
    if chunks is None:
        return None
    sizes, data = chunks
    table = _encode_table(sizes, encoded.num_values, has_large_chunk=has_large_chunk)
    buffers = [part(table), part(data)]
    if items is not None:
        stored = items if isinstance(items, EncodedBlock) else encode_block(items)
        message.dictionary.CopyFrom(stored.encoding)
        message.num_dictionary_items = stored.num_values
        buffers.append(part(stored.data))
    if levels.repetition is not None:
        message.repetition_index_depth = 1
        buffers.append(part(_encode_rows(levels, starts)))
    return EncodedLayout(pb.PageLayout(mini_block_layout=message), tuple(buffers))


def _level_starts(levels: Levels, num_values: Places) -> Places:
    """Return the first entry of each chunk: the one after the last value of the chunk before."""
    starts = starts_of(num_values)
    visible = levels.visible()
    if visible is not None:
        starts[1:] = np.flatnonzero(visible)[starts[1:] - 1] + 1
    return starts


def _encode_table(sizes: Places, num_values: Places, *, has_large_chunk: bool) -> npt.NDArray[Any]:
    logs = np.zeros(len(sizes), np.int64)
    # A power of two below 2**16 is one more than the mask of the bits under it.
    logs[:-1] = np.bitwise_count(num_values[:-1] - 1)
    words = (sizes // _ALIGNMENT - 1) << 4 | logs
    return words.astype("<u4" if has_large_chunk else "<u2")


def _encode_rows(levels: Levels, starts: Places) -> npt.NDArray[Any]:
    """Return, for each chunk, the rows that end in it and the entries after the last of them."""
    row_starts = levels.row_starts()
    row_stops = np.append(row_starts[1:], levels.num_levels)
    stops = np.append(starts[1:], levels.num_levels)
    rows_before = np.searchsorted(row_stops, np.append(0, stops), side="right")
    last_stop = np.append(0, row_stops)[rows_before[1:]]
    left = stops - np.maximum(last_stop, starts)
    return np.stack([np.diff(rows_before), left], axis=1).astype("<u8")


def _zip_chunks(
    num_levels: Places,
    streams: Sequence[ChunkedBuffer],
    values: Sequence[ChunkedBuffer],
    *,
    has_large_chunk: bool,
) -> tuple[Places, Bytes] | None:
    """Put chunks together.

    Args:
        num_levels: (num_chunks,) entries of each chunk.
        streams: The level streams.
        values: The value buffers.
        has_large_chunk: As in `encode_mini_block_page`.

    Returns:
        The bytes of each chunk, and all of them; None if a chunk is larger than it can be.
    """
    head_bytes = _padded(2 + 2 * len(streams) + (4 if has_large_chunk else 2) * len(values))
    buffers = [*streams, *values]
    sizes = head_bytes + sum(_padded(each.sizes) for each in buffers)
    if max(num_levels.max(), *(each.sizes.max() for each in streams), 0) > MAX_LEVEL_BYTES:
        return None
    if not has_large_chunk and sizes.max() > MAX_SMALL_CHUNK_BYTES:
        return None
    starts = starts_of(sizes)
    chunks = np.zeros(int(sizes.sum()), np.uint8)
    halves = chunks.view("<u2")
    place = starts // 2
    halves[place] = num_levels
    for each in streams:
        place = place + 1
        halves[place] = each.sizes
    for each in values:
        place = place + 1
        halves[place] = each.sizes & 0xFFFF
        if has_large_chunk:
            place = place + 1
            halves[place] = each.sizes >> 16
    at = starts + head_bytes
    for each in buffers:
        _copy_slices(chunks, at, each)
        at = at + _padded(each.sizes)
    return sizes, chunks


def _copy_slices(target: Bytes, starts: Places, source: ChunkedBuffer) -> None:
    """Copy slices of bytes to where they belong: evenly spaced ones all at once."""
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
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _holders(rows: Places, places: Places) -> Places:
    """Return the chunk in which each row starts, given the rows that start before each chunk."""
    return np.searchsorted(rows, places, side="right") - 1
