"""Full-zip layout: values interleaved with their levels, each readable without the others.

The buffers of the page:

    0    items        one after the other
    1    row index    (num_rows + 1,) u8, u16, u32 or u64: the start of each row in buffer 0, and
                      the end; only if values have no fixed width, or rows are lists

`zipped_items` describes an item.

Reading a range of rows of fixed width is one slice; other rows are looked up in the row index
first, unless the whole page is read.

Source:  encodings21.FullZipLayout in the proto.
Differs: The reference uses the layout for values of 256 bytes or more. We use it for all
         fixed-width values without nulls: without levels the buffer is the plain values.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Positions
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.arrow_blocks import array_from_block, nulls
from lance_stream.file.blocks.data_blocks import DataBlock, FixedWidthBlock, VariableWidthBlock
from lance_stream.file.blocks.scattered_bytes import gather, read_slices
from lance_stream.file.metadata.columns import Page
from lance_stream.file.v2_1.codecs import EncodedValues, decode_per_value, encode_per_value
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout, part
from lance_stream.file.v2_1.layouts.full_zip.row_index import RowIndex, encode_row_starts
from lance_stream.file.v2_1.layouts.full_zip.zipped_items import (
    ItemShape,
    control_words,
    word_bytes_of,
    words_at,
    zip_fixed,
    zip_variable,
)
from lance_stream.file.v2_1.layouts.leaf_rows import (
    LeafColumn,
    LeafRows,
    RowSelection,
    as_bytes,
    runs_of,
)
from lance_stream.file.v2_1.layouts.levels import (
    LevelArray,
    Levels,
    check_layers,
    checked_levels,
    layers_of,
)

_MAX_LEVEL_BITS = 16


class FullZipPage:
    """A page in the full-zip layout.

    Args:
        message: Its layout message.
        page: Its buffers.
        leaf: The page's column.

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
        self._shape = self._shape_of_items()
        self._item_bytes = self._shape.word_bytes + self._shape.width
        has_index = not self._shape.is_fixed or self._bits_rep > 0
        if len(page.buffers) < 1 + has_index:
            raise CorruptDataError(f"a full-zip page has {len(page.buffers)} buffers")
        if not self._bits_rep and message.num_items != page.length:
            raise CorruptDataError(
                f"a page of {page.length} rows claims to have {message.num_items} values"
            )
        items_bytes = page.buffers[0].size_bytes
        self._index: RowIndex | None = None
        if has_index:
            self._index = RowIndex(page.buffers[1], page.length, items_bytes)
        elif items_bytes != page.length * self._item_bytes:
            raise CorruptDataError(
                f"{page.length} values of {self._item_bytes} bytes cannot be {items_bytes} bytes"
            )

    def _shape_of_items(self) -> ItemShape:
        message = self._message
        details = message.WhichOneof("details")
        is_fixed = details == "bits_per_value"
        bits = message.bits_per_value if is_fixed else message.bits_per_offset
        if details is None or (bits % 8 if is_fixed else bits not in (32, 64)):
            raise CorruptDataError(f"values (or lengths) of {bits} bits cannot be zipped")
        return ItemShape(
            bits_def=self._bits_def,
            word_bytes=word_bytes_of(self._bits_rep + self._bits_def),
            width=bits // 8,
            is_fixed=is_fixed,
            max_visible=self._layers.max_visible,
        )

    def read(self, rows: RowSelection) -> ByteRequests[LeafRows]:
        """Read some rows: one round, or two if the row index must be read first."""
        index = self._index
        if index is None:
            return (yield from self._read_even(rows))
        items = self._page.buffers[0]
        if isinstance(rows, range) and len(rows) == self._page.length:
            if index.starts is None:
                whole, stored = yield [items, self._page.buffers[1]]
                row_index = index.load(stored)
            else:
                (whole,) = yield [items]
                row_index = index.starts
            return self._decode(as_bytes(whole), row_index[:-1], row_index[1:])
        starts, stops = yield from index.find(rows)
        data = yield from read_slices(items.start + starts, items.start + stops)
        ends = np.cumsum(stops - starts)
        return self._decode(data, ends - (stops - starts), ends)

    def _read_even(self, rows: RowSelection) -> ByteRequests[LeafRows]:
        """Read rows that all have the same number of bytes."""
        base, stride = self._page.buffers[0].start, self._item_bytes
        firsts, stops = runs_of(rows)
        data = yield from read_slices(base + firsts * stride, base + stops * stride)
        count, definition = len(rows), None
        if self._shape.word_bytes:
            items = data.reshape(count, stride)
            words = np.ascontiguousarray(items[:, : self._shape.word_bytes])
            definition = _levels(words.view(f"<u{self._shape.word_bytes}").reshape(-1))
            data = np.ascontiguousarray(items[:, self._shape.word_bytes :]).reshape(-1)
        levels = checked_levels(Levels(self._layers, None, definition, count))
        return LeafRows(levels, self._values_of_width(data, count))

    def _decode(self, data: Bytes, starts: Positions, stops: Positions) -> LeafRows:
        """Decode rows.

        Args:
            data: Their items.
            starts: (num_rows,) where each row's items start.
            stops: (num_rows,) where each row's items end.
        """
        positions = self._shape.item_starts(data, starts, stops) if self._bits_rep else starts
        words = words_at(data, positions, self._shape.word_bytes)
        definition: LevelArray | None = None
        repetition: LevelArray | None = None
        if self._bits_def:
            definition = _levels(words & ((1 << self._bits_def) - 1))
        if self._bits_rep:
            repetition = _levels(words >> self._bits_def)
        levels = checked_levels(Levels(self._layers, repetition, definition, len(positions)))
        if repetition is not None and not np.array_equal(positions[levels.row_starts()], starts):
            raise CorruptDataError(
                "rows of a full-zip page do not start at the offsets of its index"
            )
        visible = levels.visible()
        seen = positions if visible is None else positions[visible]
        if self._shape.is_fixed:
            return LeafRows(levels, self._fixed_values(data, seen))
        ends = stops if not self._bits_rep else np.append(positions[1:], len(data))
        if visible is not None:
            ends = ends[visible]
        valid = None
        if definition is not None:
            valid = (definition if visible is None else definition[visible]) == 0
        return LeafRows(levels, self._variable_values(data, seen, ends, valid))

    def _fixed_values(self, data: Bytes, positions: Positions) -> pa.Array:
        starts = positions + self._shape.word_bytes
        if len(starts) and int(starts[-1]) + self._shape.width > len(data):
            raise CorruptDataError("the last value of a full-zip page is truncated")
        values = gather(data, starts, starts + self._shape.width)[1]
        return self._values_of_width(values, len(positions))

    def _values_of_width(self, data: Bytes, count: int) -> pa.Array:
        block = FixedWidthBlock(8 * self._shape.width, count, data)
        return array_from_block(
            decode_per_value(self._message.value_compression, block), self._leaf.arrow_type
        )

    def _variable_values(
        self,
        data: Bytes,
        positions: Positions,
        ends: Positions,
        valid: npt.NDArray[np.bool_] | None,
    ) -> pa.Array:
        if len(positions) == 0:
            return nulls(0, self._leaf.arrow_type)
        filled = slice(None) if valid is None else valid
        heads = positions[filled] + self._shape.word_bytes
        lengths = self._shape.lengths_at(data, heads)
        starts = heads + self._shape.width
        stops = starts + lengths
        if (stops != ends[filled]).any():
            raise CorruptDataError("a value of a full-zip page is not as long as its item")
        offsets, values = gather(data, starts, stops)
        if valid is not None:
            sizes = np.zeros(len(positions) + 1, np.int64)
            sizes[1:][valid] = lengths
            np.cumsum(sizes, out=sizes)
            offsets = sizes.astype(offsets.dtype, copy=False)
        block = VariableWidthBlock(len(positions), offsets, values)
        return array_from_block(
            decode_per_value(self._message.value_compression, block), self._leaf.arrow_type
        )


def encode_full_zip_page(levels: Levels, block: DataBlock | EncodedValues) -> EncodedLayout:
    """Encode a page in the full-zip layout; plain values without levels are not copied.

    Args:
        levels: The page's levels.
        block: A value for each visible entry; at least one. Booleans must have been widened. Values
            from a codec are kept encoded; others are stored plain.
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
    words = control_words(levels, bits_rep, bits_def)
    if isinstance(values, FixedWidthBlock):
        message.bits_per_value = values.bits_per_value
        items, starts = zip_fixed(levels, words, values)
    else:
        message.bits_per_offset = values.offsets.itemsize * 8
        items, starts = zip_variable(levels, words, values)
    buffers = [part(items)]
    if bits_rep or isinstance(values, VariableWidthBlock):
        row_starts = starts if levels.repetition is None else starts[levels.row_starts()]
        buffers.append(part(encode_row_starts(np.append(row_starts, len(items)))))
    return EncodedLayout(pb.PageLayout(full_zip_layout=message), tuple(buffers))


def _levels(words: npt.NDArray[np.integer]) -> LevelArray:
    return words.astype(np.uint16)
