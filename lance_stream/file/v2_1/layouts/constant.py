"""Constant layout: all non-null values are equal, or all values are null.

The buffers of the page, determined by the message and their number:

    inline value    buffers
    yes             none                          every row has the value
    yes             repetition, definition        every visible entry that is not null has it
    no              value                         the value is too long for the message (> 32 B)
    no              value, repetition, definition
    no              none                          every row is null (one item layer, no lists)
    no              repetition, definition        nothing but nulls and empty lists

    repetition, definition   u16 each, or encoded as the message says (2.2); empty if not needed
    value                    u32 n | n * u32 sizes | n buffers: those of an Arrow array of one
                             value; for a string its two offsets and its bytes

An inline value is the value buffer of an Arrow array of one value.

Source:  encodings21.ConstantLayout in the proto.
Differs: 2.1 has the layout only for pages without a value, and with raw levels. The proto does not
         distinguish a missing value from one in a buffer: the number of buffers does.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.blocks.arrow_blocks import nulls, repeated, scalar_from_bytes
from lance_stream.file.blocks.data_blocks import DataBlock, FixedWidthBlock, VariableWidthBlock
from lance_stream.file.metadata.columns import Page
from lance_stream.file.v2_1.codecs import decode_block
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout, part
from lance_stream.file.v2_1.layouts.leaf_rows import (
    LeafColumn,
    LeafRows,
    RowSelection,
    as_bytes,
    pick_levels,
    pick_rows,
)
from lance_stream.file.v2_1.layouts.level_chunks import encode_level_block
from lance_stream.file.v2_1.layouts.levels import (
    ALL_VALID_ITEM,
    NULLABLE_ITEM,
    LevelArray,
    Levels,
    check_layers,
    checked_levels,
    layers_of,
)

_ITEMS = {ALL_VALID_ITEM, NULLABLE_ITEM}

MAX_INLINE_BYTES = 32
"""The reference stores longer values in a separate buffer."""


class ConstantPage:
    """A page in the constant layout.

    Args:
        message: Its layout message.
        page: Its buffers.
        leaf: The page's column.

    Raises:
        CorruptDataError: The number of buffers is not one of the above.
    """

    def __init__(self, message: pb.ConstantLayout, page: Page, leaf: LeafColumn) -> None:
        self._message = message
        self._page = page
        self._leaf = leaf
        self._layers = layers_of(tuple(message.layers))
        check_layers(self._layers, leaf.is_list)
        count = len(page.buffers)
        self._is_inline = message.HasField("inline_value")
        if count not in ((0, 2) if self._is_inline else (0, 1, 2, 3)):
            raise CorruptDataError(f"a constant page has {count} buffers")
        self._has_value_buffer = count % 2 == 1
        self._has_levels = count >= 2
        if not (self._is_inline or count) and self._layers.kinds != (NULLABLE_ITEM,):
            raise CorruptDataError("a constant page has neither a value nor levels")
        self._levels: Levels | None = None
        self._scalar: pa.Array | None = None

    def read(self, rows: RowSelection) -> ByteRequests[LeafRows]:
        """Read some rows; the page's buffers are requested once."""
        if not self._has_levels:
            return (yield from self._read_flat(rows))
        if self._levels is None:
            buffers = yield list(self._page.buffers)
            self._scalar = self._load_scalar(buffers)
            self._levels = self._load_levels(buffers[-2], buffers[-1])
        entries, _ = pick_rows(self._levels, rows)
        levels = pick_levels(self._levels, entries)
        return LeafRows(levels, self._values(levels.num_visible()))

    def _read_flat(self, rows: RowSelection) -> ByteRequests[LeafRows]:
        if self._scalar is None and (self._is_inline or self._has_value_buffer):
            self._scalar = self._load_scalar((yield list(self._page.buffers)))
        definition = None if self._scalar is not None else np.ones(len(rows), np.uint16)
        levels = checked_levels(Levels(self._layers, None, definition, len(rows)))
        return LeafRows(levels, self._values(len(rows)))

    def _values(self, count: int) -> pa.Array:
        if self._scalar is None:
            return nulls(count, self._leaf.arrow_type)
        return repeated(self._scalar, count)

    def _load_scalar(self, buffers: list[memoryview]) -> pa.Array | None:
        if self._is_inline:
            return scalar_from_bytes(self._message.inline_value, self._leaf.arrow_type)
        if self._has_value_buffer:
            return _decode_value_buffer(buffers[0], self._leaf.arrow_type)
        return None

    def _load_levels(self, repetition: memoryview, definition: memoryview) -> Levels:
        message = self._message
        streams = [
            _decode_stream(buffer, encoding if message.HasField(name) else None, count)
            for buffer, name, encoding, count in (
                (repetition, "rep_compression", message.rep_compression, message.num_rep_values),
                (definition, "def_compression", message.def_compression, message.num_def_values),
            )
        ]
        lengths = [len(stream) for stream in streams if stream is not None]
        num_levels = lengths[0] if lengths else self._page.length
        levels = checked_levels(Levels(self._layers, streams[0], streams[1], num_levels))
        if self._scalar is None and streams[1] is None:
            raise CorruptDataError(
                "a constant page has neither a value nor definition levels that mark nulls"
            )
        if levels.num_rows() != self._page.length:
            raise CorruptDataError(
                f"the levels are those of {levels.num_rows()} rows, but the page has "
                f"{self._page.length}"
            )
        return levels


def _decode_stream(
    buffer: memoryview, encoding: pb.CompressiveEncoding | None, count: int
) -> LevelArray | None:
    if len(buffer) == 0:
        return None
    if encoding is None:
        if len(buffer) % 2 or count not in (0, len(buffer) // 2):
            raise CorruptDataError(f"{len(buffer)} bytes cannot be {count} levels")
        return as_bytes(buffer).view(np.uint16)
    block = decode_block(encoding, as_bytes(buffer), count)
    if not isinstance(block, FixedWidthBlock) or block.bits_per_value != 16:
        raise CorruptDataError("the levels of a page are not words of 16 bits")
    return block.data.view(np.uint16)


def _decode_value_buffer(buffer: memoryview, arrow_type: pa.DataType) -> pa.Array:
    """Return the one value in a buffer, as an array."""
    data = as_bytes(buffer)
    words = data[: len(data) // 4 * 4].view(np.uint32)
    count = int(words[0]) if len(words) else 0
    if not 1 <= count <= 2 or len(words) < count + 1:
        raise CorruptDataError(f"the value of a constant page claims to have {count} buffers")
    sizes = [int(word) for word in words[1 : count + 1]]
    body = data[4 * (count + 1) :]
    if sum(sizes) != len(body):
        raise CorruptDataError(
            f"the value of a constant page has {len(body)} bytes instead of {sum(sizes)}"
        )
    if count == 2:
        width = (
            8 if pa.types.is_large_string(arrow_type) or pa.types.is_large_binary(arrow_type) else 4
        )
        offsets = body[: sizes[0]]
        if sizes[0] != 2 * width:
            raise CorruptDataError(f"the value of a constant page has offsets of {sizes[0]} bytes")
        first, last = offsets.view(f"<i{width}").tolist()
        if not 0 <= first <= last <= sizes[1]:
            raise CorruptDataError(f"the value of a constant page ends at byte {last}")
        body = body[sizes[0] + first : sizes[0] + last]
    return scalar_from_bytes(body.tobytes(), arrow_type)


def encode_null_page(levels: Levels, *, packs_levels: bool) -> EncodedLayout:
    """Encode a page without values: only nulls and empty lists.

    Args:
        levels: The page's levels.
        packs_levels: Whether they may be encoded, as in 2.2.
    """
    levels = _null_per_layer(levels)
    kinds = levels.layers.kinds
    message = pb.ConstantLayout(layers=kinds)  # type: ignore[arg-type]  # an int is one
    buffers: tuple[tuple[memoryview, ...], ...] = ()
    if kinds != (NULLABLE_ITEM,):
        stored: list[npt.NDArray[Any]] = []
        for name, stream in (("rep", levels.repetition), ("def", levels.definition)):
            if stream is None:
                stored.append(np.zeros(0, np.uint8))
            elif packs_levels and len(stream):
                encoded = encode_level_block(stream)
                getattr(message, f"{name}_compression").CopyFrom(encoded.encoding)
                setattr(message, f"num_{name}_values", encoded.num_values)
                stored.append(encoded.data)
            else:
                stored.append(stream)
        buffers = tuple(part(buffer) for buffer in stored)
    return EncodedLayout(pb.PageLayout(constant_layout=message), buffers)


def _null_per_layer(levels: Levels) -> Levels:
    """Return the levels of rows that are null as a whole in the form of the reference.

    If no row has a value, it expects nulls in each layer, even in those of parts that must not be
    null.
    """
    kinds, definition = levels.layers.kinds, levels.definition
    if definition is None or levels.repetition is not None or not set(kinds) <= _ITEMS:
        return levels
    if kinds[-1] != NULLABLE_ITEM or bool((definition != kinds.count(NULLABLE_ITEM)).any()):
        return levels
    deepest = np.full(len(definition), len(kinds), np.uint16)
    return replace(levels, layers=layers_of((NULLABLE_ITEM,) * len(kinds)), definition=deepest)


def encode_value_page(levels: Levels, value: DataBlock) -> EncodedLayout:
    """Encode a page without nulls and lists whose rows are all equal (2.2).

    Args:
        levels: Levels without streams.
        value: A block with the one value, of fixed or variable width.
    """
    message = pb.ConstantLayout(layers=levels.layers.kinds)  # type: ignore[arg-type]  # an int is one
    buffers: tuple[tuple[memoryview, ...], ...] = ()
    if isinstance(value, FixedWidthBlock) and len(value.data) <= MAX_INLINE_BYTES:
        message.inline_value = value.data.tobytes()
    else:
        parts = [value.data] if isinstance(value, FixedWidthBlock) else _parts_of(value)
        head = np.array([len(parts), *(len(block) for block in parts)], np.uint32)
        buffers = (part(np.concatenate([head.view(np.uint8), *parts])),)
    return EncodedLayout(pb.PageLayout(constant_layout=message), buffers)


def _parts_of(value: DataBlock) -> list[Bytes]:
    if not isinstance(value, VariableWidthBlock):
        raise InvalidInputError(f"a {type(value).__name__} cannot be a constant")
    return [np.ascontiguousarray(value.offsets).view(np.uint8), value.data]
