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

Definition levels, not this codec, store which lists are null as a whole.

Source:  encodings21.FixedSizeList in the proto.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, consecutive
from lance_stream.file.blocks.data_blocks import (
    ConstantBlock,
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
)
from lance_stream.file.v2_1.codecs import flat
from lance_stream.file.v2_1.codecs.codec import (
    BlockCodec,
    EncodedBlock,
    EncodedMiniBlock,
    EncodedValues,
    MiniBlockCodec,
    Parse,
    PerValueCodec,
    ValueBlock,
    fixed_width,
    only,
)
from lance_stream.file.v2_1.codecs.constant import Constant
from lance_stream.file.v2_1.codecs.flat import Flat

MAX_BITS_PER_ROW = 1 << 34


class ListLayer(NamedTuple):
    """One layer of lists.

    Args:
        items_per_value: The lists' length.
        has_validity: Whether items can be null.
    """

    items_per_value: int
    has_validity: bool


@dataclass(frozen=True, slots=True)
class FixedSizeList(MiniBlockCodec, BlockCodec, PerValueCodec):
    """Lists of one length, or lists of such lists.

    Args:
        layers: The layers, outermost first.
        bits_per_item: Bits of the innermost items; 0 if they are all null and not stored.
    """

    name = "fixed_size_list"

    layers: tuple[ListLayer, ...]
    bits_per_item: int

    @classmethod
    def of(cls, block: FixedSizeListBlock) -> Self:
        """Return the codec of lists as we write them.

        Raises:
            UnsupportedFeatureError: Their items have no fixed width.
        """
        layers = []
        inner: DataBlock = block
        while isinstance(inner, FixedSizeListBlock):
            layers.append(ListLayer(inner.items_per_value, inner.validity is not None))
            inner = inner.items
        if not isinstance(inner, FixedWidthBlock):
            raise UnsupportedFeatureError(
                "fixed-size lists of items without a fixed width are not supported"
            )
        return cls(tuple(layers), inner.bits_per_value)

    @classmethod
    def from_proto(cls, message: pb.FixedSizeList, parse: Parse) -> Self:
        layer = ListLayer(message.items_per_value, message.has_validity)
        inner = parse(message.values)
        if isinstance(inner, FixedSizeList):
            return cls((layer, *inner.layers), inner.bits_per_item)
        if inner == Constant(None):
            return cls((layer,), bits_per_item=0)
        items = only(inner, Flat, cls.name)
        items.check()
        return cls((layer,), items.bits_per_value)

    def to_proto(self) -> pb.CompressiveEncoding:
        items = Flat(self.bits_per_item) if self.bits_per_item else Constant(None)
        encoding = items.to_proto()
        for layer in reversed(self.layers):
            lists = pb.FixedSizeList(
                items_per_value=layer.items_per_value,
                values=encoding,
                has_validity=layer.has_validity,
            )
            encoding = pb.CompressiveEncoding(fixed_size_list=lists)
        return encoding

    @property
    def bits_per_row(self) -> int:
        """Bits of a row that is kept together, including validity."""
        items = 1
        validity_bytes = 0
        for layer in self.layers:
            items *= layer.items_per_value
            validity_bytes += (items + 7) // 8 * layer.has_validity
        return validity_bytes * 8 + items * self.bits_per_item

    @property
    def num_buffers(self) -> int:
        return 1 + sum(layer.has_validity for layer in self.layers)

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> FixedSizeListBlock:
        self._check()
        remaining = list(buffers)
        counts = num_values
        validities: list[Bytes | None] = []
        for layer in self.layers:
            counts = counts * layer.items_per_value
            validities.append(
                Flat(1).decode_mini_block([remaining.pop(0)], counts).data
                if layer.has_validity
                else None
            )
        if not self.bits_per_item:
            raise CorruptDataError(
                "fixed-size lists whose items are all null cannot be in mini-blocks"
            )
        items = Flat(self.bits_per_item).decode_mini_block([remaining.pop(0)], counts)
        return _nested(items, self.layers, validities, int(num_values.sum()))

    def decode_block(self, buffer: Bytes, num_values: int) -> FixedSizeListBlock:
        self._check()
        rows = Flat(self.bits_per_row).decode_block(buffer, num_values)
        num_items = num_values
        if not any(layer.has_validity for layer in self.layers):
            for layer in self.layers:
                num_items *= layer.items_per_value
            whole = FixedWidthBlock(self.bits_per_item, num_items, rows.data)
            return _nested(whole, self.layers, [None] * len(self.layers), num_values)
        if self.bits_per_row % 8:
            raise UnsupportedFeatureError(
                f"rows of {self.bits_per_row} bits with a validity bitmap are not whole bytes"
            )
        row_bytes = rows.data.reshape(num_values, self.bits_per_row // 8)
        validities: list[Bytes | None] = []
        items_per_row = 1
        used = 0
        for layer in self.layers:
            items_per_row *= layer.items_per_value
            validities.append(None)
            if layer.has_validity:
                size = (items_per_row + 7) // 8
                bits = np.unpackbits(row_bytes[:, used : used + size], axis=1, bitorder="little")
                validities[-1] = np.packbits(bits[:, :items_per_row].reshape(-1), bitorder="little")
                used += size
        num_items = num_values * items_per_row
        items: DataBlock = ConstantBlock(None, num_items)
        if self.bits_per_item:
            data = np.ascontiguousarray(row_bytes[:, used:]).reshape(-1)
            items = FixedWidthBlock(self.bits_per_item, num_items, data)
        return _nested(items, self.layers, validities, num_values)

    def decode_per_value(self, block: ValueBlock) -> FixedSizeListBlock:
        rows = fixed_width(block, self.name)
        if rows.bits_per_value != self.bits_per_row:
            raise CorruptDataError(
                f"the lists have {self.bits_per_row} bits, but the values of the page "
                f"{rows.bits_per_value}"
            )
        return self.decode_block(rows.data, rows.num_values)

    def _check(self) -> None:
        """Check the stored description of lists."""
        if any(layer.items_per_value < 1 for layer in self.layers):
            raise CorruptDataError("a fixed-size list has no items")
        if not 0 < self.bits_per_row <= MAX_BITS_PER_ROW:
            raise CorruptDataError(f"fixed-size lists cannot have {self.bits_per_row} bits")


def encode_mini_block(
    block: FixedSizeListBlock, *, max_chunk_values: int, max_chunk_bytes: int
) -> EncodedMiniBlock:
    """Cut lists into chunks of one size, except the last; no list is cut.

    Raises:
        InvalidInputError: Two lists are larger than a chunk.
    """
    codec = FixedSizeList.of(block)
    items, validities = _flattened(block)
    num_values = flat.chunk_counts(
        block.num_values,
        bits_per_value=codec.bits_per_row,
        max_chunk_values=max_chunk_values,
        max_chunk_bytes=max_chunk_bytes,
    )
    buffers = []
    counts = num_values
    for layer, validity in zip(codec.layers, validities, strict=True):
        counts = counts * layer.items_per_value
        if validity is not None:
            buffers.append(_bitmap_chunks(validity, counts))
    buffers.append(consecutive(items.data, (counts * items.bits_per_value + 7) // 8))
    return EncodedMiniBlock(codec, tuple(buffers), num_values)


def encode_block(block: FixedSizeListBlock) -> EncodedBlock:
    """Keep each row together, in one buffer."""
    rows = _rows(block)
    return EncodedBlock(FixedSizeList.of(block), rows.data, block.num_values)


def encode_per_value(block: FixedSizeListBlock) -> EncodedValues:
    """Keep each row together, for a full-zip page; no copy if no item can be null."""
    return EncodedValues(FixedSizeList.of(block), _rows(block))


def _rows(block: FixedSizeListBlock) -> FixedWidthBlock:
    """Return lists as fixed-width values; no copy if no item can be null."""
    codec = FixedSizeList.of(block)
    items, validities = _flattened(block)
    if all(validity is None for validity in validities):
        return FixedWidthBlock(codec.bits_per_row, block.num_values, items.data)
    if codec.bits_per_row % 8:
        raise UnsupportedFeatureError(
            f"rows of {codec.bits_per_row} bits with a validity bitmap are not whole bytes"
        )
    parts = []
    items_per_row = 1
    for layer, validity in zip(codec.layers, validities, strict=True):
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
    row_bytes = items_per_row * items.bits_per_value // 8
    parts.append(items.data.reshape(block.num_values, row_bytes))
    rows = np.concatenate(parts, axis=1).reshape(-1)
    return FixedWidthBlock(codec.bits_per_row, block.num_values, rows)


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
        raise CorruptDataError("the encoding of fixed-size lists has no list layer")
    return items


def _flattened(block: FixedSizeListBlock) -> tuple[FixedWidthBlock, list[Bytes | None]]:
    validities = []
    inner: DataBlock = block
    while isinstance(inner, FixedSizeListBlock):
        validities.append(inner.validity)
        inner = inner.items
    if not isinstance(inner, FixedWidthBlock):
        raise UnsupportedFeatureError(
            "fixed-size lists of items without a fixed width are not supported"
        )
    return inner, validities


def _bitmap_chunks(bitmap: Bytes, counts: Counts) -> ChunkedBuffer:
    """Cut a bitmap into chunks that each start at a byte; all counts are equal except the last."""
    sizes = (counts + 7) // 8
    count = int(counts[0]) if len(counts) else 8
    if count % 8 == 0 or len(counts) == 1:
        return consecutive(bitmap, sizes)
    bits = np.unpackbits(bitmap, count=int(counts.sum()), bitorder="little")
    filled = np.zeros(len(counts) * count, dtype=np.uint8)
    filled[: len(bits)] = bits
    rows = np.packbits(filled.reshape(len(counts), count), axis=1, bitorder="little")
    return consecutive(rows.reshape(-1), sizes)
