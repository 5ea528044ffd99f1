"""Full-zip layout: each value stands beside its own levels, and is found without the others.

The buffers of the page:

    0    items        one after the other
    1    row index    (num_rows + 1,) u8, u16, u32 or u64: where each row starts in buffer 0, and
                      the end; only if values have no fixed width, or rows are lists

An item:

    control word   u8, u16 or u32: repetition << bits_def | definition; none if both have 0 bits;
                   u8 up to 8 bits of both, u16 up to 16
    length         u32 or u64, only of values without a fixed width
    value          as the value encoding says

An entry without a slot among the values (a list that holds nothing) is its control word alone. A
null value of fixed width has its bytes, with anything in them; a null value without a fixed width
is its control word alone.

Reading a range of rows of fixed width is one slice; rows of other kinds are looked up in the row
index first, unless the whole page is wanted.

Source:  encodings21.FullZipLayout in the proto.
Differs: The reference writes the layout for values of 256 bytes or more. We write all values of
         fixed width without nulls so: without levels the buffer is the plain values.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.byte_ranges import Asking
from lance_stream.errors import CorruptDataError
from lance_stream.file.arrow_blocks import array_from_block, nulls
from lance_stream.file.columns import Page
from lance_stream.file.data_blocks import (
    Bytes,
    DataBlock,
    FixedWidthBlock,
    VariableWidthBlock,
)
from lance_stream.file.scattered_bytes import gather, read_slices
from lance_stream.file.v2_1.codecs import EncodedValues, decode_per_value, encode_per_value
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout, part
from lance_stream.file.v2_1.layouts.leaf_rows import (
    LeafColumn,
    LeafRows,
    RowsAsked,
    as_bytes,
)
from lance_stream.file.v2_1.layouts.levels import (
    LevelArray,
    Levels,
    Places,
    check_layers,
    checked_levels,
    layers_of,
)

MAX_INDEX_BYTES = 1 << 20
"""A row index up to this size is read as a whole and kept; of a larger one, what is needed."""

_MANY_ROWS = 64
_MAX_LEVEL_BITS = 16


class FullZipPage:
    """A page in the full-zip layout.

    Args:
        message: Its layout.
        page: Its buffers.
        leaf: The column it belongs to.

    Raises:
        CorruptDataError: The message contradicts itself, the buffers or the column's type.
    """

    def __init__(self, message: pb.FullZipLayout, page: Page, leaf: LeafColumn) -> None:
        self._message = message
        self._page = page
        self._leaf = leaf
        self._layers = layers_of(tuple(message.layers))
        check_layers(self._layers, leaf.is_list)
        self._bits_rep, self._bits_def = message.bits_rep, message.bits_def
        if max(self._bits_rep, self._bits_def) > _MAX_LEVEL_BITS:
            raise CorruptDataError("levels of a full-zip page have more than 16 bits")
        if (self._bits_rep > 0) != (self._layers.max_repetition > 0):
            raise CorruptDataError("repetition levels are stored without lists, or lists without")
        self._word_bytes = _word_bytes(self._bits_rep + self._bits_def)
        details = message.WhichOneof("details")
        self._is_fixed = details == "bits_per_value"
        bits = message.bits_per_value if self._is_fixed else message.bits_per_offset
        if details is None or (bits % 8 if self._is_fixed else bits not in (32, 64)):
            raise CorruptDataError(f"values (or lengths) of {bits} bits cannot be zipped")
        self._width = bits // 8
        self._has_index = not self._is_fixed or self._bits_rep > 0
        if len(page.buffers) < 1 + self._has_index:
            raise CorruptDataError(f"a full-zip page has {len(page.buffers)} buffers")
        if not self._bits_rep and message.num_items != page.length:
            raise CorruptDataError(
                f"a page of {page.length} rows is said to hold {message.num_items} values"
            )
        if self._has_index:
            self._index_width = self._width_of_index()
        elif page.buffers[0].size_bytes != page.length * (self._word_bytes + self._width):
            raise CorruptDataError(
                f"{page.length} values of {self._word_bytes + self._width} bytes cannot be "
                f"{page.buffers[0].size_bytes} bytes"
            )
        self._index: Places | None = None

    def read(self, rows: RowsAsked) -> Asking[LeafRows]:
        """Read some rows: one round, or two if the row index has to be read before."""
        if not self._has_index:
            return (yield from self._read_even(rows))
        buffers = self._page.buffers
        if isinstance(rows, range) and len(rows) == self._page.length:
            if self._index is None:
                whole, index = yield [buffers[0], buffers[1]]
                self._index = self._parse_index(index)
            else:
                (whole,) = yield [buffers[0]]
            return self._decode(as_bytes(whole), self._index[:-1], self._index[1:])
        starts, stops = yield from self._find(rows)
        data = yield from read_slices(buffers[0].start + starts, buffers[0].start + stops)
        ends = np.cumsum(stops - starts)
        return self._decode(data, ends - (stops - starts), ends)

    def _read_even(self, rows: RowsAsked) -> Asking[LeafRows]:
        """Read rows that all have the same number of bytes."""
        base, stride = self._page.buffers[0].start, self._word_bytes + self._width
        firsts, stops = _runs(rows)
        data = yield from read_slices(base + firsts * stride, base + stops * stride)
        count, definition = len(rows), None
        if self._word_bytes:
            items = data.reshape(count, stride)
            words = np.ascontiguousarray(items[:, : self._word_bytes])
            definition = _levels(words.view(f"<u{self._word_bytes}").reshape(-1))
            data = np.ascontiguousarray(items[:, self._word_bytes :]).reshape(-1)
        levels = checked_levels(Levels(self._layers, None, definition, count))
        return LeafRows(levels, self._values_of_width(data, count))

    def _find(self, rows: RowsAsked) -> Asking[tuple[Places, Places]]:
        """Return where rows start and stop in the page's items."""
        index = self._page.buffers[1]
        if self._index is None and index.size_bytes <= MAX_INDEX_BYTES:
            (buffer,) = yield [index]
            self._index = self._parse_index(buffer)
        if self._index is not None:
            if isinstance(rows, range):
                found = self._index[rows.start : rows.stop + 1]
                return found[:-1], found[1:]
            return self._index[rows], self._index[rows + 1]
        width = self._index_width
        firsts, lasts = _runs(rows)
        # of a run of n rows n + 1 words are needed, which are those of no other run
        data = yield from read_slices(
            index.start + firsts * width, index.start + (lasts + 1) * width
        )
        words = self._index_words(data.data)
        ends = np.cumsum(lasts - firsts + 1)
        starts = np.delete(words, ends - 1)
        stops = np.delete(words, np.append(0, ends[:-1]))
        return self._checked_index(starts, stops)

    def _width_of_index(self) -> int:
        width, surplus = divmod(self._page.buffers[1].size_bytes, self._page.length + 1)
        if surplus or width not in (1, 2, 4, 8):
            raise CorruptDataError(
                f"an index of {self._page.buffers[1].size_bytes} bytes cannot be that of "
                f"{self._page.length} rows"
            )
        return width

    def _parse_index(self, buffer: memoryview) -> Places:
        words = self._index_words(buffer)
        self._checked_index(words[:-1], words[1:])
        if int(words[0]) != 0 or int(words[-1]) != self._page.buffers[0].size_bytes:
            raise CorruptDataError(
                f"the row index runs from {words[0]} to {words[-1]}, but the page's items are "
                f"{self._page.buffers[0].size_bytes} bytes"
            )
        return words

    def _index_words(self, buffer: memoryview) -> Places:
        return as_bytes(buffer).view(f"<u{self._index_width}").astype(np.int64)

    def _checked_index(self, starts: Places, stops: Places) -> tuple[Places, Places]:
        end = self._page.buffers[0].size_bytes
        if (starts < 0).any() or (stops < starts).any() or (stops > end).any():
            raise CorruptDataError(f"the row index does not ascend from 0 to {end}")
        if (starts[1:] < stops[:-1]).any():
            raise CorruptDataError("the row index does not ascend")
        return starts, stops

    def _decode(self, data: Bytes, starts: Places, stops: Places) -> LeafRows:
        """Decode rows.

        Args:
            data: Their items.
            starts: (num_rows,) where each row's items start.
            stops: (num_rows,) and end.
        """
        places = self._walk(data, starts, stops) if self._bits_rep else starts
        words = _words_at(data, places, self._word_bytes)
        definition: LevelArray | None = None
        repetition: LevelArray | None = None
        if self._bits_def:
            definition = _levels(words & ((1 << self._bits_def) - 1))
        if self._bits_rep:
            repetition = _levels(words >> self._bits_def)
        levels = checked_levels(Levels(self._layers, repetition, definition, len(places)))
        if repetition is not None and not np.array_equal(places[levels.row_starts()], starts):
            raise CorruptDataError("rows of a full-zip page do not start where its index says")
        visible = levels.visible()
        seen = places if visible is None else places[visible]
        if self._is_fixed:
            return LeafRows(levels, self._fixed_values(data, seen))
        ends = stops if not self._bits_rep else np.append(places[1:], len(data))
        if visible is not None:
            ends = ends[visible]
        valid = None
        if definition is not None:
            valid = (definition if visible is None else definition[visible]) == 0
        return LeafRows(levels, self._variable_values(data, seen, ends, valid))

    def _walk(self, data: Bytes, starts: Places, stops: Places) -> Places:
        """Return where each item starts, given where rows start and stop.

        Where an item stops, only the item says. So the first items of all rows are looked at
        together, then the second ones of those that have one, and so on; the few rows that are
        much longer than the others are followed one item after the other.
        """
        found = []
        at, ends = starts, stops
        if (at >= ends).any():
            raise CorruptDataError("a row of a full-zip page has no bytes")
        while len(at) > _MANY_ROWS:
            found.append(at)
            at = at + self._item_bytes(data, at)
            if (at > ends).any():
                raise CorruptDataError("an item of a full-zip page is longer than its row")
            more = at < ends
            at, ends = at[more], ends[more]
        for first, stop in zip(at.tolist(), ends.tolist(), strict=True):
            found.append(self._follow(data, first, stop))
        return np.sort(np.concatenate(found))

    def _follow(self, data: Bytes, start: int, stop: int) -> Places:
        """Return where the items of one row start."""
        view = data.data
        word, width = self._word_bytes, self._width
        mask = (1 << self._bits_def) - 1
        limit = self._layers.max_visible if self._bits_def else 0
        fixed = self._is_fixed
        places = []
        while start < stop:
            places.append(start)
            definition = int.from_bytes(view[start : start + word], "little") & mask
            start += word
            if fixed:
                start += width if definition <= limit else 0
            elif definition == 0:
                start += width + int.from_bytes(view[start : start + width], "little")
        if start != stop:
            raise CorruptDataError("an item of a full-zip page is longer than its row")
        return np.array(places, np.int64)

    def _item_bytes(self, data: Bytes, places: Places) -> Places:
        words = _words_at(data, places, self._word_bytes).astype(np.int64)
        definition = words & ((1 << self._bits_def) - 1)
        sizes = np.full(len(places), self._word_bytes, np.int64)
        if self._is_fixed:
            sizes[definition <= self._layers.max_visible] += self._width
            return sizes
        has_value = definition == 0
        sizes[has_value] += self._width + self._lengths_at(
            data, places[has_value] + self._word_bytes
        )
        return sizes

    def _lengths_at(self, data: Bytes, places: Places) -> Places:
        lengths = _words_at(data, places, self._width)
        if len(lengths) and int(lengths.max()) > len(data):
            raise CorruptDataError(
                f"a value of {lengths.max()} bytes is said to stand among {len(data)}"
            )
        return lengths.astype(np.int64)

    def _fixed_values(self, data: Bytes, places: Places) -> pa.Array:
        starts = places + self._word_bytes
        if len(starts) and int(starts[-1]) + self._width > len(data):
            raise CorruptDataError("the last value of a full-zip page is cut short")
        values = gather(data, starts, starts + self._width)[1]
        return self._values_of_width(values, len(places))

    def _values_of_width(self, data: Bytes, count: int) -> pa.Array:
        block = FixedWidthBlock(8 * self._width, count, data)
        return array_from_block(
            decode_per_value(self._message.value_compression, block), self._leaf.arrow_type
        )

    def _variable_values(
        self, data: Bytes, places: Places, ends: Places, valid: npt.NDArray[np.bool_] | None
    ) -> pa.Array:
        if len(places) == 0:
            return nulls(0, self._leaf.arrow_type)
        filled = slice(None) if valid is None else valid
        heads = places[filled] + self._word_bytes
        lengths = self._lengths_at(data, heads)
        starts = heads + self._width
        stops = starts + lengths
        if (stops != ends[filled]).any():
            raise CorruptDataError("a value of a full-zip page is not as long as its item")
        offsets, values = gather(data, starts, stops)
        if valid is not None:
            sizes = np.zeros(len(places) + 1, np.int64)
            sizes[1:][valid] = lengths
            np.cumsum(sizes, out=sizes)
            offsets = sizes.astype(offsets.dtype, copy=False)
        block = VariableWidthBlock(len(places), offsets, values)
        return array_from_block(
            decode_per_value(self._message.value_compression, block), self._leaf.arrow_type
        )


def encode_full_zip_page(levels: Levels, block: DataBlock | EncodedValues) -> EncodedLayout:
    """Encode a page in the full-zip layout; plain values without levels are not copied.

    Args:
        levels: The page's levels.
        block: A value for each visible entry; at least one. Booleans must have been widened. What
            a codec has encoded is kept so; others are stored as they are.
    """
    encoded = block if isinstance(block, EncodedValues) else encode_per_value(block)
    values = encoded.values
    layers = levels.layers
    bits_rep = layers.max_repetition.bit_length() if levels.repetition is not None else 0
    bits_def = layers.max_definition.bit_length() if levels.definition is not None else 0
    message = pb.FullZipLayout(
        bits_rep=bits_rep,
        bits_def=bits_def,
        num_items=levels.num_levels,
        num_visible_items=values.num_values,
        value_compression=encoded.encoding,
        layers=layers.kinds,  # type: ignore[arg-type]  # an int is one
    )
    words = _control_words(levels, bits_rep, bits_def)
    if isinstance(values, FixedWidthBlock):
        message.bits_per_value = values.bits_per_value
        items, starts = _zip_fixed(levels, words, values)
    else:
        message.bits_per_offset = values.offsets.itemsize * 8
        items, starts = _zip_variable(levels, words, values)
    buffers = [part(items)]
    if bits_rep or isinstance(values, VariableWidthBlock):
        row_starts = starts if levels.repetition is None else starts[levels.row_starts()]
        buffers.append(part(_encode_index(np.append(row_starts, len(items)))))
    return EncodedLayout(pb.PageLayout(full_zip_layout=message), tuple(buffers))


def _control_words(levels: Levels, bits_rep: int, bits_def: int) -> Bytes:
    """Return (num_levels, bytes of a control word) bytes."""
    width = _word_bytes(bits_rep + bits_def)
    words = np.zeros(levels.num_levels, f"<u{max(width, 1)}")
    if levels.definition is not None:
        words |= levels.definition.astype(words.dtype)
    if levels.repetition is not None:
        words |= levels.repetition.astype(words.dtype) << words.dtype.type(bits_def)
    return words.view(np.uint8).reshape(levels.num_levels, -1)[:, :width]


def _zip_fixed(levels: Levels, words: Bytes, values: FixedWidthBlock) -> tuple[Bytes, Places]:
    """Return the items, and where each starts."""
    width = values.bits_per_value // 8
    stride = words.shape[1] + width
    visible = levels.visible()
    if words.shape[1] == 0:
        return values.data, np.zeros(0, np.int64)
    if visible is None:
        zipped = np.concatenate([words, values.data.reshape(-1, width)], axis=1)
        return zipped.reshape(-1), np.arange(levels.num_levels, dtype=np.int64) * stride
    sizes = np.where(visible, stride, words.shape[1])
    stops = np.cumsum(sizes)
    is_value = _flags(np.full(levels.num_levels, words.shape[1]), np.where(visible, width, 0))
    items = np.empty(int(stops[-1]), np.uint8)
    items[~is_value] = words.reshape(-1)
    items[is_value] = values.data
    return items, stops - sizes


def _zip_variable(levels: Levels, words: Bytes, values: VariableWidthBlock) -> tuple[Bytes, Places]:
    """Return the items, and where each starts."""
    has_value = np.ones(levels.num_levels, np.bool_)
    if levels.definition is not None:
        has_value = levels.definition == 0
    lengths, data = _lengths_and_bytes(levels, values)
    count, width = len(lengths), values.offsets.itemsize
    heads = np.empty(count * width + words.size, np.uint8)
    in_length = _flags(np.full(len(words), words.shape[1]), np.where(has_value, width, 0))
    heads[~in_length] = words.reshape(-1)
    heads[in_length] = lengths.astype(f"<u{width}").view(np.uint8)
    head_offsets = np.zeros(levels.num_levels + 1, np.int64)
    np.cumsum(words.shape[1] + np.where(has_value, width, 0), out=head_offsets[1:])
    offsets = np.zeros(levels.num_levels + 1, np.int64)
    offsets[1:][has_value] = lengths
    np.cumsum(offsets, out=offsets)
    items = pc.binary_join_element_wise(
        _binary(head_offsets, heads), _binary(offsets, data), pa.scalar(b"", pa.large_binary())
    )
    starts = np.frombuffer(items.buffers()[1], np.int64)
    stop = int(starts[levels.num_levels])
    return np.frombuffer(items.buffers()[2], np.uint8)[:stop], starts[: levels.num_levels]


def _lengths_and_bytes(levels: Levels, values: VariableWidthBlock) -> tuple[Places, Bytes]:
    """Return the lengths of what is not null, and its bytes."""
    lengths = np.diff(values.offsets).astype(np.int64)
    data = values.data[: int(values.offsets[-1])]
    visible = levels.visible()
    if levels.definition is None:
        return lengths, data
    definition = levels.definition if visible is None else levels.definition[visible]
    valid = definition == 0
    if lengths[~valid].any():
        starts = values.offsets[:-1][valid].astype(np.int64)
        data = gather(data, starts, starts + lengths[valid])[1]
    return lengths[valid], data


def _encode_index(starts: Places) -> npt.NDArray[np.unsignedinteger]:
    """Return where rows start in the narrowest words that can say it."""
    most = int(starts[-1])
    width = next(width for width in (1, 2, 4, 8) if most < 1 << 8 * width)
    return starts.astype(f"<u{width}")


def _binary(offsets: Places, data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
    )


def _flags(others: Places, ours: Places) -> npt.NDArray[np.bool_]:
    """Return, for each pair of counts, so many False and then so many True."""
    counts = np.stack([others, ours], axis=1).reshape(-1)
    return np.repeat(np.tile(np.array([False, True]), len(others)), counts)


def _runs(rows: RowsAsked) -> tuple[Places, Places]:
    """Return the first row of each run of rows without a gap, and one past its last."""
    if isinstance(rows, range):
        return np.array([rows.start]), np.array([rows.stop])
    heads = np.flatnonzero(np.diff(rows, prepend=-2) > 1)
    return rows[heads], rows[np.append(heads[1:], len(rows)) - 1] + 1


def _word_bytes(bits: int) -> int:
    """Return the bytes of a control word that holds so many bits."""
    if bits == 0:
        return 0
    return 1 if bits <= 8 else 2 if bits <= 16 else 4


def _levels(words: npt.NDArray[np.integer]) -> LevelArray:
    return words.astype(np.uint16)


def _words_at(data: Bytes, places: Places, width: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the words of some bytes that stand at some places.

    Raises:
        CorruptDataError: One stands (in part) behind the end.
    """
    if len(places) and int(places.max()) + width > len(data):
        raise CorruptDataError("an item of a full-zip page is cut short")
    if width == 1:
        return data[places]
    words = np.zeros(len(places), f"<u{max(width, 1)}")
    for byte in range(width):
        words |= data[places + byte].astype(words.dtype) << words.dtype.type(8 * byte)
    return words
