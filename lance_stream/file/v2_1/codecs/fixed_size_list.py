"""Fixed-size-list codec: lists of one length, of fixed-width items or of such lists again.

A mini-block chunk has a buffer for each layer of lists that can have null items, outermost first,
and one for the values:

    validity   (num_values * items of the layer,) bits, least significant bit first; set: not null
    ...
    items      (num_values * items of all layers,) of bits_per_item, without gaps

A block and a full-zip value keep a row together:

    validity   ceil(items of the layer in one row / 8) bytes
    ...
    items      items of all layers in one row, of bits_per_item

"Items of the layer" are those of one row: the product of the lengths down to the layer. If every
item is null, the innermost encoding is a constant without a value, and no items are stored.

Whole null lists are not told here but by definition levels.

Source:  encodings21.FixedSizeList in the proto.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.chunked_buffers import ChunkedBuffer, Counts, consecutive
from lance_stream.file.data_blocks import (
    Bytes,
    ConstantBlock,
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
)
from lance_stream.file.v2_1.codecs import flat

MAX_BITS_PER_ROW = 1 << 34


class ListLayer(NamedTuple):
    """One layer of lists.

    Args:
        items_per_value: The lists' length.
        has_validity: Whether items can be null.
    """

    items_per_value: int
    has_validity: bool


class ListLayout(NamedTuple):
    """How lists are stored.

    Args:
        layers: Outermost first.
        bits_per_item: Of the innermost items; 0: they are all null and not stored.
    """

    layers: tuple[ListLayer, ...]
    bits_per_item: int

    @property
    def bits_per_row(self) -> int:
        """Bits of a row that is kept together, validity included."""
        items = 1
        validity_bytes = 0
        for layer in self.layers:
            items *= layer.items_per_value
            validity_bytes += (items + 7) // 8 * layer.has_validity
        return validity_bytes * 8 + items * self.bits_per_item


def check_layout(layout: ListLayout) -> None:
    """Check the stored description of lists.

    Raises:
        CorruptDataError: A list has no items, or more than can be.
    """
    if any(layer.items_per_value < 1 for layer in layout.layers):
        raise CorruptDataError("a fixed-size list of no items is stored")
    if not 0 < layout.bits_per_row <= MAX_BITS_PER_ROW:
        raise CorruptDataError(f"fixed-size lists of {layout.bits_per_row} bits cannot be")


def decode_chunks(
    buffers: Sequence[ChunkedBuffer], num_values: Counts, layout: ListLayout
) -> FixedSizeListBlock:
    """Decode the chosen chunks of a page.

    Raises:
        CorruptDataError: A chunk has not the bytes that its lists need.
    """
    check_layout(layout)
    remaining = list(buffers)
    counts = num_values
    validities: list[Bytes | None] = []
    for layer in layout.layers:
        counts = counts * layer.items_per_value
        validities.append(
            flat.decode_chunks(remaining.pop(0), counts, 1).data if layer.has_validity else None
        )
    if not layout.bits_per_item:
        raise CorruptDataError("lists of nothing but null items are not stored in mini-blocks")
    items = flat.decode_chunks(remaining.pop(0), counts, layout.bits_per_item)
    return _nested(items, layout.layers, validities, int(num_values.sum()))


def decode(buffer: Bytes, num_values: int, layout: ListLayout) -> FixedSizeListBlock:
    """Decode rows that are kept together, of a block or a full-zip page.

    Raises:
        CorruptDataError: There are not the bytes that the rows need.
    """
    check_layout(layout)
    rows = flat.decode(buffer, num_values, layout.bits_per_row)
    num_items = num_values
    if not any(layer.has_validity for layer in layout.layers):
        for layer in layout.layers:
            num_items *= layer.items_per_value
        whole = FixedWidthBlock(layout.bits_per_item, num_items, rows.data)
        return _nested(whole, layout.layers, [None] * len(layout.layers), num_values)
    if layout.bits_per_row % 8:
        raise UnsupportedFeatureError(
            f"rows of {layout.bits_per_row} bits with a validity bitmap are not whole bytes"
        )
    row_bytes = rows.data.reshape(num_values, layout.bits_per_row // 8)
    validities: list[Bytes | None] = []
    items_per_row = 1
    used = 0
    for layer in layout.layers:
        items_per_row *= layer.items_per_value
        validities.append(None)
        if layer.has_validity:
            size = (items_per_row + 7) // 8
            bits = np.unpackbits(row_bytes[:, used : used + size], axis=1, bitorder="little")
            validities[-1] = np.packbits(bits[:, :items_per_row].reshape(-1), bitorder="little")
            used += size
    num_items = num_values * items_per_row
    items: DataBlock = ConstantBlock(None, num_items)
    if layout.bits_per_item:
        data = np.ascontiguousarray(row_bytes[:, used:]).reshape(-1)
        items = FixedWidthBlock(layout.bits_per_item, num_items, data)
    return _nested(items, layout.layers, validities, num_values)


def encode_chunks(
    block: FixedSizeListBlock, *, max_chunk_values: int, max_chunk_bytes: int
) -> tuple[tuple[ChunkedBuffer, ...], Counts]:
    """Cut lists into chunks, all of one size but for the last; no list is cut.

    Returns:
        The buffers of the chunks, and how many lists each has.

    Raises:
        InvalidInputError: Two lists are larger than a chunk.
    """
    layout = layout_of(block)
    items, validities = _flattened(block)
    num_values = flat.chunk_counts(
        block.num_values,
        bits_per_value=layout.bits_per_row,
        max_chunk_values=max_chunk_values,
        max_chunk_bytes=max_chunk_bytes,
    )
    buffers = []
    counts = num_values
    for layer, validity in zip(layout.layers, validities, strict=True):
        counts = counts * layer.items_per_value
        if validity is not None:
            buffers.append(_bitmap_chunks(validity, counts))
    buffers.append(consecutive(items.data, (counts * items.bits_per_value + 7) // 8))
    return tuple(buffers), num_values


def encode(block: FixedSizeListBlock) -> FixedWidthBlock:
    """Keep each row together, for a full-zip page; no copy if no item can be null."""
    layout = layout_of(block)
    items, validities = _flattened(block)
    if all(validity is None for validity in validities):
        return FixedWidthBlock(layout.bits_per_row, block.num_values, items.data)
    if layout.bits_per_row % 8:
        raise UnsupportedFeatureError(
            f"rows of {layout.bits_per_row} bits with a validity bitmap are not whole bytes"
        )
    parts = []
    items_per_row = 1
    for layer, validity in zip(layout.layers, validities, strict=True):
        items_per_row *= layer.items_per_value
        if validity is not None:
            bits = np.unpackbits(
                validity, count=block.num_values * items_per_row, bitorder="little"
            )
            parts.append(
                np.packbits(
                    bits.reshape(block.num_values, items_per_row), axis=1, bitorder="little"
                )
            )
    parts.append(items.data.reshape(block.num_values, -1))
    rows = np.concatenate(parts, axis=1).reshape(-1)
    return FixedWidthBlock(layout.bits_per_row, block.num_values, rows)


def layout_of(block: FixedSizeListBlock) -> ListLayout:
    """Return how lists are to be stored.

    Raises:
        UnsupportedFeatureError: Their items are not of a fixed width.
    """
    layers = []
    inner: DataBlock = block
    while isinstance(inner, FixedSizeListBlock):
        layers.append(ListLayer(inner.items_per_value, inner.validity is not None))
        inner = inner.items
    if not isinstance(inner, FixedWidthBlock):
        raise UnsupportedFeatureError("fixed-size lists of items without a fixed width")
    return ListLayout(tuple(layers), inner.bits_per_value)


def _nested(
    items: DataBlock,
    layers: Sequence[ListLayer],
    validities: Sequence[Bytes | None],
    num_values: int,
) -> FixedSizeListBlock:
    counts = [num_values]
    for layer in layers[:-1]:
        counts.append(counts[-1] * layer.items_per_value)
    for layer, validity, count in reversed(list(zip(layers, validities, counts, strict=True))):
        items = FixedSizeListBlock(layer.items_per_value, items, validity, count)
    if not isinstance(items, FixedSizeListBlock):
        raise CorruptDataError("fixed-size lists without a layer of lists")
    return items


def _flattened(block: FixedSizeListBlock) -> tuple[FixedWidthBlock, list[Bytes | None]]:
    validities = []
    inner: DataBlock = block
    while isinstance(inner, FixedSizeListBlock):
        validities.append(inner.validity)
        inner = inner.items
    if not isinstance(inner, FixedWidthBlock):
        raise UnsupportedFeatureError("fixed-size lists of items without a fixed width")
    return inner, validities


def _bitmap_chunks(bitmap: Bytes, counts: Counts) -> ChunkedBuffer:
    """Cut a bitmap into chunks that each start at a byte; all counts are the same but the last."""
    sizes = (counts + 7) // 8
    count = int(counts[0]) if len(counts) else 8
    if count % 8 == 0 or len(counts) == 1:
        return consecutive(bitmap, sizes)
    bits = np.unpackbits(bitmap, count=int(counts.sum()), bitorder="little")
    filled = np.zeros(len(counts) * count, dtype=np.uint8)
    filled[: len(bits)] = bits
    rows = np.packbits(filled.reshape(len(counts), count), axis=1, bitorder="little")
    return consecutive(rows.reshape(-1), sizes)
